"""Apply the filters that Spark pushes down, so that less is read.

They become one expression of Arrow, as filters of SQL and of datasets are (`rmq_store.search.condition`).
Spark applies each filter again. So a query has the same rows with
`spark.sql.python.filterPushdown.enabled` on and off, with two exceptions. Spark keeps the narrowed plan with
the table, and later queries of it that push no filter get that plan (PythonScanBuilder). And a filter on
storeTimestamp allows for a clock that was set back by five minutes, not further. PySpark has filters from
4.1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.search.condition import LISTED_AT_ONCE, MOST_VALUES, Condition

_SCHEMA = arrow_schema(
    [
        *("brokerName", "topic", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp"),
        *("tags", "keys", "uniqKey", "msgId"),
    ]
)
"""The columns by whose filters less is read."""

_COMPARISONS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
}


def condition_of(filters: Sequence[Filter]) -> Condition | None:
    """What the filters say together; None if they narrow nothing."""
    expressions = [made for made in map(arrow_filter, filters) if made is not None]
    return Condition.of(_SCHEMA, reduce(and_, expressions), by_time=True) if expressions else None


def arrow_filter(condition: Any) -> Any:
    """A filter as an expression of Arrow; None for one that narrows nothing."""
    name = ".".join(getattr(condition, "attribute", ()))
    if name not in _SCHEMA.names:
        return None
    field, kind = pc.field(name), _SCHEMA.field(name).type
    late = isinstance(condition, LessThan | LessThanOrEqual)
    if isinstance(condition, In):
        values = [_value(value, late) for value in condition.value]
        if not values or None in values:
            return None
        length = LISTED_AT_ONCE if len(values) <= MOST_VALUES else len(values)
        parts = range(0, len(values), length)
        lists = (pa.array(values[at : at + length], kind) for at in parts)
        return reduce(or_, map(field.isin, lists))
    compare = _COMPARISONS.get(type(condition))
    if compare is None or condition.value is None:
        return None
    return compare(field, pa.scalar(_value(condition.value, late), kind))


def _value(value: Any, late: bool) -> Any:
    """A value from Spark; a time in ms, the next one if it is `late`, by default in the worker's zone."""
    if not isinstance(value, datetime):
        return value
    aware = value if value.tzinfo is not None else value.astimezone()
    since = aware - datetime(1970, 1, 1, tzinfo=timezone.utc)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-micros // 1000) if late else micros // 1000
