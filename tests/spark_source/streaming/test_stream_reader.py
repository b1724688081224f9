"""The stream reader as Spark calls it, on the bytes of real brokers that become visible bit by bit."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmq_store import MessageStore, QueueId
from rmq_store.errors import (
    DataLossError,
    InvalidArgumentError,
    LogCutError,
    MissingFileError,
    OtherStoreError,
    UnsupportedStoreError,
)
from rmq_store.scan.scan import TopicWithoutQueueError
from spark_source.source import RmqStoreSource
from spark_source.streaming.stream_reader import RmqStoreStreamReader
from tests.support.damage import break_start, flip_in_log, write_at
from tests.support.golden import Golden, in_a_queue, unpack, unpack_field, user_topic
from tests.support.growing import Growing
from tests.support.log_records import parts, records
from tests.support.spark.reads import rows_of

COLUMNS = "topic, queueId, queueOffset, commitLogOffset, keys, body"
NAME = "clean-5.5.0"


def reader_of(where: Path | str, **options: str) -> RmqStoreStreamReader:
    given = {"path": str(where), "columns": COLUMNS, "startingOffsets": "earliest", **options}
    source = RmqStoreSource({n: v for n, v in given.items() if v})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, RmqStoreStreamReader)
    return reader


@pytest.fixture
def copy(golden: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden(NAME).path, tmp_path / "store"))


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark's checkpoint keeps it."""
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def rows_between(
    reader: RmqStoreStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[dict[str, Any]]:
    parts = reader.partitions(start, end)
    batches = [batch for part in parts for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def batch_rows(path: Path | str, **options: str) -> list[dict[str, Any]]:
    columns = [name.strip() for name in COLUMNS.split(",")]
    with MessageStore.open(path) as store:
        rows = store.read_batches(columns=columns, unwrap_batches=True).read_all()
        return list(rows.to_pylist())


def latest(reader: RmqStoreStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))


def rows_now(reader: RmqStoreStreamReader) -> list[dict[str, Any]]:
    """What a new query gives at once."""
    start = through_json(reader.initialOffset())
    return rows_between(reader, start, latest(reader, start))


def place_of(offset: Mapping[str, Any]) -> int:
    (place,) = offset["stores"].values()
    found: int = place["log"]
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["clean-5.5.0", "geometry-5.5.0", "clean-4.3.2", "crc-5.5.0"])
@pytest.mark.parametrize(
    "limit", [{}, {"maxOffsetsPerTrigger": "37"}, {"maxBytesPerTrigger": "9k"}]
)
def test_every_row_comes_once_however_the_log_grows(
    golden: Golden, tmp_path: Path, name: str, limit: dict[str, str]
) -> None:
    """A torn end is neither read nor called damage, and the same offsets give the same rows."""
    seed = random.Random(f"{name} {limit}")
    store = Growing(golden(name), tmp_path)
    expected = batch_rows(golden(name).path)
    reader = reader_of(store.path, **limit)
    offset = through_json(reader.initialOffset())
    ends, found = [offset], list[dict[str, Any]]()
    total = store.size
    with golden(name).open() as whole:
        end_of_log = whole.log_range()[1]
    for stop in [*sorted(seed.randrange(total) for _ in range(25)), total]:
        store.show(stop)
        while (after := latest(reader, offset)) != offset:
            assert place_of(offset) < place_of(after) <= stop
            found += rows_between(reader, offset, after)
            offset = after
            ends.append(offset)
    assert place_of(offset) == end_of_log
    key = ("topic", "queueId", "queueOffset")
    order = [tuple(row[n] for n in key) for row in found]
    assert len(order) == len(set(order))
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [row["commitLogOffset"] for row in found] == sorted(r["commitLogOffset"] for r in found)
    again = reader_of(store.path, **limit)
    assert found == [row for a, b in pairwise(ends) for row in rows_between(again, a, b)]


def test_a_last_message_without_properties_comes_before_the_next_one(
    golden: Golden, tmp_path: Path
) -> None:
    source = golden("direct-5.5.0")
    bare = [one for one in records(source.path) if not parts(one[2])[3]]
    store = Growing(source, tmp_path)
    reader = reader_of(store.path, includeSystemTopics="true")
    offset = through_json(reader.initialOffset())
    for file, at, raw in bare[::10]:
        start = int(file.name) + at
        store.show(start + len(raw) - 3)  # the topic lacks its last byte
        offset = latest(reader, offset)
        assert place_of(offset) == start
        store.show(start + len(raw))
        after = latest(reader, offset)
        assert place_of(after) == start + len(raw)
        listed = not raw[39] & 0x04  # neither prepared nor rolled back
        found = [row["commitLogOffset"] for row in rows_between(reader, offset, after)]
        assert found == [start] * listed
        offset = after


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "documents"},
        {"topic": "documents", "startingOffsets": "latest"},
        {"assign": '{"documents": [0]}', "startingOffsets": ""},
        {"topic": "documents", "startingOffsets": '{"documents": {"0": 0}}'},
        {"topic": "orders, documents", "startingTimestamp": "-1h", "startingOffsets": ""},
    ],
)
def test_a_stream_waits_for_the_first_message_of_a_topic_without_queues(
    golden: Golden, tmp_path: Path, options: dict[str, str]
) -> None:
    """topics.json has the topic; the broker makes its queue with the first message."""
    store = Growing(golden(NAME), tmp_path)
    expected = [row for row in batch_rows(golden(NAME).path) if row["topic"] == "documents"]
    store.show(min(row["commitLogOffset"] for row in expected))
    reader = reader_of(store.path, **options)
    start = through_json(reader.initialOffset())
    before = latest(reader, start)
    assert not [r for r in rows_between(reader, start, before) if r["topic"] == "documents"]
    store.show(store.size)
    found = rows_between(reader, before, latest(reader, before))
    assert sorted((r for r in found if r["topic"] == "documents"), key=str) == sorted(
        expected, key=str
    )


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_stream_waits_for_the_first_message_of_a_broker(
    golden: Golden, tmp_path: Path, start: str
) -> None:
    store = Growing(golden(NAME), tmp_path)
    store.show_no_file()
    reader = reader_of(store.path, startingOffsets=start)
    offset = through_json(reader.initialOffset())
    assert latest(reader, offset) == offset
    store.show(store.size)
    found = rows_between(reader, offset, latest(reader, offset))
    assert sorted(found, key=str) == sorted(batch_rows(golden(NAME).path), key=str)


def test_a_batch_refuses_a_topic_without_queues(copy: Path) -> None:
    """Its queues may be lost, and the log full of its messages."""
    shutil.rmtree(copy / "consumequeue" / "documents")
    options = {"path": str(copy), "topic": "orders, documents"}
    source = RmqStoreSource(options)
    with pytest.raises(TopicWithoutQueueError, match=r"'documents' has no queue.*source=commitlog"):
        source.reader(source.schema())
    with pytest.raises(InvalidArgumentError, match="names queue 1 of topic 'documents'"):
        reader_of(copy, topic="documents", startingOffsets='{"documents": {"1": 0}}')
    reader = reader_of(copy, topic="documents", startingOffsets='{"documents": {"0": 3}}')
    with pytest.raises(InvalidArgumentError, match="offset 3 of queue 0 of topic 'documents'"):
        reader.initialOffset()


def test_a_limit_counts_messages_and_the_rest_waits(golden: Golden) -> None:
    reader = reader_of(golden(NAME).path, maxOffsetsPerTrigger="100", topic="orders")
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    assert 100 <= len(rows_between(reader, start, end)) < 120  # no inner batch is cut
    progress = reader.reportLatestOffset()  # of which Spark takes the lag
    with golden(NAME).open() as opened:
        assert progress is not None
        assert place_of(progress) == opened.log_range()[1]
    everything = through_json(reader.latestOffset(start, ReadAllAvailable()))
    assert len(rows_between(reader, start, everything)) == len(
        [row for row in batch_rows(golden(NAME).path) if row["topic"] == "orders"]
    )


def test_available_now_ends_where_the_log_ended_at_its_start(
    golden: Golden, tmp_path: Path
) -> None:
    store = Growing(golden(NAME), tmp_path)
    store.show(300_000)
    reader = reader_of(store.path, maxBytesPerTrigger="50k")
    offset = through_json(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    store.show(900_000)
    while (after := latest(reader, offset)) != offset:
        offset = after
    assert 290_000 < place_of(offset) <= 300_000


def test_few_messages_are_waited_for(golden: Golden, tmp_path: Path) -> None:
    store = Growing(golden(NAME), tmp_path)
    store.show(100_000)
    reader = reader_of(store.path, minOffsetsPerTrigger="400", maxTriggerDelay="1h")
    start = through_json(reader.initialOffset())
    assert latest(reader, start) == start
    store.show(900_000)
    assert len(rows_between(reader, start, latest(reader, start))) >= 400
    store.show(100_000)
    impatient = reader_of(store.path, minOffsetsPerTrigger="400", maxTriggerDelay="0s")
    assert latest(impatient, start) != start


def test_a_new_query_starts_at_the_end_or_where_the_options_say(golden: Golden) -> None:
    path = golden(NAME).path
    reader = reader_of(path, startingOffsets="")
    start = through_json(reader.initialOffset())
    assert latest(reader, start) == start
    with golden(NAME).open() as opened:
        assert place_of(start) == opened.log_range()[1]
    for options in (
        {"startingOffsets": '{"orders": {"0": 100, "1": -1}}', "topic": "orders"},
        {"startingOffsets": "", "startingTimestamp": "2026-11-21T09:23:50Z"},
        {"startingOffsets": "", "startingTimestamp": "10:00"},
    ):
        reader = reader_of(path, **options)
        start = through_json(reader.initialOffset())
        set_options = {name: value for name, value in options.items() if value}
        expected = rows_of({"path": path, "columns": COLUMNS, **set_options})
        found = rows_between(reader, start, latest(reader, start))
        assert sorted(found, key=str) == sorted(expected, key=str), options


@pytest.mark.parametrize("name", ["hours-clean-5.5.0", "hours-crash-5.5.0", "days-crash-5.5.0"])
def test_a_stream_of_the_last_hour(golden: Golden, name: str) -> None:
    """Also where no queue lists the messages of that hour."""
    store = golden(name)
    reader = reader_of(store.path, startingTimestamp="-1h", startingOffsets="")
    found = [row["commitLogOffset"] for row in rows_now(reader)]
    since = store.truth[-1]["storeTimestamp"] - 3_600_000
    assert found == [
        r["commitLogOffset"] for r in store.truth if r["storeTimestamp"] >= since and user_topic(r)
    ]


def test_a_queue_that_is_started_at_its_end_is_read_from_there(
    golden: Golden, tmp_path: Path
) -> None:
    whole = golden("hours-clean-5.5.0")
    store = Growing(whole, tmp_path)
    store.show(700_000)
    offsets = '{"orders": {"0": -1, "1": 20, "2": -1, "3": -1}}'
    reader = reader_of(store.path, topic="orders", startingOffsets=offsets)
    start = through_json(reader.initialOffset())
    store.show(store.size)
    found = {row["commitLogOffset"] for row in rows_between(reader, start, latest(reader, start))}
    orders = [record for record in whole.truth if record["topic"] == "orders"]
    assert found == {
        record["commitLogOffset"]
        for record in orders
        if (record["queueOffset"] >= 20 and record["queueId"] == 1)
        or record["commitLogOffset"] + record["storeSize"] > 700_000
    }


@pytest.mark.parametrize("leads_to", [800_000, 2**40])
def test_a_new_query_does_not_start_where_a_damaged_entry_leads(
    tmp_path: Path, leads_to: int
) -> None:
    store = unpack(NAME, tmp_path)
    file = min(Path(store.path, "consumequeue/orders/0").iterdir())
    write_at(file, 5 * 20, leads_to.to_bytes(8, "big"))
    chosen = {"assign": '{"orders": [0]}', "startingOffsets": '{"orders": {"0": 5}}'}
    reader = reader_of(store.path, **chosen)
    found = rows_now(reader)
    orders = store.by_queue[QueueId("orders", 0)]
    assert [row["queueOffset"] for row in found] == [r["queueOffset"] for r in orders][5:]


def test_a_new_query_does_not_start_after_a_record_that_is_half_there(
    golden: Golden, tmp_path: Path
) -> None:
    """Its place would be after bytes that still change: a log that was cut, it would seem."""
    store = Growing(golden(NAME), tmp_path)
    for stop in (63_330, 165_372, 294_604):  # within the properties of a record
        store.show(stop)
        reader = reader_of(store.path, startingOffsets="")
        start = through_json(reader.initialOffset())
        assert place_of(start) <= stop
        store.show(stop + 1000)
        assert place_of(latest(reader, start)) > place_of(start)


def test_the_same_offsets_have_the_same_rows_whatever_becomes_of_the_queues(
    copy: Path, tmp_path: Path
) -> None:
    """Entries come and go between two runs of a micro-batch; nothing in a queue says that it is short."""
    reader = reader_of(copy, topic="orders", maxBytesPerTrigger="400k")
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    rows = rows_between(reader, start, end)
    assert rows
    queues = copy / "consumequeue" / "orders"
    (queues / "0").rename(tmp_path / "deleted")  # a topic is deleted, or a copy came too early
    file = min((queues / "1").iterdir())
    raw = file.read_bytes()
    file.write_bytes(raw[:200] + bytes(len(raw) - 200))  # the last pages never reached the disk
    again = reader_of(copy, topic="orders", maxBytesPerTrigger="400k")
    assert rows_between(again, start, end) == rows
    assert latest(again, start) == end


# --- what can go wrong ----------------------------------------------------------------------------


def test_a_log_that_was_cut_is_noticed(golden: Golden, tmp_path: Path) -> None:
    """A broker that lost unflushed pages writes other records where the stream has read."""
    store = Growing(golden(NAME), tmp_path)
    store.show(500_000)
    reader = reader_of(store.path)
    offset = latest(reader, through_json(reader.initialOffset()))
    store.show(300_000)
    with pytest.raises(LogCutError, match=r"other bytes.*failOnDataLoss=false") as error:
        latest(reader, offset)
    assert error.value.offset == place_of(offset)
    lenient = reader_of(store.path, failOnDataLoss="false")
    assert 290_000 < place_of(latest(lenient, offset)) <= 300_000


def test_another_store_at_the_same_path_is_refused(golden: Golden, copy: Path) -> None:
    reader = reader_of(copy)
    offset = latest(reader, through_json(reader.initialOffset()))
    shutil.rmtree(copy)
    shutil.copytree(golden("clean-5.3.3").path, copy)
    for lenient in ("true", "false"):
        with pytest.raises(OtherStoreError):
            latest(reader_of(copy, failOnDataLoss=lenient), offset)


def test_a_broker_that_goes_on_in_a_dledger_log_elsewhere_ends_a_stream(tmp_path: Path) -> None:
    """Nothing more comes in the log that the stream follows."""
    path = unpack_field("mixed-dledger-old-log-there", tmp_path)
    (path / "dledger-n0").rename(tmp_path / "n0")
    reader = reader_of(path)
    start = latest(reader, through_json(reader.initialOffset()))
    (tmp_path / "n0" / "data").rename(tmp_path / "other-disk")
    (tmp_path / "n0").rename(path / "dledger-n0")
    with pytest.raises(UnsupportedStoreError, match="not here"):
        latest(reader, start)


def test_files_that_expire_before_a_task_reads_them_are_data_loss(copy: Path) -> None:
    found = []
    for options in ({}, {"failOnDataLoss": "false"}):
        reader = reader_of(copy, **options)
        start = through_json(reader.initialOffset())
        found.append((reader, reader.partitions(start, latest(reader, start))))
    min((copy / "commitlog").iterdir()).unlink()
    reader, parts = found[0]
    with pytest.raises(DataLossError, match="files of the log that the plan"):
        [list(reader.read(part)) for part in parts]
    reader, parts = found[1]
    rest = {row["commitLogOffset"] for row in batch_rows(copy)}
    rows = [b for part in parts for b in reader.read(part)]
    assert set(pa.Table.from_batches(rows)["commitLogOffset"].to_pylist()) == rest


def test_a_planned_micro_batch_is_not_read_from_another_store(
    golden: Golden, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden("clean-5.1.1").path, path)
    reader = reader_of(path)
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    shutil.rmtree(path)
    shutil.copytree(golden(NAME).path, path)
    with pytest.raises(OtherStoreError):
        rows_between(reader_of(path), start, end)


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [
        ({"topic": "orders"}, {"topic": "orders, payments"}, "topic 'payments'"),
        ({"topic": "orders"}, {}, "topic 'documents'"),
        ({"topic": "orders"}, {"assign": '{"payments": [0]}'}, "topic 'payments'"),
        (
            {"assign": '{"orders": [0]}'},
            {"assign": '{"orders": [0, 1]}'},
            "queue 1 of topic 'orders'",
        ),
        ({"assign": '{"orders": [0]}'}, {"topic": "orders"}, "queue 1 of topic 'orders'"),
        ({"subscribePattern": "o.*"}, {"subscribePattern": "p.*"}, "topic 'payments'"),
        ({"subscribePattern": "o.*"}, {"topic": "payments"}, "topic 'payments'"),
        ({}, {"includeSystemTopics": "true"}, "topic '%RETRY%g-retry'"),
        ({}, {"topic": "SCHEDULE_TOPIC_XXXX"}, "topic 'SCHEDULE_TOPIC_XXXX'"),
        ({"tags": "TagA"}, {"tags": "TagA || TagB"}, "tag 'TagB'"),
        ({"keys": "a"}, {}, "messages with any key"),
    ],
)
def test_a_query_that_goes_on_does_not_select_more(
    golden: Golden,
    before: dict[str, str],
    now: dict[str, str],
    added: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = golden(NAME).path
    first = reader_of(path, maxOffsetsPerTrigger="5", **before)
    start = through_json(first.initialOffset())
    planned = latest(first, start)
    for go_on in (
        lambda reader: latest(reader, planned),
        lambda reader: rows_between(reader, start, planned),
    ):
        with pytest.raises(InvalidArgumentError, match=re.escape(f"the options select {added}")):
            go_on(reader_of(path, **now))
        go_on(reader_of(path, **before))
    accepts = reader_of(path, failOnDataLoss="false", **now)
    after = latest(accepts, planned)
    assert added in caplog.text
    latest(reader_of(path, **now), after)  # from here on it is read


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"topic": "orders, payments"}, {"topic": "payments"}),
        ({}, {"topic": "orders", "tags": "TagA", "keys": "a"}),
        ({}, {"subscribePattern": "o.*"}),
        ({"includeSystemTopics": "true"}, {"topic": "SCHEDULE_TOPIC_XXXX"}),
        ({"topic": "orders"}, {"assign": '{"orders": [0, 1]}'}),
        ({"assign": '{"orders": [0, 1]}'}, {"assign": '{"orders": {"store": [1]}}'}),
    ],
)
def test_a_query_that_goes_on_may_select_less(
    golden: Golden, before: dict[str, str], now: dict[str, str]
) -> None:
    path = golden(NAME).path
    start = through_json(reader_of(path, **before).initialOffset())
    narrowed = latest(reader_of(path, **now), start)
    rows_between(reader_of(path, **now), start, narrowed)
    with pytest.raises(InvalidArgumentError, match="the options select"):
        latest(reader_of(path, **before), narrowed)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"subscribePattern": ".*"}, {}),
        ({"topic": "orders"}, {"subscribePattern": "ord.*"}),
        ({"topic": "orders"}, {"topic": "orders, %RETRY%g-slow"}),
        ({"assign": '{"orders": [0, 1, 2, 3]}'}, {"topic": "orders"}),
        ({"assign": '{"orders": {"golden": [0, 1, 2, 3]}}'}, {"subscribePattern": "ord.*"}),
    ],
)
def test_a_query_that_goes_on_may_select_the_same_in_other_words(
    golden: Golden, before: dict[str, str], now: dict[str, str]
) -> None:
    path = golden(NAME).path
    start = through_json(reader_of(path, brokerName="golden", **before).initialOffset())
    go_on = reader_of(path, brokerName="golden", **now)
    end = latest(go_on, start)
    assert rows_between(go_on, start, end)
    assert end["selection"] != start["selection"]


def test_the_broker_s_own_topic_is_a_system_topic_of_a_stream(copy: Path) -> None:
    (copy / "consumequeue" / "payments").rename(copy / "consumequeue" / "golden")
    start = through_json(reader_of(copy, brokerName="golden").initialOffset())
    with pytest.raises(InvalidArgumentError, match="topic 'golden'"):
        latest(reader_of(copy, brokerName="golden", topic="golden"), start)


def test_files_that_expired_before_they_were_read_are_data_loss(tmp_path: Path) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    reader = reader_of(store.path)
    start = through_json(reader.initialOffset())
    first, second = sorted((Path(store.path) / "commitlog").iterdir())[:2]
    first.unlink()
    with pytest.raises(DataLossError, match="expired before they were read"):
        latest(reader, start)
    lenient = reader_of(store.path, failOnDataLoss="false")
    rows = rows_between(lenient, start, latest(lenient, start))
    assert min(row["commitLogOffset"] for row in rows) >= int(second.name)


def test_damage_in_a_closed_file_is_damage_and_does_not_stop_the_stream(tmp_path: Path) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    file = min((Path(store.path) / "commitlog").iterdir())
    orders = [r for r in store.truth if r["topic"] == "orders"]
    record = [r for r in orders if r["commitLogOffset"] < file.stat().st_size // 2][-1]
    flip_in_log(store, record["commitLogOffset"] + 4, 0xFF)
    reader = reader_of(store.path, mode="PERMISSIVE", columns=COLUMNS + ", corruptRecord")
    rows = rows_now(reader)
    (damage,) = [row for row in rows if row["corruptRecord"] is not None]
    assert damage["commitLogOffset"] == record["commitLogOffset"]
    assert rows[-1]["commitLogOffset"] > record["commitLogOffset"]


def test_damage_at_the_start_of_the_last_file_is_damage_and_does_not_stop_the_stream(
    tmp_path: Path,
) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    start = break_start(store, 1)
    reader = reader_of(
        store.path, topic="orders", mode="PERMISSIVE", columns=COLUMNS + ", corruptRecord"
    )
    rows = rows_now(reader)
    (damage,) = [row for row in rows if row["corruptRecord"] is not None]
    assert damage["commitLogOffset"] == start
    mine = (r for r in store.truth if r["topic"] == "orders" and in_a_queue(r))
    orders = {r["commitLogOffset"] for r in mine}
    assert {row["commitLogOffset"] for row in rows} == orders | {start}


def test_a_missing_file_after_the_end_of_a_micro_batch_is_damage(tmp_path: Path) -> None:
    """The micro-batch ends in the filler of the file before it, so with that file."""
    store = unpack(NAME, tmp_path)
    _, _, gone, _ = sorted((Path(store.path) / "commitlog").iterdir())
    gone.unlink()
    limit = {"maxBytesPerTrigger": str(int(gone.name) - 50)}
    reader = reader_of(store.path, mode="PERMISSIVE", columns=COLUMNS + ", corruptRecord", **limit)
    start = through_json(reader.initialOffset())
    middle = latest(reader, start)
    assert place_of(middle) == int(gone.name)
    end = latest(reader, middle)
    assert not any(row["corruptRecord"] for row in rows_between(reader, start, middle))
    (damage,) = [row for row in rows_between(reader, middle, end) if row["corruptRecord"]]
    assert damage["commitLogOffset"] == int(gone.name)
    with pytest.raises(MissingFileError):
        rows_between(reader_of(store.path), middle, end)


def test_a_query_continues_though_the_offsets_where_it_began_have_expired(
    golden: Golden, copy: Path
) -> None:
    options = {"topic": "orders", "startingOffsets": '{"orders": {"0": 5}}'}
    reader = reader_of(copy, maxBytesPerTrigger="600k", **options)
    start = latest(reader, through_json(reader.initialOffset()))
    (copy / "commitlog" / f"{0:020}").unlink()  # as retention does
    again = reader_of(copy, **options)
    end = latest(again, start)
    found = [r["commitLogOffset"] for r in rows_between(again, start, end)]
    truth = [r["commitLogOffset"] for r in golden(NAME).truth if r["topic"] == "orders"]
    assert sorted(found) == sorted(offset for offset in truth if offset >= place_of(start))
    with pytest.raises(DataLossError, match="offset 5 of queue 0"):
        again.initialOffset()
    batch = RmqStoreSource({"path": str(copy), **options})
    with pytest.raises(DataLossError, match="offset 5 of queue 0"):
        batch.reader(batch.schema())


# --- several stores -------------------------------------------------------------------------------


def copies(golden: Golden, folder: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(golden(NAME).path, folder / name)


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (("d1/a/store", "d2/a/store"), ("d1/*/store", "d2/*/store")),
        (("p/a-b/c/store", "p/a/b-c/store"), ("p/*/*/store",)),
    ],
)
def test_two_stores_that_a_pattern_gives_one_name_are_refused(
    golden: Golden, tmp_path: Path, names: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    """One of them would be left out of the stream."""
    copies(golden, tmp_path, *names)
    paths = json.dumps([str(tmp_path / pattern) for pattern in patterns])
    with pytest.raises(InvalidArgumentError, match="two stores have the broker name"):
        reader_of("", paths=paths).initialOffset()


def test_a_store_keeps_its_name_when_others_appear(golden: Golden, tmp_path: Path) -> None:
    copies(golden, tmp_path, "one/store", "many/a/store")
    paths = json.dumps([str(tmp_path / "one/store"), str(tmp_path / "many/*/store")])
    reader = reader_of("", paths=paths)
    start = through_json(reader.initialOffset())
    assert set(start["stores"]) == {"store", "a"}
    copies(golden, tmp_path, "many/b/store")
    assert set(latest(reader, start)["stores"]) == {"store", "a", "b"}
    named = reader_of("", path=str(tmp_path / "many/a*/store"), brokerName="broker-x")
    assert set(named.initialOffset()["stores"]) == {"broker-x"}


def test_a_query_of_named_stores_says_with_what_it_cannot_go_on(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    stores = json.dumps({"broker-a": golden(NAME).path})
    first = reader_of("", stores=stores, topic="orders", maxOffsetsPerTrigger="5")
    planned = latest(first, through_json(first.initialOffset()))
    more = {"stores": stores, "topic": "orders, payments"}
    with pytest.raises(InvalidArgumentError, match="the options select topic 'payments'") as error:
        latest(reader_of("", **more), planned)
    assert error.value.path is None
    latest(reader_of("", failOnDataLoss="false", **more), planned)
    assert "the options select topic 'payments'" in caplog.text
    renamed = json.dumps({"broker-b": golden(NAME).path})
    with pytest.raises(MissingFileError, match="'broker-a', and no store has this name") as gone:
        latest(reader_of("", stores=renamed, topic="orders"), planned)
    assert gone.value.path is None


@pytest.mark.parametrize("appears", ["clean-4.9.7", "expired-5.5.0"])
def test_a_store_that_appears_under_the_pattern_is_read_from_its_start(
    golden: Golden, tmp_path: Path, appears: str
) -> None:
    """That is not log offset 0 where its first files have expired."""
    for broker, name in (("broker-a", NAME), ("broker-b", appears)):
        shutil.copytree(golden(name).path, tmp_path / broker / "store")
    aside = (tmp_path / "broker-b").rename(tmp_path / "later-b")
    reader = reader_of(tmp_path / "broker-*" / "store", columns="brokerName, " + COLUMNS)
    start = through_json(reader.initialOffset())
    middle = latest(reader, start)
    assert set(middle["stores"]) == {"broker-a"}
    aside.rename(tmp_path / "broker-b")
    end = latest(reader, middle)
    assert set(end["stores"]) == {"broker-a", "broker-b"}
    rows = rows_between(reader, middle, end)
    assert {row["brokerName"] for row in rows} == {"broker-b"}
    assert len(rows) == len(batch_rows(golden(appears).path))
    assert rows == rows_between(reader, middle, end)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingTimestamp": "-1h"}, "availableNow"),
        ({"endingOffsets": "latest"}, "availableNow"),
        ({"source": "commitlog"}, "always reads the log"),
        ({"table": "queues"}, "spark.read"),
        ({"splitBy": "queue"}, "repartition"),
        ({"maxOffsetsPerTriger": "5"}, "Did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5"}, "15m"),
    ],
)
def test_options_without_a_meaning_in_a_stream_are_refused(
    golden: Golden, options: dict[str, str], message: str
) -> None:
    source = RmqStoreSource({"path": golden(NAME).path, **options})
    with pytest.raises(InvalidArgumentError, match=message):
        source.streamReader(source.schema()).initialOffset()


def test_options_of_a_stream_are_refused_in_a_batch(golden: Golden) -> None:
    for options in ({"maxOffsetsPerTrigger": "5"}, {"maxBytesPerTrigger": "1m"}):
        source = RmqStoreSource({"path": golden(NAME).path, **options})
        with pytest.raises(InvalidArgumentError, match=r"spark\.readStream"):
            source.reader(source.schema())
    source = RmqStoreSource({"path": golden(NAME).path, "startingOffsets": "latest"})
    with pytest.raises(InvalidArgumentError, match="earliest"):
        source.reader(source.schema())
