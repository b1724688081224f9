"""rmqstore report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from rmq_store.cli.command import command
from rmq_store.cli.options import STORE, StoreArgs, flag, option
from rmq_store.cli.output import problem, say
from rmq_store.files.durable_files import write_whole
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.report.libraries import require_libraries
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress
from rmq_store.verify.findings import Severity


@command
def report(
    at: StoreArgs = STORE,
    output: Path = option(
        "-o",
        "--to",
        type=click.Path(path_type=Path),
        required=True,
        help="The HTML file to write. An earlier report is replaced.",
    ),
    overwrite: bool = flag("--overwrite", help="Replace a file that is not a report, too."),
    verify: bool = flag("--verify", help="Check the whole log, also where that takes long."),
    everything: bool = flag("--all", help="Read everything, however large the store is."),
) -> bool:
    """Write a report of the store into one HTML file: findings, tables and plots.

    What would take long in a large store is sampled or left out, and the report says
    so. Changes nothing in the store. Needs pip install 'rmqstore[report]'.
    """
    require_libraries()
    from rmq_store.report.page import check_target, html_of
    from rmq_store.report.store_report import store_report

    check_target(output, at.store, overwrite=overwrite, broker_conf=at.broker_conf)
    with ExitStack() as stack:

        def on_open(opened: MessageStore) -> OnProgress | None:
            length = opened.log.chain.stop - opened.log.chain.start
            return stack.enter_context(Progress("verify", length))

        found = store_report(
            at.store,
            broker_conf=at.broker_conf,
            broker_name=at.broker_name,
            verify=verify,
            everything=everything,
            on_open=on_open,
        )
    write_whole(output, html_of(found))
    counts = ", ".join(found.counted(one) for one in reversed(Severity))
    for word, line in found.verdict:
        say(f"{word:<8} {line}")
    unchecked = (
        "" if found.verdict else "; not verified: rmqstore report --verify, or rmqstore verify"
    )
    say(f"{output}: {counts}{unchecked}")
    if found.failed:
        problem(f"sections that could not be made: {', '.join(found.failed)}")
    return found.has_problem
