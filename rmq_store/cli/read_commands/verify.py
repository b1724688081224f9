"""rmqstore verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmq_store.cli.command import command
from rmq_store.cli.engines import ENGINE_ARGS, EngineArgs, store_and_engine
from rmq_store.cli.options import STORE, StoreArgs, WholeNumber, flag, option
from rmq_store.cli.output import OUTPUT, Output, print_json, say
from rmq_store.escaping import printable
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

if TYPE_CHECKING:
    from rmq_store.verify.verify_store import VerifyReport

_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}


@command
def verify(
    at: StoreArgs = STORE,
    on: EngineArgs = ENGINE_ARGS,
    workers: int | None = option(
        "--workers",
        type=WholeNumber(min=1),
        metavar="N",
        help="Processes that work on files of the log, with --engine local (default: the cores of this "
        "host).",
    ),
    bodies: bool = flag("--bodies", help="Open all compressed bodies, not only their first bytes."),
    verbose: bool = flag("--verbose", "-v", help="Print every finding, and what to do about it."),
    out: Output = OUTPUT,
) -> bool:
    """Check that log, queues, index, checkpoint and configuration agree. Changes nothing.

    First says what is lost, whether a broker starts on the store, and what helps most; then one line
    for each kind of finding, the worst first. Exit code 0: no problem, at most notes. 1: warnings or
    errors. 2: the store cannot be checked.
    --json prints one line per finding, then a summary line.
    """
    report = print_findings(at, on, out, workers=workers, bodies=bodies, verbose=verbose)
    return not report.nothing_wrong


def print_findings(
    at: StoreArgs,
    on: EngineArgs,
    out: Output,
    *,
    workers: int | None = None,
    bodies: bool = False,
    verbose: bool = False,
) -> VerifyReport:
    """Check a store and print what was found. Raises StoreError if it cannot be checked."""
    from rmq_store.markers.lock_file import lock_state
    from rmq_store.questions.answer_by_shares import ask, processes_for
    from rmq_store.questions.verify import VerifyQuestion
    from rmq_store.text.json_keys import as_json_object
    from rmq_store.verify.verify_store import count_of_problems, severities

    opening = store_and_engine("verify", at, on)
    with opening as (store, source, engine), Progress("verify") as progress:
        engine = engine or processes_for(store, workers)
        report = ask(VerifyQuestion(bodies), source, engine, progress=progress)
        lock = lock_state(store.path)
    if out.as_json:
        for finding in report.findings:
            print_json(as_json_object(finding))
        fields = {name: value for name, value in report.to_dict().items() if name != "findings"}
        counts = severities(report.findings)
        health = {"index": report.index, "severities": counts, "lock_held": lock.held}
        verdict = as_json_object(report.verdict.to_dict())
        summary = {**fields, **health, "verdict": verdict, "lock_pid": lock.pid}
        print_json(as_json_object(summary))
    else:
        for word, text in report.verdict.lines():
            say(f"{word:<8} {text}")
        say(
            f"{count_of_problems(report)}: {counted(report.records, 'record')}, "
            f"{counted(report.queues, 'queue')}, {counted(len(report.index), 'index file')}"
        )
        every = ((finding, 1) for finding in report.findings)
        for finding, places in every if verbose else report.findings.kinds():
            severity = finding.severity.value
            where = "" if finding.start is None else f" {finding.start}..{finding.stop}"
            times = f" ({places} places)" if places > 1 else ""
            what = f"{finding.code}{times}: {finding.path}{where}: {finding.meaning}"
            click.echo(click.style(f"{severity:<8}", fg=_COLOURS[severity]) + printable(what))
            if verbose:
                say(f"        {finding.advice}")
        if lock.held is not False:
            say(f"lock {lock}")
    return report
