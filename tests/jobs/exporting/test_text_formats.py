"""Exports to CSV and JSON lines: the rows are those of Parquet, and the lines those of `cat`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.errors import InvalidArgumentError
from rmqstore_jobs.export import ExportSpec, run
from rmqstore_jobs.exporting.manifest import CSV, JSONL, PARQUET
from tests.support.exported import files_in, rows_in
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.commands import run as run_command

TEXT = pytest.mark.parametrize("table", [CSV, JSONL])
EVERY = ",".join(column.name for column in COLUMNS if column.name != "corruptRecord")


def export(store: GoldenStore, target: Path, table: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a new export, in order."""
    options = {"brokerConf": store.conf, "brokerName": "broker-a", **options}
    answer = run(None, ExportSpec(store.path, str(target), options, table, wave_bytes=400_000))
    assert answer.stopped_by is None
    return sorted(rows_in(target), key=lambda row: (row["topic"], row["commitLogOffset"], str(row)))


def odd_store(tmp_path: Path) -> GoldenStore:
    """A broker's store to which messages were added that text formats could change."""
    store = unpack("clean-5.5.0", tmp_path)
    bodies = [
        b"",
        b"\xff\x00\xfe",
        b'quote " comma , \r\n end',
        "ü€𐍈\u2028".encode(),
        b"\\N",
        b"null",
    ]
    with MessageStore.append_to(store.path, store.conf) as writer:
        for topic in ("%DLQ%odd", "a-b_c|d", "odd"):
            for i, body in enumerate(bodies):
                properties = {
                    "KEYS": f'k"{i} ,',
                    "a\nb": '"\\',
                    "empty?": "=1+1",
                    "ü": "\u2028\x7f",
                }
                row = {"topic": topic, "queueId": 0, "body": body, "properties": properties}
                writer.append(row)
    return store


@TEXT
@pytest.mark.parametrize("name", ["direct-5.5.0", "lmq-5.3.3"])
def test_the_rows_are_those_of_parquet(
    golden: Golden, tmp_path: Path, name: str, table: str
) -> None:
    store = golden(name)
    options = {"columns": EVERY, "includeSystemTopics": "true"}
    expected = export(store, tmp_path / "parquet", PARQUET, **options)
    assert expected
    assert export(store, tmp_path / "text", table, **options) == expected


@TEXT
def test_odd_topics_bodies_and_properties_are_those_of_parquet(tmp_path: Path, table: str) -> None:
    store = odd_store(tmp_path)
    options = {"columns": EVERY, "topic": "%DLQ%odd,a-b_c|d,odd"}
    expected = export(store, tmp_path / "parquet", PARQUET, **options)
    assert len(expected) == 18
    assert export(store, tmp_path / "text", table, **options) == expected


@TEXT
def test_rows_about_damage_are_those_of_parquet(
    damaged: GoldenStore, tmp_path: Path, table: str
) -> None:
    options = {"mode": "PERMISSIVE", "topic": "payments"}
    expected = export(damaged, tmp_path / "parquet", PARQUET, **options)
    assert sum(row["corruptRecord"] is not None for row in expected) == 1
    assert export(damaged, tmp_path / "text", table, **options) == expected


@pytest.mark.parametrize("topic", ["orders", "odd"])
def test_the_lines_are_those_that_cat_prints(tmp_path: Path, topic: str) -> None:
    store, target = odd_store(tmp_path), tmp_path / "out"
    export(store, target, JSONL, topic=topic)
    lines = [line for path in files_in(target) for line in path.read_bytes().splitlines()]
    columns = [column.name for column in COLUMNS if not column.on_request]
    columns.remove("topic")
    words = ["cat", store.path, "--topic", topic, "--json", "--columns", ",".join(columns)]
    printed = run_command(*words, "--broker-conf", store.conf).encode()
    by_name = printed.replace(b'{"brokerName":"store"', b'{"brokerName":"broker-a"')
    of_cat = by_name.splitlines()
    assert sorted(lines) == sorted(of_cat)


@pytest.mark.campaign
def test_spark_reads_what_was_exported(spark: SparkSession, tmp_path: Path) -> None:
    store = odd_store(tmp_path)
    options = {"topic": "orders,%DLQ%odd,odd"}
    expected = export(store, tmp_path / "parquet", PARQUET, **options)
    export(store, tmp_path / "csv", CSV, **options)
    export(store, tmp_path / "jsonl", JSONL, **options)
    reader = spark.read.options(header=True, multiLine=True, escape='"')
    by_csv = reader.csv(str(tmp_path / "csv"))
    expected_bodies = sorted((unquote(row["topic"]), row["body"]) for row in expected)
    # Spark reads an empty text as null.
    found = by_csv.selectExpr("topic", "unbase64(coalesce(body, '')) AS body").collect()
    assert by_csv.where("body IS NULL").count() == sum(not row["body"] for row in expected)
    assert sorted((r.topic, bytes(r.body)) for r in found) == expected_bodies
    properties = [json.loads(row.properties) for row in by_csv.select("properties").collect()]
    assert sorted(map(str, properties)) == sorted(str(dict(row["properties"])) for row in expected)
    by_json = spark.read.json(str(tmp_path / "jsonl"))
    found = by_json.selectExpr(
        "topic", "coalesce(unbase64(bodyBase64), cast(body AS binary)) AS body"
    ).collect()
    assert sorted((r.topic, bytes(r.body)) for r in found) == expected_bodies


def text_or_base64(raw: bytes, charset: str) -> tuple[str | None, str | None]:
    try:
        return raw.decode(charset), None
    except UnicodeError:
        return None, base64.b64encode(raw).decode()


@pytest.mark.parametrize("charset", ["utf-8", "gbk"])
def test_parquet_has_bodies_as_text_where_they_are_text(charset: str, tmp_path: Path) -> None:
    bodies = [b"", b"\xff\x00\xfe", "ü€𐍈".encode(), "订单".encode("gbk"), b'{"order": 1}']
    store = unpack("clean-5.5.0", tmp_path)
    with MessageStore.append_to(store.path, store.conf) as writer:
        for body in bodies:
            writer.append({"topic": "odd", "queueId": 0, "body": body})
    words = ["--body", "text", *([] if charset == "utf-8" else ["--charset", charset])]
    out = tmp_path / "out"
    run_command("export", store.path, "--to", str(out), "--topic", "odd", *words)
    (file,) = out.rglob("*.parquet")
    table = pq.read_table(file, partitioning=None).sort_by("queueOffset")
    assert table.schema.field("body").type == table.schema.field("bodyBase64").type == pa.string()
    found = list(zip(table["body"].to_pylist(), table["bodyBase64"].to_pylist(), strict=True))
    assert found == [text_or_base64(body, charset) for body in bodies]


def test_bodies_as_text_are_for_parquet(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--body text"):
        run(None, ExportSpec("store", str(tmp_path / "out"), format=CSV, body="text"))
