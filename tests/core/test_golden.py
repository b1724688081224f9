"""Every store that a real broker wrote reads as the broker's own classes read it."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Gap, GetMessageStatus, Message, MessageStore, QueueId
from rmq_store.errors import UnknownQueueError
from rmq_store.schema import BY_NAME
from tests.support.golden import (
    CLEAN,
    STORES,
    UNCLEAN,
    GoldenStore,
    Truth,
    bodies_of,
    columns_of,
    in_a_queue,
    keys_of,
    messages_in,
)

EVERY_COLUMN = tuple(BY_NAME)
Expected = dict[str, Any]
BEFORE: dict[GoldenStore, dict[str, tuple[int, int, int]]] = {}  # as first seen in this run


@pytest.fixture
def untouched(golden: Callable[[str], GoldenStore]) -> Iterator[Callable[[str], GoldenStore]]:
    """`golden`, with the promise that reading left the files, their bytes and times as they were."""
    used: set[GoldenStore] = set()

    def get(name: str) -> GoldenStore:
        store = golden(name)
        BEFORE.setdefault(store, store.fingerprint())
        used.add(store)
        return store

    yield get
    for store in used:
        assert store.fingerprint() == BEFORE[store], f"reading changed {store.name}"


def expected_message(record: Truth) -> Expected:
    """The fields of a message in the words of `Message`, apart from the queue's."""
    body, stored = bodies_of(record)
    return {
        "commit_log_offset": record["commitLogOffset"],
        "store_size": record["storeSize"],
        "tags": record["tags"],
        "keys": record["keys"],
        "uniq_key": record["uniqKey"],
        "msg_id": record["offsetMsgId"],
        "flag": record["flag"],
        "sys_flag": record["sysFlag"],
        "born_timestamp": record["bornTimestamp"],
        "born_host": record["bornHost"],
        "store_timestamp": record["storeTimestamp"],
        "store_host": record["storeHost"],
        "reconsume_times": record["reconsumeTimes"],
        "prepared_transaction_offset": record["preparedTransactionOffset"],
        "body_crc": record["bodyCrc"],
        "body": body,
        "raw_body": stored,
        "properties": record["properties"],
    }


def fields_of(message: Message, like: Expected) -> Expected:
    return {name: getattr(message, name) for name in like}


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Expected]:
    """The rows of batches, each batch sound by Arrow's own account; timestamps in ms."""
    for batch in batches:
        batch.validate(full=True)
        times = {}
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in batch.schema.names:
                assert batch.schema.field(name).type == pa.timestamp("ms", tz="UTC")
                times[name] = batch.column(name).view(pa.int64()).to_pylist()
        others = [name for name in batch.schema.names if name not in times]
        for at, row in enumerate(batch.select(others).to_pylist()):
            row.update({name: values[at] for name, values in times.items()})
            if "properties" in row:
                assert len(dict(row["properties"])) == len(row["properties"])
                row["properties"] = dict(row["properties"])
            yield row


def all_rows(store: MessageStore, **how: Any) -> list[Expected]:
    return list(
        rows_of(store.read_batches(columns=EVERY_COLUMN, include_system_topics=True, **how))
    )


def log_end_of(store: GoldenStore) -> int:
    """maxPhyOffset by the broker's account."""
    return int(store.answers("log")[0]["maxPhyOffset"])


# --- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_every_record_of_the_truth_is_in_the_log_and_equal(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    found: dict[int, Truth] = {}
    with golden.open() as store:
        at = store.log_range()[0]
        for extent in store.scan():
            assert extent.start == at, "every byte is in one extent"
            assert extent.stop > extent.start
            assert (extent.record is None) != (extent.gap is None)
            at = extent.stop
            if extent.record is None:
                continue
            message = store.message_at(extent.start)
            record = golden.by_log_offset.get(extent.start)
            if record is None:
                assert name in UNCLEAN, f"a record at {extent.start} that is not in the truth"
                assert extent.start >= log_end_of(golden)
                assert extent.start < store.log_range()[1], "it is a part of the log, in order"
                continue
            found[extent.start] = record
            expected = expected_message(record)
            assert fields_of(message, expected) == expected
            assert (message.topic, message.queue_id) == (record["topic"], record["queueId"])
            written = message.record_queue_offset
            assert record["queueOffset"] == (message.queue_offset if written is None else written)
            assert extent.record.magic == record["magic"] & 0xFFFFFFFF
        files = store.scan()
        assert at == max(extent.stop for extent in files)
    assert found == golden.by_log_offset


@pytest.mark.parametrize("name", CLEAN)
def test_a_cleanly_closed_log_ends_where_the_broker_says(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    answer = golden.answers("log")[0]
    with golden.open() as store:
        low, high = store.log_range()
        assert low == answer["minPhyOffset"]
        if name != "nommap-5.5.0":
            assert high == answer["maxPhyOffset"]
            assert {extent.gap for extent in store.scan(high)} <= {Gap.UNWRITTEN}
            return
        # A restarting broker takes the old copies behind the last record for a part of the log.
        behind = [extent for extent in store.scan(high) if extent.start < answer["maxPhyOffset"]]
        assert behind
        assert all(extent.gap is Gap.GHOST for extent in behind)


def test_ghosts_are_never_returned_though_the_log_goes_on_behind_them(
    untouched: Callable[[str], GoldenStore],
) -> None:
    golden = untouched("nommap-5.5.0")
    places = {ghost["position"]: ghost for ghost in golden.answers("ghost")}
    with golden.open() as store:
        extents = list(store.scan())
        ghosts = {extent.start: extent for extent in extents if extent.gap is Gap.GHOST}
        assert {at: extent.stop - at for at, extent in ghosts.items()} == {
            at: ghost["size"] for at, ghost in places.items()
        }
        records = [extent.start for extent in extents if extent.record is not None]
        assert min(ghosts) < max(records), "the log goes on behind ghosts"
        offsets = {row["commitLogOffset"] for row in all_rows(store)}
        assert offsets == {t["commitLogOffset"] for t in golden.truth if in_a_queue(t)}
        for ghost in places.values():
            # The record that was copied is found where it stands, and there alone.
            record = golden.by_log_offset[ghost["commitLogOffset"]]
            for key in keys_of(record):
                found = store.query_message(record["topic"], key)
                assert not {m.commit_log_offset for m in found} & set(places)


# --- the queues ------------------------------------------------------------------------------------


def rows_by_queue(rows: list[Expected]) -> dict[QueueId, list[Expected]]:
    queues: dict[QueueId, list[Expected]] = defaultdict(list)
    for row in rows:
        queues[QueueId(row["topic"], row["queueId"])].append(row)
    return queues


@pytest.mark.parametrize("name", STORES)
def test_read_batches_gives_every_queue_whole_and_every_field_equal(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        rows = all_rows(store)
        log_offsets = [row["commitLogOffset"] for row in rows]
        assert log_offsets == sorted(log_offsets), "rows come in the order of the log"
        queues = rows_by_queue(rows)
        limits = {
            queue: (store.min_offset(*queue), store.max_offset(*queue)) for queue in store.queues()
        }
    assert {queue for queue, (low, high) in limits.items() if low < high} == set(queues)
    assert set(golden.by_queue) <= set(queues), "no queue of the truth is missing"
    for queue, mine in queues.items():
        truth = golden.by_queue.get(queue, [])
        beyond = mine[len(truth) :]
        assert not beyond or name in UNCLEAN, "nothing but the truth"
        assert all(row["commitLogOffset"] >= log_end_of(golden) for row in beyond)
        # Positions follow one another from min to max; an inner batch takes as many as it holds.
        position, high = limits[queue]
        for row, record in zip(mine, truth, strict=False):
            expected = columns_of(record)
            assert {column: row[column] for column in expected} == expected
            assert row["queueOffset"] == position
            written = row["recordQueueOffset"]
            assert record["queueOffset"] == (position if written is None else written)
            assert row["brokerName"] == "store"
            assert row["corruptRecord"] is None
            position += messages_in(record)
        for row in beyond:
            assert row["queueOffset"] == position
            position += 1
        assert position == high


@pytest.mark.parametrize("name", STORES)
def test_get_message_walks_every_queue_from_min_to_max(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for queue in store.queues():
            low, high = store.min_offset(*queue), store.max_offset(*queue)
            truth = golden.by_queue.get(queue, [])
            found: list[Message] = []
            at = low
            while at < high:
                result = store.get_message(*queue, at, 7)
                assert result.status is GetMessageStatus.FOUND
                assert (result.min_offset, result.max_offset) == (low, high)
                assert at < result.next_begin_offset <= high
                assert 1 <= len(result.messages) <= 7
                found += result.messages
                at = result.next_begin_offset
            position = low
            for message, record in zip(found, truth, strict=False):
                expected = expected_message(record)
                assert fields_of(message, expected) == expected
                assert (message.topic, message.queue_id) == queue
                assert message.queue_offset == position
                position += messages_in(record)
            beyond = found[len(truth) :]
            assert not beyond or name in UNCLEAN
            assert all(message.commit_log_offset >= log_end_of(golden) for message in beyond)
            assert position + len(beyond) == high


@pytest.mark.parametrize("name", STORES)
def test_get_message_compares_tags_as_text(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        end = log_end_of(golden)
        for queue, records in golden.by_queue.items():
            for tag in sorted({record["tags"] for record in records if record["tags"]})[:2]:
                if "||" in tag or tag.strip() != tag or tag == "*":
                    continue  # an expression, not a tag
                wanted = [r["commitLogOffset"] for r in records if r["tags"] == tag]
                low = store.min_offset(*queue)
                result = store.get_message(*queue, low, 1_000_000, tag)
                got = [message.commit_log_offset for message in result.messages]
                assert [offset for offset in got if offset < end] == wanted
                batches = store.read_batches(
                    queue.topic, [queue.queue_id], tags=[tag], columns=["commitLogOffset", "tags"]
                )
                rows = list(rows_of(batches))
                assert [row["commitLogOffset"] for row in rows] == got
                assert {row["tags"] for row in rows} == {tag}


@pytest.mark.parametrize("name", STORES)
def test_get_message_off_the_range_says_where_to_go_on(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    with untouched(name).open() as store:
        for queue in store.queues():
            low, high = store.min_offset(*queue), store.max_offset(*queue)
            if high == 0:
                empty = store.get_message(*queue, 0)
                assert empty.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
                continue
            small = store.get_message(*queue, low - 1)
            assert (small.status, small.next_begin_offset) == (
                GetMessageStatus.OFFSET_TOO_SMALL,
                low,
            )
            one = store.get_message(*queue, high)
            assert (one.status, one.next_begin_offset) == (
                GetMessageStatus.OFFSET_OVERFLOW_ONE,
                high,
            )
            badly = store.get_message(*queue, high + 1)
            assert (badly.status, badly.next_begin_offset) == (
                GetMessageStatus.OFFSET_OVERFLOW_BADLY,
                high,
            )


# --- the broker's answers --------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_min_and_max_offsets_as_broker_are_the_brokers(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("minMax"):
            queue = QueueId(answer["topic"], answer["queueId"])
            try:
                found = store.min_offset(*queue, as_broker=True), store.max_offset(*queue)
            except UnknownQueueError:
                found = 0, 0  # the broker makes an empty queue when it is asked for one
            assert found == (answer["min"], answer["max"]), queue


@pytest.mark.parametrize("name", STORES)
def test_get_message_as_broker_is_the_brokers_answer(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("getMessage"):
            result = store.get_message(
                answer["topic"],
                answer["queueId"],
                answer["offset"],
                answer["maxMsgNums"],
                answer["tags"],
                as_broker=True,
            )
            assert (
                result.status.name,
                result.next_begin_offset,
                result.min_offset,
                result.max_offset,
                [message.commit_log_offset for message in result.messages],
            ) == (
                answer["status"],
                answer["nextBeginOffset"],
                answer["minOffset"],
                answer["maxOffset"],
                answer["commitLogOffsets"],
            ), answer


@pytest.mark.parametrize("name", STORES)
def test_offset_by_time_is_the_brokers_where_it_knows_a_boundary(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("offsetByTime"):
            if answer["boundary"] is None:
                continue
            found = store.offset_by_time(
                answer["topic"], answer["queueId"], answer["timestamp"], answer["boundary"]
            )
            assert found == answer["offset"], answer


def assert_key_queries_are_right(golden: GoldenStore, answers: list[dict[str, Any]]) -> None:
    """Ours equal a search of the truth, and hold every answer of the broker that is one."""
    holders: dict[tuple[str, str], list[Truth]] = defaultdict(list)
    for record in golden.truth:
        for key in keys_of(record):
            holders[record["topic"], key].append(record)
    end_of_log = log_end_of(golden)
    with golden.open() as store:
        for number, answer in enumerate(answers):
            topic, key, begin, end = (answer[name] for name in ("topic", "key", "begin", "end"))
            wanted = [
                record["commitLogOffset"]
                for record in holders[topic, key]
                if begin <= record["storeTimestamp"] <= end
            ]
            found = [
                m.commit_log_offset for m in store.query_message(topic, key, 10**6, begin, end)
            ]
            assert [offset for offset in found if offset < end_of_log] == wanted, answer
            verified = set(answer["commitLogOffsets"]) & set(wanted)
            assert verified <= set(found)
            if number % 10 == 0:
                newest = store.query_message(topic, key, 2, begin, end)
                assert [m.commit_log_offset for m in newest] == found[-2:]


@pytest.mark.parametrize("name", STORES)
def test_a_key_query_finds_what_a_search_of_the_truth_finds(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    answers = golden.answers("queryMessage")
    assert_key_queries_are_right(golden, answers[:: max(1, len(answers) // 60)])


@pytest.mark.campaign
@pytest.mark.parametrize("name", STORES)
def test_all_key_queries_that_the_broker_was_asked(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    assert_key_queries_are_right(golden, golden.answers("queryMessage"))


@pytest.mark.parametrize("name", STORES)
def test_a_message_is_found_by_its_place_and_host(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for record in golden.truth[:: max(1, len(golden.truth) // 20)]:
            (message,) = store.messages_by_id(record["offsetMsgId"])
            assert message == store.message_at(record["commitLogOffset"])
            assert message == store.message_by_id(record["offsetMsgId"])
        assert store.messages_by_id("0" * 32) == []
        assert store.message_by_id("0" * 32) is None


@pytest.mark.parametrize("name", STORES)
def test_messages_are_found_by_the_id_their_producer_gave(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    named = [record for record in golden.truth if record["uniqKey"] in keys_of(record)]
    with golden.open() as store:
        for record in named[:: max(1, len(named) // 3)]:
            wanted = [
                other["commitLogOffset"] for other in named if other["uniqKey"] == record["uniqKey"]
            ]
            found = [m.commit_log_offset for m in store.messages_by_id(record["uniqKey"])]
            assert [offset for offset in found if offset < log_end_of(golden)] == wanted
        assert named


# --- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_a_pickled_snapshot_shows_the_same_rows(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        rows = all_rows(store)
        sent = pickle.dumps(store.snapshot())
    with golden.open(snapshot=pickle.loads(sent)) as again:
        assert all_rows(again) == rows
        assert rows


@pytest.mark.parametrize("name", ["clean-5.3.3", "geometry-5.5.0", "multipath-5.5.0"])
def test_the_brokers_own_configuration_changes_nothing(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store, golden.open(broker_conf=golden.conf) as configured:
        assert configured.log_range() == store.log_range()
        named = {row["brokerName"] for row in all_rows(configured)}
        assert named == {"broker-a" if name == "clean-5.3.3" else "store"}
        rows = [{**row, "brokerName": "store"} for row in all_rows(configured)]
        assert rows == all_rows(store)


def test_the_log_of_multipath_is_not_found_without_its_folders(
    untouched: Callable[[str], GoldenStore],
) -> None:
    golden = untouched("multipath-5.5.0")
    with golden.open() as store:
        assert {extent.gap for extent in store.scan()} == {None, Gap.FILLER, Gap.UNWRITTEN}
        half = {"storePathCommitLog": "commitlog-a"}
        with golden.open(config=half) as alone:
            assert Gap.MISSING in {extent.gap for extent in alone.scan()}
            assert len(all_rows(store)) > len(all_rows(alone, on_damage=lambda error: None))


# --- what is committed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STORES if name.startswith(("clean", "proxy"))])
def test_consumer_offsets_lie_in_their_queues(
    untouched: Callable[[str], GoldenStore], name: str
) -> None:
    with untouched(name).open() as store:
        offsets = store.consumer_offsets()
        queues = set(store.queues())
        seen = 0
        for topics in offsets.values():
            for topic, committed in topics.items():
                for queue_id, offset in committed.items():
                    if QueueId(topic, queue_id) in queues:
                        seen += offset > 0
                        assert 0 <= offset <= store.max_offset(topic, queue_id)
        assert seen
