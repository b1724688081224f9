"""`make demo`: its tables count in one unit."""

from __future__ import annotations

import io

from pyspark.sql import SparkSession
from rich.console import Console

from jobs.demo import by_topic
from tests.support.golden import Golden, user_topic


def test_an_inner_batch_is_one_record_with_one_size(spark: SparkSession, golden: Golden) -> None:
    """Counted by message, 40 records of 58 KB looked like 202 messages of 422 KB."""
    columns = ["topic", "queueId", "tags", "sysFlag", "storeSize"]
    sent = [record for record in golden("clean-5.5.0").truth if user_topic(record)]
    rows = [[record[name] for name in columns] for record in sent]
    types = "topic string, queueId int, tags string, sysFlag int, storeSize int"
    table = by_topic(spark.createDataFrame(rows, types))
    printed = io.StringIO()
    Console(file=printed, width=160).print(table)
    lines = {line.split("│")[1].strip(): line for line in printed.getvalue().splitlines()[4:-1]}
    sizes = [record["storeSize"] for record in sent if record["topic"] == "inner"]
    cells = [cell.strip() for cell in lines["inner"].split("│")]
    assert cells[2] == f"{len(sizes):,}"
    assert cells[6] == f"{sum(sizes):,}"
    assert [column.header for column in table.columns][1] == "records"
    total = sum(int(line.split("│")[2].replace(",", "")) for line in lines.values())
    assert total == len(sent)
