"""The report of a replay: numbers and provenance, as printed tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rmq_store.text.json_keys import as_json_object
from rmqstore_jobs.running.results import JobResult, Provenance, print_pairs, print_table


@dataclass(frozen=True, slots=True)
class TargetRange:
    """The queue offsets [start_offset, stop_offset) of the target that got the messages of a queue."""

    topic: str
    queue_id: int
    start_offset: int
    stop_offset: int


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A dry run's row for a source queue and its target queue. The target queue is None if a client
    chooses it.

    The offsets, half-open, are from the first to the last message. `bytes` counts bodies as they are sent.
    """

    topic: str
    queue_id: int
    start_offset: int
    stop_offset: int
    target_topic: str
    target_queue_id: int | None
    messages: int
    bytes: int
    refused: int


@dataclass(frozen=True, slots=True)
class ReplayReport(JobResult):
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

    def _verdict(self) -> str:
        run = f", run {self.run_id}" if self.run_id else ""
        took = f"in {self.seconds:.1f} s{run}"
        again = " (continued an earlier run)" if self.resumed else ""
        if self.stopped_by is not None:
            return f"stopped {took}{again}: {self.stopped_by}"
        if self.would_write is not None:
            refused = "no message" if self.ok else "some messages"
            return f"dry run: nothing was written or sent; {refused} would be refused, {took}"
        return (
            f"finished without problems {took}{again}"
            if self.ok
            else f"finished with problems, {took}{again}"
        )

    def _show_tables(self) -> None:
        print_pairs("replay: result", [("", self._unit()), *self._counts()])
        for title, rows in (("target", self.target_queues), ("planned target", self.planned)):
            print_table(f"{title} queues", [as_json_object(row) for row in rows])

    def _unit(self) -> str:
        # A broker gets the messages of an inner batch one by one; a store and Parquet get its record.
        return "records" if self.source.options.get("to_broker") is None else "messages"

    def _counts(self) -> Iterator[tuple[str, int]]:
        yield from (("selected", self.selected), ("read", self.read), ("matched", self.matched))
        yield from ((f"written to {target}", count) for target, count in self.written.items())
        planned = self.would_write or {}
        yield from ((f"would go to {target}", count) for target, count in planned.items())
        yield from ((f"skipped: {reason}", count) for reason, count in self.skipped.items())
