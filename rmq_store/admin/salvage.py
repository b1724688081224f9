"""Copy the intact messages of a damaged log into a new store, and report every skipped byte.

Needs no queue and no index. Records keep store time, hosts, producer ids and properties, but not
their positions. There are no gaps in the new queues, so queue offsets change. What names them gets the new
ones: offsets of groups, and the state of the broker that is still open (`OpenState`).

An op message names half messages by queue offset (for transactions in RocksDB by log offset, in a property),
and a committed message names its half message by log offset. They get the new numbers. An op message loses
the numbers of half messages that are not in the new store; without any it is left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.admin.carried_files import AdaptedConfig, write_zero_delay_offsets
from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_values import hosts, stored_bodies, stored_properties, stored_topics
from rmq_store.commitlog.headers import Headers, rows_with_record_crc
from rmq_store.commitlog.log import misnamed_files
from rmq_store.commitlog.walk import (
    Progress,
    RecordOrGap,
    SoundRun,
    end_of_page_rest,
    sound_headers,
    walk,
)
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.dledger import unread_dledger
from rmq_store.config.locate import require_apart
from rmq_store.config.topics_json import BATCH, batch_topics, declared_topics
from rmq_store.consumequeue.entry_of_record import QueuesBegun
from rmq_store.consumequeue.queue_folders import EntriesAfterCopiedLog, rows_of_entry_counts
from rmq_store.errors import InvalidArgumentError, InvalidMessageError
from rmq_store.format.byte_layout import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    ROCKSDB_STORE_DIR,
    Ints,
    Mask,
    in_portions,
)
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Gap
from rmq_store.format.topics import (
    HALF_PLACE,
    LMQ_PREFIX,
    ROCKSDB_HALF_TOPIC,
    SCHEDULE_TOPIC,
    is_group_of_broker,
)
from rmq_store.markers import was_closed
from rmq_store.reading.store_reader import StoreReader
from rmq_store.snapshot.opening import refuse_unknown_size
from rmq_store.system_topics.open_state import (
    HALF,
    HALF_OF_OP,
    OP,
    ORIGINAL,
    HalfName,
    OpenState,
    kind_of_broker_record,
    offsets_in_op_body,
)
from rmq_store.text.sizes import counted
from rmq_store.writing.store_writer import AcceptedRows, StoreWriter, append_valid_rows

NAMES_NOTHING = "namesNothing"


@dataclass(slots=True)
class _Own:
    """A half or op message, or a committed one, of a batch: what it is called, and what it names."""

    row: int
    is_op: bool = False
    called: list[HalfName] = field(default_factory=list)
    names: list[HalfName] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # log offsets


@dataclass(frozen=True, slots=True)
class _Place:
    """The queue offset of a half message in the new store, and its log offset in the old one."""

    queue_offset: int
    old_log_offset: int


class RecordMover:
    """Appends records in the order of their log. `left_out` counts those that are not open, by reason."""

    def __init__(self, state: OpenState, writer: StoreWriter) -> None:
        self._state, self._writer = state, writer
        self.left_out: Counter[str] = Counter()
        self._halves: dict[HalfName, _Place] = {}
        self._new_log_offset: dict[int, int] = {}

    def note_half_message(
        self, name: HalfName, old: int, queue_offset: int, log_offset: int
    ) -> None:
        """Note a half message of the new store: its name and log offset in the old one, and its place."""
        place = _Place(queue_offset, old)
        self._halves.update(dict.fromkeys((name, *self._state.also_called.get(old, ())), place))
        self._new_log_offset[old] = log_offset

    def append(
        self, batch: pa.RecordBatch, queue_offset: Ints, log_offset: Ints
    ) -> Iterator[AcceptedRows]:
        """Append rows with these old places: gives what was accepted and refused, in parts.

        Where the new store refuses a row, the places of half messages are not known before they are
        appended: then a part ends where a row names a half message of the same part.
        """
        kept = np.ones(batch.num_rows, np.bool_)
        owns = list(self._own_rows(batch, queue_offset, log_offset, kept))
        done = self._append_whole(batch, log_offset, kept, owns)
        if done is not None:
            yield done
            return
        start, called, places = 0, set[HalfName](), set[int]()
        owns_of_part: list[_Own] = []
        for own in owns:
            if not (called.isdisjoint(own.names) and places.isdisjoint(own.places)):
                yield self._append_part(batch, log_offset, kept, owns_of_part, start, own.row)
                start, owns_of_part = own.row, []
                called.clear()
                places.clear()
            owns_of_part.append(own)
            called.update(own.called)
            if own.called:
                places.add(int(log_offset[own.row]))
        yield self._append_part(batch, log_offset, kept, owns_of_part, start, batch.num_rows)

    def _append_whole(
        self, batch: pa.RecordBatch, log_offset: Ints, kept: Mask, owns: list[_Own]
    ) -> AcceptedRows | None:
        """Append all rows, whose half messages get the next queue offsets; None if one is refused."""
        inside: dict[HalfName, _Place] = {}
        rows_of: dict[int, int] = {}
        ends: Counter[QueueId] = Counter()
        for own in owns:
            if own.called:
                queue, old = QueueId(*own.called[0][:2]), int(log_offset[own.row])
                offset = self._writer.max_offset(*queue) + ends[queue]
                inside.update(dict.fromkeys(own.called, _Place(offset, old)))
                ends[queue] += 1
                rows_of[old] = own.row
        if any(own.places and own.is_op and own.places[0] in rows_of for own in owns):
            return None  # a text that names a log offset of the same batch
        try:
            return self._append_part(
                batch, log_offset, kept.copy(), owns, 0, len(kept), inside, rows_of
            )
        except (InvalidArgumentError, InvalidMessageError):
            return None

    def _own_rows(
        self, batch: pa.RecordBatch, queue_offset: Ints, log_offset: Ints, kept: Mask
    ) -> Iterator[_Own]:
        """The rows that name half messages or are some. Takes the rows that are not open out of `kept`."""
        topics = batch["topic"].dictionary_encode()
        names = topics.dictionary.to_pylist()
        kinds, codes = [kind_of_broker_record(name) for name in names], topics.indices.to_numpy()
        of_broker = np.array([kind is not None for kind in kinds], dtype=np.bool_)[codes]
        prepared = batch["preparedTransactionOffset"].to_numpy()
        for row in np.flatnonzero(of_broker | (prepared != 0)).tolist():
            kind, place = kinds[codes[row]], int(log_offset[row])
            if kind is None:
                yield _Own(row, places=[int(prepared[row])])
                continue
            if place in self._state.in_no_queue:
                continue
            queue_id, stored = batch["queueId"][row].as_py(), batch["rawProperties"][row].as_py()
            name = (names[codes[row]], queue_id, int(queue_offset[row]))
            why = self._state.why_not_open(kind, place, stored)
            if why is not None:
                self.left_out[why] += 1
                kept[row] = False
            elif kind == HALF:
                yield _Own(row, called=[name, *self._state.also_called.get(place, ())])
            elif kind == OP:
                half, half_place = HALF_OF_OP[name[0]], _number_in(stored, HALF_PLACE)
                if half_place is not None:
                    yield _Own(row, True, places=[half_place])
                else:
                    numbers = offsets_in_op_body(batch["body"][row].as_py())
                    yield _Own(row, True, names=[(half, queue_id, number) for number in numbers])

    def _append_part(
        self,
        batch: pa.RecordBatch,
        log_offset: Ints,
        kept: Mask,
        owns: list[_Own],
        start: int,
        stop: int,
        inside: Mapping[HalfName, _Place] | None = None,
        rows_of: Mapping[int, int] | None = None,
    ) -> AcceptedRows:
        """Append the rows from `start` to `stop`.

        `inside` and `rows_of`: the names and the rows of half messages among them. With these, one refused
        row is an error, before a byte is written.
        """
        rows_of_part = batch.slice(start, stop - start)
        bodies: dict[int, bytes] = {}
        properties: dict[int, bytes] = {}
        prepared = rows_of_part["preparedTransactionOffset"].to_numpy().copy()
        halves = np.full(len(rows_of_part), -1, dtype=np.int64)
        nothing = 0
        for own in owns:
            row = own.row - start
            stored = rows_of_part["rawProperties"][row].as_py()
            if own.called:
                properties[row] = _with_number(stored, ORIGINAL, None)
            elif not own.is_op:
                prepared[row] = self._new_log_offset.get(own.places[0], 0)
                halves[row] = (rows_of or {}).get(own.places[0], -1)
            elif own.places:
                new = self._new_log_offset.get(own.places[0])
                properties[row] = _with_number(stored, HALF_PLACE, new)
                kept[own.row] = new is not None
            else:
                places = (self._halves.get(name) or (inside or {}).get(name) for name in own.names)
                numbers = [f"{place.queue_offset}," for place in places if place is not None]
                bodies[row] = "".join(numbers).encode()
                kept[own.row] = bool(numbers)
            nothing += not kept[own.row]
        rows_of_part = _with_values(rows_of_part, bodies, properties, prepared)
        rows = start + np.flatnonzero(kept[start:stop])
        some = (
            rows_of_part
            if len(rows) == len(rows_of_part)
            else rows_of_part.take(pa.array(rows - start))
        )
        if inside is None:
            done = append_valid_rows(self._writer, some)
        else:
            number = np.cumsum(kept) - 1  # of each row among those that are kept
            named = np.where(halves >= 0, number[halves], -1)[rows]
            places_of = self._writer.append_batch(some, copied=True, halves=named)
            done = AcceptedRows(np.arange(len(rows)), places_of, [])
        self.left_out[NAMES_NOTHING] += nothing
        self._learn_of(log_offset, owns, rows, done)
        refused = [(int(rows[row]), error) for row, error in done.refused]
        return AcceptedRows(rows[done.rows], done.places, refused)

    def _learn_of(self, log_offset: Ints, owns: list[_Own], rows: Ints, done: AcceptedRows) -> None:
        """Note the new places of the half messages of a part, and forget those that it ended."""
        new = dict(zip(rows[done.rows].tolist(), range(len(done.rows)), strict=True))
        for own in owns:
            at = new.get(own.row)
            if own.called and at is not None:
                places = done.places
                new_places = int(places.queue_offset[at]), int(places.commit_log_offset[at])
                self.note_half_message(own.called[0], int(log_offset[own.row]), *new_places)
        for name in (name for own in owns for name in own.names):
            place = self._halves.pop(name, None)
            if place is not None:
                self._new_log_offset.pop(place.old_log_offset, None)


def _with_values(
    batch: pa.RecordBatch, bodies: dict[int, bytes], properties: dict[int, bytes], prepared: Ints
) -> pa.RecordBatch:
    """A batch with other bodies and properties in some rows."""
    batch = _with_column(batch, "preparedTransactionOffset", pa.array(prepared))
    for name, values in (("body", bodies), ("rawProperties", properties)):
        if values:
            mask = np.zeros(batch.num_rows, np.bool_)
            mask[list(values)] = True
            column = batch[name]
            new = pa.array([values[row] for row in sorted(values)], column.type)
            batch = _with_column(batch, name, pc.replace_with_mask(column, pa.array(mask), new))
    return batch


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def _number_in(stored: bytes, name: str) -> int | None:
    """The number in a property of a stored string; None without one."""
    for item in stored.split(bytes([PROPERTY_SEPARATOR])):
        key, _, value = item.partition(bytes([NAME_VALUE_SEPARATOR]))
        if key == name.encode() and value.isdigit():
            return int(value)
    return None


def _with_number(stored: bytes, name: str, number: int | None) -> bytes:
    """A stored property string with another number in a property, or without that property."""
    front = name.encode() + bytes([NAME_VALUE_SEPARATOR])
    changed = [
        item if not item.startswith(front) else front + str(number).encode()
        for item in stored.split(bytes([PROPERTY_SEPARATOR]))
        if number is not None or not item.startswith(front)
    ]
    return bytes([PROPERTY_SEPARATOR]).join(changed)


class MovedOffsets:
    """Finds where some offsets of a queue, sorted, lead in the new queue: each to the same message, or to the
    first one after it that is there.

    The messages come in the order of their log. Where queue offsets begin again, the queue was deleted and
    created again: offsets are those of its last life.
    """

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = np.array(offsets, dtype=np.int64)
        self._become = np.full(len(offsets), -1, dtype=np.int64)  # -1: not met yet
        self._last: tuple[int, int] | None = None  # old and new offset of the last message

    def note(self, old: Ints, new: Ints) -> None:
        """Note the next messages of the queue, at least one: their old and their new offsets."""
        if self._last is not None:
            old, new = np.append(self._last[0], old), np.append(self._last[1], new)
        back = np.flatnonzero(np.diff(old) <= 0)
        if len(back):  # an earlier life ends
            self._become[:] = -1
            old, new = old[back[-1] + 1 :], new[back[-1] + 1 :]
        self._last = int(old[-1]), int(new[-1])
        met = np.flatnonzero((self._become < 0) & (self._offsets < old[-1]))
        at = np.searchsorted(old, self._offsets[met], side="right") - 1
        # Within a batch of messages the distance from its first one stays; a lost message leaves no gap.
        inside = np.minimum(new[at] + self._offsets[met] - old[at], new[at + 1])
        self._become[met] = np.where(at < 0, new[0], inside)

    def new_offset_for(self, offset: int, end: int) -> int:
        """The new offset for one of the old ones. `end`: the max offset of the new queue."""
        become = int(self._become[np.searchsorted(self._offsets, offset)])
        if become >= 0:
            return become
        return end if self._last is None else min(self._last[1] + offset - self._last[0], end)


_BATCH_BYTES = 16 << 20
_SKIPPED_KEPT = 10_000  # ranges listed one by one; further ones are counted
# Gaps that are not a loss: the filler at a file's end, and bytes never written or cut off on
# purpose.
_NO_LOSS = frozenset((Gap.FILLER, Gap.UNWRITTEN, Gap.STALE))


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """A log range [start, stop) without an intact record."""

    start: int
    stop: int
    kind: str
    reason: str | None


@dataclass(slots=True)
class SalvageReport:
    """The result of a salvage. Record bytes, skipped bytes and no-loss bytes add up to the log."""

    source: str
    target: str
    log_start: int = 0
    log_stop: int = 0
    messages: int = 0
    record_bytes: int = 0
    skipped_bytes: int = 0
    no_loss_bytes: int = 0  # filler, preallocated zeros, stale tails, heads of entries
    topics: Counter[str] = field(default_factory=Counter)
    skipped: list[SkippedRange] = field(default_factory=list)
    skipped_ranges: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # reason -> intact records not written
    misnamed: list[str] = field(default_factory=list)  # files of the log with a wrong name
    entries_after_log: dict[QueueId, int] = field(default_factory=dict)  # see RecoveryReport
    log_end: int = 0  # after the last intact record
    unread: str | None = None  # a log of another kind that the store goes on in
    default_delays: int = 0  # delayed messages that are due by the default levels: none were given
    with_record_crcs: bool = False  # whether the last copied record had one
    raw: bool = False  # every record was copied, with the offsets that it names
    ended: Counter[str] = field(default_factory=Counter)  # of the broker, not copied, by reason
    ended_bytes: int = 0
    waiting: int = 0  # delayed and timer messages that are still to be delivered
    open_transactions: int = 0
    without_copy: int = 0  # delayed messages that were delivered, and whose copy is lost
    group_offsets: int = 0  # offsets of groups, of a queue each, that were carried over
    # Messages that a group popped and did not acknowledge, and those that it gets again for their sake.
    not_acknowledged: int = 0
    given_again: int = 0
    # Queues whose topic was deleted and created again, and topics that topics.json does not have.
    created_again: list[str] = field(default_factory=list)
    undeclared: dict[str, int] = field(default_factory=dict)  # messages
    config_unread: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "topics": dict(sorted(self.topics.items())),
            "ended": dict(sorted(self.ended.items())),
            "skipped": [asdict(part) for part in self.skipped],
            "entries_after_log": rows_of_entry_counts(self.entries_after_log),
        }


def salvage(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    config: Any = None,
    release: str | None = None,
    raw: bool = False,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write every intact record of the log in `source` to a new store in `target`.

    Records of the broker that name offsets get the new ones, and those whose state has ended are left
    out; with `raw` all are copied as they are, as evidence: no broker should start on that store. The
    source is never changed. `config` and `release` are for the target; file sizes default to those of
    the source. Raises TargetExistsError if the target has content, and the errors of opening and
    writing. An unfinished target keeps its file `abort`. `progress` is given the bytes of two passes
    over the log, with `raw` of one.
    """
    given_settings = StoreConfig.of(config)
    of_source = given_settings.without_sizes_of_queues()
    with StoreReader.open(source, config=of_source, queues=False) as store:
        require_apart([store.path, *store.log.chain.folders], target)
        refuse_unknown_size(store.log, given_settings)
        report = SalvageReport(
            str(store.path), os.fspath(target), store.log.start, store.log.chain.stop, raw=raw
        )
        queues = EntriesAfterCopiedLog(store.path, store.config, store.log)
        unread = unread_dledger(store.path, given_settings, store.log.chain.segments)
        report.unread = None if unread is None else str(unread)
        report.with_record_crcs = _has_record_crcs(store)
        crcs = StoreConfig(enabledAppendPropCRC=report.with_record_crcs)
        settings = given_settings.with_defaults_of(store.geometry()).with_defaults_of(crcs)
        settings = replace(settings, maxMessageSize=None)  # the limit of messages that come later
        state = None if raw else OpenState.of(store, progress)
        with StoreWriter.create(target, settings, release=release) as writer:
            salvaging = _Salvaging(store, writer, report, state)
            for piece in walk(store.log):
                salvaging.take(piece)
                if progress is not None:
                    progress(piece.stop - piece.start)
            salvaging.finish()
        report.entries_after_log = queues.behind(report.log_end)
        report.default_delays = report.topics[SCHEDULE_TOPIC] if config is None else 0
        report.misnamed = [f"{file}. {file.advice}" for file in misnamed_files(store.log)]
    return report


class _Salvaging:
    """The writing of a new store; without `state` as its records are."""

    def __init__(
        self,
        store: StoreReader,
        writer: StoreWriter,
        report: SalvageReport,
        state: OpenState | None,
    ) -> None:
        self._store, self._writer, self._report, self._state = store, writer, report, state
        self._moved = None if state is None else RecordMover(state, writer)
        self._begun = QueuesBegun()
        self._config = AdaptedConfig(store.path, store.config.enableLmq)
        committed = [
            (group, QueueId(topic, queue_id), offset)
            for group, topic, queue_id, offset in self._config.committed
            if not is_group_of_broker(group)
        ]
        self._committed = [row for row in committed if not row[1].topic.startswith(LMQ_PREFIX)]
        self._light_offsets = len(committed) - len(self._committed)
        # Where a group goes on: the first message that it was given and did not acknowledge, else its offset.
        self._starts: dict[tuple[str, QueueId], int] = {}
        wanted: dict[QueueId, set[int]] = {}
        for group, queue, offset in self._committed:
            given = None if state is None else state.given.get((group, queue))
            self._starts[group, queue] = offset if given is None else min(offset, given.first)
            wanted.setdefault(queue, set()).add(self._starts[group, queue])
        self._offsets = {queue: MovedOffsets(sorted(some)) for queue, some in wanted.items()}
        if state is not None:
            self._config.write_files_without_offsets(writer.path)
        for topic, attributes in _declared(store):
            writer.declare_topic(topic, attributes=attributes)

    def take(self, piece: SoundRun | RecordOrGap) -> None:
        """Write the records of a piece of the log, or report what it is."""
        if not isinstance(piece, SoundRun):
            _skip(self._store, piece, self._report)
            return
        headers = _without_bare(piece.headers, self._report)
        self._begun.add_headers(headers)
        for rows in in_portions(headers.total, _BATCH_BYTES):
            self._save(headers.take(rows))
        self._report.log_end = piece.stop
        self._report.no_loss_bytes += piece.frame * len(piece.headers)

    def _save(self, headers: Headers) -> None:
        batch, place = batch_of_records(headers), headers.at + headers.base
        if self._moved is None:
            parts: Iterable[AcceptedRows] = [append_valid_rows(self._writer, batch)]
        else:
            parts = self._moved.append(batch, headers.queue_offset, place)
        copied = refused = 0
        for accepted in parts:
            copied += int(headers.total[accepted.rows].sum())
            for row, error in accepted.refused:  # what the target's files cannot hold
                start, size, reason = int(place[row]), int(headers.total[row]), error.reason
                refused += size
                self._report.refused[reason] = self._report.refused.get(reason, 0) + 1
                _add_skipped(self._report, SkippedRange(start, start + size, "refused", reason))
            self._count(batch, headers, accepted)
        self._report.ended_bytes += int(headers.total.sum()) - copied - refused

    def _count(self, batch: pa.RecordBatch, headers: Headers, accepted: AcceptedRows) -> None:
        report, saved = self._report, headers.take(accepted.rows)
        report.messages += len(saved)
        report.record_bytes += int(saved.total.sum())
        topics = batch["topic"].take(pa.array(accepted.rows)).dictionary_encode()
        names, codes = topics.dictionary.to_pylist(), topics.indices.to_numpy()
        for name, count in zip(names, np.bincount(codes, minlength=len(names)), strict=True):
            report.topics[name] += int(count)
        if self._starts:
            self._note_offsets(names, codes, saved, accepted.places.queue_offset)

    def _note_offsets(self, names: list[str], codes: Ints, saved: Headers, new: Ints) -> None:
        rows = np.flatnonzero(enters_queue(saved.sys_flag))
        order = rows[np.lexsort((rows, saved.queue_id[rows], codes[rows]))]
        keys = np.stack([codes[order], saved.queue_id[order]])
        ends = np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1
        for some in np.split(order, ends) if len(order) else ():
            queue = QueueId(names[codes[some[0]]], int(saved.queue_id[some[0]]))
            if queue in self._offsets:
                self._offsets[queue].note(saved.queue_offset[some], new[some])

    def finish(self) -> None:
        """Write what names the new offsets, and complete the report."""
        report, state = self._report, self._state
        report.created_again = sorted(queue.name for queue in self._begun.again)
        undeclared = filter(self._store.is_undeclared, report.topics)
        report.undeclared = {topic: report.topics[topic] for topic in sorted(undeclared)}
        if state is None or self._moved is None:
            return
        report.ended = self._moved.left_out
        report.waiting, report.without_copy = len(state.waiting), state.delivered_without_copy
        report.open_transactions = state.open_transactions
        report.config_unread = list(dict.fromkeys((*self._config.unread, *state.unread)))
        if self._light_offsets:
            report.config_unread.append(
                f"{counted(self._light_offsets, 'offset')} in light queues ({LMQ_PREFIX}...). Their messages "
                "get new queue offsets, and the groups start there like new ones"
            )
        if state.open_in_database:
            report.config_unread.append(
                f"{counted(state.open_in_database, 'open transaction')} in {ROCKSDB_STORE_DIR}/, by which a "
                f"broker with transRocksDBEnable asks producers: for their half messages, in "
                f"{ROCKSDB_HALF_TOPIC} of the new store, it does not ask"
            )
        delayed = [queue.queue_id for queue in self._writer.queues(SCHEDULE_TOPIC)]
        if delayed:
            write_zero_delay_offsets(self._writer.path, delayed)
        table: dict[str, dict[int, int]] = {}
        for group, queue, offset in self._committed:
            end, start = self._writer.max_offset(*queue), self._starts[group, queue]
            new = self._offsets[queue].new_offset_for(start, end)
            table.setdefault(f"{queue.topic}@{group}", {})[queue.queue_id] = new
            if start < offset:
                report.not_acknowledged += state.given[group, queue].messages
                report.given_again += offset - start
        report.group_offsets = len(self._committed)
        self._config.write_offsets(self._writer.path, table)


def _declared(store: StoreReader) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of the topics with BatchConsumeQueues, which their records need."""
    declared = declared_topics(store.path)
    folders = store.view.folders().items()
    wanted = batch_topics(declared) | {queue.topic for queue, batch in folders if batch}
    if not declared:  # then only the records are left to tell
        wanted |= _topics_of_inner_batches(store)
    for topic in sorted(wanted):
        attributes = declared.get(topic, {}).get("attributes") or {}
        yield topic, {**attributes, **BATCH["attributes"]}


def _topics_of_inner_batches(store: StoreReader) -> set[str]:
    topics: set[str] = set()
    for headers in sound_headers(store.log, check_crc=False):
        rows = np.flatnonzero(headers.sys_flag & SysFlag.INNER_BATCH)
        if len(rows):
            topics.update(stored_topics(headers.take(rows)).unique().to_pylist())
    return topics


def _has_record_crcs(store: StoreReader) -> bool:
    """Whether the newest file has record CRCs. If so, the target gets new ones."""
    last = store.log.last_file()
    parts = sound_headers(store.log, None if last is None else last.base, check_crc=True)
    return any(len(rows_with_record_crc(headers)) > 0 for headers in parts)


def _without_bare(headers: Headers, report: SalvageReport) -> Headers:
    """The headers without records that lost their record CRC by damage: those whose neighbours have
    one.

    The first and last record of a run have damage or a file's end beside them. For them, the
    previous intact record decides.
    """
    has = np.full(len(headers) + 2, report.with_record_crcs)
    has[1:-1] = False
    has[1 + rows_with_record_crc(headers)] = True
    bare = ~has[1:-1] & has[:-2] & has[2:]
    kept = headers.take(~bare)
    if len(kept):
        report.with_record_crcs = bool(has[1:-1][~bare][-1])
    for row in np.flatnonzero(bare).tolist():
        start = int(headers.at[row]) + headers.base
        stop = start + int(headers.total[row])
        _add_skipped(report, SkippedRange(start, stop, "damaged", "its record CRC is missing"))
    return kept


def batch_of_records(headers: Headers) -> pa.RecordBatch:
    """Records as a batch for `StoreWriter.append_batch`, which writes the same records at other
    positions."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": stored_topics(headers),
            "queueId": pa.array(headers.queue_id),
            "body": stored_bodies(headers),
            "rawProperties": stored_properties(headers),
            "flag": pa.array(headers.flag),
            "sysFlag": pa.array(headers.sys_flag),
            "bornTimestamp": pa.array(headers.born_timestamp),
            "bornHost": hosts(headers, of_store=False),
            "storeTimestamp": pa.array(headers.store_timestamp),
            "storeHost": hosts(headers, of_store=True),
            "reconsumeTimes": pa.array(headers.reconsume_times),
            "preparedTransactionOffset": pa.array(headers.prepared_transaction_offset),
        }
    )


def _skip(store: StoreReader, extent: RecordOrGap, report: SalvageReport) -> None:
    closed = was_closed(store.path)
    rest = (
        closed and extent.gap is Gap.TORN and end_of_page_rest(store.log, extent.start) is not None
    )
    if extent.gap is None or extent.gap in _NO_LOSS or rest:
        report.no_loss_bytes += extent.stop - extent.start
        return
    _add_skipped(report, SkippedRange(extent.start, extent.stop, extent.gap.value, extent.reason))


def _add_skipped(report: SalvageReport, skipped: SkippedRange) -> None:
    report.skipped_bytes += skipped.stop - skipped.start
    report.skipped_ranges += 1
    if len(report.skipped) < _SKIPPED_KEPT:
        report.skipped.append(skipped)
