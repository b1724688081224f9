"""Tables `usage` and `damage`. Both read all queue entries; `damage` also reads the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta, timezone, tzinfo

from rmq_store.errors import StoreError
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.reading.damage_modes import record_size
from rmq_store.search.log_partitions import bytes_between
from rmq_store.store import MessageStore
from rmq_store.tables.table import DAY, FLAG, INT, LONG, TEXT, Row, Table, all_ranges, columns
from rmq_store.text.times import HOUR_MS, day_of, start_of_day, start_of_hour
from rmq_store.verify.errors_of_part import errors_of_part
from rmq_store.verify.verify_store import log_parts

_EPOCH = date(1970, 1, 1)


def usage_rows(
    store: MessageStore,
    ranges: Iterable[QueueSlice],
    counted: int | None = None,
    zone: tzinfo = timezone.utc,
    *,
    hours: bool = False,
) -> Iterator[Row]:
    """Rows of the table `usage`: one for each range and day of store time, in `zone`. With `hours` one for
    each hour, which `hour` has as its start (ms); None if that is not known.

    `counted`: the bytes of a row with more messages are estimated from samples; by default of none.
    """
    for part in ranges:
        at = part.start
        while at < part.stop:
            stored = store.view.store_time(part.queue, at)
            day = None if stored is None else day_of(stored, zone)
            upto = part.stop
            hour = None
            if stored is not None and day is not None:
                hour = start_of_hour(stored, zone)
                end = hour + HOUR_MS if hours else start_of_day(day + 1, zone)
                behind = store.first_since(part.queue, end)
                upto = min(part.stop, behind) if behind > at else part.stop
            exact = upto - at if counted is None else counted
            size = bytes_between(store, part.queue, at, upto, exact)
            row = usage_row(part.cut(at, upto), day, size)
            yield {**row, "hour": hour} if hours else row
            at = upto


def usage_row(part: QueueSlice, day: int | None, size: int) -> Row:
    """A row of the table `usage` for a range, of a day since 1970 if that is known."""
    return {
        "topic": part.queue.topic,
        "queueId": part.queue.queue_id,
        "day": None if day is None else _date(day),
        "messages": len(part),
        "bytes": size,
        "shared": part.queue.topic.startswith(LMQ_PREFIX),
        "firstOffset": part.start,
        "stopOffset": part.stop,
    }


def _date(day: int) -> date | None:
    """A day since 1970 as a date; None beyond the year 9999."""
    try:
        return _EPOCH + timedelta(days=day)
    except OverflowError:
        return None


USAGE = Table(
    "usage",
    "messages and bytes by topic, queue and day of store time (UTC)",
    columns(
        ("topic", TEXT, "topic of the queue"),
        ("queueId", INT, "number of the queue"),
        (
            "day",
            DAY,
            "day of store time, UTC; null if the first record is not readable, or after 9999",
        ),
        ("messages", LONG, "messages stored on that day"),
        ("bytes", LONG, "bytes of their records in the log"),
        ("shared", FLAG, "a light queue: its records are those of other topics too"),
        ("firstOffset", LONG, "queue offset of the first message"),
        ("stopOffset", LONG, "queue offset after the last message"),
    ),
    lambda store, ranges: usage_rows(store, all_ranges(store) if ranges is None else ranges),
)


def damage_row(error: StoreError) -> Row:
    """A row of the table `damage`."""
    row: dict[str, object] = {
        "code": error.code,
        "reason": str(error),
        "path": error.path,
        "commitLogOffset": error.log_offset,
        "storeSize": record_size(error.entry),
    }
    if error.entry is not None:
        topic, queue_id, queue_offset, *_ = error.entry
        row |= {"topic": topic, "queueId": queue_id, "queueOffset": queue_offset}
    return row


def _damage(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    met: list[StoreError] = []
    wanted = all_ranges(store) if ranges is None else ranges
    batches = store.read_slices(
        wanted, columns=("commitLogOffset", "body"), compacted=False, on_damage=met.append
    )
    for _ in batches:
        yield from map(damage_row, met)
        met.clear()
    yield from map(damage_row, met)
    queues = {part.queue for part in wanted}
    for start, stop in log_parts(store):
        errors = errors_of_part(store, start, stop, lambda queue: ranges is None or queue in queues)
        yield from map(damage_row, errors)


DAMAGE = Table(
    "damage",
    "every damaged queue entry, and what verify finds lost: damaged ranges of the log, and records that "
    "their queue does not list",
    columns(
        ("topic", TEXT, "topic of the queue with the damaged entry"),
        ("queueId", INT, "number of that queue"),
        ("queueOffset", LONG, "queue offset of the entry"),
        ("commitLogOffset", LONG, "where the record should be in the log"),
        ("storeSize", INT, "size of the record according to the entry"),
        ("code", TEXT, "error code of the damage: RMQSTORE_..."),
        ("path", TEXT, "the file"),
        ("reason", TEXT, "what is wrong, the expected and found values, and what to do"),
    ),
    _damage,
)
