"""rmqstore verify, diff, report: what is wrong with a store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import DAMAGE, SkippedDamage
from rmq_store.cli.options import EngineArgs, StoreArgs, flag, option
from rmq_store.cli.output import OUTPUT, Output, note, print_json, print_line, problem
from rmq_store.errors import printable, require_extra
from rmq_store.files.durable_files import replace_file
from rmq_store.markers import lock_state
from rmq_store.questions.answer_by_shares import OnProgress, ask, processes_for
from rmq_store.reading.store_reader import StoreReader
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.verify.findings import Severity
from rmq_store.verify.verify_store import (
    VerifyQuestion,
    VerifyReport,
    count_of_problems,
    severities,
)

_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}


@command
def verify(
    at: StoreArgs = options.STORE,
    on: EngineArgs = options.ENGINE_ARGS,
    workers: int | None = option(
        "--workers",
        type=options.WholeNumber(min=1),
        metavar="N",
        help="Processes, with --engine local (default: the cores of this host).",
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

    Examples:
        rmqstore verify /data/store
        # every finding, and what to do about it
        rmqstore verify /data/store --verbose
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
    opening = options.store_and_engine("verify", at, on)
    with opening as (store, source, engine), Progress("verify") as progress:
        engine = engine or processes_for(store, workers)
        report = ask(VerifyQuestion(bodies), source, engine, progress=progress)
        lock = lock_state(store.path)
    if out.as_json:
        for finding in report.findings:
            print_json(as_json_object(finding))
        summary = {name: value for name, value in report.to_dict().items() if name != "findings"}
        summary |= {"index": report.index, "severities": severities(report.findings)}
        verdict = as_json_object(report.verdict.to_dict())
        summary |= {"lock_held": lock.held, "verdict": verdict, "lock_pid": lock.pid}
        print_json(as_json_object(summary))
    else:
        for word, text in report.verdict.lines():
            print_line(f"{word:<8} {text}")
        print_line(
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
                print_line(f"        {finding.advice}")
        if lock.held is not False:
            print_line(f"lock {lock}")
    return report


_SHOWN = ("what", "name", "first", "count", "meaning")


@command
def diff(
    store: str = options.STORE_PATH,
    other: str = options.STORE_PATH,
    broker_conf: str | None = options.BROKER_CONF,
    other_conf: str | None = option(
        "--other-conf",
        type=click.Path(),
        metavar="FILE",
        help="The configuration file of OTHER's broker.",
    ),
    messages: bool = flag(
        "--messages", help="Compare messages by UNIQ_KEY and body, wherever they are."
    ),
    topics: tuple[str, ...] = options.TOPICS,
    damage: SkippedDamage = DAMAGE,
    on: EngineArgs = options.ENGINE_ARGS,
    out: Output = OUTPUT,
) -> bool:
    """Show what two stores of one broker group do not have in common, such as master and slave.

    The logs are compared byte by byte up to the first record that differs, then the queues entry by
    entry, consumer offsets and the configuration. With --messages only the messages of users' topics are,
    in whatever queue and order. Exit code 1 if they differ.

    Examples:
        rmqstore diff /data/master /data/slave
        # after a migration: are all messages in the new store?
        rmqstore diff /data/store /data/migrated --messages --topic orders
    """
    from rmq_store.tables.diff import DIFF, compared_bytes, rows_of_differences

    places = StoreArgs(store, broker_conf), StoreArgs(other, other_conf)
    if messages:
        return _print_messages(places, on, topics, damage, out)
    of_messages = {"--topic": topics, "--skip-damaged": damage.skips, "--engine": on.engine}
    for name, value in (of_messages | {"--master": on.master}).items():
        if value:
            raise click.UsageError(f"{name} is for --messages")
    with places[0].open() as first, places[1].open() as second:
        with Progress("diff", compared_bytes(first, second)) as progress:
            rows = list(rows_of_differences(first, second, progress))
        start, end = first.log_range()
        queues = counted(len(first.queues()), "queue")
        found = DIFF.of_rows(first.broker_name, rows)
    if rows:
        out.table([found], _SHOWN, kept=("what", "name", "first", "meaning"))
        note(f"{counted(len(rows), 'difference')}; first: {store}, second: {other}")
    else:
        tell = note if out.as_json else print_line
        tell(f"no difference: log {start} to {end}, {queues}, offsets and configuration")
    return bool(rows)


_MOST_LISTED = 20  # messages; --json lists all


def _print_messages(
    places: Sequence[StoreArgs],
    on: EngineArgs,
    topics: Sequence[str],
    damage: SkippedDamage,
    out: Output,
) -> bool:
    from rmq_store.questions.diff_messages import TopicDiff, diff_messages

    counts: list[TopicDiff] = []
    listed, count = list[dict[str, Any]](), 0
    with ExitStack() as stack:
        stack.enter_context(damage)
        first, second = (
            stack.enter_context(options.store_and_engine("diff", at, on)) for at in places
        )
        progress = stack.enter_context(Progress("diff", unit="messages"))
        for row in diff_messages(first, second, topics, progress, damage.handler):
            if out.as_json:
                print_json(asdict(row))
            if isinstance(row, TopicDiff):
                counts.append(row)
            else:
                count += 1
                listed += [asdict(row)] * (count <= _MOST_LISTED)
    if not out.as_json:
        out.rows(map(asdict, counts), texts=("topic",))
        texts = ("topic", "uniqKey", "where", "store")
        out.rows(listed, texts=texts, kept=texts[:3])
        if count > _MOST_LISTED:
            note(
                f"the first {_MOST_LISTED} of {counted(count, 'message')} are listed; --json lists all"
            )
    differs = sum(topic.differs for topic in counts)
    note(
        f"{counted(differs, 'topic')} of {len(counts)} with differences; first: {places[0].store}, "
        f"second: {places[1].store}"
    )
    return damage.conclude() or bool(differs)


@command
def report(
    at: StoreArgs = options.STORE,
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

    Examples:
        rmqstore report /data/store -o report.html
        # also check the whole log of a large store
        rmqstore report /data/store -o verified.html --verify
    """
    require_extra("report")
    from rmq_store.report.page import html_of, refuse_report_target
    from rmq_store.report.store_report import store_report

    refuse_report_target(output, at.store, overwrite=overwrite, broker_conf=at.broker_conf)
    with ExitStack() as stack:

        def on_open(opened: StoreReader) -> OnProgress | None:
            length = opened.log.chain.stop - opened.log.chain.start
            return stack.enter_context(Progress("verify", length))

        page = store_report(
            at.store,
            broker_conf=at.broker_conf,
            broker_name=at.broker_name,
            verify=verify,
            everything=everything,
            on_open=on_open,
        )
    replace_file(output, html_of(page))
    counts = ", ".join(page.counted(one) for one in reversed(Severity))
    for word, line in page.verdict:
        print_line(f"{word:<8} {line}")
    unchecked = "; not verified: rmqstore report --verify, or rmqstore verify"
    print_line(f"{output}: {counts}{'' if page.verdict else unchecked}")
    if page.failed:
        problem(f"sections that could not be made: {', '.join(page.failed)}")
    return page.has_problem
