"""Spark takes a large batch in slices, which copy nothing and leave nothing out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_source.spark_types import arrow_schema_for, batches_for_spark, spark_schema

SCHEMA = arrow_schema_for(spark_schema(["queueOffset", "body"]))


def batch_of(rows: int, body_bytes: int) -> pa.RecordBatch:
    """Messages with their number in the queue as queueOffset."""
    bodies = pa.array([bytes(body_bytes)] * rows, pa.binary())
    return pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64()), bodies], schema=SCHEMA)


def body_address(batch: pa.RecordBatch) -> int:
    """Where the first body of the batch lies in memory."""
    body = batch.column("body")
    offsets = np.frombuffer(body.buffers()[1], dtype=np.int32)
    return int(body.buffers()[2].address) + int(offsets[body.offset])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    ("rows", "body_bytes", "slices"),
    [
        pytest.param(0, 0, [0], id="no rows"),
        pytest.param(8192, 20, [8192], id="small enough to stay in a cache"),
        pytest.param(6000, 200, [4096, 1904], id="at most 4,096 rows"),
        pytest.param(600, 1 << 13, [255, 255, 90], id="at most 2 MiB"),
        pytest.param(150, 1 << 17, [128, 22], id="at least 128 rows"),
    ],
)
def test_a_large_batch_comes_in_slices_of_the_same_bytes(
    rows: int, body_bytes: int, slices: list[int], remote: bool
) -> None:
    batch, after = batch_of(rows, body_bytes), batch_of(1, 1)
    *sent, last = batches_for_spark(iter([batch, after]), SCHEMA, ahead=remote)
    assert [part.num_rows for part in sent] == slices
    assert pa.Table.from_batches(sent).equals(pa.Table.from_batches([batch]))
    if rows:
        assert body_address(sent[-1]) == body_address(batch) + sum(slices[:-1]) * body_bytes
    assert last.equals(after)
