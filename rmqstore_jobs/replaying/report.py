"""The report of a replay: numbers and provenance, as printed tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmq_store.escaping import printable, printable_json
from rmq_store.text.json_keys import as_json_object
from rmqstore_jobs.running.plain_tables import print_lines, print_plain
from rmqstore_jobs.running.provenance import READ, source_rows, source_table
from rmqstore_jobs.running.provenance import Provenance as Provenance
from rmqstore_jobs.running.result_tables import say_first


@dataclass(frozen=True, slots=True)
class TargetRange:
    """The queue offsets [start, stop) of the target that got the messages of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A dry run's row for a source queue and its target queue. The target queue is None if a client
    chooses it.

    Offsets [start, end) are from the first to the last message. `bytes` counts bodies as they are
    sent.
    """

    topic: str
    queue_id: int
    start_offset: int
    end_offset: int
    target_topic: str
    target_queue_id: int | None
    messages: int
    bytes: int
    refused: int


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Numbers of messages, and the provenance. `ok` decides the exit code."""

    job: str
    run_id: str
    ok: bool
    resumed: bool
    selected: int  # queue entries in the selected ranges
    read: int  # messages that the source delivered for them
    matched: int
    written: Mapping[str, int]  # target -> messages
    skipped: Mapping[str, int]  # reason -> messages
    source: Provenance
    seconds: float
    target_queues: tuple[TargetRange, ...] = ()
    stopped_by: str | None = None  # why it ended early; another run continues
    problems: tuple[str, ...] = field(default=())
    would_write: Mapping[str, int] | None = None  # target -> messages, for a dry run
    planned: tuple[PlannedQueue, ...] = ()  # for a dry run

    def to_json(self) -> str:
        """The report as one JSON object, keys in camelCase."""
        return printable_json(json.dumps(as_json_object(self), indent=1, ensure_ascii=False))

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def show(self, console: Console) -> None:
        """Print for a person."""
        show(self, console)


def show(report: ReplayReport, console: Console | None = None) -> None:
    """Print the report for a person."""
    console = console or Console()
    say_first(console, _verdict(report), report.problems)
    if not console.is_terminal:
        _show_plain(report, console)
        return
    console.print(_numbers(report))
    if report.target_queues:
        console.print(_targets(report.target_queues))
    if report.planned:
        console.print(_planned(report.planned))
    console.print(source_table(report.source))


def _show_plain(report: ReplayReport, console: Console) -> None:
    counts = [("", _unit(report)), *((what, count) for what, count, _ in _counts(report))]
    print_lines(console, f"{report.job}: result", counts)
    print_plain(console, "target queues", [as_json_object(part) for part in report.target_queues])
    print_plain(console, "planned target queues", [as_json_object(one) for one in report.planned])
    print_lines(console, READ, source_rows(report.source))


def _unit(report: ReplayReport) -> str:
    # A broker gets the messages of an inner batch one by one; a store and Parquet get its record.
    return "records" if report.source.options.get("to_broker") is None else "messages"


def _counts(report: ReplayReport) -> Iterator[tuple[str, int, str]]:
    """What is counted, the number, and a colour."""
    yield "selected", report.selected, ""
    yield "read", report.read, ""
    yield "matched", report.matched, ""
    for target, count in report.written.items():
        yield f"written to {target}", count, "green"
    for target, count in (report.would_write or {}).items():
        yield f"would go to {target}", count, "green"
    for reason, count in report.skipped.items():
        yield f"skipped: {reason}", count, "yellow"


def _numbers(report: ReplayReport) -> Table:
    table = Table(title=f"{report.job}: result", title_justify="left")
    table.add_column("")
    table.add_column(_unit(report), justify="right")
    for what, count, colour in _counts(report):
        table.add_row(Text(printable(what), style=colour), f"{count:,}")
    return table


def _targets(ranges: tuple[TargetRange, ...]) -> Table:
    table = Table(title="target queues", title_justify="left")
    for name in ("topic", "queue", "from offset", "to before"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for part in ranges:
        table.add_row(
            Text(printable(part.topic)), str(part.queue_id), f"{part.start:,}", f"{part.stop:,}"
        )
    return table


def _planned(queues: tuple[PlannedQueue, ...]) -> Table:
    table = Table(title="planned target queues", title_justify="left")
    for name in ("from", "offsets", "to", "messages", "bytes", "refused"):
        table.add_column(name, justify="left" if name in ("from", "to") else "right")
    for one in queues:
        to = (
            one.target_topic
            if one.target_queue_id is None
            else _queue_name(one.target_topic, one.target_queue_id)
        )
        table.add_row(
            Text(printable(_queue_name(one.topic, one.queue_id))),
            f"{one.start_offset:,} to {one.end_offset:,}",
            Text(printable(to)),
            *(f"{number:,}" for number in (one.messages, one.bytes, one.refused)),
        )
    return table


def _queue_name(topic: str, queue_id: int) -> str:
    return f"{topic}/{queue_id}"


def _verdict(report: ReplayReport) -> Text:
    run = f", run {report.run_id}" if report.run_id else ""
    took = f"in {report.seconds:.1f} s{run}"
    again = " (continued an earlier run)" if report.resumed else ""
    if report.stopped_by is not None:
        return Text(printable(f"stopped {took}{again}: {report.stopped_by}"), style="bold red")
    if report.would_write is not None:
        found = "no message would be refused" if report.ok else "some messages would be refused"
        style = "bold green" if report.ok else "bold yellow"
        return Text(
            printable(f"dry run: nothing was written or sent; {found}, {took}"), style=style
        )
    if report.ok:
        return Text(printable(f"finished without problems {took}{again}"), style="bold green")
    return Text(printable(f"finished with problems, {took}{again}"), style="bold yellow")
