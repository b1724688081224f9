"""A read of all topics accounts for every byte of the log: what no entry lists is looked at."""

from __future__ import annotations

import pickle
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.errors import CorruptQueueError
from rmq_store.format.queue_entries import ListedEntries, Queues
from rmq_store.snapshot import health
from rmq_store.snapshot.uncovered_bytes import Places, SeenPlaces, _gaps_between
from rmq_store.snapshot.unlisted_records import UnlistedRecords
from tests.snapshot.test_health import (
    ORDERS,
    WIDTH,
    far_from_the_ends,
    forget_consumers,
    hurt_log,
    hurt_queue,
    last_of,
    met_by,
)
from tests.support.golden import GoldenStore, Truth, in_a_queue, unpack, user_topic

IDLE = QueueId("documents", 0)


def lose_idle_end(golden: GoldenStore, gone: int = 4) -> Truth:
    """Zero the last entries of a queue that got no message for long; returns the first lost one."""
    forget_consumers(golden)
    count, records = last_of(golden, IDLE)
    hurt_queue(golden, IDLE, count - gone, bytes(gone * WIDTH))
    return records[count - gone]


@pytest.mark.parametrize(
    ("columns", "tags"), [(("queueOffset",), "TagA"), (("body",), None), (None, "TagA")]
)
@pytest.mark.parametrize("name", ["clean-4.3.2", "clean-4.9.7", "clean-5.2.0", "clean-5.3.3"])
def test_a_read_of_all_topics_accounts_for_the_messages_of_an_idle_queue(
    name: str,
    tags: str | None,
    columns: tuple[str, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far_from_the_ends(monkeypatch)
    golden = unpack(name, tmp_path)
    lost = lose_idle_end(golden)
    met: list[StoreError] = []
    with golden.open() as store:
        list(store.read_batches(tags=tags, columns=columns, on_damage=met.append))
        place = (*IDLE, lost["queueOffset"], lost["commitLogOffset"])
        assert [error.entry and error.entry[:4] for error in met] == [place]
        assert "at least 4 whole records" in str(met[0])
        list(store.read_batches("orders"))
        with pytest.raises(CorruptQueueError):
            list(store.read_batches(tags=tags, columns=columns))


def test_an_entry_left_from_a_longer_record_hides_no_record_behind_it(tmp_path: Path) -> None:
    """As DLedger leaves it: a later leader cut the record off the log, and wrote others in its place."""
    golden = unpack("clean-5.3.3", tmp_path)
    records = sorted(
        (row for row in golden.truth if row["topic"] == "orders"),
        key=lambda row: row["commitLogOffset"],
    )
    first, second = next(
        (first, second)
        for first, second in pairwise(records)
        if second["commitLogOffset"] == first["commitLogOffset"] + first["storeSize"]
        and first["queueId"] != second["queueId"]
        and second["queueOffset"] > 10
    )
    stale = struct.pack(">qi", first["commitLogOffset"], first["storeSize"] + 1)
    hurt_queue(golden, QueueId("orders", second["queueId"]), second["queueOffset"], stale)
    met: list[StoreError] = []
    with golden.open() as store:
        whole = {row["commitLogOffset"] for row in golden.truth if user_topic(row)}
        read = store.read_batches(
            on_damage=met.append, columns=["commitLogOffset", "body"]
        ).read_all()
    assert whole - set(read.column("commitLogOffset").to_pylist()) == {second["commitLogOffset"]}
    assert [type(error) for error in met] == [CorruptQueueError]
    assert met[0].offset == first["commitLogOffset"]


def test_spark_accounts_for_them_in_the_share_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema
    from spark_source.table_reader import TableReader, table_schema

    far_from_the_ends(monkeypatch)
    golden = unpack("clean-5.3.3", tmp_path)
    lost = lose_idle_end(golden)
    for shares in ("1", "7"):
        options = {"path": golden.path, "minPartitions": shares}
        plan = pin_all(parse_options({**options, "mode": "PERMISSIVE"}))
        reader = RmqStoreReader(plan, spark_schema(permissive=True))
        parts = reader.partitions()
        assert len(parts) >= int(shares)
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        users = [r for r in golden.truth if r["topic"] in ("orders", "documents")]
        assert len([row for row in rows if row["corruptRecord"] is None]) >= len(users) - 4
        (bad,) = [row for row in rows if row["corruptRecord"]]
        assert (bad["topic"], bad["queueOffset"]) == ("documents", lost["queueOffset"])
        table = TableReader(
            pin_all(parse_options({**options, "table": "damage"})), "damage", table_schema("damage")
        )
        (row,) = [
            row
            for part in table.partitions()
            for batch in table.read(part)
            for row in batch.to_pylist()
        ]
        assert row["commitLogOffset"] == lost["commitLogOffset"]


@pytest.mark.parametrize("shares", [1, 5, 6, 7, 40])
def test_listed_damage_is_reported_once_wherever_the_log_is_cut(
    shares: int, tmp_path: Path
) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema

    golden = unpack("clean-5.5.0", tmp_path)
    users = [r for r in golden.truth if r["topic"] == "orders"]
    cut = golden.truth[-1]["commitLogOffset"] // 6
    near = min(range(len(users)), key=lambda n: abs(users[n]["commitLogOffset"] - cut))
    hit = users[near - 30 : near + 30]
    start, stop = hit[0]["commitLogOffset"], hit[-1]["commitLogOffset"] + hit[-1]["storeSize"]
    inside = [r for r in golden.truth if start <= r["commitLogOffset"] < stop]
    hurt_log(golden, start, b"\xff" * (stop - start))
    options = {"path": golden.path, "mode": "PERMISSIVE", "minPartitions": str(shares)}
    reader = RmqStoreReader(
        pin_all(parse_options({**options, "includeSystemTopics": "true"})),
        spark_schema(permissive=True),
    )
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    about = [row for batch in batches for row in batch.to_pylist() if row["corruptRecord"]]
    assert len(about) == sum(1 for record in inside if in_a_queue(record))


def test_entries_of_a_light_queue_are_missed_although_another_queue_lists_the_records(
    tmp_path: Path,
) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema

    golden = unpack("lmq-5.3.3", tmp_path)
    forget_consumers(golden)
    light = QueueId("%LMQ%device-0", 0)
    count = len(golden.by_queue[light])
    hurt_queue(golden, light, 1, bytes((count - 1) * WIDTH))
    with golden.open() as store:
        _, met = met_by(store)
        assert [error.entry and error.entry[:3] for error in met] == [(*light, 1)]
    options = {"path": golden.path, "includeSystemTopics": "true", "mode": "PERMISSIVE"}
    reader = RmqStoreReader(pin_all(parse_options(options)), spark_schema(permissive=True))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    about = [row for batch in batches for row in batch.to_pylist() if row["corruptRecord"]]
    assert [(row["topic"], row["queueOffset"]) for row in about] == [(light.topic, 1)]


def test_damage_in_the_middle_that_no_queue_lists_is_reported_by_a_read_of_all_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_from_the_ends(monkeypatch)
    golden = unpack("clean-5.3.3", tmp_path)
    lost = lose_idle_end(golden)
    hurt_log(golden, lost["commitLogOffset"], b"\xff" * lost["storeSize"])
    met: list[StoreError] = []
    with golden.open() as store:
        list(store.read_batches(on_damage=met.append))
    assert [error.offset for error in met if "no queue lists all" in str(error)] == [
        lost["commitLogOffset"]
    ]
    assert len(met) == 2, "the other three are whole"


def test_a_damaged_end_of_a_queue_is_one_error_in_spark_as_in_a_direct_read(tmp_path: Path) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema

    golden = unpack("clean-5.3.3", tmp_path)
    forget_consumers(golden)
    count, records = last_of(golden, IDLE)
    hurt_queue(golden, IDLE, count - 1, b"\xff" * (WIDTH - 8) + bytes(8))
    with golden.open() as store:
        _, met = met_by(store)
    assert [error.entry and error.entry[:3] for error in met] == [(*IDLE, count - 1)]
    plan = pin_all(parse_options({"path": golden.path, "mode": "PERMISSIVE"}))
    reader = RmqStoreReader(plan, spark_schema(permissive=True))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    bad = [row for batch in batches for row in batch.to_pylist() if row["corruptRecord"]]
    assert [row["commitLogOffset"] for row in bad] == [records[-1]["commitLogOffset"]]


@pytest.mark.parametrize("size", [77, 593])
def test_the_rest_of_a_record_whose_entry_has_a_wrong_size_is_no_damage_of_the_log(
    size: int, tmp_path: Path
) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    record = golden.by_queue[QueueId("orders", 0)][10]
    hurt_queue(golden, QueueId("orders", 0), 10, size.to_bytes(4, "big"), 8)
    met: list[StoreError] = []
    with golden.open() as store:
        list(store.read_batches(columns=["body"], on_damage=met.append))
    assert record["storeSize"] > size
    assert [(error.code, error.offset) for error in met] == [
        ("RMQSTORE_CORRUPT_QUEUE", record["commitLogOffset"])
    ]


def test_a_query_of_one_topic_reports_in_spark_what_a_direct_read_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the snapshot of all queues proves it, and the plan for one topic has the queues of that."""
    from spark_source.options.parse import parse_options
    from spark_source.planning.partitions import missing_shares
    from spark_source.planning.pinned_plan import pin_all

    monkeypatch.setattr(health, "LOOKED_AT", 0)
    golden = unpack("clean-5.2.0", tmp_path)
    forget_consumers(golden)
    shutil.rmtree(Path(golden.path, "index"))
    count, _ = last_of(golden, ORDERS)
    hurt_queue(golden, ORDERS, count - 3, bytes(3 * WIDTH))
    plan = pin_all(parse_options({"path": golden.path, "topic": ORDERS.topic}))
    (share,) = missing_shares(pickle.loads(pickle.dumps(plan)))
    met: list[StoreError] = []
    with golden.open() as store:
        list(store.read_batches(ORDERS.topic, on_damage=met.append))
    assert [str(error) for error in share.lost] == [str(error) for error in met]
    assert [error.entry and error.entry[:3] for error in met] == [(*ORDERS, count - 3)]


def test_what_is_missing_is_looked_for_once_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    count, _ = last_of(golden, ORDERS)
    hurt_queue(golden, ORDERS, count - 3, bytes(3 * WIDTH))
    met: list[StoreError] = []
    with golden.open() as store:
        list(store.read_batches(ORDERS.topic, on_damage=met.append))
        snapshot = pickle.loads(pickle.dumps(store.snapshot()))
    assert [error.entry and error.entry[:3] for error in met] == [(*ORDERS, count - 3)]
    monkeypatch.setattr(UnlistedRecords, "look_at", None)
    monkeypatch.setattr(UnlistedRecords, "search", None)
    again: list[StoreError] = []
    with MessageStore.open(golden.path, snapshot=snapshot) as store:
        for _ in range(2):
            list(store.read_batches(on_damage=again.append))
    assert [str(error) for error in again] == [str(error) for error in met] * 2


@pytest.mark.parametrize("seed", range(20))
def test_places_that_a_read_notes_leave_the_same_gaps(seed: int) -> None:
    """Runs of records stand for all of them, also where entries are damaged or other queues have some."""
    random = np.random.default_rng(seed)
    at, places = 0, []
    for _ in range(300):
        at += int(random.choice([0, 0, 0, 0, 0, 7]))  # a gap now and then
        size = int(random.integers(1, 9))
        places.append((at + int(random.choice([0] * 20 + [3])), size))  # damaged at times
        at += size
    mine = [one for one in places if random.random() < 0.8]
    others = [one for one in places if one not in mine]

    def gaps(listed: list[tuple[int, int]], seen: Places | None) -> set[tuple[int, int, int]]:
        numbers = np.array(listed, dtype=np.int64).reshape(-1, 2)
        both = [Places(numbers[:, 0], numbers[:, 1])] + ([] if seen is None else [seen])
        whole = Places.concat(both).by_log_offset()
        return {
            tuple(gap)
            for found in _gaps_between([whole], lambda offsets: offsets, 0, at + 5)
            for gap in np.stack(found, axis=1).tolist()
        }

    noted = SeenPlaces(lambda offsets: offsets)
    for first in range(0, len(mine), 50):
        piece = np.array(sorted(mine[first : first + 50]), dtype=np.int64)
        nothing = np.zeros(len(piece), dtype=np.int64)
        columns = (nothing, piece[:, 0], piece[:, 1], nothing, nothing)
        rows = ListedEntries(*columns, Queues([IDLE]), nothing)
        assert [len(one) for one in noted.noted([rows])] == [len(piece)]
    known = noted.places()
    assert known is not None
    assert len(known.size) < len(mine)
    expected = gaps(places, None)
    assert expected
    assert gaps(others, known) == expected
