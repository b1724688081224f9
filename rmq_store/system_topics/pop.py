"""Messages that groups popped: when each was given, until when it is invisible, if it was acknowledged.

Of each pop the broker stores a check point, and of each acknowledgement a record. Both wait in the timer's
topic and come to the revive topic when they are due (PopReviveService). What was not acknowledged by then is
stored again, in a retry topic. A changed invisible time is a new check point, and an acknowledgement of the
one before. Queues that are popped in order have config/consumerOrderInfo.json, and brokers with
popConsumerKVServiceEnable a database in `kvStore/`. With enablePopBufferMerge a broker keeps what is not
acknowledged in memory for some seconds, so that a copy of a running store lacks a part.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rmq_store.arrow import compute as pc
from rmq_store.config.consumer_offsets import popped_in_order
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TIMER_TOPIC,
)
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import joined_ranges, newest_time
from rmq_store.system_topics.state_database import damaged_database, items_of
from rmq_store.system_topics.system_topic_rows import (
    MessageCopy,
    Row,
    copies_with,
    ignore_error,
    property_of,
    values_in,
    whole_numbers,
    whole_queues_of,
)

INVISIBLE, DUE = "invisible", "due"
ACKNOWLEDGED, RETRIED = "acknowledged", "retried"
_OPEN = (INVISIBLE, DUE)
_CHECK_POINT = "ck"
_TAGS = (_CHECK_POINT, "ack", "bAck")  # by which the entries of other timers are left out
_READ = ("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "body", "commitLogOffset")
_OF_RECORD = ("topic", "queueId", "queueOffset", "uniqKey", "reconsumeTimes")
_BEYOND = 1 << 62
_MOST_OF_A_POP = 1 << 10  # messages; a broker gives 32
_AT_ONCE = 1 << 15  # rows whose records are read together
NEWEST = 200_000
"""How many of the newest check points and acknowledgements `newest_popped` reads."""

GroupQueue = tuple[str, QueueId]
_DATABASE, _FAMILY = "kvStore", "popState"
_RETRY_FORMS = ("{topic}", RETRY_PREFIX + "{group}_{topic}", RETRY_PREFIX + "{group}+{topic}")


class PoppedMessage(NamedTuple):
    """A message that a group was given. Times are in ms."""

    start: int  # queue offset at which its check point begins
    time: int  # of its check point
    given: int  # when the group was given it
    until: int  # when another consumer may get it
    times: int = 1  # how often it was given
    place: int | None = None  # the log offset of its check point


class PopLog:
    """Follows check points and acknowledgements in the order of the log. Its memory grows with `open`: what
    each group was given of a queue and did not acknowledge, by queue offset."""

    def __init__(self, revived: Mapping[str, Mapping[int, int]]) -> None:
        """`revived`: how far the broker has read each revive topic, by queueId."""
        self._revived = revived
        self.open: dict[GroupQueue, dict[int, PoppedMessage]] = {}

    def ended_by(self, row: Row) -> Iterator[tuple[GroupQueue, int, PoppedMessage, str]]:
        """What a record of the timer's topic or of a revive topic ends: the message, and its state.

        Columns: `heldIn`, `queueId`, `queueOffset`, `topic` (REAL_TOPIC), `dueTimestamp`, `tags`, `body`,
        `commitLogOffset`.
        """
        timed = row["heldIn"] == TIMER_TOPIC
        if timed and not (row["topic"] or "").startswith(REVIVE_PREFIX):
            return
        try:
            content = json.loads(row["body"])
            key = _text(content["c"]), QueueId(_text(content["t"]), _number(content["q"]))
            start, time = _number(content["so"]), _number(content["pt"])
            if row["tags"] != _CHECK_POINT:
                # A batch of acknowledgements has 0 as `ao`, which is none of them.
                ended, state = {*map(_number, content.get("aol") or [content["ao"]])}, ACKNOWLEDGED
            else:
                read = self._revived.get(row["heldIn"], {}).get(row["queueId"], 0)
                ended, state = _given_by(content), RETRIED
                if timed or row["queueOffset"] >= read:
                    if timed or row["dueTimestamp"] is None:  # else it stood in the timer's topic
                        until = time + _number(content["it"])
                        self._give(key, ended, start, time, until, row["commitLogOffset"])
                    return
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # it names nothing
        pops = self.open.get(key, {})
        for offset in sorted(ended & pops.keys()):
            pop = pops[offset]
            if (pop.start, pop.time) == (start, time):
                del pops[offset]
                yield key, offset, pop, state
        if not pops:
            self.open.pop(key, None)

    def _give(
        self, key: GroupQueue, offsets: Iterable[int], start: int, time: int, until: int, place: int
    ) -> None:
        pops = self.open.setdefault(key, {})
        for offset in offsets:
            before, given, times = pops.get(offset), time, 1
            if before is not None and before.until > time:  # its invisible time was changed
                given, times = before.given, before.times
            elif before is not None:
                times = before.times + 1
            pops[offset] = PoppedMessage(start, time, given, until, times, place)


def _given_by(content: Mapping[str, Any]) -> set[int]:
    """The queue offsets of a check point, without those that it has as acknowledged."""
    bits = _number(content["bm"])
    steps = content.get("d") or range(min(_number(content["n"]), _MOST_OF_A_POP))
    return {content["so"] + _number(step) for at, step in enumerate(steps) if not bits >> at & 1}


def _text(value: Any) -> str:
    """A text of a foreign file. Raises ValueError for another value."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is no text")
    return value


def _number(value: Any) -> int:
    """A number of a foreign file. Raises ValueError for what is none that a broker writes."""
    if type(value) is not int or not 0 <= value < _BEYOND:
        raise ValueError(f"{str(value)[:40]} is no whole number of 62 bits")
    return value


def popped(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """What every group popped. Columns as in the table `pop`, times in ms.

    Messages that were acknowledged come first, in the order of that, then the others by group and queue.
    Takes memory for those alone. Raises CorruptConfigError, and the errors of `read_slices` for damage.
    """
    yield from _in_pieces(store, _rows(store, _ranges(store), on_damage), on_damage)


def not_acknowledged(store: StoreReader, offsets: Mapping[GroupQueue, int]) -> Counter[GroupQueue]:
    """How many messages each group popped of a queue, before its offset there, and has not acknowledged.

    As `newest_popped`.
    """

    def is_open(row: Row) -> bool:
        queue, offset = place_of_pop_row(row)
        return row["state"] in _OPEN and offset < offsets.get((row["consumerGroup"], queue), 0)

    rows = (row for row in newest_popped(store, is_open) if row["state"] in _OPEN)
    return Counter((row["consumerGroup"], place_of_pop_row(row)[0]) for row in rows)


def not_acknowledged_before(store: StoreReader, log_offset: int) -> int:
    """The number of popped, unacknowledged messages that no consumer gets again once the records before a log
    offset are gone: the message's own record, or that of its check point. It leaves out messages at or after
    their group's offset: those count as not read."""
    committed, states = store.consumer_offsets(), store.snapshot().queues
    firsts: dict[QueueId, int] = {}
    count = 0
    for row in popped(store, ignore_error):
        queue, offset = place_of_pop_row(row)
        passed = committed.get(row["consumerGroup"], {}).get(queue.topic, {}).get(queue.queue_id)
        is_unread = passed is not None and offset >= passed
        if row["state"] not in _OPEN or is_unread or queue not in states:
            continue
        if queue not in firsts:
            firsts[queue] = store.view.offset_at_log(queue, log_offset)
        check_point = row["checkPoint"]
        is_gone = check_point is not None and check_point < log_offset
        count += states[queue].min_offset <= offset and (is_gone or offset < firsts[queue])
    return count


def newest_popped(store: StoreReader, wanted: Callable[[Row], bool]) -> Iterator[Row]:
    """As `popped`, the `wanted` rows alone, by the NEWEST check points and acknowledgements.

    A read of the broker's topics reports their damage. Raises CorruptConfigError, and the errors of a
    database.
    """
    ranges = _ranges(store)
    most = NEWEST // max(1, len(ranges))
    newest = [part.cut(max(part.start, part.stop - most), part.stop) for part in ranges]
    yield from _in_pieces(store, filter(wanted, _rows(store, newest, ignore_error)), ignore_error)


def _in_pieces(
    store: StoreReader, rows: Iterator[Row], on_damage: OnDamage | None
) -> Iterator[Row]:
    while some := list(islice(rows, _AT_ONCE)):
        yield from _with_records(store, some, on_damage)


def leaves_out_older_pops(store: StoreReader) -> bool:
    """Whether `newest_popped` leaves out some check points and acknowledgements."""
    ranges = _ranges(store)
    return any(len(part) > NEWEST // len(ranges) for part in ranges)


def _ranges(store: StoreReader) -> list[QueueSlice]:
    topics = (t for t in store.topics() if t.startswith((TIMER_TOPIC, REVIVE_PREFIX)))
    return [part for topic in topics for part in whole_queues_of(store, topic)]


def _rows(
    store: StoreReader, ranges: Sequence[QueueSlice], on_damage: OnDamage | None
) -> Iterator[Row]:
    newest = newest_time([store]) or 0
    pops = PopLog(store.consumer_offsets().get(REVIVE_GROUP, {}))
    for record in _records(store, ranges, on_damage):
        for key, offset, pop, state in pops.ended_by(record):
            ended = record["storeTimestamp"] if state == ACKNOWLEDGED else None
            yield _row(key, offset, pop, state) | {"acknowledgedTimestamp": ended}
    for key in sorted(pops.open):
        for offset, pop in sorted(pops.open[key].items()):
            yield _row(key, offset, pop, INVISIBLE if pop.until > newest else DUE)
    yield from _given_in_order(store, newest)
    for key, offset, pop in popped_in_database(store):
        yield _row(key, offset, pop, INVISIBLE if pop.until > newest else DUE)


def _records(
    store: StoreReader, ranges: Sequence[QueueSlice], on_damage: OnDamage | None
) -> Iterator[Row]:
    """Check points and acknowledgements in the order of the log, as `PopLog.ended_by` takes them."""
    columns = (*_READ, "properties")
    for batch in store.read_slices(ranges, columns=columns, tags=_TAGS, on_damage=on_damage):
        of_pop = pc.coalesce(property_of(batch, "REAL_TOPIC"), batch["topic"])
        some = batch.filter(pc.starts_with(of_pop, REVIVE_PREFIX))
        real = property_of(some, "REAL_TOPIC").to_pylist()
        due = whole_numbers(property_of(some, "TIMER_OUT_MS")).to_pylist()
        for values, topic, at in zip(values_in(some, _READ), real, due, strict=True):
            row = dict(zip(("heldIn", *_READ[1:]), values, strict=True))
            yield row | {"topic": topic, "dueTimestamp": at}


def _row(key: GroupQueue, offset: int, pop: PoppedMessage, state: str) -> Row:
    group, queue = key
    return {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "state": state,
        "givenTimestamp": pop.given,
        "invisibleUntil": min(pop.until, _BEYOND),
        "timesGiven": pop.times,
        "checkPoint": pop.place,  # in no table
    }


def _given_in_order(store: StoreReader, newest: int) -> Iterator[Row]:
    """The rows of queues that are popped in order: what each group was given last."""
    for order in popped_in_order(store.path):
        for at, offset in enumerate(order.offsets):
            until = order.visible_at.get(offset, order.time + order.invisible_ms)
            state = INVISIBLE if until > newest else DUE
            state = ACKNOWLEDGED if order.acknowledged >> at & 1 else state
            pop = PoppedMessage(
                offset, order.time, order.time, until, order.counts.get(offset, 0) + 1
            )
            yield _row((order.group, order.queue), offset, pop, state)


def popped_in_database(store: StoreReader) -> Iterator[tuple[GroupQueue, int, PoppedMessage]]:
    """What is not acknowledged with popConsumerKVServiceEnable (PopConsumerRocksdbStore), by queue offset.

    Raises UnsupportedStoreError without the extra `rocksdb`, CorruptConfigError for a damaged database.
    """
    folder, what = Path(store.path) / _DATABASE, "popped messages"
    for _, value in items_of(folder, _FAMILY, what):
        try:
            content = json.loads(value)
            group, form = _text(content["groupId"]), _RETRY_FORMS[content["retryFlag"]]
            topic = form.format(group=group, topic=_text(content["topicId"]))
            key = group, QueueId(topic, _number(content["queueId"]))
            time, until = map(_number, (content["popTime"], content["invisibleTime"]))
            offset = _number(content["offset"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise damaged_database(folder, what, f"{value[:60]!r}: {error}") from None
        yield key, offset, PoppedMessage(offset, time, time, time + until)


def _with_records(
    store: StoreReader, rows: Sequence[Row], on_damage: OnDamage | None
) -> Iterator[Row]:
    """The rows; a retry was given once more for each time before, and what is due and has a later copy was
    given again as that."""
    places = {
        place_of_pop_row(row): row
        for row in rows
        if row["state"] == DUE or row["topic"].startswith(RETRY_PREFIX)
    }
    records: dict[tuple[QueueId, int], tuple[str | None, int]] = {}
    with_record = [
        QueueSlice(queue, offset, offset + 1)
        for queue, offset in places
        if queue in store.snapshot().queues
        and store.min_offset(*queue) <= offset < store.max_offset(*queue)
    ]
    for batch in store.read_slices(
        joined_ranges(with_record), columns=_OF_RECORD, on_damage=on_damage
    ):
        for topic, queue_id, offset, uniq_key, times in values_in(batch, _OF_RECORD):
            records[QueueId(topic, queue_id), offset] = uniq_key, times
    due = [row for row in rows if row["state"] == DUE]
    keys = {
        key for row in due if (key := records.get(place_of_pop_row(row), (None, 0))[0]) is not None
    }
    topics = {topic for row in due for topic in _given_again_under(row)}
    copies: dict[str, list[MessageCopy]] = {}
    for copy in copies_with(store, topics, keys, on_damage):
        copies.setdefault(copy.uniq_key, []).append(copy)
    for row in rows:
        uniq_key, times = records.get(place_of_pop_row(row), (None, 0))
        again = (
            copy.reconsume_times > times and copy.topic in _given_again_under(row)
            for copy in copies.get(uniq_key or "", ())
        )
        state = RETRIED if row["state"] == DUE and any(again) else row["state"]
        yield row | {"state": state, "timesGiven": row["timesGiven"] + times}


def place_of_pop_row(row: Row) -> tuple[QueueId, int]:
    """The queue and queue offset of a message that was popped."""
    return QueueId(row["topic"], row["queueId"]), row["queueOffset"]


def _given_again_under(row: Row) -> tuple[str, ...]:
    """The topics of a copy that the broker stores of a message that was not acknowledged (KeyBuilder)."""
    group, topic = row["consumerGroup"], row["topic"]
    if topic.startswith(RETRY_PREFIX):
        return topic, DLQ_PREFIX + group
    return *(form.format(group=group, topic=topic) for form in _RETRY_FORMS[1:]), DLQ_PREFIX + group
