"""What the source does with a PySpark that has no filters and no streams of ours: 4.0 lacks these names."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from tests.support.golden import GoldenStore
from tests.support.running.child import python

_AS_IN_4_0 = """
import sys
import pyspark.sql.datasource as datasource

sys.modules["pyspark.sql.streaming.datasource"] = None
for name in ("Filter", "EqualTo", "DataSourceStreamArrowWriter"):
    delattr(datasource, name)
del datasource.DataSourceReader.pushFilters

from spark_source.source import RmqStoreSource

source = RmqStoreSource({"path": sys.argv[1], "topic": "orders"})
schema = source.schema()
reader = source.reader(schema)
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
# Before 4.2, Spark gives read() no partition at all if there is none.
empty = RmqStoreSource({"path": sys.argv[2]})
reader = empty.reader(empty.schema())
(partition,) = reader.partitions()
print(list(reader.read(partition)))
streams = {
    "read": lambda: source.streamReader(schema).initialOffset(),
    "write": lambda: source.streamWriter(schema, False),
}
for begin in streams.values():
    try:
        begin()
    except Exception as error:
        print(error.code, error.advice)
"""


def test_pyspark_4_0_reads_and_says_what_streams_need(clean: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    expected = sum(record["topic"] == "orders" for record in clean.truth)
    assert python(dedent(_AS_IN_4_0), clean.path, str(tmp_path), timeout=120).splitlines() == [
        str(expected),
        "[]",
        "RMQSTORE_UNSUPPORTED_OPERATION Install PySpark 4.2 or later",
        "RMQSTORE_UNSUPPORTED_OPERATION Install PySpark 4.1 or later",
    ]
