"""Find single messages by entry, log offset, id or key. Each is checked against its record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice

import pyarrow as pa

from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import error_of_unreadable_record, record_or_damage
from rmq_store.errors import CorruptRecordError, LogOffset, MissingFileError, StoreError
from rmq_store.format.byte_layout import Property
from rmq_store.format.compression import decompress
from rmq_store.format.queues import Entries, QueueId, QueueSlice
from rmq_store.format.record import (
    Message,
    Record,
    decode_properties,
    decode_utf8,
    is_dispatched_to,
    log_offset_of_id,
    to_message,
)
from rmq_store.index.index_writer import has_key
from rmq_store.index.query_message import KeyIndex
from rmq_store.reading.query import OnDamage, Query, handler_of_search, ignore_damage, raise_error
from rmq_store.reading.slice_reader import SliceReader, ranges_of_slices
from rmq_store.snapshot.opening import Opening
from rmq_store.snapshot.queue_view import QueueView

_Place = tuple[int, int | None]
"""Log offset and queue offset. The members of an inner batch have the same log offset."""


class EntryMessages:
    """Reads the messages of entries in one log."""

    def __init__(self, log: Callable[[], CommitLog], broker_name: str) -> None:
        self._log, self._broker_name = log, broker_name

    def any_message_at(self, queue: QueueId, entries: Entries, row: int) -> Message | None:
        """What the broker would return for an entry, if it is a record."""
        record = self._log().intact_record_at(
            broker_position(self._log(), int(entries.log_offset[row]))
        )
        if record is None:
            return None
        return self.of_record(record, queue, int(entries.offset[row]), int(entries.tags_code[row]))

    @staticmethod
    def belongs(record: Record, queue: QueueId) -> bool:
        """Whether a record is one of a queue, or names it as a light queue."""
        if decode_utf8(record.topic) == queue.topic and record.queue_id == queue.queue_id:
            return True
        return is_dispatched_to(decode_properties(record.properties), queue.topic)

    def of_record(
        self,
        record: Record,
        queue: QueueId | None = None,
        queue_offset: int | None = None,
        code: int | None = None,
    ) -> Message:
        """The message of a record; of its entry, with the queue, queue offset and tagsCode of that.

        Raises BodyError for a body that cannot be decompressed.
        """
        return to_message(
            record,
            broker_name=self._broker_name,
            body=decompress(
                record.body,
                record.sys_flag,
                path=self._log().path_at(record.physical_offset),
                log_offset=record.physical_offset,
            ),
            topic=None if queue is None else queue.topic,
            queue_id=None if queue is None else queue.queue_id,
            queue_offset=queue_offset,
            tags_code=code,
        )


def broker_position(log: CommitLog, where: int) -> int:
    """The position where the broker reads a log offset. For 0 it is the first existing file.

    See MappedFileQueue#findMappedFileByOffset with returnFirstOnNotFound for offset 0: for an
    expired first entry of a queue, the broker returns the record that is now first.
    """
    return log.start if where == 0 else where


class MessageLookup(EntryMessages):
    """Finds messages one at a time in the store of a view."""

    def __init__(
        self, view: QueueView, opening: Opening, broker_name: str, key_index: Callable[[], KeyIndex]
    ) -> None:
        super().__init__(lambda: view.log, broker_name)
        self._view, self._opening = view, opening
        self._key_index = key_index

    def message_of(self, queue: QueueId, entries: Entries, row: int) -> Message | None:
        """The message of an entry; None if the entry does not point to a record of its queue.

        Raises CorruptRecordError if a record of that size is there but damaged.
        """
        where, size = int(entries.log_offset[row]), int(entries.size[row])
        points = bool(entries.points_to_record[row])
        if not points or where + size > self._view.log_end or where < self._view.snapshot.log_start:
            return None
        try:
            record = self._log().record_at(where)
        except CorruptRecordError:
            if self._log().is_record(where, size):
                raise
            return None
        if record.total_size != size or not self.belongs(record, queue):
            return None
        return self.of_record(record, queue, int(entries.offset[row]), int(entries.tags_code[row]))

    def message_at(self, commit_log_offset: int) -> Message:
        """The message whose record starts at a log offset; queue_offset is null if no queue lists it.

        Raises CorruptRecordError if no record starts there, MissingFileError if no file has the
        offset.
        """
        return self._in_its_queue(self._log().record_at(commit_log_offset))

    def _in_its_queue(self, record: Record) -> Message:
        """The message of a record, with its queue offset found by its log offset."""
        queue = QueueId(decode_utf8(record.topic), record.queue_id)
        if queue not in self._view.snapshot.queues:
            return self.of_record(record)
        # The entry is nearly always where the record says; else it is searched.
        entries = self._entry_of(queue, record.queue_offset, record)
        if entries is None:
            at = self._view.offset_at_log(queue, record.physical_offset)
            entries = self._entry_of(queue, at, record)
        if entries is None:
            return self.of_record(record)
        return self.of_record(record, queue, int(entries.offset[0]), int(entries.tags_code[0]))

    def _entry_of(self, queue: QueueId, offset: int, record: Record) -> Entries | None:
        """The entry at `offset` if it points to `record`."""
        state = self._view.state(queue)
        if not state.min_offset <= offset < state.max_offset:
            return None
        entries = self._view.entries(queue, offset, offset + 1)
        listed = len(entries) and int(entries.log_offset[0]) == record.physical_offset
        return entries if listed else None

    def recorded_queue_offset(self, commit_log_offset: int) -> QueueSlice | None:
        """The queue entry that the record at a log offset names. It is not verified.

        None if no intact record starts there, or if several queues list it.
        """
        record = self._log().intact_record_at(commit_log_offset)
        if record is None or Property.INNER_MULTI_DISPATCH in decode_properties(record.properties):
            return None
        queue = QueueId(decode_utf8(record.topic), record.queue_id)
        return QueueSlice(queue, record.queue_offset, record.queue_offset + 1)

    def messages_by_id(
        self, message_id: str, on_damage: OnDamage | str | None = None
    ) -> list[Message]:
        """Messages by offsetMsgId (32 or 56 hex digits) or by UNIQ_KEY, in the order of the log.

        A UNIQ_KEY may have several messages: retries, and members of a batch. Empty if there is
        none. Raises CorruptRecordError or MissingFileError if the id leads to an unreadable place
        of the log, or if no message is found and an unreadable part of the log has no index. With
        `on_damage`, these errors go there and the place is skipped.
        """
        on_damage = handler_of_search(on_damage)
        report = on_damage or raise_error
        try:
            named = self.by_offset_id(message_id)
        except (CorruptRecordError, MissingFileError) as error:
            report(error)
            named = None
        if named is not None:
            return [named]
        by_key = self._by_uniq_key(message_id, report)
        if on_damage is not None or not by_key:  # the message may have been there
            for damage in self._key_index().damage_in_gaps():
                report(damage)
        return [by_key[place] for place in sorted(by_key, key=_in_log_order)]

    def _by_uniq_key(
        self, uniq_key: str, on_damage: Callable[[StoreError], None]
    ) -> dict[_Place, Message]:
        topics = self._view.topics.every
        parts = [
            self._having_key(topic, uniq_key, reversed(offsets), on_damage=on_damage)
            for topic, offsets in self._key_index().candidates(topics, uniq_key).items()
        ]
        every = chain(*parts, self._in_batches(topics, uniq_key, 0, None, on_damage))
        return {_place(message): message for message in every if message.uniq_key == uniq_key}

    def by_offset_id(self, message_id: str) -> Message | None:
        """The message with an offsetMsgId (32 or 56 hex digits); None if the id is not one or the
        message is gone.

        Raises CorruptRecordError if its record is damaged, MissingFileError if its file is missing
        inside the log.
        """
        offset = log_offset_of_id(message_id)
        if offset is None:
            return None
        try:
            message = self.message_at(offset)
        except (CorruptRecordError, MissingFileError) as error:
            damage = error_of_unreadable_record(self._log(), self._view.log_end, offset, error)
            if damage is None:  # an id of another store, or a UNIQ_KEY
                return None
            raise damage from error
        return message if message.msg_id == message_id.upper() else None

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin: int,
        end: int | None,
        on_damage: OnDamage | str | None,
    ) -> list[Message]:
        """See `StoreReader.query_message`."""
        on_damage = handler_of_search(on_damage)
        index = self._key_index()
        offsets = index.candidates([topic], key)[topic]
        if on_damage is not None:
            for damage in index.damage_in_gaps():
                on_damage(damage)
        messages = self._having_key(topic, key, reversed(offsets), begin, end, on_damage)
        newest = {_place(message): message for message in islice(messages, max_messages)}
        members = self._in_batches([topic], key, begin, end, on_damage)
        newest |= {_place(message): message for message in deque(members, max_messages)}
        places = sorted(newest, key=_in_log_order)
        return [newest[place] for place in places[max(0, len(places) - max_messages) :]]

    def _in_batches(
        self,
        topics: Collection[str],
        key: str,
        begin: int,
        end: int | None,
        on_damage: Callable[[StoreError], None] | None,
    ) -> Iterator[Message]:
        """The messages of queues of inner batches that have `key` as a word of KEYS or as UNIQ_KEY.

        Those stored in [begin, end] (ms), in the order of the log. Reads these queues, because no index
        has the keys of the members. `on_damage` receives the errors of what is left out.
        """
        slices = [
            _in_time(self._view, QueueSlice(queue, state.min_offset, state.max_offset), begin, end)
            for queue, state in self._view.snapshot.queues.items()
            if state.batch and queue.topic in topics
        ]
        slices = [part for part in slices if part.start < part.stop]
        if not slices:
            return
        query = Query.of(
            verify_queue=False,
            columns=_NAMES,
            keys={key},
            unwrap_batches=True,
            on_damage=on_damage or ignore_damage,
        )
        ranges = ranges_of_slices(slices)
        reader = SliceReader(self._view, self._broker_name, query, ranges, self._opening)
        for batch in reader.read(slices):
            for message in _messages(batch):
                if begin <= message.store_timestamp and (
                    end is None or message.store_timestamp <= end
                ):
                    yield message

    def _having_key(
        self,
        topic: str,
        key: str,
        offsets: Iterable[int],
        begin: int = 0,
        end: int | None = None,
        on_damage: Callable[[StoreError], None] | None = None,
    ) -> Iterator[Message]:
        """The messages at these log offsets that have the key and were stored in [begin, end]."""
        for offset in offsets:
            if not self._view.snapshot.log_start <= offset < self._view.log_end:
                continue
            record: Record | StoreError | None
            if on_damage is None:
                record = self._log().intact_record_at(offset)
            else:
                record = record_or_damage(self._log(), self._view.log_end, offset)
                if isinstance(record, StoreError):
                    on_damage(error_of_indexed_record(record, topic, key, offset))
            if not isinstance(record, Record):
                continue
            in_time = begin <= record.store_timestamp and (
                end is None or record.store_timestamp <= end
            )
            if in_time and has_key(record, topic, key):
                yield self._in_its_queue(record)


def error_of_indexed_record(error: StoreError, topic: str, key: str, offset: int) -> StoreError:
    """The error for damage that a look-up found. Keys with the same hash cannot be distinguished
    there."""
    return type(error)(
        error.path,
        offset=LogOffset(offset),
        reason=f"an index entry for the hash of {key!r} in topic {topic!r} points to damage: {error.reason}",
        expected=error.expected,
        actual=error.actual,
        advice="A message may have been there. rmqstore verify lists all damage",
    )


def _place(message: Message) -> _Place:
    return message.commit_log_offset, message.queue_offset


def _in_log_order(place: _Place) -> tuple[int, int]:
    log_offset, queue_offset = place
    return log_offset, -1 if queue_offset is None else queue_offset


_NAMES = tuple(column.name for column in COLUMNS)  # the fields of a Message, in its order


def _in_time(view: QueueView, slice_: QueueSlice, begin: int, end: int | None) -> QueueSlice:
    start, stop = slice_.start, slice_.stop
    if begin > 0:
        start = max(start, view.first_since(slice_.queue, begin))
    if end is not None:
        stop = min(stop, view.first_since(slice_.queue, end + 1, unreadable_before=True))
    return QueueSlice(slice_.queue, start, stop)


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    columns = []
    for name in _NAMES:
        column = batch.column(name)
        is_time = pa.types.is_timestamp(column.type)
        values = (column.cast(pa.int64()) if is_time else column).to_pylist()
        columns.append([dict(value) for value in values] if name == "properties" else values)
    return map(Message, *columns)
