"""What a replay does for every target: plan, journal, numbers, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore
from rmq_store.files.parallel import one_ahead
from rmq_store.format.releases import Dialect
from rmq_store.questions.answer_by_shares import ask
from rmq_store.snapshot.ranges import LogSlice
from rmqstore_jobs.replaying.plan import cut_short, messages_selected, narrowed, planned
from rmqstore_jobs.replaying.replay_journal import ReplayJournal, ReplayRun
from rmqstore_jobs.replaying.replay_question import (
    ENDED,
    OTHER_KEY,
    OTHER_TIME,
    READ,
    Handled,
    ReplayRows,
    columns_for_store,
    left_unread,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.replaying.report import ReplayReport, TargetRange
from rmqstore_jobs.running.results import provenance_of
from rmqstore_jobs.running.spark_engine import cores_of, engine_of
from rmqstore_jobs.running.store_selection import pieces_in
from spark_source.planning.pinned_plan import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReplayCall:
    """One call of a replay: the spec, the plan, the journal and the numbers so far.

    A subclass writes to a kind of target, between `_begin` and `_end`. `refused_as`: what the report
    calls messages that the target refused. `broken`: the target may not be what the journal says, so it
    stays as it is.
    `counts_all`: the counts are those of the whole selection.
    """

    refused_as: str

    def __init__(
        self, spark: SparkSession | None, spec: ReplaySpec, journal: ReplayJournal
    ) -> None:
        self.spark, self.spec, self.journal = spark, spec, journal
        self.began = time.monotonic()
        self.stopped_by: str | None = None
        self.broken = False
        self.counts_all = True
        self.target_queues: tuple[TargetRange, ...] = ()
        unfinished = cut_short(journal, spec)
        self.resumed = unfinished is not None
        self.plan = planned(spec, unfinished)
        self.current = unfinished or self._new_run()
        self.counts = Counter(self.current.counts)
        self.read = narrowed(self.plan, spec)

    def _new_run(self) -> ReplayRun:
        snapshot = self.plan.store.snapshot
        return ReplayRun(
            self.spec.asked(),
            self.plan.ranges,
            (snapshot.log_start, snapshot.log_end),
            marks=snapshot.marks,
        )

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
        self, matched: int, written: Mapping[str, int], known: Iterable[str]
    ) -> ReplayReport:
        """`matched`: rows; `written`: those of each target; `known`: the problems of the target."""
        selected, read = messages_selected(self.plan, self.spec), self.counts[READ]
        skipped = {
            name: self.counts[name] for name in (OTHER_TIME, OTHER_KEY, ENDED, self.refused_as)
        }
        problems = list(known)
        finished, unread = self.stopped_by is None, left_unread(self.spec)
        if finished and self.counts_all and unread is not None:
            skipped[unread] = max(0, selected - read)
        elif finished and self.counts_all and read != selected:
            problems.append(f"{selected:,} messages were selected, but {read:,} were read")
        source = provenance_of(
            self.spark,
            self.plan,
            self.plan.ranges,
            self.spec.asked(),
            checksums=self.spec.checksums,
        )
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


IN_FLIGHT_BYTES = 64 << 20  # what fits into the default heap of 1 GiB
MIN_SHARE_BYTES = 4 << 20
MAX_SHARE_BYTES = 32 << 20
_AS_THEY_ARE = ("flag", "sysFlag", "bornTimestamp", "bornHost", "reconsumeTimes")


def read_waves(
    spark: SparkSession | None, spec: ReplaySpec, plan: ReadPlan, waves: Sequence[LogSlice]
) -> Iterator[tuple[LogSlice, Handled[list[pa.RecordBatch]]]]:
    """Each wave with the batches of its shares, in order, read into this process while the caller
    works on the one before. Raises the errors of the read."""
    # The driver's heap has the results of all cores at once, with several copies.
    bytes_a_core = IN_FLIGHT_BYTES // cores_of(spark)
    share_bytes = min(max(bytes_a_core, MIN_SHARE_BYTES), MAX_SHARE_BYTES)

    def read(wave: LogSlice) -> Handled[list[pa.RecordBatch]]:
        question = ReplayRows.of(
            spec,
            plan,
            pieces_in(plan, wave),
            _as_batches,
            columns=columns_for_store(spec),
            share_bytes=share_bytes,
            selected_bytes=wave.selected_bytes,
        )
        return ask(question, plan.store, engine_of(spark, tasks_a_core=1))

    return one_ahead((wave, read(wave)) for wave in waves)


def _as_batches(
    store: MessageStore, number: int, rows: Iterator[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    return list(rows)


def to_append(
    batch: pa.RecordBatch, release: Dialect, *, keep_timestamps: bool, with_halves: bool = False
) -> pa.RecordBatch:
    """Rows of the source as a batch for `append_batch` of a store of `release`, with stored bodies
    and the matching sysFlag. `with_halves`: with the places of half messages, in the source."""
    columns = {
        "topic": batch["topic"],
        "queueId": batch["queueId"],
        "body": batch["rawBody"],
        **{name: batch[name] for name in _AS_THEY_ARE},
    }
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
