"""Replay into another store, which this process writes, and into Parquet.

The selection is cut into waves: adjacent ranges of the log with a few hundred MiB. While one wave
is appended, the next is read. So memory use is constant, and the messages arrive in the order of
the source's log.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import StoreError
from rmq_store.files.journal import has_content
from rmq_store.format.queues import QueueId
from rmq_store.search.log_partitions import LogSlice
from rmq_store.text.progress import Progress
from rmq_store.writing.open_for_writing import with_log_of_its_own
from rmqstore_jobs.replay_targets.discard_unfinished import discard_unfinished
from rmqstore_jobs.replay_targets.replay_parquet import PARQUET, write_parquet
from rmqstore_jobs.replay_targets.target_store import (
    append_rows,
    open_target,
    queue_ends,
    settle_target,
)
from rmqstore_jobs.replay_targets.wave_reader import WaveReader, to_append
from rmqstore_jobs.replaying.plan import (
    cut_short,
    messages_selected,
    narrowed,
    planned,
    refuse_to_mix,
    waves_of,
)
from rmqstore_jobs.replaying.replay_ledger import Ledger, ReplayRun, new_run
from rmqstore_jobs.replaying.replay_question import REFUSED_BY_STORE, Handled, left_unread
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.replaying.replayed_rows import OTHER_KEY, OTHER_TIME, READ
from rmqstore_jobs.replaying.report import ReplayReport, TargetRange
from rmqstore_jobs.running.failures import failure
from rmqstore_jobs.running.provenance import Provenance, files_of_store, provenance_of, sums_of
from rmqstore_jobs.running.store_selection import lost_from
from spark_source.writing.target.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_store.writing.store_writer import StoreWriter

LOG = logging.getLogger("rmqstore")
PROBLEMS_SHOWN = 5
MATCHED = "matched"
WRITTEN = "written"

Batches = Handled[list[pa.RecordBatch]]


class LocalReplay:
    """One replay call: the spec, the plan, the ledger and the numbers so far."""

    def __init__(
        self,
        spark: SparkSession | None,
        spec: ReplaySpec,
        ledger: Ledger,
    ) -> None:
        self.spark = spark
        self.spec = spec
        self.began = time.monotonic()
        self.ledger = ledger
        self.stopped_by: str | None = None
        self.broken = False
        self.problems: list[str] = []
        self.problems_of_waves = 0  # those of whole waves
        self.target_queues: tuple[TargetRange, ...] = ()
        if spec.restart:
            discard_unfinished(spec.to_store, spec.to_parquet, self.ledger)
        unfinished = cut_short(ledger, spec)
        self.resumed = unfinished is not None
        self.plan = planned(spec, unfinished)
        self.current = unfinished or self._new_run()
        self.counts = Counter(self.current.counts)
        self.read = narrowed(self.plan, spec)

    def run(self, should_stop: Callable[[], bool]) -> ReplayReport:
        """Replay the remaining messages. Returns the report. `should_stop` is called between
        waves."""
        if not self.resumed:
            self.ledger.begin(self.current)
        if self.spec.to_store is not None:
            self._write_store(self.spec.to_store, should_stop)
        if self.spec.to_parquet is not None and self.stopped_by is None:
            self._write_parquet(self.spec.to_parquet)
        if not self.broken:
            self._record(state="done" if self.stopped_by is None else "stopped")
        return self._report()

    def _record(self, **changes: Any) -> None:
        self.current = self.ledger.record(self.current, counts=dict(self.counts), **changes)

    # --- start and continue ----------------------------------------------------------------------

    def _new_run(self) -> ReplayRun:
        refuse_to_mix(self.spec)
        to_store = self.spec.to_store
        created = to_store is not None and not has_content(to_store)
        ends: dict[QueueId, int] = {}
        end = 0
        if to_store is not None and not created:
            with MessageStore.open(to_store, broker_conf=self.spec.target_conf) as target:
                ends, end = queue_ends(target), target.log_range()[1]
        snapshot = self.plan.store.snapshot
        return new_run(
            asked=self.spec.asked(),
            created=created,
            ranges=self.plan.ranges,
            snapshot={
                "log": [snapshot.log_start, snapshot.log_end],
                "target_queues": [[*queue, stop] for queue, stop in ends.items()],
            },
            next_log_offset=0 if to_store is not None else None,
            target_end=end,
        )

    # --- into a store ----------------------------------------------------------------------------

    def _write_store(self, path: str, should_stop: Callable[[], bool]) -> None:
        given = StoreConfig.of(self.spec.target_conf)
        asked = WriteOptions(
            os.path.realpath(path),
            release=self.spec.release,
            config=with_log_of_its_own(given) if self.current.created else given,
        )
        try:
            # Before the target is opened, so that an error of the source does not leave it unclean.
            waves = waves_of(self.read, self.current.next_log_offset, self.spec.wave_bytes)
            if self.resumed:
                settle_target(self.current, self.ledger, asked)
                self._record(signed=False)
            opened = open_target(self.current, self.ledger, asked, resumed=self.resumed)
        except StoreError:
            if not self.resumed:
                self.ledger.forget_last()  # nothing was written
            raise
        try:
            self._append_all(opened, waves, should_stop)
        except StoreError as error:
            self.stopped_by = f"writing failed: {error}"
            self.broken = True  # the ledger stays as it was after the last whole wave
            self._undo_wave(asked)
        except BaseException:
            self._undo_wave(asked)
            raise

    def _undo_wave(self, asked: WriteOptions) -> None:
        """Recover the target to its last whole wave, so that it is closed and can be used.

        The ledger's file says which one that is: it may have been replaced although that failed.
        """
        try:
            unfinished = self.ledger.read_again()
            if unfinished is not None:
                self.current, self.counts = unfinished, Counter(unfinished.counts)
                del self.problems[self.problems_of_waves :]
                settle_target(unfinished, self.ledger, asked)
        except StoreError as error:
            LOG.warning("%s: the next run undoes what arrived last: %s", asked.path, error)

    def _append_all(
        self, opened: StoreWriter, waves: Sequence[LogSlice], should_stop: Callable[[], bool]
    ) -> None:
        total = sum(wave.selected_bytes for wave in waves)
        with opened as target, Progress("replay", total) as progress:
            try:
                self._append_waves(target, waves, should_stop, progress)
            except BaseException:
                target.abandon()  # what arrived of the last wave is undone
                raise
            self.target_queues = self._arrived(queue_ends(target))

    def _append_waves(
        self,
        target: StoreWriter,
        waves: Sequence[LogSlice],
        should_stop: Callable[[], bool],
        progress: Progress,
    ) -> None:
        target.sign(self.current.append.mark)
        self._record(signed=True)
        self._declare_batch_topics(target)
        reading = WaveReader(self.spark, self.spec, self.read).read_all(waves)
        while (found := self._next(reading)) is not None:
            wave, rows = found
            self._append(target, rows)
            self.problems_of_waves = len(self.problems)
            self._record(next_log_offset=wave.stop, target_end=target.log_range()[1])
            progress(wave.selected_bytes)
            if wave.stop is not None and should_stop():
                self.stopped_by = "stopped on request"
                return

    def _next(self, reading: Iterator[tuple[LogSlice, Batches]]) -> tuple[LogSlice, Batches] | None:
        try:
            return next(reading, None)
        except Exception as error:
            # After any failure the target is closed cleanly, and the report has the reason.
            self.stopped_by = f"reading failed: {failure(error)}"
            return None

    def _declare_batch_topics(self, target: StoreWriter) -> None:
        """Declare the topics with batch queues. A broker does not start if a topic has another kind
        of queue than declared."""
        states = self.plan.store.snapshot.queues
        for topic in {part.queue.topic for part in self.plan.ranges if states[part.queue].batch}:
            new = self.spec.topic_map.get(topic, topic)
            target.declare_topic(new, attributes={"queue.type": "BatchCQ"})

    def _append(self, target: StoreWriter, rows: Batches) -> None:
        matched = refused = 0
        for batch in (batch for part in rows.parts for batch in part):
            matched += batch.num_rows
            given = to_append(batch, target.dialect, keep_timestamps=self.spec.keep_timestamps)
            for error in append_rows(target, given):
                refused += 1
                if len(self.problems) < PROBLEMS_SHOWN:
                    self.problems.append(str(error))
        self.counts.update(rows.counts)
        self.counts[MATCHED] += matched
        self.counts[WRITTEN] += matched - refused
        self.counts[REFUSED_BY_STORE] += refused

    def _arrived(self, ends: Mapping[QueueId, int]) -> tuple[TargetRange, ...]:
        before = {QueueId(t, q): end for t, q, end in self.current.snapshot["target_queues"]}
        ranges = (TargetRange(*q, before.get(q, 0), end) for q, end in sorted(ends.items()))
        return tuple(part for part in ranges if part.start < part.stop)

    # --- into Parquet ----------------------------------------------------------------------------

    def _write_parquet(self, path: str) -> None:
        """Write all rows. This overwrites the files of an unfinished run."""
        if self.current.parquet == "done":
            return
        self._record(parquet="writing")
        try:
            counts = write_parquet(self.spark, self.spec, self.read, path)
        except Exception as error:
            # As above: the report has the reason, and the same command continues.
            self.stopped_by = f"writing Parquet failed: {failure(error)}"
            return
        written = counts.pop(PARQUET)
        if self.spec.to_store is None:
            self.counts.update(counts)
            self.counts[MATCHED] = written
        self.counts[PARQUET] = written
        self._record(parquet="done")

    # --- result ----------------------------------------------------------------------------------

    def _report(self) -> ReplayReport:
        selected = messages_selected(self.plan, self.spec)
        skipped = {name: self.counts[name] for name in (OTHER_TIME, OTHER_KEY, REFUSED_BY_STORE)}
        finished = self.stopped_by is None
        unread = left_unread(self.spec)
        if finished and unread is not None:
            skipped[unread] = selected - self.counts[READ]
        problems = [*self.problems, *(self._shortfalls(selected) if finished else ())]
        problems += lost_from(self.plan)
        refused = self.counts[REFUSED_BY_STORE]
        return ReplayReport(
            job="replay",
            run_id=self.current.run_id,
            ok=finished and not problems and not refused,
            resumed=self.resumed,
            selected=selected,
            read=self.counts[READ],
            matched=self.counts[MATCHED],
            written=self._written(),
            skipped={reason: count for reason, count in skipped.items() if count},
            source=self._provenance(),
            seconds=round(time.monotonic() - self.began, 3),
            target_queues=self.target_queues,
            stopped_by=self.stopped_by,
            problems=tuple(problems),
        )

    def _written(self) -> dict[str, int]:
        targets = ((self.spec.to_store, WRITTEN), (self.spec.to_parquet, PARQUET))
        return {path: self.counts[name] for path, name in targets if path is not None}

    def _shortfalls(self, selected: int) -> Iterator[str]:
        """A sentence for each kind of message that should have arrived and did not."""
        if left_unread(self.spec) is None and self.counts[READ] != selected:
            yield f"{selected:,} messages were selected, but {self.counts[READ]:,} were read"
        matched, in_parquet = self.counts[MATCHED], self.counts[PARQUET]
        if self.spec.to_parquet is not None and matched != in_parquet:
            yield f"{matched:,} messages matched, but Parquet has {in_parquet:,}"

    def _provenance(self) -> Provenance:
        store, asked = self.plan.store, self.spec.asked()
        sums = sums_of(self.spark, files_of_store(store)) if self.spec.checksums else ()
        found = provenance_of(store, self.plan.ranges, asked, sums)
        # If an earlier run started the replay, its snapshot is the right one.
        start, end = self.current.snapshot["log"]
        return replace(found, log_range=(start, end))
