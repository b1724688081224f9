"""What tasks stage and the commit appends: the bytes of `append_batch`, or an error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from spark_source.writing import rows_to_append
from spark_source.writing.staging import StagingError
from spark_source.writing.writers import StoreWrite, commit
from tests.support.stores import SMALL
from tests.support.writing.writes import numbers_in, options, prepared, staged, write_rows

SEED = 20261122
LONG_TOPIC = "%RETRY%" + "g" * 140  # needs records of version 2
NOW = 1_790_000_000_000


def series(first: int, count: int, **more: Any) -> pa.RecordBatch:
    """Messages of several layouts; every third has neither queueId nor keys."""
    chance = random.Random(SEED + first)
    numbers = range(first, first + count)
    columns: dict[str, Any] = {
        "topic": [chance.choice(("orders", "payments", LONG_TOPIC)) for _ in numbers],
        "queueId": pa.array([None if n % 3 == 0 else n % 5 for n in numbers], pa.int32()),
        "body": [chance.randbytes(chance.randrange(500)) for _ in numbers],
        "tags": [chance.choice((None, "a", "客户")) for _ in numbers],
        "keys": [None if n % 3 == 0 else f"k{n} é" for n in numbers],
        "bornTimestamp": [NOW - n for n in numbers],
        "storeTimestamp": [NOW + n for n in numbers],
        "bornHost": [chance.choice(("1.2.3.4:5", "[2001:db8::1]:65535", None)) for _ in numbers],
        "storeHost": [chance.choice(("127.0.0.1:10911", "[::1]:10911")) for _ in numbers],
        **more,
    }
    return pa.RecordBatch.from_pydict(columns)


def with_queues(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches with queues 0, 1, 2, 3, 0, ... by topic in the rows without queueId."""
    given: dict[str, int] = {}
    found = []
    for batch in batches:
        queues = batch["queueId"].to_pylist()
        for row, topic in enumerate(batch["topic"].to_pylist()):
            if queues[row] is None:
                queues[row] = given.get(topic, 0)
                given[topic] = (queues[row] + 1) % 4
        at = batch.schema.get_field_index("queueId")
        found.append(batch.set_column(at, "queueId", pa.array(queues, pa.int32())))
    return found


def files_of(root: Path) -> dict[str, list[bytes]]:
    """Files of log, queues and index by folder, in order of their names, which may be times."""
    found: dict[str, list[bytes]] = {}
    for kind in ("commitlog", "consumequeue", "index"):
        for path in sorted(root.glob(f"{kind}/**/*")):
            if path.is_file():
                found.setdefault(str(path.parent.relative_to(root)), []).append(path.read_bytes())
    return found


@pytest.mark.parametrize("crc", [False, True])
def test_a_write_leaves_the_bytes_of_append_batch(
    crc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_to_append, "BATCH_BYTES", 2000)
    config = StoreConfig.of({**SMALL, "enabledAppendPropCRC": crc})
    delayed = series(90, 7, topic=["SCHEDULE_TOPIC_XXXX", "orders", *["payments"] * 5])
    batches = with_queues([series(0, 60), delayed, series(120, 50)])
    with MessageStore.create(tmp_path / "columns", config, release="5.5.0") as store:
        for batch in batches:
            store.append_batch(batch)
    asked = options(tmp_path / "store", config=config, keep_timestamps=True, release="5.5.0")
    for tasks in (batches[:1], batches[1:]):  # a new store, then one that exists
        write = StoreWrite("abcd1234", asked)
        commit(write, staged(write, tasks))
    left, right = files_of(tmp_path / "columns"), files_of(tmp_path / "store")
    assert left == right
    assert len(left["commitlog"]) > 5


def test_rows_without_queue_take_turns_over_all_tasks(tmp_path: Path) -> None:
    batches = [series(0, 60), series(60, 7, topic=["SCHEDULE_TOPIC_XXXX"] * 7), series(67, 50)]
    with MessageStore.create(tmp_path / "columns", SMALL) as store:
        for batch in with_queues(batches):
            store.append_batch(batch)
    write = StoreWrite("abcd1234", options(tmp_path / "store", keep_timestamps=True))
    commit(write, staged(write, batches))
    assert files_of(tmp_path / "columns") == files_of(tmp_path / "store")


def test_any_damage_of_a_staged_file_is_noticed(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write_rows(target, 0, 40)
    chance = random.Random(SEED)
    for number in range(12):
        write, parts = prepared(target, 40, 40)
        file = write.staging.path / str(parts[1].name)
        raw = bytearray(file.read_bytes())
        if number == 0:
            raw = raw + raw  # every batch is whole, and there are too many
        elif number == 1:
            del raw[sum(size for size, _ in parts[1].batches[:-1]) :]  # without the last batch
        else:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        file.write_bytes(raw)
        with pytest.raises(StagingError):
            commit(write, parts)
        write.staging.remove()
        assert numbers_in(target) == list(range(40)), number
