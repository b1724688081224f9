"""What a replay selects, what it wrote, and what remains: the same for every target, and for a dry run.

The journal of a target says what replays wrote, so that nothing is written twice. The file
`TARGET.replay.json` is beside the target, and while a process works on the target, its lock
`TARGET.replay.lock`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rmq_store.commitlog.log import Mark, refuse_other_store
from rmq_store.files.journal import Journal, JournalError, has_content, refuse_content, utc_now_text
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import pinned_scan
from rmq_store.scan.tasks import StoreScan, cut_into_slices
from rmq_store.search.find_messages import plan_keys
from rmq_store.search.log_partitions import queue_offset_steps
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice
from rmq_store.system_topics.open_state import OpenState, kind_of_broker_record
from rmqstore_jobs.replaying.replay_question import source_options
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, takes_members
from rmqstore_jobs.running.failures import AlreadyDoneError
from rmqstore_jobs.running.source_options import pieces_in
from spark_source.writing.target import APPENDING, BegunWrite


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One replay into the target.

    `asked`: what determines the rows; another selection is another replay. `created`: the target
    store did not exist before. `log_range`: commitLog offsets of the source. `target_queues`: topic,
    queue id and max offset of each queue that the target store had. `next_log_offset` is a commitLog
    offset of the source: selected messages before it are in the target, later ones are not; None once
    the target store has everything. `target_end` is the end of the target's log at that time.
    `signed`: the target store has the mark of this run, which is about to append. `marks` are those of
    the source, by which a run that continues notices another store at its path.
    """

    asked: Mapping[str, Any]
    ranges: tuple[QueueSlice, ...]
    log_range: tuple[int, int]
    created: bool = False
    target_queues: tuple[tuple[str, int, int], ...] = ()
    next_log_offset: int | None = 0
    target_end: int = 0
    signed: bool = False
    parquet_done: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: str = field(default_factory=utc_now_text)
    updated: str = ""
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a run id that is no file name: refused messages get this name."""
        if not is_plain_name(self.run_id):
            raise ValueError(f"{self.run_id!r} is not a file name")

    @property
    def append(self) -> BegunWrite:
        """What the run is doing to the target store: appending the messages of one wave."""
        return BegunWrite(
            self.run_id, APPENDING, start=self.target_end, signed=self.signed, at=self.started
        )


class ReplayJournal(Journal[ReplayRun, ReplayRun]):
    """The replays into one target: the unfinished one, and those that are done."""

    of = "a replay"
    types = (ReplayRun | None, tuple[ReplayRun, ...])
    in_doubt = "Replay into a new target; the content of this one is unknown"

    def __init__(self, target: str | os.PathLike[str]) -> None:
        target = Path(target).absolute()
        super().__init__(
            target.with_name(target.name + ".replay.json"),
            target.with_name(target.name + ".replay.lock"),
        )

    @classmethod
    def read_only(cls, target: str | os.PathLike[str]) -> ReplayJournal:
        """The journal as it is now, read-only. Takes no lock and creates no file."""
        journal = cls(target)
        journal.load()
        return journal

    def done_like(self, asked: Mapping[str, Any]) -> ReplayRun | None:
        """A replay that is done and had the same selection."""
        return next((run for run in self.done if run.asked == asked), None)

    def record(self, run: ReplayRun, **changes: Any) -> ReplayRun:
        """Record the unfinished run, with these changes. Returns it."""
        run = replace(run, updated=utc_now_text(), **changes)
        self.save(run, *self.done)
        return run

    def finish(self, run: ReplayRun, **changes: Any) -> ReplayRun:
        """Record that the unfinished run is done. Returns it."""
        run = replace(run, updated=utc_now_text(), **changes)
        self.save(None, *self.done, run)
        return run

    def how_to_start_again(self, run: ReplayRun) -> str:
        """What a user does who does not want to continue a run."""
        store, parquet = run.asked.get("to_store"), run.asked.get("to_parquet")
        if run.asked.get("to_broker") is not None:
            return "to start again, name another --failed folder"
        if store is None or run.created:
            targets = " and ".join(str(path) for path in (store, parquet, self.path) if path)
            return f"to start again, delete {targets}"
        return (
            f"to start again, restore {store}, which had messages before, from a copy made before "
            f'{run.started}, and set "begun" to null in {self.path}'
        )


OFFSETS_COUNTED_AT_A_TIME = 1 << 20
_SMALLEST_WAVE, _LARGEST_WAVE, _WAVE_BYTES_A_QUEUE = 64 << 20, 256 << 20, 1 << 20


def scan_of_run(spec: ReplaySpec, before: ReplayRun | None) -> StoreScan:
    """The scan, with the pinned store and the ranges. An interrupted run keeps its ranges.

    Light queues are selected only if named, because their records also come with their own topic.
    Raises StoreError if something cannot be selected.
    """
    if before is None:
        scan = pinned_scan(parse_options(source_options(spec)))
        named = spec.topics or spec.queues or spec.offsets
        kept = (r for r in scan.ranges if named or not r.queue.topic.startswith(LMQ_PREFIX))
        return replace(scan, ranges=tuple(kept))
    start = before.next_log_offset
    again = spec.to_parquet is not None and not before.parquet_done  # it is written as a whole
    with StoreReader.open(
        spec.source, broker_name=spec.broker_name, broker_conf=spec.broker_conf
    ) as source:
        refuse_other_store(source.log, before.marks, spec.source)
        queues = {part.queue for part in before.ranges}.intersection(source.queues())
        left: Sequence[QueueSlice] = before.ranges
        # The rest may have expired.
        if start and not again and len(queues) == len(before.ranges):
            rest = LogSlice(start, None, 0)
            left = parts_in_log_slice(before.ranges, rest, source.view.offset_at_log) or left
        snapshot = source.opening.only(queues)
    scan = pinned_scan(parse_options(source_options(spec, left)))
    return replace(scan, ranges=before.ranges, store=replace(scan.store, snapshot=snapshot))


def state_of_source(scan: StoreScan) -> OpenState | None:
    """What is open of the source's own records; None if the scan has none of them."""
    if all(kind_of_broker_record(part.queue.topic) is None for part in scan.ranges):
        return None
    with scan.store.open() as source:
        return OpenState.of(source)


def ranges_left(scan: StoreScan, start: int | None) -> list[QueueSlice]:
    """The parts of the ranges at or after a commitLog offset of the source; none for None."""
    return [] if start is None else pieces_in(scan, LogSlice(start, None, 0))


def narrowed_by_index(scan: StoreScan, spec: ReplaySpec) -> StoreScan:
    """The scan with ranges cut to the places where the index has a requested key, if it is asked.

    Ranges that no index covers stay.
    """
    if not spec.by_index:
        return scan
    with scan.store.open() as source:
        hits = plan_keys(source, scan.ranges, spec.keys)
        if hits is None:
            return scan
        return replace(scan, ranges=tuple(hits.ranges(source.view.offset_at_log)))


def waves_of(scan: StoreScan, start: int | None, wave_bytes: int | None = None) -> list[LogSlice]:
    """The remaining ranges as waves: log slices with about `wave_bytes` selected bytes.

    By default 64 MiB, because nothing is written before the first one is read, and two are held; up
    to 256 MiB for many queues, because each wave opens the source: 0.4 ms a queue, an eighth of the
    time that 1 MiB takes.
    """
    left = ranges_left(scan, start)
    with scan.store.open() as source:
        if wave_bytes is None:
            wanted = len(source.queues()) * _WAVE_BYTES_A_QUEUE
            wave_bytes = min(max(wanted, _SMALLEST_WAVE), _LARGEST_WAVE)
        waves = cut_into_slices(source, left, wave_bytes) if left else []
    return [replace(waves[0], start=start), *waves[1:]] if waves else []


def messages_selected(scan: StoreScan, spec: ReplaySpec) -> int:
    """The number of messages to read; of records, if the target gets inner batches whole."""
    states, count = scan.store.snapshot.queues, sum(map(len, scan.ranges))
    if takes_members(spec.asked()):
        return count
    batched = [slice_ for slice_ in scan.ranges if states[slice_.queue].batch]
    count -= sum(map(len, batched))
    with scan.store.open() as source:
        for slice_ in batched:
            steps = queue_offset_steps(source, slice_.start, slice_.stop, OFFSETS_COUNTED_AT_A_TIME)
            for start in steps:
                entries = source.entries(slice_.queue, start, min(slice_.stop, start + steps.step))
                count += int((entries.offset >= start).sum())
    return count


def interrupted_run(journal: ReplayJournal, spec: ReplaySpec) -> ReplayRun | None:
    """The interrupted run to continue. Raises JournalError if it has other options, AlreadyDoneError
    if a run with these options is done."""
    before, request = journal.begun, spec.asked()
    if before is None:
        done = journal.done_like(request)
        if done is not None:
            raise _is_done(journal, spec, done)
        return None
    if request != before.asked:
        other = sorted(name for name in request if request[name] != before.asked.get(name))
        raise JournalError(
            journal.path,
            reason="the target has an unfinished replay with other options",
            expected=", ".join(f"{name}={before.asked.get(name)!r}" for name in other),
            actual=", ".join(f"{name}={request[name]!r}" for name in other),
            advice="Finish it with its options, unless damage of its source stopped it, or, "
            f"{journal.how_to_start_again(before)}",
        )
    return before


def _is_done(journal: ReplayJournal, spec: ReplaySpec, done: ReplayRun) -> JournalError:
    how, again = "is in the target", "for a second copy, replay into another target"
    if spec.to_broker is not None:
        how, again = "was sent", "to send it again, name another --failed folder"
    targets = [path for path in (spec.to_store, spec.to_parquet) if path is not None]
    gone = next((path for path in targets if not has_content(path)), None)
    if gone is not None and any(done.counts.values()):
        return JournalError(
            journal.path,
            reason=f"this replay finished at {done.updated}, and its target {gone} is gone",
            advice=f"Delete {journal.path} to replay again",
        )
    reason = f"this replay {how}, finished at {done.updated}"
    return AlreadyDoneError(journal.path, reason=reason, advice=f"There is nothing to do; {again}")


def refuse_unasked_append(spec: ReplaySpec) -> None:
    """Raise TargetExistsError if a new run would add to the target without --append."""
    if spec.to_store is not None and not spec.append:
        advice = "Give --append to add to it, or name a new folder"
        refuse_content(spec.to_store, f"It is not from an unfinished replay. {advice}")
    if spec.to_parquet is not None:
        advice = "Name a new folder; a replay does not add Parquet files to a folder"
        refuse_content(spec.to_parquet, advice)
