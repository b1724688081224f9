"""rmqstore report."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.option_names import OnceCommand
from rmq_store.cli.options import StoreArgs, store_command
from rmq_store.cli.printing import say
from rmq_store.files.durable_files import write_whole
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.report.libraries import require_libraries
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress
from rmq_store.verify.findings import Severity


@click.command(cls=OnceCommand)
@store_command
@click.option(
    "-o",
    "--to",
    "output",
    type=click.Path(path_type=Path),
    required=True,
    help="The HTML file to write. An earlier report is replaced.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is not a report, too.")
@click.option("--verify", is_flag=True, help="Check the whole log, also where that takes long.")
@click.option(
    "--all", "everything", is_flag=True, help="Read everything, however large the store is."
)
def report(at: StoreArgs, output: Path, overwrite: bool, verify: bool, everything: bool) -> None:
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
        say(f"rmqstore: sections that could not be made: {', '.join(found.failed)}", err=True)
    if found.has_problem:
        sys.exit(EXIT_FINDINGS)
