"""What a replay does for every target: plan, journal, numbers; and its report, as tables and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.format.compression import SysFlag
from rmq_store.format.queues import QueueSlice
from rmq_store.format.releases import Dialect
from rmq_store.questions.answer_by_shares import ask
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmqstore_jobs.replaying.plan import (
    ReplayJournal,
    ReplayRun,
    interrupted_run,
    messages_selected,
    narrowed_by_index,
    scan_of_run,
)
from rmqstore_jobs.replaying.replay_question import (
    ENDED,
    OTHER_KEY,
    OTHER_TIME,
    READ,
    Handle,
    Handled,
    Part,
    ReplayQuestion,
    why_filtered_out,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, takes_members
from rmqstore_jobs.running.results import (
    JobResult,
    Provenance,
    print_pairs,
    print_table,
    provenance_of,
)
from rmqstore_jobs.running.spark_engine import Session, engine_of

_REASONS_SHOWN = 5


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

    def _how_it_ended(self) -> str:
        took = f"in {self.seconds:.1f} s" + (f", run {self.run_id}" if self.run_id else "")
        again = " (continued an earlier run)" if self.resumed else ""
        if self.stopped_by is not None:
            return f"stopped {took}{again}: {self.stopped_by}"
        if self.would_write is not None:
            refused = "no message" if self.ok else "some messages"
            return f"dry run: nothing was written or sent; {refused} would be refused, {took}"
        return f"finished {'without problems' if self.ok else 'with problems,'} {took}{again}"

    def _show_tables(self) -> None:
        unit = "messages" if takes_members(self.source.options) else "records"
        counts = {
            "selected": self.selected,
            "read": self.read,
            "matched": self.matched,
            **{f"written to {target}": count for target, count in self.written.items()},
            **{f"would go to {t}": count for t, count in (self.would_write or {}).items()},
            **{f"skipped: {reason}": count for reason, count in self.skipped.items()},
        }
        print_pairs("replay: result", [("", unit), *counts.items()])
        for title, rows in (("target", self.target_queues), ("planned target", self.planned)):
            print_table(f"{title} queues", [as_json_object(row) for row in rows])


class ReplayCall:
    """One call of a replay: the spec, the scan, the journal and the numbers so far.

    A subclass writes to a kind of target, between `_begin` and `_end`. `refused_as`: what the report
    calls messages that the target refused. `broken`: the target may not be what the journal says, so it
    stays as it is. `counts_all`: the counts are those of the whole selection.
    """

    refused_as: str

    def __init__(self, spark: Session, spec: ReplaySpec, journal: ReplayJournal) -> None:
        self.spark, self.spec, self.journal = spark, spec, journal
        self.began = time.monotonic()
        self.stopped_by: str | None = None
        self.broken = False
        self.counts_all = True
        self.target_queues: tuple[TargetRange, ...] = ()
        unfinished = interrupted_run(journal, spec)
        self.resumed = unfinished is not None
        self.scan = scan_of_run(spec, unfinished)
        self.current = unfinished or self._new_run()
        self.counts = Counter(self.current.counts)
        self.read = narrowed_by_index(self.scan, spec)
        self.members = takes_members(spec.asked())

    def _new_run(self) -> ReplayRun:
        snapshot = self.scan.store.snapshot
        return ReplayRun(
            self.spec.asked(),
            self.scan.ranges,
            (snapshot.log_start, snapshot.log_end),
            marks=snapshot.marks,
        )

    def _handled(
        self,
        ranges: Sequence[QueueSlice],
        handle: Handle[Part],
        columns: tuple[str, ...],
        *,
        progress: Progress | None = None,
        **how: Any,
    ) -> Handled[Part]:
        """What `handle` makes of the rows of ranges; `how`: of ReplayQuestion. A wave has no progress, and as
        many shares at a time as there are cores."""
        keys = self.spec.keys if self.spec.by_index else None
        asked = replace(self.scan.options, keys=keys, unwrap_batches=self.members)
        read = replace(self.read, ranges=tuple(ranges), options=asked, is_wave=True)
        engine = engine_of(self.spark, 1) if progress is None else engine_of(self.spark)
        question = ReplayQuestion(self.spec, read, columns, handle, **how)
        return ask(question, self.scan.store, engine, progress=progress)

    def _begin(self) -> None:
        if not self.resumed:
            self.journal.save(self.current, *self.journal.done)

    def _end(self) -> None:
        if self.stopped_by is None:
            self.current = self.journal.finish(self.current, counts=dict(self.counts))
        elif not self.broken:
            self._record(signed=False)  # what was appended is whole, and closed

    def _record(self, **changes: Any) -> None:
        self.current = self.journal.record(self.current, counts=dict(self.counts), **changes)

    def _report(
        self, matched: int, written: Mapping[str, int], problems_so_far: Iterable[str]
    ) -> ReplayReport:
        """`matched`: rows; `written`: those of each target; `problems_so_far`: the problems of the target."""
        selected, read = messages_selected(self.scan, self.spec), self.counts[READ]
        names = (OTHER_TIME, OTHER_KEY, ENDED, self.refused_as)
        skipped = {name: self.counts[name] for name in names}
        problems = list(problems_so_far)
        finished, unread = self.stopped_by is None, why_filtered_out(self.spec)
        if finished and self.counts_all and unread is not None:
            skipped[unread] = max(0, selected - read)
        elif finished and self.counts_all and read != selected:
            problems.append(f"{selected:,} messages were selected, but {read:,} were read")
        asked, checksums = self.spec.asked(), self.spec.checksums
        source = provenance_of(self.spark, self.scan, self.scan.ranges, asked, checksums=checksums)
        return ReplayReport(
            job="replay",
            run_id=self.current.run_id,
            ok=finished and not problems and not self.counts[self.refused_as],
            resumed=self.resumed,
            selected=selected,
            read=read,
            matched=matched,
            written=written,
            skipped={reason: count for reason, count in skipped.items() if count},
            # If an earlier run started the replay, its snapshot is the right one.
            source=replace(source, log_range=self.current.log_range),
            seconds=round(time.monotonic() - self.began, 3),
            target_queues=self.target_queues,
            stopped_by=self.stopped_by,
            problems=tuple(problems),
        )


def most_common(reasons: Counter[Any]) -> Iterator[str]:
    """The reasons that most messages have, with the number of these."""
    return (f"{count:,}: {why}" for why, count in reasons.most_common(_REASONS_SHOWN))


_KEPT = ("topic", "queueId", "flag", "sysFlag", "bornTimestamp", "bornHost", "reconsumeTimes")


def batch_to_append(
    batch: pa.RecordBatch,
    release: Dialect,
    *,
    keep_timestamps: bool,
    members: bool,
    with_halves: bool = False,
) -> pa.RecordBatch:
    """Rows of the source as a batch for `append_batch` of a store of `release`, with stored bodies
    and the matching sysFlag. `members`: of an inner batch each message has a row, whose sysFlag is that of
    the record. `with_halves`: with the places of half messages, in the source."""
    columns = {"body": batch["rawBody"], **{name: batch[name] for name in _KEPT}}
    if members:
        flags = batch["sysFlag"].to_numpy()
        inner = flags & SysFlag.INNER_BATCH != 0
        columns["sysFlag"] = pa.array(np.where(inner, flags & ~SysFlag.OF_STORED_BODY, flags))
    if "properties" in batch.schema.names:
        columns["properties"] = batch["properties"]
    else:
        columns["rawProperties"] = _as_written_by(release, batch["rawProperties"])
    if with_halves:
        columns["preparedTransactionOffset"] = batch["preparedTransactionOffset"]
    if keep_timestamps:
        columns["storeTimestamp"] = batch["storeTimestamp"]
    return pa.RecordBatch.from_pydict(columns)


def _as_written_by(release: Dialect, stored: pa.Array) -> pa.Array:
    """Property strings, without their last separator if the release leaves it out."""
    if not release.has("no_last_separator"):
        return stored
    return pc.if_else(pc.ends_with(stored, b"\x02"), pc.binary_slice(stored, 0, -1), stored)
