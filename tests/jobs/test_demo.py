"""`make demo`: its tables count in one unit."""

from __future__ import annotations

import io

from pyspark.sql import SparkSession
from rich.console import Console

from jobs.demo import by_topic
from tests.support.golden import Golden, user_topic
from tests.support.running.commands import sent_to


def test_an_inner_batch_is_one_record_with_one_size(spark: SparkSession, golden: Golden) -> None:
    """Counted by message, 40 records of 58 KB looked like 202 messages of 422 KB."""
    store = golden("clean-5.5.0")
    records = spark.read.format("rmqstore").option("unwrapBatches", "false").load(store.path)
    table = by_topic(records)
    printed = io.StringIO()
    Console(file=printed, width=160).print(table)
    lines = {line.split("│")[1].strip(): line for line in printed.getvalue().splitlines()[4:-1]}
    inner = sent_to(store, "inner")
    cells = [cell.strip() for cell in lines["inner"].split("│")]
    assert cells[2] == f"{len(inner):,}"
    assert cells[6] == f"{sum(one['storeSize'] for one in inner):,}"
    assert [column.header for column in table.columns][1] == "records"
    total = sum(int(line.split("│")[2].replace(",", "")) for line in lines.values())
    assert total == sum(map(user_topic, store.truth))
