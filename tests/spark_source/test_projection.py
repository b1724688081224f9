"""What is read for the columns that are asked for, and what is trusted without."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, bodies_of, user_topic
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import (
    NAME,
    options_of,
    places,
    plan_of,
    truth_where,
    watch_opened,
)


def test_columns_of_the_queue_open_no_log(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden(NAME)
    columns = "topic,queueId,queueOffset,commitLogOffset,storeSize,tagsCode"
    options = options_of(store, columns=columns)
    (row,) = plan_of(options)
    assert row["readsLog"] is False
    assert row["files"]
    assert not any("/commitlog/" in path for path in row["files"])
    opened = watch_opened(monkeypatch)
    from spark_source.source import RmqStoreSource

    source = RmqStoreSource(options)
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    opened.clear()  # opening a store finds the log's end in the log
    batches: list[Any] = [batch for part in partitions for batch in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert opened
    assert set(opened) <= set(row["files"])
    assert places(found) == truth_where(store, user_topic)
    (whole,) = plan_of({**options, "columns": "topic,tags"})
    assert whole["readsLog"] is True
    assert any("/commitlog/" in path for path in whole["files"])


def test_a_body_not_asked_for_is_not_read(clean: GoldenStore) -> None:
    """Counted as the bytes of records less those of bodies, and seen on a body that is broken."""
    with clean.open() as opened:
        list(opened.read_batches("orders", columns=["tags"], check_crc=False))
        without = opened.reads().log.bytes
        list(opened.read_batches("orders", columns=["tags", "body"]))
        both = opened.reads().log.bytes
    orders = [r for r in clean.truth if r["topic"] == "orders"]
    bodies = sum(len(bodies_of(r)[1]) for r in orders)
    size = sum(r["storeSize"] for r in orders)
    assert (without, both) == (size - bodies, 2 * size - bodies)


def test_a_ghost_entry_is_left_out_where_the_queue_is_verified(copy: GoldenStore) -> None:
    """An entry that points to the inside of a record: in bounds and in order, and wrong."""
    queue_file = sorted((Path(copy.path) / "consumequeue/orders/1").iterdir())[0]
    (where,) = struct.unpack_from(">q", queue_file.read_bytes(), 5 * 20)
    write_at(queue_file, 5 * 20, struct.pack(">q", where + 7))
    options = options_of(copy, assign='{"orders": [1]}', columns="queueOffset,commitLogOffset")
    trusted = rows_of(options)
    assert trusted[5]["commitLogOffset"] == where + 7
    with pytest.raises(Exception, match="RMQSTORE_CORRUPT_RECORD"):
        rows_of({**options, "verifyqueue": "true"})
    kept = rows_of({**options, "verifyqueue": "true", "mode": "DROPMALFORMED"})
    assert [r["queueOffset"] for r in kept] == [
        r["queueOffset"] for r in trusted if r["queueOffset"] != 5
    ]


def test_an_entry_that_points_back_is_not_trusted(copy: GoldenStore) -> None:
    queue_file = sorted((Path(copy.path) / "consumequeue/orders/1").iterdir())[0]
    write_at(queue_file, 6 * 20, queue_file.read_bytes()[3 * 20 : 4 * 20])
    options = options_of(copy, assign='{"orders": [1]}', columns="queueOffset")
    with pytest.raises(Exception, match="points back in the log"):
        rows_of(options)
