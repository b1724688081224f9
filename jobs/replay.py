"""Replay a selection of a broker's store into another store and into Parquet.

Executors read, this process writes. The selection is cut into waves, neighbouring stretches of the
log of a few hundred MiB; while one is appended, the next is being read. So memory stays flat, and
the messages arrive in the order of the source's log.

    python jobs/replay.py STORE --to-store NEW --topic orders --since 2026-05-01T10:00:00Z
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from jobs.command import Given, job, ship_jobs
from jobs.ledger import Ledger, LedgerError, Run, new_run
from jobs.provenance import Provenance, files_of_store, provenance_of, sums_of
from jobs.replay_options import replay_options, spec_of
from jobs.replay_rows import OTHER_KEY, OTHER_TIME, READ, READ_FOR_STORE, Rows, source_options
from jobs.replay_spec import ReplaySpec, check
from jobs.report import Report, TargetRange
from jobs.target import append_rows, discard_unfinished, has_content, open_target, queue_ends
from jobs.wording import reason_of
from rmq_store import MessageStore
from rmq_store.consumequeue import QueueId
from rmq_store.errors import StoreError
from rmq_store.planning import LogSlice, QueueSlice, pieces_of
from rmq_store.schema import DEFAULT_NAMES, TIMESTAMP
from rmq_store.topics import LMQ_PREFIX
from spark_source.options import DEFAULT_PARTITION_BYTES, parse_options
from spark_source.reader import cut_into_slices
from spark_source.source import pin

if TYPE_CHECKING:
    from rmq_store.writer import StoreWriter

ROWS_PER_APPEND = 8192
IN_FLIGHT_BYTES = 64 << 20  # what the default heap of 1 GiB is enough for
MIN_PARTITION_BYTES = 4 << 20
MAX_PARTITION_BYTES = 32 << 20
PROBLEMS_SHOWN = 5
OFFSETS_COUNTED_AT_A_TIME = 1 << 20
OTHER_TAG = "other tags"
REFUSED = "refused by the target"
MATCHED = "matched"
WRITTEN = "written"
PARQUET = "parquet"


def run(
    spark: SparkSession, spec: ReplaySpec, should_stop: Callable[[], bool] = lambda: False
) -> Report:
    """Replay, and say what became of it.

    `should_stop` is asked between waves; when it says so, or reading fails, the target is closed
    cleanly, the report says why, and the same spec goes on later. Where writing itself fails the
    report says so too, and the next run is refused. Raises StoreError where the replay is refused
    and nothing was written.
    """
    check(spec)
    ship_jobs()
    if spec.to_broker is not None:
        from jobs import live  # needs the gRPC client, which is an extra

        return live.run(spark, spec, should_stop)
    with Ledger(spec.to_store or spec.to_parquet or "") as ledger:
        return _Replay(spark, spec, should_stop, ledger).run()


class _Replay:
    """One call of `run`: the spec, the resolved plan, the ledger and the numbers so far."""

    def __init__(
        self,
        spark: SparkSession,
        spec: ReplaySpec,
        should_stop: Callable[[], bool],
        ledger: Ledger,
    ) -> None:
        self.spark = spark
        self.spec = spec
        self.should_stop = should_stop
        self.began = time.monotonic()
        self.ledger = ledger
        self.stopped_by: str | None = None
        self.broken = False
        self.problems: list[str] = []
        self.target_queues: tuple[TargetRange, ...] = ()
        if spec.restart:
            discard_unfinished(spec.to_store, spec.to_parquet, self.ledger)
        unfinished = ledger.unfinished
        self.resumed = unfinished is not None
        if unfinished is not None:
            self._check_same_asked(unfinished)
        ranges = () if unfinished is None else unfinished.ranges
        self.plan = pin(parse_options(source_options(spec, ranges)))
        self.current = unfinished or self._new_run()
        self.plan = replace(self.plan, ranges=self.current.ranges)
        self.counts = Counter(self.current.counts)
        self.rows = Rows(spark, spec, self.plan)

    def run(self) -> Report:
        if not self.resumed:
            self.ledger.begin(self.current)
        if self.spec.to_store is not None:
            self._write_store(self.spec.to_store)
        if self.spec.to_parquet is not None and self.stopped_by is None:
            self._write_parquet(self.spec.to_parquet)
        if not self.broken:
            self._record(state="done" if self.stopped_by is None else "stopped")
        return self._report()

    def _record(self, **changes: Any) -> None:
        self.current = self.ledger.record(self.current, counts=dict(self.counts), **changes)

    # --- beginning, and going on -----------------------------------------------------------------

    def _new_run(self) -> Run:
        self._refuse_to_double()
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
            ranges=self._ranges_chosen(),
            snapshot={
                "log": [snapshot.log_start, snapshot.log_end],
                "target_queues": [[*queue, stop] for queue, stop in ends.items()],
            },
            next_log_offset=0 if to_store is not None else None,
            target_end=end,
        )

    def _ranges_chosen(self) -> tuple[QueueSlice, ...]:
        """Without light queues, unless they were named: their records come with their own topic."""
        named = self.spec.topics or self.spec.queues or self.spec.offsets
        ranges = self.plan.ranges
        return tuple(r for r in ranges if named or not r.queue.topic.startswith(LMQ_PREFIX))

    def _refuse_to_double(self) -> None:
        before = self.ledger.finished_like(self.spec.asked())
        if before is not None:
            raise LedgerError(
                self.ledger.path,
                reason=f"this very replay is in the target since {before.updated}",
                advice="Nothing is left to do; for a second copy replay into another target",
            )
        to_store, to_parquet = self.spec.to_store, self.spec.to_parquet
        if to_store is not None and has_content(to_store) and not self.spec.append:
            raise LedgerError(
                to_store,
                reason="the target is there already, and no unfinished replay has left it",
                advice="Give --append to add to it, or name a new folder",
            )
        if to_parquet is not None and has_content(to_parquet):
            raise LedgerError(
                to_parquet,
                reason="the Parquet target is there already",
                advice="Name a new folder; files are not added to one",
            )

    def _check_same_asked(self, unfinished: Run) -> None:
        asked, before = self.spec.asked(), unfinished.asked
        if asked != before:
            other = sorted(name for name in asked if asked[name] != before.get(name))
            raise LedgerError(
                self.ledger.path,
                reason="an unfinished replay into this target was asked for something else",
                expected=", ".join(f"{name}={before.get(name)!r}" for name in other),
                actual=", ".join(f"{name}={asked[name]!r}" for name in other),
                advice="Finish it with the options it had, or give --restart to begin anew",
            )

    # --- into a store ----------------------------------------------------------------------------

    def _write_store(self, path: str) -> None:
        conf, release = self.spec.target_conf, self.spec.release
        try:
            opened = open_target(
                path, self.current, self.ledger, resumed=self.resumed, conf=conf, release=release
            )
        except StoreError:
            if not self.resumed:
                self.ledger.forget_last()  # nothing was written
            raise
        try:
            self._append_all(opened)
        except StoreError as error:
            # The ledger stays as it is: what is in the target now only a recovery can tell.
            self.stopped_by = f"writing failed: {error}"
            self.broken = True

    def _append_all(self, opened: StoreWriter) -> None:
        with opened as target:
            self._declare_batch_topics(target)
            for wave, rows in self._waves_read():
                self._append(target, rows)
                self._record(next_log_offset=wave.stop, target_end=target.log_range()[1])
                if wave.stop is not None and self.should_stop():
                    self.stopped_by = "it was asked to stop"
                    break
            self.target_queues = self._arrived(queue_ends(target))

    def _declare_batch_topics(self, target: StoreWriter) -> None:
        """A broker does not start where a topic's kind of queue is not the declared one."""
        states = self.plan.store.snapshot.queues
        for topic in {part.queue.topic for part in self.plan.ranges if states[part.queue].batch}:
            new = self.spec.topic_map.get(topic, topic)
            target.declare_topic(new, attributes={"queue.type": "BatchCQ"})

    def _waves_read(self) -> Iterator[tuple[LogSlice, _Wave]]:
        """What is still to be written; a wave is read while the one before it is appended."""
        waves = self._waves_left()
        with ThreadPoolExecutor(1) as ahead:
            reading = deque(ahead.submit(self._read, wave) for wave in waves[:1])
            for i, wave in enumerate(waves):
                try:
                    rows = reading.popleft().result()
                except Exception as error:
                    # Whatever failed, the target is closed cleanly; the report says what it was.
                    self.stopped_by = f"reading failed: {reason_of(error)}"
                    return
                reading.extend(ahead.submit(self._read, after) for after in waves[i + 1 : i + 2])
                yield wave, rows

    def _waves_left(self) -> list[LogSlice]:
        if self.current.next_log_offset is None:
            return []
        rest = LogSlice(self.current.next_log_offset, None, 0)
        with self.plan.store.open() as source:
            left = pieces_of(self.plan.ranges, rest, source.offset_at_log)
            waves = cut_into_slices(source, left, self.spec.wave_bytes)
        return [replace(waves[0], start=rest.start), *waves[1:]] if waves else []

    def _read(self, wave: LogSlice) -> _Wave:
        with self.plan.store.open() as source:
            pieces = pieces_of(self.plan.ranges, wave, source.offset_at_log)
        frame, counted = self.rows.frame(pieces, READ_FOR_STORE, self._partition_bytes())
        table = frame.toArrow()
        return _Wave(table, {} if counted is None else counted.get)

    def _partition_bytes(self) -> int:
        """Every result passes through the driver's heap, a few times over, from all cores at once."""
        share = IN_FLIGHT_BYTES // self.spark.sparkContext.defaultParallelism
        return min(max(share, MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)

    def _append(self, target: StoreWriter, rows: _Wave) -> None:
        refused = 0
        for batch in to_append(rows.table, keep_timestamps=self.spec.keep_timestamps):
            for error in append_rows(target, batch):
                refused += 1
                if len(self.problems) < PROBLEMS_SHOWN:
                    self.problems.append(str(error))
        self.counts.update(rows.counts)
        self.counts[MATCHED] += rows.table.num_rows
        self.counts[WRITTEN] += rows.table.num_rows - refused
        self.counts[REFUSED] += refused

    def _arrived(self, ends: Mapping[QueueId, int]) -> tuple[TargetRange, ...]:
        before = {QueueId(t, q): end for t, q, end in self.current.snapshot["target_queues"]}
        ranges = (TargetRange(*q, before.get(q, 0), end) for q, end in sorted(ends.items()))
        return tuple(part for part in ranges if part.start < part.stop)

    # --- into Parquet ----------------------------------------------------------------------------

    def _write_parquet(self, path: str) -> None:
        """All of it, by Spark itself. What an unfinished run left is written over."""
        if self.current.parquet == "done":
            return
        self._record(parquet="writing")
        frame, counted = self.rows.frame(self.plan.ranges, DEFAULT_NAMES, DEFAULT_PARTITION_BYTES)
        try:
            frame.write.mode("overwrite").parquet(path)
            found = self.spark.read.parquet(path).count()
        except Exception as error:
            # As above: the report says what it was, and the same command goes on.
            self.stopped_by = f"writing Parquet failed: {reason_of(error)}"
            return
        if self.spec.to_store is None:
            self.counts.update({} if counted is None else counted.get)
            self.counts[MATCHED] = found
        self.counts[PARQUET] = found
        self._record(parquet="done")

    # --- what became of it -----------------------------------------------------------------------

    def _report(self) -> Report:
        selected = self._entries_selected()
        skipped = {name: self.counts[name] for name in (OTHER_TIME, OTHER_KEY, REFUSED)}
        finished = self.stopped_by is None
        if finished and self.plan.tags is not None:
            skipped[OTHER_TAG] = selected - self.counts[READ]
        problems = [*self.problems, *(self._shortfalls(selected) if finished else ())]
        refused = self.counts[REFUSED]
        return Report(
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

    def _entries_selected(self) -> int:
        """How many queue entries the ranges have, and so how many messages are to be read."""
        states = self.plan.store.snapshot.queues
        plain = sum(len(r) for r in self.plan.ranges if not states[r.queue].batch)
        batched = [part for part in self.plan.ranges if states[part.queue].batch]
        with self.plan.store.open() as source:
            # An inner batch is one entry, and takes several queue offsets.
            for part in batched:
                for start in range(part.start, part.stop, OFFSETS_COUNTED_AT_A_TIME):
                    stop = min(part.stop, start + OFFSETS_COUNTED_AT_A_TIME)
                    entries = source.entries(part.queue, start, stop)
                    plain += int((entries.offset >= start).sum())
        return plain

    def _written(self) -> dict[str, int]:
        targets = ((self.spec.to_store, WRITTEN), (self.spec.to_parquet, PARQUET))
        return {path: self.counts[name] for path, name in targets if path is not None}

    def _shortfalls(self, selected: int) -> Iterator[str]:
        """What should have come and did not."""
        if self.plan.tags is None and self.counts[READ] != selected:
            yield f"{selected:,} messages were selected and {self.counts[READ]:,} were read"
        matched, in_parquet = self.counts[MATCHED], self.counts[PARQUET]
        if self.spec.to_parquet is not None and matched != in_parquet:
            yield f"{matched:,} messages matched, Parquet has {in_parquet:,}"

    def _provenance(self) -> Provenance:
        store, asked = self.plan.store, self.spec.asked()
        sums = sums_of(self.spark, files_of_store(store)) if self.spec.checksums else ()
        found = provenance_of(store, self.plan.ranges, asked, sums)
        # An earlier run may have begun it, and its snapshot is what counts.
        start, end = self.current.snapshot["log"]
        return replace(found, log_range=(start, end))


@dataclass(frozen=True, slots=True)
class _Wave:
    """The matching rows of a stretch of the log, and what was counted while they were read."""

    table: pa.Table
    counts: Mapping[str, int]


def to_append(table: pa.Table, *, keep_timestamps: bool) -> Iterator[pa.RecordBatch]:
    """Rows of the source as batches for `append_batch`: bodies as stored, and sysFlag to match."""
    columns = {
        "topic": table["topic"],
        "queueId": table["queueId"],
        "body": table["rawBody"],
        "properties": table["properties"],
        "flag": table["flag"],
        "sysFlag": table["sysFlag"],
        "bornTimestamp": table["bornTimestamp"].cast(TIMESTAMP),
        "bornHost": table["bornHost"],
        "reconsumeTimes": table["reconsumeTimes"],
    }
    if keep_timestamps:
        columns["storeTimestamp"] = table["storeTimestamp"].cast(TIMESTAMP)
    yield from pa.table(columns).to_batches(max_chunksize=ROWS_PER_APPEND)


# --- the command ----------------------------------------------------------------------------------


@job("replay", run)
@replay_options
def main(given: Given) -> ReplaySpec:
    """Replay a selection of a broker's store into another store, into Parquet, to a broker."""
    return spec_of(given)


if __name__ == "__main__":
    sys.exit(main())
