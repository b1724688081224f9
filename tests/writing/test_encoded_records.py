"""Records encoded before they have a place: the same bytes as `append_batch`, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.arrow.encoding.batch_to_records import LOOPBACK, PreparedMessages, prepare
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError, InvalidMessageError
from rmq_store.format.compression import SysFlag
from rmq_store.format.releases import dialect
from rmq_store.writing.append_messages import AppendResult
from rmq_store.writing.encoded_records import EncodedRecords, encoded_records_of, is_encodable
from tests.support.golden import verified
from tests.support.stores import SMALL

LONG_TOPIC = "%RETRY%" + "g" * 140  # needs records of version 2
TOPICS = ("orders", "a-b_c%d|e", LONG_TOPIC)
KINDS = ("commitlog", "consumequeue", "batchconsumequeue", "index")
SEED = 20261122


def mixed(count: int, seed: int, topics: tuple[str, ...] = TOPICS) -> pa.RecordBatch:
    """Messages of all layouts: versions, hosts, transactions, and properties of any kind."""
    chance = random.Random(seed)
    some_properties: list[dict[str, str]] = [
        {},
        {"KEYS": "a b  c", "UNIQ_KEY": "U1", "TAGS": "客户"},
        {"x": "y" * 40, "KEYS": "é", "TAGS": ""},
        {"UNIQ_KEY": "7F00", "trace": "on"},
    ]
    kinds = {"properties": pa.map_(pa.string(), pa.string()), "body": pa.binary()}
    columns: dict[str, list[Any]] = {
        "topic": [chance.choice(topics) for _ in range(count)],
        "queueId": [chance.randrange(3) for _ in range(count)],
        "body": [chance.randbytes(chance.randrange(700)) for _ in range(count)],
        "properties": [list(chance.choice(some_properties).items()) for _ in range(count)],
        "sysFlag": [chance.choice((0, 0, 0, 2, 4, 8, 12)) for _ in range(count)],
        "flag": [chance.randrange(-(2**31), 2**31) for _ in range(count)],
        "bornTimestamp": [chance.randrange(2**45) for _ in range(count)],
        "storeTimestamp": [1_700_000_000_000 + number for number in range(count)],
        "bornHost": [chance.choice(("1.2.3.4:5", "[2001:db8::1]:65535")) for _ in range(count)],
        "storeHost": [chance.choice(("127.0.0.1:10911", "[::1]:10911")) for _ in range(count)],
        "reconsumeTimes": [chance.randrange(17) for _ in range(count)],
    }
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    )


def prepared(batch: pa.RecordBatch, release: str | None = None, **more: Any) -> PreparedMessages:
    config = StoreConfig.of({**SMALL, **more})
    return prepare(batch, config, dialect(release), LOOPBACK)


def encoded(batch: pa.RecordBatch, release: str | None = None) -> EncodedRecords:
    return encoded_records_of(prepared(batch, release), slice(0, batch.num_rows), dialect(release))


def written(root: Path) -> dict[str, list[bytes]]:
    """Files of log, queues and index by folder, in order of their names, which may be times."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(path for kind in KINDS for path in root.glob(f"{kind}/**/*")):
        if path.is_file():
            found.setdefault(str(path.parent.relative_to(root)), []).append(path.read_bytes())
    return found


def append_columns(
    folder: Path, batches: list[pa.RecordBatch], release: str | None = None
) -> list[AppendResult]:
    """Write what is compared with: a store in `columns`."""
    with MessageStore.create(folder / "columns", SMALL, release=release) as store:
        return [store.append_batch(batch) for batch in batches]


@pytest.mark.parametrize("release", ["5.5.0", "5.3.3"])
def test_encoded_records_leave_the_bytes_of_append_batch(release: str, tmp_path: Path) -> None:
    batches = [mixed(count, SEED + count) for count in (1, 150, 40, 7)]
    by_columns = append_columns(tmp_path, batches, release)
    with MessageStore.create(tmp_path / "encoded", SMALL, release=release) as store:
        found = [store.append_records(encoded(batch, release)) for batch in batches]
    for one, other in zip(by_columns, found, strict=True):
        assert one.commit_log_offset.tolist() == other.commit_log_offset.tolist()
        assert one.queue_offset.tolist() == other.queue_offset.tolist()
    left, right = written(tmp_path / "columns"), written(tmp_path / "encoded")
    assert left == right
    assert len(left["commitlog"]) > 5
    assert len(left["index"]) > 1


def test_both_ways_can_take_turns_in_one_writer(tmp_path: Path) -> None:
    batches = [mixed(30, SEED + number) for number in range(6)]
    append_columns(tmp_path, batches)
    with MessageStore.create(tmp_path / "both", SMALL) as store:
        for number, batch in enumerate(batches):
            if number % 3:
                store.append_records(encoded(batch))
            else:
                store.append_batch(batch)
    assert written(tmp_path / "columns") == written(tmp_path / "both")


def test_a_topic_of_batches_gets_the_entries_of_its_kind(tmp_path: Path) -> None:
    batch = mixed(40, SEED, ("orders", "batched"))
    for name in ("columns", "encoded"):
        with MessageStore.create(tmp_path / name, SMALL) as store:
            store.declare_topic("batched", attributes={"queue.type": "BatchCQ"})
            if name == "columns":
                store.append_batch(batch)
            else:
                store.append_records(encoded(batch))
    assert written(tmp_path / "columns") == written(tmp_path / "encoded")
    assert (tmp_path / "encoded" / "batchconsumequeue" / "batched").is_dir()


def test_a_thread_that_follows_reads_encoded_records(tmp_path: Path) -> None:
    batch = mixed(60, SEED)
    append_columns(tmp_path, [batch])
    with MessageStore.create(tmp_path / "followed", SMALL) as store:
        store.follow_in_background()
        store.append_records(encoded(batch))
    assert written(tmp_path / "columns") == written(tmp_path / "followed")


def test_what_depends_on_the_place_is_not_encoded() -> None:
    def one(**more: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"topic": "t", "queueId": 0, "body": b"x", **more}])

    assert is_encodable(prepared(one()))
    lmq = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    offsets = b"INNER_MULTI_QUEUE_OFFSET\x01" + b"7\x02"
    for batch in (
        one(topic="SCHEDULE_TOPIC_XXXX"),
        *(one(rawProperties=p) for p in (lmq, offsets)),
    ):
        assert not is_encodable(prepared(batch))
    assert not is_encodable(
        prepared(one(sysFlag=SysFlag.INNER_BATCH, rawProperties=b"INNER_NUM\x012\x02"))
    )
    assert not is_encodable(prepared(one(), "5.5.0", enabledAppendPropCRC=True))


def contradictions(records: EncodedRecords) -> Iterator[EncodedRecords]:
    """The records with one thing changed each."""
    shifted = records.total.copy()
    shifted[0] += 1
    yield replace(records, total=shifted)
    shifted = shifted.copy()
    shifted[1] -= 1
    yield replace(records, total=shifted)
    yield replace(records, total=np.r_[records.total[:-1], 0])
    yield replace(records, data=records.data[:-1])
    yield replace(records, topics=[])
    yield replace(records, queue_id=records.queue_id - np.int32(3))
    yield replace(records, sys_flag=records.sys_flag ^ np.int32(16))
    yield replace(records, hashes=records.hashes[:-1])
    yield replace(records, item_counts=records.item_counts[:-1])
    yield replace(records, tags_code=records.tags_code[:-1])
    other_magic = records.data.copy()
    other_magic[4] ^= 1
    yield replace(records, data=other_magic)
    yield of_v6_without_room(records)


def of_v6_without_room(records: EncodedRecords) -> EncodedRecords:
    """The first record, as short as it can be with addresses of 4 bytes, says that they have 16."""
    least = 88 + 1 + 2  # bytes of the head, the topic and the length of the properties
    data = records.data[:least].copy()
    data[:4] = np.frombuffer(least.to_bytes(4, "big"), np.uint8)
    data[36:40] = np.frombuffer((0x30).to_bytes(4, "big"), np.uint8)  # sysFlag
    one = {
        name: getattr(records, name)[:1] for name in ("topic_code", "queue_id", "store_timestamp")
    }
    counts = np.zeros(1, dtype=np.int64)
    return replace(
        records,
        **one,
        data=data,
        total=np.array([least]),
        sys_flag=np.array([0x30], dtype=np.int32),
        tags_code=records.tags_code[:1],
        item_counts=counts,
        hashes=records.hashes[:0],
    )


def test_records_that_do_not_add_up_are_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    records = encoded(mixed(20, SEED))
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        for number, wrong in enumerate(contradictions(records)):
            with pytest.raises(InvalidArgumentError):
                store.append_records(wrong)
            assert store.log_range() == (0, 0), number
        store.append_records(records)
        large = pa.RecordBatch.from_pylist([{"topic": "t", "queueId": 0, "body": b"x" * 9000}])
        of_another = prepare(large, StoreConfig(), dialect(None), LOOPBACK)
        with pytest.raises(InvalidMessageError, match="in a file of the log"):
            store.append_records(encoded_records_of(of_another, slice(0, 1), dialect(None)))
    assert not verified(tmp_path / "s").findings
    config = {**SMALL, "enabledAppendPropCRC": True}
    with (
        MessageStore.create(tmp_path / "crc", config, release="5.5.0") as store,
        pytest.raises(InvalidArgumentError, match="enabledAppendPropCRC"),
    ):
        store.append_records(records)
