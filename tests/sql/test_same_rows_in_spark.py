"""A question has the same rows in SQL, in Spark and in the library, in every store of a real broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.sql.database import StoreDatabase
from tests.support.golden import STORES, GoldenStore
from tests.support.running.campaigns import some

Golden = Callable[[str], GoldenStore]
Row = tuple[Any, ...]
Rows = Counter[Row]
_COLUMNS = ["topic", "queueId", "queueOffset", "storeSize", "tags", "keys", "uniqKey"]
_TIMES = ["storeTimestamp", "commitLogOffset"]


class Asked:
    """One store, with values that are in it, and its messages as the library reads them."""

    def __init__(self, store: MessageStore) -> None:
        self.rows = store.read_batches(columns=_COLUMNS + _TIMES).read_all().to_pylist()
        middle = self.rows[len(self.rows) // 2]
        self.topic: str = middle["topic"]
        self.since: datetime = middle["storeTimestamp"]
        self.place: int = middle["commitLogOffset"]
        self.keys: str = next((row["keys"] for row in self.rows if row["keys"]), "?")
        self.uniq_key: str = next((r["uniqKey"] for r in self.rows[::-1] if r["uniqKey"]), "?")

    @property
    def time(self) -> str:
        """The time of a message as a literal of SQL."""
        at = self.since.astimezone(timezone.utc)
        return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}+00:00'"


def counted(rows: Iterable[dict[str, Any]], *names: str) -> Rows:
    """How many rows have each of the values, and the sum of their sizes, as rows."""
    counts: Counter[Row] = Counter()
    sizes: Counter[Row] = Counter()
    for row in rows:
        group = tuple(row[name] for name in names)
        counts[group] += 1
        sizes[group] += row["storeSize"]
    return Counter((*group, counts[group], sizes[group]) for group in counts)


def picked(rows: Iterable[dict[str, Any]]) -> Rows:
    return Counter((row["topic"], row["queueId"], row["queueOffset"], row["keys"]) for row in rows)


_PICKED = "SELECT topic, queueId, queueOffset, keys FROM messages WHERE"
_SUMS = "count(*), CAST(sum(storeSize) AS BIGINT) FROM messages"
QUESTIONS: dict[str, tuple[Callable[[Asked], str], Callable[[Asked], Rows]]] = {
    "bytes by queue": (
        lambda a: f"SELECT topic, queueId, {_SUMS} GROUP BY topic, queueId",
        lambda a: counted(a.rows, "topic", "queueId"),
    ),
    "tags of a topic": (
        lambda a: f"SELECT tags, {_SUMS} WHERE topic = '{a.topic}' GROUP BY tags",
        lambda a: counted((r for r in a.rows if r["topic"] == a.topic), "tags"),
    ),
    "a topic since a time": (
        lambda a: f"{_PICKED} topic = '{a.topic}' AND storeTimestamp >= {a.time}",
        lambda a: picked(
            r for r in a.rows if r["topic"] == a.topic and r["storeTimestamp"] >= a.since
        ),
    ),
    "before a place": (
        lambda a: f"{_PICKED} commitLogOffset < {a.place} AND queueId IN (0, 2)",
        lambda a: picked(
            r for r in a.rows if r["commitLogOffset"] < a.place and r["queueId"] in (0, 2)
        ),
    ),
    "by keys": (
        lambda a: f"{_PICKED} keys = '{a.keys}'",
        lambda a: picked(r for r in a.rows if r["keys"] == a.keys),
    ),
    "by id": (
        lambda a: f"{_PICKED} uniqKey IN ('{a.uniq_key}', 'nobody')",
        lambda a: picked(r for r in a.rows if r["uniqKey"] == a.uniq_key),
    ),
}


def options_of(store: GoldenStore, folder: Path) -> dict[str, str]:
    """What Spark has to know of a store, as of its broker: inner batches are left as they are."""
    options = {"path": store.path, "unwrapBatches": "false"}
    facts = json.loads((store.folder / "golden.json").read_text("utf-8"))
    if "commitLogPaths" in facts:
        conf = folder / "broker.conf"
        conf.write_text(f"storePathCommitLog={','.join(facts['commitLogPaths'])}\n")
        options["brokerConf"] = str(conf)
    return options


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("questions in SQL", STORES, 4))
def test_every_question_has_the_same_rows(
    golden: Golden, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    options = options_of(store, tmp_path)
    spark.read.format("rmqstore").options(**options).load().createOrReplaceTempView("messages")
    with (
        store.open() as opened,
        StoreDatabase(opened.messages(unwrap_batches=False), [opened]) as database,
    ):
        asked = Asked(opened)
        for what, (question, expected) in QUESTIONS.items():
            sql, rows = question(asked), expected(asked)
            assert rows or "'?'" in sql, what  # a store of inner batches alone has no ids
            (answer,) = database.answers(sql)
            found = [
                tuple(row.values()) for batch in answer.rows or () for row in batch.to_pylist()
            ]
            assert Counter(found) == rows, what
            in_spark = [tuple(row.values()) for row in spark.sql(sql).toArrow().to_pylist()]
            assert Counter(in_spark) == rows, what
