"""Replay into another store, which this process writes, and into Parquet.

The selection is cut into waves: adjacent ranges of the log. While one wave is appended, the next is read.
So memory use is constant, and the messages arrive in the order of the source's log.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.admin.salvage import RecordMover
from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import LOG, AccessError, ForeignLogError, StoreError, StoreLockedError
from rmq_store.files.durable_files import sync_folder, sync_path
from rmq_store.files.journal import JournalError, has_content
from rmq_store.files.parallel import made_ahead
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import OP_TOPICS
from rmq_store.reading.store_reader import StoreReader
from rmq_store.snapshot.ranges import LogSlice
from rmq_store.system_topics.open_state import HalfName
from rmq_store.system_topics.system_topic_rows import property_of, whole_numbers
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.writing.store_writer import (
    Refusal,
    StoreWriter,
    append_valid_rows,
    without_log_paths,
)
from rmqstore_jobs.replay_targets.replay_call import (
    ReplayCall,
    ReplayReport,
    TargetRange,
    batch_to_append,
)
from rmqstore_jobs.replaying.plan import (
    ReplayJournal,
    ReplayRun,
    refuse_unasked_append,
    state_of_source,
    waves_of,
)
from rmqstore_jobs.replaying.replay_question import (
    ENDED,
    ORIGIN_PREFIX,
    REFUSED_BY_STORE,
    Batches,
    Handled,
    columns_for_store,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.failures import failure, is_damage
from rmqstore_jobs.running.source_options import pieces_in
from rmqstore_jobs.running.spark_engine import Session, ShouldStop, parallel_shares
from spark_source.writing.target import WriteOptions, finish_or_undo_append

PARQUET = "parquet"
_ROW_GROUP_BYTES = 64 << 20
_WHOLE = "_SUCCESS"  # as Spark's writers mark a folder with all its files


def _write_share(folder: Path, store: StoreReader, number: int, rows: Batches) -> int:
    first = next(rows, None)
    if first is None:
        return 0
    final = folder / f"part-{number:05d}.parquet"
    unfinished = final.with_name(f".{final.name}")
    count = waiting_bytes = 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(unfinished, first.schema) as writer:
        for batch in chain([first], rows):
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            count += batch.num_rows
            if waiting_bytes >= _ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, waiting_bytes = [], 0
        writer.write_table(pa.Table.from_batches(waiting, first.schema))
    sync_path(unfinished)
    unfinished.rename(final)
    return count


IN_FLIGHT_BYTES = 64 << 20  # what fits into the default heap of 1 GiB
MIN_SHARE_BYTES = 4 << 20
MAX_SHARE_BYTES = 32 << 20


def settle_target(run: ReplayRun, journal: ReplayJournal, options: WriteOptions) -> None:
    """Undo what an interrupted run appended after its last whole wave. Raises JournalError if the target is
    missing, or if another process has opened it since."""
    if run.created and not has_content(options.path):
        if run.target_end:
            raise JournalError(
                options.path,
                reason="the target of an interrupted replay is missing",
                advice=f"Restore it, or delete {journal.path} to replay from the start",
            )
        return
    with _continuing(run, journal, options.path):
        finish_or_undo_append(run.append, options, journal.path)


def open_target(
    run: ReplayRun, journal: ReplayJournal, options: WriteOptions, *, resumed: bool
) -> StoreWriter:
    """The target store of `run`, opened for appending; created if the run creates it. Raises JournalError
    if a resumed run finds another end of the log than the journal says."""
    if run.created and not has_content(options.path):
        return StoreWriter.create(options.path, options.config, release=options.release)
    with _continuing(run, journal, options.path) if resumed else nullcontext():
        store = StoreWriter.append_to(
            options.path, options.config, release=options.release, recovery="refuse"
        )
        end = store.log_range()[1]
        if end != run.target_end:
            store.close()
            raise JournalError(
                options.path,
                reason="its log has another end than the journal says",
                expected=run.target_end,
                actual=end,
                advice="Another process has written into the store",
            )
    return store


@contextmanager
def _continuing(run: ReplayRun, journal: ReplayJournal, path: str) -> Iterator[None]:
    """Convert what prevents that an interrupted run is continued to a JournalError with what to do.

    A full disk and the like say themselves what to do before the next run, which may go on.
    """
    try:
        yield
    except (StoreLockedError, ForeignLogError, AccessError):
        raise
    except StoreError as error:
        raise JournalError(
            path,
            reason=f"a replay into this target was interrupted, and what arrived is unknown: {error}",
            advice=f"Nothing was deleted; {journal.how_to_start_again(run)}",
        ) from error


def append_rows(store: StoreWriter, batch: pa.RecordBatch) -> Iterator[Refusal]:
    """Append all rows that the store accepts, in order. Yields the reason for each refused row."""
    return (error for _, error in append_valid_rows(store, batch).refused)


def halves_arrived(run: ReplayRun, options: WriteOptions) -> list[tuple[HalfName, int, int, int]]:
    """The half messages that a resumed run has appended: what they are called and their log offset in the
    source, their queue offset and log offset here."""
    before = {QueueId(topic, queue_id): end for topic, queue_id, end in run.target_queues}
    places, halves = ("queueOffset", "commitLogOffset"), []
    with StoreReader.open(options.path, config=options.config) as store:
        for queue in (queue for topic in OP_TOPICS for queue in store.queues(topic)):
            part = QueueSlice(queue, before.get(queue, 0), store.max_offset(*queue))
            for batch in store.read_slices([part], columns=(*places, "properties")):
                offsets, at = (
                    whole_numbers(property_of(batch, ORIGIN_PREFIX + name)).to_pylist()
                    for name in ("QUEUE_OFFSET", "LOG_OFFSET")
                )
                new = (batch[name].to_pylist() for name in places)
                names = ((*queue, offset) for offset in offsets)
                halves += list(zip(names, at, *new, strict=True))
    return halves


def queue_ends(store: StoreReader | StoreWriter) -> dict[QueueId, int]:
    """The max offset of every queue of `store`."""
    return {queue: store.max_offset(*queue) for queue in store.queues()}


PROBLEMS_SHOWN = 5
MATCHED, WRITTEN = "matched", "written"


class LocalReplay(ReplayCall):
    """A replay into a store, into Parquet, or both."""

    refused_as = REFUSED_BY_STORE

    def __init__(self, spark: Session, spec: ReplaySpec, journal: ReplayJournal) -> None:
        super().__init__(spark, spec, journal)
        self.refusals: list[str] = []  # those of whole waves
        self._moved: RecordMover | None = None

    def _new_run(self) -> ReplayRun:
        run, to_store = super()._new_run(), self.spec.to_store
        refuse_unasked_append(self.spec)
        if to_store is None:
            return replace(run, next_log_offset=None)
        if not has_content(to_store):
            return replace(run, created=True)
        with StoreReader.open(to_store, broker_conf=self.spec.target_conf) as target:
            ends = tuple((*queue, end) for queue, end in queue_ends(target).items())
            return replace(run, target_queues=ends, target_end=target.log_range()[1])

    def run(self, should_stop: ShouldStop) -> ReplayReport:
        """Replay the remaining messages. `should_stop` is called between waves. Returns the report."""
        self._begin()
        if self.spec.to_store is not None:
            self._write_store(self.spec.to_store, should_stop)
        if self.spec.to_parquet is not None and self.stopped_by is None:
            self._write_parquet(self.spec.to_parquet)
        self._end()
        targets = ((self.spec.to_store, WRITTEN), (self.spec.to_parquet, PARQUET))
        written = {path: self.counts[name] for path, name in targets if path is not None}
        return self._report(self.counts[MATCHED], written, self._problems())

    def _write_store(self, path: str, should_stop: ShouldStop) -> None:
        settings = StoreConfig.of(self.spec.target_conf)
        options = WriteOptions(
            os.path.realpath(path),
            release=self.spec.release,
            config=without_log_paths(settings) if self.current.created else settings,
        )
        halves: list[tuple[HalfName, int, int, int]] = []
        try:
            # Before the target is opened, so that an error of the source does not leave it unclean.
            waves = waves_of(self.read, self.current.next_log_offset, self.spec.wave_bytes)
            state = state_of_source(self.read)
            if self.resumed:
                settle_target(self.current, self.journal, options)
                self._record(signed=False)
                if state is not None and has_content(options.path):
                    halves += halves_arrived(self.current, options)
            opened = open_target(self.current, self.journal, options, resumed=self.resumed)
        except StoreError:
            if not self.resumed:
                self.journal.clear_begun()  # nothing was written
            raise
        if state is not None:
            self._moved = RecordMover(state, opened)
            for half in halves:
                self._moved.note_half_message(*half)
        try:
            self._append_all(opened, waves, should_stop)
        except StoreError as error:
            self.stopped_by = f"writing failed: {error}"
            self.broken = True  # the journal stays as it was after the last whole wave
            self._undo_wave(options)
        except BaseException:
            self._undo_wave(options)
            raise

    def _undo_wave(self, options: WriteOptions) -> None:
        """Recover the target to its last whole wave. The journal's file says which one that is."""
        try:
            self.journal.load()
            unfinished = self.journal.begun
            if unfinished is not None:
                self.current, self.counts = unfinished, Counter(unfinished.counts)
                settle_target(unfinished, self.journal, options)
        except StoreError as error:
            LOG.warning("%s: the next run undoes what arrived last: %s", options.path, error)

    def _append_all(
        self, opened: StoreWriter, waves: Sequence[LogSlice], should_stop: ShouldStop
    ) -> None:
        keeps, total = self.spec.keep_timestamps, sum(wave.selected_bytes for wave in waves)
        with opened as target, Progress("replay", total) as progress:
            try:
                with target.watching_times(target.path) if keeps else nullcontext():
                    target.sign(self.current.append.mark)
                    self._record(signed=True)
                    self._declare_batch_topics(target)
                    for wave, rows in self._read_waves(waves):
                        self._append(target, rows)
                        self._record(next_log_offset=wave.stop, target_end=target.log_range()[1])
                        progress(wave.selected_bytes)
                        if wave.stop is not None and should_stop():
                            self.stopped_by = "stopped on request"
                            break
            except BaseException:
                target.abandon()  # what arrived of the last wave is undone
                raise
            self.target_queues = self._ranges(queue_ends(target))

    def _read_waves(
        self, waves: Sequence[LogSlice]
    ) -> Iterator[tuple[LogSlice, Handled[list[pa.RecordBatch]]]]:
        """Each wave with the batches of its shares, in order, read while the one before is appended."""
        # The driver's heap has the results of all cores at once, with several copies.
        bytes_a_core = IN_FLIGHT_BYTES // parallel_shares(self.spark)
        share_bytes = min(max(bytes_a_core, MIN_SHARE_BYTES), MAX_SHARE_BYTES)

        def read(wave: LogSlice) -> Handled[list[pa.RecordBatch]]:
            return self._handled(
                pieces_in(self.read, wave),
                lambda store, number, rows: list(rows),
                columns_for_store(self.spec),
                share_bytes=share_bytes,
                selected_bytes=wave.selected_bytes,
            )

        try:
            yield from made_ahead((wave, read(wave)) for wave in waves)
        except Exception as error:
            # After any failure the target is closed cleanly, and the report has the reason.
            self.stopped_by = f"reading failed: {self._failure(error)}"

    def _declare_batch_topics(self, target: StoreWriter) -> None:
        """A broker does not start if a topic has another kind of queue than declared."""
        states = self.scan.store.snapshot.queues
        for topic in {part.queue.topic for part in self.scan.ranges if states[part.queue].batch}:
            new = self.spec.topic_map.get(topic, topic)
            target.declare_topic(new, attributes={"queue.type": "BatchCQ"})

    def _append(self, target: StoreWriter, rows: Handled[list[pa.RecordBatch]]) -> None:
        batches = [batch for part in rows.parts for batch in part]
        errors = [error for batch in batches for error in self._append_rows(target, batch)]
        self.refusals += map(str, errors[: PROBLEMS_SHOWN - len(self.refusals)])
        matched, refused = sum(batch.num_rows for batch in batches), len(errors)
        ended = 0
        if self._moved is not None:
            ended = self._moved.left_out.total()
            self._moved.left_out.clear()
        self.counts.update(rows.counts)
        self.counts.update({MATCHED: matched, WRITTEN: matched - refused - ended})
        self.counts.update({ENDED: ended, REFUSED_BY_STORE: refused})

    def _append_rows(self, target: StoreWriter, batch: pa.RecordBatch) -> Iterator[Refusal]:
        keeps, moved = self.spec.keep_timestamps, self._moved
        rows = batch_to_append(
            batch,
            target.dialect,
            keep_timestamps=keeps,
            members=self.members,
            with_halves=moved is not None,
        )
        if moved is None:
            return append_rows(target, rows)
        places = (batch[name].to_numpy() for name in ("queueOffset", "commitLogOffset"))
        return (error for part in moved.append(rows, *places) for _, error in part.refused)

    def _ranges(self, ends: Mapping[QueueId, int]) -> tuple[TargetRange, ...]:
        before = {QueueId(t, q): end for t, q, end in self.current.target_queues}
        ranges = (TargetRange(*q, before.get(q, 0), end) for q, end in sorted(ends.items()))
        return tuple(part for part in ranges if part.start_offset < part.stop_offset)

    def _write_parquet(self, path: str) -> None:
        if self.current.parquet_done:
            return
        try:
            counts = self._parquet_written(Path(path).absolute())  # executors have another folder
        except Exception as error:
            # As above: the report has the reason, and the same command continues.
            self.stopped_by = f"writing Parquet failed: {self._failure(error)}"
            return
        written = counts.pop(PARQUET, 0)  # no share, no count
        if self.spec.to_store is None:
            self.counts.update(counts)
            self.counts[MATCHED] = written
        self.counts[PARQUET] = written
        self._record(parquet_done=True)

    def _parquet_written(self, folder: Path) -> Counter[str]:
        """Write all rows, instead of the files of an unfinished run. PARQUET counts the rows."""
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (folder / _WHOLE, *folder.glob("*.parquet"), *folder.glob(".*.parquet")):
            stale.unlink(missing_ok=True)
        write = partial(_write_share, folder)
        with Progress("replay") as progress:
            handled = self._handled(self.read.ranges, write, DEFAULT_NAMES, progress=progress)
        if not any(handled.parts):
            # Readers need a file to know the columns.
            pq.write_table(arrow_schema(DEFAULT_NAMES).empty_table(), folder / "part-00000.parquet")
        (folder / _WHOLE).touch()
        sync_folder(folder)  # the journal must not be ahead of the disk
        return handled.counts + Counter({PARQUET: sum(handled.parts)})

    def _failure(self, error: Exception) -> str:
        """After damage also what the target has, and how to get rid of that."""
        reason = failure(error)
        if not is_damage(reason):
            return reason
        made = counted(self.counts[WRITTEN], "message") if self.spec.to_store else "a part"
        again = self.journal.how_to_start_again(self.current)
        return f"{reason}. The target has {made} from before the damage; {again}"

    def _problems(self) -> Iterator[str]:
        yield from self.refusals
        matched, in_parquet = self.counts[MATCHED], self.counts[PARQUET]
        if self.stopped_by is None and self.spec.to_parquet is not None and matched != in_parquet:
            yield f"{matched:,} messages matched, but Parquet has {in_parquet:,}"
