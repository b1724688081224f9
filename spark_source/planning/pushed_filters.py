"""Apply the filters that Spark pushes down, so that less is read.

Every filter narrows the plan as far as it can. Spark applies a filter again unless the plan reads
exactly the rows that match it. So a query has the same rows with
`spark.sql.python.filterPushdown.enabled` on and off, if it is the first of its DataFrame: Spark keeps the
narrowed plan with the table, and later queries of it that push no filter get that plan (PythonScanBuilder).
PySpark has filters from 4.1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmq_store.format.byte_layout import KEY_SEPARATOR
from rmq_store.format.queues import QueueSlice
from rmq_store.format.record import log_offsets_of_ids
from rmq_store.reading.query import is_plain_tag
from rmq_store.search.queue_selection import CLOCK_SLACK_MS, at_log_offsets
from rmq_store.snapshot.compacted_view import QueueSource
from spark_source.options.definitions import PERMISSIVE
from spark_source.planning.pinned_plan import QueryPlan, ReadPlan


def narrowed(plan: QueryPlan, filters: Sequence[Filter]) -> tuple[QueryPlan, list[Filter]]:
    """The plan narrowed by the filters, and the filters that Spark must still apply."""
    left: list[Filter] = []
    for condition in filters:
        plan, exact = _narrow(plan, condition)
        # Rows about damage have nulls instead of the message's values, so only Spark can filter
        # them.
        if not exact or any(store.options.mode == PERMISSIVE for store in plan.stores):
            left.append(condition)
    bounds = _Bounds.of(filters)
    return (plan if bounds is None else _stores(plan, bounds.applied)), left


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The times and log offsets that match the filters on storeTimestamp and msgId.

    Only the files say which queue offsets match. So all filters are collected first, and each store
    is opened once.
    """

    since: int | None  # ms; messages stored at this time or later
    until: int | None  # ms; messages stored before this time
    places: frozenset[int] | None  # CommitLog offsets

    @classmethod
    def of(cls, filters: Sequence[Filter]) -> _Bounds | None:
        """The bounds of all filters together; None if there are none."""
        since: list[int] = []
        until: list[int] = []
        places: frozenset[int] | None = None
        for condition in filter(_is_understood, filters):
            if _column(condition) == "storeTimestamp":
                low, high = _times(condition)
                since += [] if low is None else [low - CLOCK_SLACK_MS]
                until += [] if high is None else [high + CLOCK_SLACK_MS + 1]
            elif _column(condition) == "msgId" and (named := _places(condition)) is not None:
                places = named if places is None else places & named
        if not since and not until and places is None:
            return None
        return cls(max(since, default=None), min(until, default=None), places)

    def applied(self, plan: ReadPlan) -> ReadPlan:
        """The plan of one store with its ranges narrowed."""
        if not plan.ranges:
            return plan
        with plan.store.open() as store:
            view = store.ranges_for(plan.options.sees_compacted)
            parts = [self._in_time(view, part) for part in plan.ranges]
            if self.places is not None:
                parts = at_log_offsets(store, parts, self.places, view)
        return _with_parts(plan, parts)

    def _in_time(self, view: QueueSource, part: QueueSlice) -> QueueSlice:
        start, stop = part.start, part.stop
        if self.since is not None:
            start = max(start, view.first_since(part.queue, self.since))
        if self.until is not None:
            after = view.first_since(part.queue, self.until, unreadable_before=True)
            stop = min(stop, after)
        return part.cut(start, stop)


def _narrow(plan: QueryPlan, condition: Filter) -> tuple[QueryPlan, bool]:
    handler = _HANDLERS.get(_column(condition)) if _is_understood(condition) else None
    return (plan, False) if handler is None else handler(plan, condition)


def _column(condition: Any) -> str:
    """The column of a filter; "" for a nested field."""
    column: tuple[str, ...] = getattr(condition, "attribute", ("",))
    return column[0] if len(column) == 1 else ""


def _is_understood(condition: Filter) -> bool:
    return isinstance(condition, _SUPPORTED) and not _has_null(condition)


_COMPARISONS = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_SUPPORTED = (EqualTo, In, *_COMPARISONS)


def _has_null(condition: Any) -> bool:
    values = condition.value if isinstance(condition, In) else (condition.value,)
    return any(value is None for value in values)


def _values(condition: Any) -> tuple[Any, ...] | None:
    """The values of an equality or IN; None for a comparison."""
    if isinstance(condition, EqualTo):
        return (condition.value,)
    return tuple(condition.value) if isinstance(condition, In) else None


def _range(condition: Any) -> tuple[int | None, int | None]:
    """The lowest number that matches a filter on whole numbers, and the upper limit (excluded)."""
    values = _values(condition)
    if values is not None:
        return (min(values), max(values) + 1) if values else (0, 0)
    match condition:
        case GreaterThan():
            return condition.value + 1, None
        case GreaterThanOrEqual():
            return condition.value, None
        case LessThan():
            return None, condition.value
        case _:
            return None, condition.value + 1


def _stores(plan: QueryPlan, change: Callable[[ReadPlan], ReadPlan | None]) -> QueryPlan:
    """The plan with each store's plan changed. Stores keep their positions, because shares refer to
    them."""
    changed = [change(store) or replace(store, ranges=(), nothing=True) for store in plan.stores]
    return replace(plan, stores=tuple(changed))


def _ranges(plan: QueryPlan, change: Callable[[QueueSlice], QueueSlice | None]) -> QueryPlan:
    def of_store(store: ReadPlan) -> ReadPlan:
        parts = (change(part) for part in store.ranges)
        return _with_parts(store, [part for part in parts if part is not None])

    return _stores(plan, of_store)


def _with_parts(plan: ReadPlan, parts: Sequence[QueueSlice]) -> ReadPlan:
    """The plan with those of these ranges that have messages."""
    return replace(plan, ranges=tuple(part for part in parts if len(part)))


def _reads_queues(plan: QueryPlan) -> bool:
    return all(store.limits is None for store in plan.stores)


# --- one column each ------------------------------------------------------------------------------


def _broker(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    values = _values(condition)
    if values is None:
        return plan, False
    return _stores(plan, lambda s: s if s.store.broker_name in values else None), True


def _topic(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    values = _values(condition)
    if values is None:
        return plan, False
    plan = _ranges(plan, lambda part: part if part.queue.topic in values else None)
    return plan, _reads_queues(plan)


def _queue_id(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    values, (low, high) = _values(condition), _range(condition)

    def fits(number: int) -> bool:
        if values is not None:
            return number in values
        return (low is None or number >= low) and (high is None or number < high)

    plan = _ranges(plan, lambda part: part if fits(part.queue.queue_id) else None)
    return plan, _reads_queues(plan)


def _queue_offset(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    low, high = _range(condition)

    def cut(part: QueueSlice) -> QueueSlice:
        return part.cut(part.start if low is None else low, part.stop if high is None else high)

    # The offsets between the values of an IN are read too. A batch that is not unwrapped has one
    # offset, and is read if any of its messages is in the range.
    exact = not isinstance(condition, In) and all(s.options.unwrap_batches for s in plan.stores)
    return _ranges(plan, cut), exact and _reads_queues(plan)


def _times(condition: Any) -> tuple[int | None, int | None]:
    """The lowest and highest time (ms) that match a filter."""
    values = _values(condition)
    times = [_millis(value) for value in (values if values is not None else (condition.value,))]
    if not times:
        return None, None
    low = None if isinstance(condition, LessThan | LessThanOrEqual) else min(times)
    high = None if isinstance(condition, GreaterThan | GreaterThanOrEqual) else max(times)
    return low, high


def _millis(value: Any) -> int:
    """A time from Spark in ms. Without a zone it is in the worker's zone."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.astimezone()
        since = aware - datetime(1970, 1, 1, tzinfo=timezone.utc)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    return int(value) // 1000


def _tags(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    values = _values(condition)
    if values is None or not all(map(is_plain_tag, values)):
        return plan, False

    def of_store(store: ReadPlan) -> ReadPlan | None:
        own = store.options.tags
        both = tuple(dict.fromkeys(t for t in values if own is None or t in own))
        return replace(store, options=replace(store.options, tags=both)) if both else None

    return _stores(plan, of_store), True


def _words(plan: QueryPlan, words: Iterable[str]) -> QueryPlan:
    """The plan narrowed to where the index has one of `words`. A second such filter changes
    nothing."""
    chosen = frozenset(words)

    def of_store(store: ReadPlan) -> ReadPlan:
        return store if store.words is not None else replace(store, words=chosen)

    return _stores(plan, of_store)


def _uniq_key(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    values = _values(condition)
    return (plan if values is None else _words(plan, values)), False


def _keys(plan: QueryPlan, condition: Any) -> tuple[QueryPlan, bool]:
    """Apply a filter on KEYS as a whole: each of its words is in the index."""
    values = _values(condition)
    if values is None:
        return plan, False
    first = [next((w for w in value.split(KEY_SEPARATOR) if w), None) for value in values]
    if any(word is None for word in first):
        return plan, False
    return _words(plan, [word for word in first if word is not None]), False


def _places(condition: Any) -> frozenset[int] | None:
    values = _values(condition)
    return None if values is None else log_offsets_of_ids(values)


_HANDLERS: dict[str, Callable[[QueryPlan, Any], tuple[QueryPlan, bool]]] = {
    "brokerName": _broker,
    "topic": _topic,
    "queueId": _queue_id,
    "queueOffset": _queue_offset,
    "tags": _tags,
    "keys": _keys,
    "uniqKey": _uniq_key,
}
