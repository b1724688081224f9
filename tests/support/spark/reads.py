"""The source read in this process, as Spark's workers would: every part goes through pickle."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter

from spark_source.source import RmqStoreSource
from tests.support.golden import GoldenStore


def partitions_of(options: dict[str, str], filters: Sequence[Filter] = ()) -> list[pa.Table]:
    """What each partition of a read gives, in order; filters as Spark hands them down.

    Those that are given back are not applied: a caller who hands in filters looks at what is read.
    """
    source = pickle.loads(pickle.dumps(RmqStoreSource(options)))
    schema = source.schema()
    reader = source.reader(schema)
    if filters:
        list(reader.pushFilters(list(filters)))
    partitions = pickle.loads(pickle.dumps(list(reader.partitions())))
    reader = pickle.loads(pickle.dumps(reader))
    found = []
    for partition in partitions:
        batches = list(reader.read(partition))
        found.append(pa.Table.from_batches(batches) if batches else None)
    return [table for table in found if table is not None]


def rows_of(options: dict[str, str], filters: Sequence[Filter] = ()) -> list[dict[str, Any]]:
    """All rows of a read as plain values."""
    return [row for table in partitions_of(options, filters) for row in table.to_pylist()]


def left_over(options: dict[str, str], filters: Sequence[Filter]) -> list[Filter]:
    """The filters that Spark has to apply still."""
    source = RmqStoreSource(options)
    return list(source.reader(source.schema()).pushFilters(list(filters)))


# What a client was served of a message: columns of the source, and the names in `served`.
SERVED = "topic,queueId,queueOffset,commitLogOffset,storeSize,bodyCrc"
_FIELDS = ("topic", "queue", "offset", "phy", "size", "bodyCrc")


def served(golden: GoldenStore, *topics: str) -> list[tuple[Any, ...]]:
    """The rows of those columns that a client was served, of some topics or all."""
    lines = (line for line in golden.lines("served") if not topics or line["topic"] in topics)
    return sorted(tuple(line[name] for name in _FIELDS) for line in lines)


def options_of_served(golden: GoldenStore, **more: str) -> dict[str, str]:
    """Options that read the same."""
    topics = ",".join(sorted({row[0] for row in served(golden)}))
    return {"path": golden.path, "topic": topics, "columns": SERVED, **more}
