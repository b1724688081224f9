"""What is selected, and how it is split: expected rows come from the truth of golden stores."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from rmq_store.errors import (
    DataLossError,
    InvalidArgumentError,
    NotAStoreError,
    UnknownQueueError,
)
from rmq_store.layout import SysFlag
from spark_source.filters import CLOCK_SLACK_MS
from tests.conftest import GoldenStore, in_a_queue, unpack, user_topic
from tests.support.golden import STORES, Truth, bodies_of, keys_of, messages_in
from tests.support.reads import left_over, partitions_of, rows_of

Golden = Callable[[str], GoldenStore]
NAME = "clean-5.5.0"
PLACE = {"columns": "brokerName,topic,queueId,queueOffset,commitLogOffset"}


def options_of(store: GoldenStore, **options: str) -> dict[str, str]:
    """Options as Spark hands them over; batches stay whole unless a test is about them."""
    given = {"path": store.path, "unwrapBatches": "false", **options}
    return {name.lower(): value for name, value in given.items()}


def places(rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["commitLogOffset"] for row in rows)


def truth_where(store: GoldenStore, wanted: Callable[[Truth], bool]) -> Counter[int]:
    found = Counter(r["commitLogOffset"] for r in store.truth if in_a_queue(r) and wanted(r))
    assert found
    return found


# --- names ----------------------------------------------------------------------------------------


def test_topics_by_name_by_pattern_and_by_queue(golden: Golden) -> None:
    store = golden(NAME)
    cases: list[tuple[dict[str, str], Callable[[Truth], bool]]] = [
        ({}, user_topic),
        ({"subscribe": "orders, payments"}, lambda r: r["topic"] in ("orders", "payments")),
        ({"subscribePattern": "ord.*|pay.*"}, lambda r: r["topic"][:3] in ("ord", "pay")),
        ({"subscribePattern": "orders"}, lambda r: r["topic"] == "orders"),
        ({"includeSystemTopics": "true"}, lambda r: True),
        (
            {"includeSystemTopics": "true", "subscribePattern": "SCHEDULE.*"},
            lambda r: r["topic"].startswith("SCHEDULE"),
        ),
        (
            {"subscribe": "SCHEDULE_TOPIC_XXXX"},
            lambda r: r["topic"] == "SCHEDULE_TOPIC_XXXX",
        ),
        (
            {"assign": '{"orders": [1, 3]}'},
            lambda r: r["topic"] == "orders" and r["queueId"] in (1, 3),
        ),
    ]
    for options, wanted in cases:
        found = places(rows_of(options_of(store, **options, **PLACE)))
        assert found == truth_where(store, wanted), options


def test_a_pattern_that_no_topic_has_selects_nothing(golden: Golden) -> None:
    assert rows_of(options_of(golden(NAME), subscribePattern="nothing-like-this")) == []


# --- offsets and times ----------------------------------------------------------------------------


def test_offsets_and_times_have_kafkas_precedence(golden: Golden) -> None:
    store = golden(NAME)
    orders = [r for r in store.truth if r["topic"] == "orders"]
    early, late = orders[100]["storeTimestamp"], orders[-100]["storeTimestamp"]
    by_time = json.dumps({"orders": {"0": late}})
    by_offset = json.dumps({"orders": {"0": 3, "1": 4}})
    cases: list[tuple[dict[str, str], Callable[[Truth], bool]]] = [
        (
            {"startingOffsets": by_offset},
            lambda r: r["queueOffset"] >= {0: 3, 1: 4}.get(r["queueId"], 0),
        ),
        (
            {"startingOffsets": by_offset, "startingOffsetsByTimestamp": by_time},
            lambda r: (
                r["storeTimestamp"] >= late
                if r["queueId"] == 0
                else r["queueOffset"] >= {1: 4}.get(r["queueId"], 0)
            ),
        ),
        (
            {
                "startingOffsets": by_offset,
                "startingOffsetsByTimestamp": by_time,
                "startingTimestamp": str(early),
            },
            lambda r: r["storeTimestamp"] >= early,
        ),
        (
            {"endingOffsets": by_offset, "endingOffsetsByTimestamp": by_time},
            lambda r: (
                r["storeTimestamp"] < late
                if r["queueId"] == 0
                else r["queueOffset"] < {1: 4}.get(r["queueId"], 10**9)
            ),
        ),
        (
            {"endingOffsets": by_offset, "endingTimestamp": str(late)},
            lambda r: r["storeTimestamp"] < late,
        ),
        (
            {"startingOffsets": '{"orders": {"0": -1, "1": -2}}'},
            lambda r: r["queueId"] != 0,
        ),
    ]
    for options, wanted in cases:
        found = places(rows_of(options_of(store, topic="orders", **options, **PLACE)))
        expected = truth_where(store, lambda r, w=wanted: r["topic"] == "orders" and w(r))  # type: ignore[misc]
        assert found == expected, options


def test_a_time_that_no_message_reaches_is_nothing_or_an_error_as_asked(golden: Golden) -> None:
    options = options_of(golden(NAME), topic="orders", startingTimestamp="9999999999999")
    assert rows_of(options) == []
    with pytest.raises(InvalidArgumentError, match="no message stored at"):
        rows_of({**options, "startingoffsetsbytimestampstrategy": "error"})


def test_offsets_that_expired_are_data_loss_unless_it_is_accepted(golden: Golden) -> None:
    store = golden("expired-5.5.0")
    with store.open() as opened:
        queue = next(q for q in opened.queues() if opened.min_offset(*q) > 0)
        low, high = opened.min_offset(*queue), opened.max_offset(*queue)
    options = options_of(
        store,
        assign=json.dumps({queue.topic: [queue.queue_id]}),
        startingOffsets=json.dumps({queue.topic: {str(queue.queue_id): 0}}),
    )
    with pytest.raises(DataLossError, match="RMQSTORE_DATA_LOSS"):
        rows_of(options)
    found = rows_of({**options, "failondataloss": "false"})
    assert [row["queueOffset"] for row in found] == list(range(low, high))


# --- tags and keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, "clean-4.9.7", "direct-5.5.0", "geometry-5.5.0"])
def test_keys_select_by_a_word_or_the_uniq_key(golden: Golden, name: str) -> None:
    store = golden(name)
    words = sorted(
        {word for r in store.truth if user_topic(r) for word in keys_of(r) if word.isascii()}
    )
    words = [w for w in words if not any(c.isspace() for c in w) and "||" not in w]
    step = max(1, len(words) // 12)
    for word in words[::step]:
        found = places(rows_of(options_of(store, keys=word, **PLACE)))
        assert found == truth_where(store, lambda r, w=word: user_topic(r) and w in keys_of(r))  # type: ignore[misc]
    two = words[:2]
    found = places(rows_of(options_of(store, keys=" || ".join(two), **PLACE)))
    assert found == truth_where(store, lambda r: user_topic(r) and bool(keys_of(r) & set(two)))


@pytest.mark.parametrize("harm", ["no index", "last file gone", "first file gone", "rubbish"])
def test_keys_are_found_whatever_the_index_lacks(tmp_path: Path, harm: str) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    files = sorted((Path(store.path) / "index").iterdir())
    match harm:
        case "no index":
            shutil.rmtree(files[0].parent)
        case "last file gone":
            files[-1].unlink()
        case "first file gone":
            files[0].unlink()
        case _:
            files[1].write_bytes(b"\x7f" * files[1].stat().st_size)
    words = sorted({w for r in store.truth if user_topic(r) for w in keys_of(r) if w.isalnum()})
    for word in words[:: max(1, len(words) // 10)]:
        found = places(rows_of(options_of(store, keys=word, **PLACE)))
        assert found == truth_where(store, lambda r, w=word: user_topic(r) and w in keys_of(r))  # type: ignore[misc]


def test_keys_and_tags_and_ranges_go_together(golden: Golden) -> None:
    store = golden(NAME)
    record = next(r for r in store.truth if r["topic"] == "orders" and r["tags"] and r["keys"])
    word = record["keys"].split()[0]
    found = places(
        rows_of(options_of(store, topic="orders", keys=word, tags=record["tags"], **PLACE))
    )
    assert found == truth_where(
        store,
        lambda r: r["topic"] == "orders" and r["tags"] == record["tags"] and word in keys_of(r),
    )


def test_a_key_look_up_opens_the_index_and_no_log(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for three records between index files, and the last one."""
    store = golden(NAME)
    record = [r for r in store.truth if user_topic(r) and r["uniqKey"]][5]
    opened = watch_opened(monkeypatch)
    topic = record["topic"]
    plan = plan_of(options_of(store, topic=topic, keys=record["uniqKey"], columns="topic,uniqKey"))
    assert any("/index/" in path for path in opened)
    hits = [row for row in plan if row["logStart"] is None]
    assert sum(row["entries"] for row in plan) <= 6
    assert hits


def watch_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that is mapped from here on."""
    from rmq_store import files

    opened: list[str] = []
    make = files._Mapping.__init__

    def watching(self: files._Mapping, segment: files.SegmentFile) -> None:
        opened.append(segment.path)
        make(self, segment)

    monkeypatch.setattr(files._Mapping, "__init__", watching)
    return opened


def plan_of(options: dict[str, str]) -> list[dict[str, Any]]:
    return rows_of({**options, "table": "plan"})


# --- projection -----------------------------------------------------------------------------------


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


def test_a_body_not_asked_for_is_not_read(golden: Golden) -> None:
    """Counted as the bytes of records less those of bodies, and seen on a body that is broken."""
    store = golden(NAME)
    with store.open() as opened:
        list(opened.read_batches("orders", columns=["tags"], check_crc=False))
        without = opened.reads().log.bytes
        list(opened.read_batches("orders", columns=["tags", "body"]))
        both = opened.reads().log.bytes
    orders = [r for r in store.truth if r["topic"] == "orders"]
    bodies = sum(len(bodies_of(r)[1]) for r in orders)
    size = sum(r["storeSize"] for r in orders)
    assert (without, both) == (size - bodies, 2 * size - bodies)


def test_the_body_of_a_damaged_record_matters_only_if_asked_for(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    record = next(r for r in store.truth if r["topic"] == "orders" and len(r["body"]) > 40)
    flip(store, record["commitLogOffset"] + 95)
    options = options_of(store, topic="orders")
    found = places(rows_of({**options, "columns": "commitLogOffset,tags"}))
    assert found == truth_where(store, lambda r: r["topic"] == "orders")
    with pytest.raises(Exception, match="RMQSTORE_CORRUPT_RECORD"):
        rows_of({**options, "columns": "commitLogOffset,body"})


def flip(store: GoldenStore, at: int) -> None:
    """One bit of the byte at a log offset."""
    for path in sorted((Path(store.path) / "commitlog").iterdir(), reverse=True):
        if int(path.name) <= at:
            raw = bytearray(path.read_bytes())
            raw[at - int(path.name)] ^= 1
            path.write_bytes(raw)
            return


def test_a_ghost_entry_is_seen_where_the_queue_is_verified(tmp_path: Path) -> None:
    """An entry that points to the inside of a record: in bounds and in order, and wrong."""
    store = unpack(NAME, tmp_path)
    queue_file = sorted((Path(store.path) / "consumequeue/orders/1").iterdir())[0]
    raw = bytearray(queue_file.read_bytes())
    (where,) = struct.unpack_from(">q", raw, 5 * 20)
    struct.pack_into(">q", raw, 5 * 20, where + 7)
    queue_file.write_bytes(raw)
    options = options_of(store, assign='{"orders": [1]}', columns="queueOffset,commitLogOffset")
    trusted = rows_of(options)
    assert trusted[5]["commitLogOffset"] == where + 7
    with pytest.raises(Exception, match="RMQSTORE_CORRUPT_RECORD"):
        rows_of({**options, "verifyqueue": "true"})
    kept = rows_of({**options, "verifyqueue": "true", "mode": "DROPMALFORMED"})
    assert [r["queueOffset"] for r in kept] == [
        r["queueOffset"] for r in trusted if r["queueOffset"] != 5
    ]


def test_an_entry_that_points_back_is_not_trusted(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    queue_file = sorted((Path(store.path) / "consumequeue/orders/1").iterdir())[0]
    raw = bytearray(queue_file.read_bytes())
    raw[6 * 20 : 7 * 20] = raw[3 * 20 : 4 * 20]
    queue_file.write_bytes(raw)
    options = options_of(store, assign='{"orders": [1]}', columns="queueOffset")
    with pytest.raises(Exception, match="points back in the log"):
        rows_of(options)


# --- splitting ------------------------------------------------------------------------------------


def test_partitions_hold_no_more_than_was_asked_for(golden: Golden) -> None:
    store = golden(NAME)
    expected = truth_where(store, user_topic)
    for options in (
        {"minPartitions": "9"},
        {"maxRecordsPerPartition": "50"},
        {"maxBytesPerPartition": "20k"},
        {"splitBy": "queue", "minPartitions": "5"},
        {"splitBy": "queue", "maxRecordsPerPartition": "120"},
    ):
        tables = partitions_of(options_of(store, **options, **PLACE))
        total: Counter[int] = Counter()
        for table in tables:
            total.update(table.column("commitLogOffset").to_pylist())
        assert total == expected, options
        most = max(table.num_rows for table in tables)
        if "minPartitions" in options:
            assert len(tables) >= int(options["minPartitions"])
        if options == {"maxRecordsPerPartition": "50"}:
            assert most <= 50
        if "splitBy" in options:
            homes: dict[tuple[str, int], set[int]] = {}
            for number, table in enumerate(tables):
                rows = table.to_pylist()
                for row in rows:
                    homes.setdefault((row["topic"], row["queueId"]), set()).add(number)
                by_queue: dict[tuple[str, int], list[int]] = {}
                for row in rows:
                    by_queue.setdefault((row["topic"], row["queueId"]), []).append(
                        row["queueOffset"]
                    )
                assert all(offsets == sorted(offsets) for offsets in by_queue.values())
            assert all(len(numbers) == 1 for numbers in homes.values())


def test_the_plan_says_what_the_partitions_read(golden: Golden) -> None:
    store = golden(NAME)
    options = options_of(store, maxBytesPerPartition="100k", unwrapBatches="true", **PLACE)
    plan = plan_of(options)
    tables = partitions_of(options)
    assert [row["entries"] for row in plan] == [table.num_rows for table in tables]
    first = json.loads(plan[0]["ranges"])
    rows = tables[0].to_pylist()
    for topic, queues in first.items():
        for queue_id, ranges in queues.items():
            offsets = [
                r["queueOffset"]
                for r in rows
                if (r["topic"], r["queueId"]) == (topic, int(queue_id))
            ]
            assert [[min(offsets), max(offsets) + 1]] == ranges


# --- the log as the source ------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("queues", ["there", "gone"])
def test_the_log_gives_the_rows_of_the_queues(
    golden: Golden, tmp_path: Path, name: str, queues: str
) -> None:
    store = golden(name)
    paths = json.loads((store.folder / "golden.json").read_text("utf-8")).get("commitLogPaths")
    conf = tmp_path / "broker.conf"
    conf.write_text(
        Path(store.conf).read_text() + "\nstorePathCommitLog=" + ",".join(paths or ["commitlog"])
    )
    columns = "topic,queueId,queueOffset,commitLogOffset,storeSize,tags,msgId,bodyCrc,tagsCode,body"
    options = options_of(store, brokerConf=str(conf), includeSystemTopics="true", columns=columns)
    wanted = rows_of(options)
    if queues == "gone":
        copy = unpack(name, tmp_path)
        for folder in ("consumequeue", "batchconsumequeue", "index"):
            shutil.rmtree(Path(copy.path) / folder, ignore_errors=True)
        options = {**options, "path": copy.path}
    found = rows_of({**options, "source": "commitlog", "maxbytesperpartition": "60k"})

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["commitLogOffset"], row["topic"], row["queueId"], row["queueOffset"]

    assert sorted(found, key=key) == sorted(wanted, key=key)


@pytest.mark.parametrize("name", ["direct-5.5.0", "geometry-5.5.0"])
def test_unqueued_records_come_if_asked_for(golden: Golden, name: str) -> None:
    store = golden(name)
    options = options_of(store, source="commitlog", includeSystemTopics="true", **PLACE)
    found = rows_of({**options, "includeunqueued": "true"})
    every = Counter(r["commitLogOffset"] for r in store.truth)
    assert places(found) == every
    nowhere = {r["commitLogOffset"] for r in found if r["queueOffset"] is None}
    assert nowhere == {r["commitLogOffset"] for r in store.truth if not in_a_queue(r)}
    assert nowhere
    assert places(rows_of(options)) == truth_where(store, lambda r: True)


def test_selections_of_the_log_are_those_of_the_queues(golden: Golden) -> None:
    store = golden(NAME)
    orders = [r for r in store.truth if r["topic"] == "orders"]
    early, late = str(orders[100]["storeTimestamp"]), str(orders[-100]["storeTimestamp"])
    for options in (
        {"topic": "orders", "tags": "FB || cancelled"},
        {"topic": "orders", "startingTimestamp": early, "endingTimestamp": late},
        {"assign": '{"orders": [1, 2]}', "startingOffsets": '{"orders": {"1": 9}}'},
        {"subscribePattern": "pay.*", "keys": orders[0]["keys"].split()[0]},
        {"subscribePattern": "ord.*", "keys": orders[0]["keys"].split()[0]},
    ):
        by_queue = rows_of(options_of(store, **options, **PLACE))
        by_log = rows_of(options_of(store, source="commitlog", **options, **PLACE))
        assert places(by_log) == places(by_queue), options


# --- batches --------------------------------------------------------------------------------------


def members(record: Truth) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    """flag, body and properties of the messages in an inner batch, by the book."""
    raw, at = bodies_of(record)[0], 0
    while at < len(raw):
        _, _, _, flag, length = struct.unpack_from(">iiiii", raw, at)
        body = raw[at + 20 : at + 20 + length]
        (size,) = struct.unpack_from(">h", raw, at + 20 + length)
        text = raw[at + 22 + length : at + 22 + length + size].decode()
        yield flag, body, dict(item.split("\x01", 1) for item in text.split("\x02") if item)
        at += 22 + length + size


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
@pytest.mark.parametrize("name", ["clean-5.1.1", "clean-5.3.3", NAME, "multipath-5.5.0"])
def test_inner_batches_come_message_by_message(
    golden: Golden, tmp_path: Path, name: str, source: str
) -> None:
    store = golden(name)
    batches = [r for r in store.truth if r["sysFlag"] & SysFlag.INNER_BATCH and in_a_queue(r)]
    assert batches
    expected: Counter[tuple[Any, ...]] = Counter()
    for record in batches:
        base = int(record["properties"]["INNER_BASE"])
        for number, (flag, body, properties) in enumerate(members(record)):
            place = (record["topic"], record["queueId"])
            at = (*place, base + number, record["commitLogOffset"])
            uniq, tags = properties.get("UNIQ_KEY"), properties.get("TAGS")
            expected.update([(*at, flag, body, uniq, tags)])
        assert number + 1 == messages_in(record)
    topics = sorted({r["topic"] for r in batches})
    options = options_of(
        store,
        topic=",".join(topics),
        unwrapBatches="true",
        source=source,
        columns="topic,queueId,queueOffset,commitLogOffset,flag,body,uniqKey,tags",
    )
    if name.startswith("multipath"):
        paths = json.loads((store.folder / "golden.json").read_text("utf-8"))["commitLogPaths"]
        (tmp_path / "b.conf").write_text("storePathCommitLog=" + ",".join(paths))
        options["brokerconf"] = str(tmp_path / "b.conf")
    rows = rows_of(options)
    offsets = {r["commitLogOffset"] for r in batches}
    found = Counter(tuple(row.values()) for row in rows if row["commitLogOffset"] in offsets)
    assert found == expected
    few = {**options, "columns": "topic,queueId,queueOffset,commitLogOffset"}
    without_log = Counter(tuple(row.values()) for row in rows_of(few))
    assert without_log == Counter(tuple(row.values())[:4] for row in rows)


def test_messages_of_batches_stay_in_the_order_of_the_log(golden: Golden) -> None:
    """Also where no column tells it, and between messages that came alone."""
    options = options_of(golden(NAME), unwrapBatches="true", includeSystemTopics="true")
    place = {**options, "columns": "commitLogOffset,topic,queueOffset"}
    rows = [(r["topic"], r["queueOffset"]) for r in rows_of(place)]
    where = [r["commitLogOffset"] for r in rows_of(place)]
    assert where == sorted(where)
    body = rows_of({**options, "columns": "topic,queueOffset,tags"})
    assert [(r["topic"], r["queueOffset"]) for r in body] == rows


def test_a_range_may_begin_and_end_inside_a_batch(golden: Golden) -> None:
    store = golden(NAME)
    record = next(
        r for r in store.truth if r["sysFlag"] & SysFlag.INNER_BATCH and messages_in(r) >= 4
    )
    base = int(record["properties"]["INNER_BASE"])
    topic, queue = record["topic"], str(record["queueId"])
    for source in ("consumequeue", "commitlog"):
        rows = rows_of(
            options_of(
                store,
                unwrapBatches="true",
                source=source,
                assign=json.dumps({topic: [int(queue)]}),
                startingOffsets=json.dumps({topic: {queue: base + 1}}),
                endingOffsets=json.dumps({topic: {queue: base + 3}}),
            )
        )
        assert [row["queueOffset"] for row in rows] == [base + 1, base + 2]


# --- several stores -------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> dict[str, str]:
    """Two brokers' stores: folders broker-a and broker-b."""
    found = {}
    for broker, name in (("broker-a", NAME), ("broker-b", "clean-5.4.0")):
        copy = unpack(name, tmp_path)
        Path(copy.path).rename(tmp_path / broker)
        found[broker] = str(tmp_path / broker)
    return found


def by_broker(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["brokerName"] for row in rows)


def test_several_stores_are_one_frame(golden: Golden, two: dict[str, str], tmp_path: Path) -> None:
    expected = {
        "broker-a": sum(map(user_topic, golden(NAME).truth)),
        "broker-b": sum(map(user_topic, golden("clean-5.4.0").truth)),
    }
    plain = {"unwrapbatches": "false", **PLACE}
    for how in (
        {"paths": json.dumps(list(two.values()))},
        {"path": str(tmp_path / "broker-*")},
        {"stores": json.dumps(two)},
    ):
        assert by_broker(rows_of({**how, **plain})) == expected, how
    other = {"east": two["broker-a"], "west": two["broker-b"]}
    assert set(by_broker(rows_of({"stores": json.dumps(other), **plain}))) == {"east", "west"}


def test_offsets_and_queues_can_be_those_of_one_broker(two: dict[str, str]) -> None:
    plain = {"stores": json.dumps(two), "unwrapbatches": "false", **PLACE}
    rows = rows_of(
        {
            **plain,
            "assign": '{"orders": {"broker-a": [0, 1], "broker-b": [0]}}',
            "startingoffsets": '{"orders": {"broker-a": {"0": 7}, "broker-b": {"0": 3}}}',
            "endingoffsets": '{"orders": {"0": 9, "1": 2}}',
        }
    )
    found = {(r["brokerName"], r["queueId"], r["queueOffset"]) for r in rows}
    assert found == {
        *(("broker-a", 0, n) for n in (7, 8)),
        *(("broker-a", 1, n) for n in (0, 1)),
        *(("broker-b", 0, n) for n in range(3, 9)),
    }
    with pytest.raises(InvalidArgumentError, match=r"Did you mean .broker-[ab]."):
        rows_of({**plain, "startingoffsets": '{"orders": {"broker-x": {"0": 1}}}'})


def test_several_stores_have_a_configuration_each(
    two: dict[str, str], golden: Golden, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1000\n")
    options = {"stores": json.dumps(two), **PLACE}
    good = {"broker-a": golden(NAME).conf, "broker-b": golden("clean-5.4.0").conf}
    assert rows_of({**options, "brokerconf": json.dumps(good)})
    with pytest.raises(Exception, match="mappedFileSizeCommitLog"):
        rows_of({**options, "brokerconf": json.dumps({**good, "broker-b": str(conf)})})
    with pytest.raises(InvalidArgumentError, match="Did you mean 'broker-b'"):
        rows_of({**options, "brokerconf": json.dumps({"broker-bb": str(conf)})})
    with pytest.raises(InvalidArgumentError, match="JSON by broker name"):
        rows_of({**options, "brokerconf": str(conf)})


def test_two_of_one_name_are_refused_with_the_fix(golden: Golden) -> None:
    paths = [golden(NAME).path, golden("clean-5.4.0").path]  # both folders are called store
    with pytest.raises(InvalidArgumentError, match="two stores have the broker name 'store'") as e:
        rows_of({"paths": json.dumps(paths)})
    assert "stores = {" in str(e.value)
    with pytest.raises(InvalidArgumentError, match="one brokerName for 2 stores"):
        rows_of({"paths": json.dumps(paths), "brokername": "a"})


def test_a_store_that_cannot_be_opened_fails_the_query_or_is_named(
    two: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = {**two, "broker-c": str(tmp_path / "nowhere")}
    options = {"stores": json.dumps(stores), **PLACE}
    with pytest.raises(NotAStoreError, match="nowhere"):
        rows_of(options)
    skipping = {**options, "unavailablestores": "skip"}
    assert set(by_broker(rows_of(skipping))) == {"broker-a", "broker-b"}
    assert "left out a store" in caplog.text
    (left_out,) = [row for row in plan_of(skipping) if row["leftOut"]]
    assert (left_out["brokerName"], left_out["partition"]) == ("broker-c", None)
    with pytest.raises(NotAStoreError):  # none is left
        rows_of({"path": str(tmp_path / "nowhere"), "unavailablestores": "skip"})


def test_a_topic_of_one_broker_is_enough_and_one_of_none_is_refused(
    two: dict[str, str], golden: Golden
) -> None:
    a = {r["topic"] for r in golden(NAME).truth if user_topic(r)}
    options = {"stores": json.dumps(two), **PLACE}
    assert rows_of({**options, "subscribe": sorted(a)[0]})
    with pytest.raises(UnknownQueueError, match="Did you mean"):
        rows_of({**options, "subscribe": "order"})


# --- filters --------------------------------------------------------------------------------------


def filter_cases(store: GoldenStore) -> list[tuple[Filter, Callable[[Truth], bool], bool]]:
    """Each with what it lets through, and whether it is claimed."""
    from datetime import datetime, timezone

    orders = [r for r in store.truth if r["topic"] == "orders"]
    one = next(r for r in orders[50:] if r["keys"] and r["tags"] and r["uniqKey"])
    moment = datetime.fromtimestamp(one["storeTimestamp"] / 1000, timezone.utc)
    queue_offset = one["queueOffset"]
    return [
        (EqualTo(("topic",), "orders"), lambda r: r["topic"] == "orders", True),
        (
            In(("topic",), ("orders", "payments")),
            lambda r: r["topic"] in ("orders", "payments"),
            True,
        ),
        (EqualTo(("topic",), "nothing"), lambda r: False, True),
        (EqualTo(("brokerName",), "store"), lambda r: True, True),
        (EqualTo(("brokerName",), "other"), lambda r: False, True),
        (EqualTo(("queueId",), 1), lambda r: r["queueId"] == 1, True),
        (GreaterThan(("queueId",), 1), lambda r: r["queueId"] > 1, True),
        (In(("queueId",), (0, 2)), lambda r: r["queueId"] in (0, 2), True),
        (LessThanOrEqual(("queueId",), 0), lambda r: r["queueId"] <= 0, True),
        (
            GreaterThanOrEqual(("queueOffset",), queue_offset),
            lambda r: r["queueOffset"] >= queue_offset,
            True,
        ),
        (LessThan(("queueOffset",), 5), lambda r: r["queueOffset"] < 5, True),
        (EqualTo(("queueOffset",), 5), lambda r: r["queueOffset"] == 5, True),
        (In(("queueOffset",), (3, 7)), lambda r: r["queueOffset"] in (3, 7), False),
        (EqualTo(("tags",), one["tags"]), lambda r: r["tags"] == one["tags"], True),
        (In(("tags",), (one["tags"], "none such")), lambda r: r["tags"] == one["tags"], True),
        (EqualTo(("keys",), one["keys"]), lambda r: r["keys"] == one["keys"], False),
        (EqualTo(("uniqKey",), one["uniqKey"]), lambda r: r["uniqKey"] == one["uniqKey"], False),
        (
            EqualTo(("msgId",), one["offsetMsgId"]),
            lambda r: r["offsetMsgId"] == one["offsetMsgId"],
            False,
        ),
        (EqualTo(("msgId",), "rubbish"), lambda r: False, False),
        (
            GreaterThan(("storeTimestamp",), moment),
            lambda r: r["storeTimestamp"] > one["storeTimestamp"],
            False,
        ),
        (
            EqualTo(("storeTimestamp",), moment),
            lambda r: r["storeTimestamp"] == one["storeTimestamp"],
            False,
        ),
        (Not(EqualTo(("topic",), "orders")), lambda r: r["topic"] != "orders", False),
        (IsNotNull(("tags",)), lambda r: r["tags"] is not None, False),
        (EqualTo(("flag",), 0), lambda r: r["flag"] == 0, False),
        (EqualTo(("topic",), None), lambda r: False, False),
    ]


def test_a_filter_reads_what_it_lets_through_and_no_more_if_it_is_claimed(golden: Golden) -> None:
    store = golden(NAME)
    options = options_of(store, unwrapBatches="true", subscribePattern="(?!batch).*", **PLACE)
    there = {r["commitLogOffset"] for r in store.truth if user_topic(r)} & set(
        places(rows_of(options))
    )
    plain = [r for r in store.truth if r["commitLogOffset"] in there and messages_in(r) == 1]
    chosen = {r["commitLogOffset"] for r in plain}
    for one, wanted, claimed in filter_cases(store):
        found = set(places(rows_of(options, [one]))) & chosen
        expected = {r["commitLogOffset"] for r in plain if wanted(r)}
        assert left_over(options, [one]) == ([] if claimed else [one]), one
        assert found == expected if claimed else found >= expected, one


def test_key_and_time_filters_spare_reading(golden: Golden) -> None:
    store = golden(NAME)
    one = [r for r in store.truth if r["topic"] == "orders" and r["uniqKey"]][80]
    options = options_of(store, **PLACE)
    every = len(rows_of(options))
    for name, value in (
        ("uniqKey", one["uniqKey"]),
        ("msgId", one["offsetMsgId"]),
        ("keys", one["keys"]),
    ):
        if value:
            assert 1 <= len(rows_of(options, [EqualTo((name,), value)])) < every / 4, name
    from datetime import datetime, timezone

    first = min(r["storeTimestamp"] for r in store.truth)
    before = datetime.fromtimestamp((first - CLOCK_SLACK_MS) / 1000 - 1, timezone.utc)
    options["topic"] = "orders"
    assert rows_of(options, [LessThan(("storeTimestamp",), before)]) == []


def test_several_filters_are_all_heeded(golden: Golden) -> None:
    store = golden(NAME)
    one = next(r for r in store.truth if r["topic"] == "orders" and r["tags"])
    filters: list[Filter] = [
        EqualTo(("topic",), "orders"),
        EqualTo(("tags",), one["tags"]),
        GreaterThanOrEqual(("queueOffset",), 4),
        LessThan(("queueOffset",), 40),
    ]
    options = options_of(store, unwrapBatches="true", **PLACE)
    assert left_over(options, filters) == []
    assert places(rows_of(options, filters)) == truth_where(
        store,
        lambda r: (
            r["topic"] == "orders" and r["tags"] == one["tags"] and 4 <= r["queueOffset"] < 40
        ),
    )


def test_stores_are_opened_to_look_and_left_as_they_were(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    before = store.fingerprint()
    for table in ("topics", "queues", "files", "index", "groups", "usage", "damage", "plan"):
        rows_of(options_of(store, table=table))
    rows_of(options_of(store, source="commitlog"))
    assert store.fingerprint() == before


def test_times_are_exact_in_queues_of_batches(golden: Golden) -> None:
    store = golden(NAME)
    batches = [r for r in store.truth if r["sysFlag"] & SysFlag.INNER_BATCH and in_a_queue(r)]
    topic, last = batches[0]["topic"], batches[-1]["storeTimestamp"]
    mine = [r for r in store.truth if r["topic"] == topic]
    for moment in (mine[0]["storeTimestamp"], mine[len(mine) // 2]["storeTimestamp"], last + 1):
        for option, wanted in (
            ("startingTimestamp", [r for r in mine if r["storeTimestamp"] >= moment]),
            ("endingTimestamp", [r for r in mine if r["storeTimestamp"] < moment]),
        ):
            rows = rows_of(options_of(store, topic=topic, **{option: str(moment)}, **PLACE))
            assert places(rows) == Counter(r["commitLogOffset"] for r in wanted), (option, moment)


@pytest.mark.parametrize("harm", ["newer item", "item never written"])
def test_keys_behind_a_slot_that_is_ahead_of_the_header_are_found(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that writes links an item before it counts it; a crash may keep the link alone."""
    from rmq_store.hashing import index_key, index_key_hash
    from rmq_store.indexfile import IndexFile, list_index_files
    from rmq_store.layout import INDEX_HEADER, index_item_at

    # In a file of the usual size hardly any slot is looked at to prove its geometry.
    monkeypatch.setattr("rmq_store.indexfile._SAMPLE", 0)
    store = unpack(NAME, tmp_path)
    segments = list_index_files(Path(store.path) / "index")
    fits = [one for one in map(IndexFile, segments) if one.header.items + 2 < one.geometry.items]
    file = fits[-1]
    segment = next(one for one in segments if one.path == file.path)
    slots, count = file.geometry.slots, file.header.index_count
    assert count + 1 < file.geometry.items
    first, last = file.header.begin_log_offset, file.header.end_log_offset
    inside = [r for r in store.truth if first < r["commitLogOffset"] < last and in_a_queue(r)]
    record = [r for r in inside if r["uniqKey"] and messages_in(r) == 1][-1]
    topic = record["topic"]
    key_hash = index_key_hash(index_key(topic, record["uniqKey"]))
    assert record["commitLogOffset"] in file.log_offsets(key_hash)
    slot_at = INDEX_HEADER.itemsize + key_hash % slots * 4
    raw = bytearray(Path(segment.path).read_bytes())
    (head,) = struct.unpack_from(">i", raw, slot_at)
    struct.pack_into(">i", raw, slot_at, count + 1)
    if harm == "newer item":
        struct.pack_into(">iqii", raw, index_item_at(slots, count + 1), key_hash, 2**40, 0, head)
    Path(segment.path).write_bytes(raw)
    found = places(rows_of(options_of(store, topic=topic, keys=record["uniqKey"], **PLACE)))
    assert found == truth_where(
        store, lambda r: r["topic"] == topic and record["uniqKey"] in keys_of(r)
    )
