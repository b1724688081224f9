"""A question has one answer: the command and the Spark source give equal rows, and the job of dead letters.

Spark reads both stores in one query. The engines of commands are in test_engines_of_commands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmqstore_jobs import dlq
from tests.support.damage import flip_in_log
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call

Row = Mapping[str, Any]
MOVING = ("configAgeMs",)  # the age of a file when it is asked


class Asked(NamedTuple):
    """Two stores of real brokers. `harmed` has one record with a flipped bit in its body."""

    whole: str
    harmed: str
    harmed_at: int  # where that record starts in the log
    keys: Mapping[str, str]  # of each store, a key whose message has more than one record
    spark: SparkSession
    scratch: Path

    @property
    def stores(self) -> tuple[str, str]:
        return self.whole, self.harmed

    def command(self, name: str, store: str, *words: str) -> list[dict[str, Any]]:
        named = ("--broker-name", Path(store).parent.name)
        done = call(*name.split(), store, *words, *named, "--json")
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def source(self, **options: str) -> dict[str, list[dict[str, Any]]]:
        """The rows of each store, in the JSON of Spark."""
        stores = {Path(store).parent.name: store for store in self.stores}
        read = self.spark.read.format("rmqstore").options(**options)
        frame = read.option("stores", json.dumps(stores)).load()
        shown = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"})).collect()
        rows = [json.loads(text) for (text,) in shown]
        return {
            path: [row for row in rows if row["brokerName"] == name]
            for name, path in stores.items()
        }


@pytest.fixture(scope="module")
def asked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("asked")
    whole, harmed = unpack("clean-4.9.7", folder), unpack("clean-5.5.0", folder)
    at = next(r["commitLogOffset"] for r in harmed.truth if r["topic"] == "orders")
    flip_in_log(harmed, at + 90)
    keys = {whole.path: key_in(whole, "%DLQ%"), harmed.path: key_in(harmed, "RMQ_SYS_TRANS_HALF")}
    return Asked(whole.path, harmed.path, at, keys, spark, tmp_path_factory.mktemp("reports"))


def key_in(store: GoldenStore, topics: str) -> str:
    """A key of a message in one of the topics that begin with this."""
    records = (r for r in store.truth if r["topic"].startswith(topics) and r["keys"])
    return str(next(records)["keys"].split()[0])


def alike(rows: Iterable[Row], names: Iterable[str] | None = None) -> Counter[str]:
    """Rows in any order, with the columns of `names` (default: all)."""
    chosen = None if names is None else set(names)
    return Counter(
        json.dumps(
            {k: v for k, v in row.items() if k not in MOVING and (chosen is None or k in chosen)},
            sort_keys=True,
        )
        for row in rows
    )


def test_usage(asked: Asked) -> None:
    tables = asked.source(table="usage", includeSystemTopics="true")
    for store, by in zip(asked.stores, ("topic", "day"), strict=True):
        columns = (by, "messages", "bytes")
        command = alike(asked.command("usage", store, "--by", by), columns)
        messages, size = Counter[str](), Counter[str]()
        for row in tables[store]:
            messages[row[by]] += row["messages"]
            size[row[by]] += row["bytes"]
        summed = [{by: k, "messages": messages[k], "bytes": size[k]} for k in messages]
        assert command
        assert command == alike(summed)


def test_lag(asked: Asked) -> None:
    tables = asked.source(table="groups")
    for store in asked.stores:
        assert alike(asked.command("lag", store)) == alike(tables[store])
    assert tables[asked.whole]


def test_trace(asked: Asked) -> None:
    """Spark reads by the same keys those records that queues have."""
    found = asked.source(keys=" || ".join(asked.keys.values()), includeSystemTopics="true")
    for store, key in asked.keys.items():
        steps = asked.command("trace", store, key)
        assert len(steps) > 1
        read = {row["commitLogOffset"] for row in found[store] if key in row["keys"].split()}
        assert read == {step["commitLogOffset"] for step in steps}


def test_verify(asked: Asked) -> None:
    damage = asked.source(table="damage", includeSystemTopics="true")
    for store in asked.stores:
        *findings, summary = asked.command("verify", store)
        assert summary["nothingWrong"] == (not damage[store])
        assert summary["nothingWrong"] == all(f["severity"] == "note" for f in findings)
    (harmed,) = damage[asked.harmed]
    assert harmed["commitLogOffset"] == asked.harmed_at


def test_dead_letters(asked: Asked) -> None:
    tables = asked.source(table="deadLetters")
    for store in asked.stores:
        command = asked.command("table deadLetters", store)
        report = asked.scratch / "dlq.json"
        assert dlq.main([store, "--report", str(report)]) in (0, 1)
        job = json.loads(report.read_text("utf-8"))["tables"]["theNewest"]
        columns = ("consumerGroup", "originTopic", "uniqKey", "reconsumeTimes", "queueId")
        assert alike(command) == alike(tables[store])
        assert alike(command, columns) == alike(job, columns)
    assert tables[asked.whole]


@pytest.mark.parametrize("name", ["topics", "scheduled", "transactions", "retries"])
def test_a_table(asked: Asked, name: str) -> None:
    """By its name, and by the command of that name."""
    tables = asked.source(table=name)
    assert any(tables.values())
    for store in asked.stores:
        expected = alike(tables[store])
        assert alike(asked.command(f"table {name}", store)) == expected
        words = ("--system",) if name in ("topics", "scheduled") else ()
        assert alike(asked.command(name, store, *words)) == expected
