"""Every question that the broker's store was asked gets its answer from the files."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from rmq_store import GetMessageStatus, Message, MessageStore, QueueId
from rmq_store.errors import UnknownQueueError
from rmq_store.format.compression import SysFlag
from tests.support.expected import members
from tests.support.golden import (
    MODEST,
    STORES,
    UNCLEAN,
    Golden,
    GoldenStore,
    Truth,
    keys_of,
    messages_in,
)
from tests.support.golden_rows import (
    assert_answered,
    expected_message,
    fields_of,
    log_end_of,
    rows_of,
)
from tests.support.running.campaigns import few, some


@pytest.mark.parametrize("name", few("walks", STORES, *MODEST))
def test_get_message_walks_every_queue_from_min_to_max(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for queue in store.queues():
            low, high = store.min_offset(*queue), store.max_offset(*queue)
            truth = golden.by_queue.get(queue, [])
            found: list[Message] = []
            at = low
            while at < high:
                result = store.get_message(*queue, at, 23)
                assert result.status is GetMessageStatus.FOUND
                assert (result.min_offset, result.max_offset) == (low, high)
                assert at < result.next_begin_offset <= high
                assert 1 <= len(result.messages) <= 23
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
            assert_off_the_range(store, queue, low, high)


def assert_off_the_range(store: MessageStore, queue: QueueId, low: int, high: int) -> None:
    """An answer to an offset that the queue has not says where to go on."""
    status = GetMessageStatus
    outside = {
        low - 1: (status.OFFSET_TOO_SMALL, low),
        high: (status.OFFSET_OVERFLOW_ONE, high),
        high + 1: (status.OFFSET_OVERFLOW_BADLY, high),
    }
    for offset, wanted in outside.items() if high else [(0, (status.NO_MESSAGE_IN_QUEUE, 0))]:
        result = store.get_message(*queue, offset)
        assert (result.status, result.next_begin_offset) == wanted


@pytest.mark.parametrize(
    "selection", [{"topics": []}, {"queue_ids": []}, {"tags": []}, {"keys": []}]
)
def test_an_empty_selection_selects_nothing(golden: Golden, selection: dict[str, Any]) -> None:
    with golden("clean-5.5.0").open() as store:
        assert [batch.num_rows for batch in store.read_batches(**selection)] == []
        assert store.get_message("orders", 0, 0, tags=[]).messages == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("tags", STORES, 4))
def test_get_message_compares_tags_as_text(untouched: Golden, name: str) -> None:
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


# --- the broker's answers --------------------------------------------------------------------------


@pytest.mark.parametrize("name", few("ends", STORES, *MODEST))
def test_min_and_max_offsets_as_broker_are_the_brokers(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("minMax"):
            queue = QueueId(answer["topic"], answer["queueId"])
            try:
                found = store.min_offset(*queue, as_broker=True), store.max_offset(*queue)
            except UnknownQueueError:
                found = 0, 0  # the broker makes an empty queue when it is asked for one
            assert found == (answer["min"], answer["max"]), queue


WHOLE = ("clean-5.5.0", "crash-5.3.3", "ext-5.5.0", "lmq-5.3.3", "batches-5.5.0")


@pytest.mark.parametrize("name", few("answers", STORES, *MODEST))
def test_get_message_as_broker_is_the_brokers_answer(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("getMessage")[:: 1 if name in WHOLE else 4]:
            assert_answered(store, answer["topic"], answer)


@pytest.mark.parametrize("name", few("times", STORES, *MODEST))
def test_offset_by_time_is_the_brokers_where_it_knows_a_boundary(
    untouched: Golden, name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        for answer in golden.answers("offsetByTime")[:: 1 if name in WHOLE else 3]:
            if answer["boundary"] is None:
                continue
            if (name, answer["topic"]) == ("batches-5.5.0", "inner"):
                continue  # a BatchConsumeQueue ends anywhere among the many messages of a millisecond
            found = store.offset_by_time(
                answer["topic"], answer["queueId"], answer["timestamp"], answer["boundary"]
            )
            assert found == answer["offset"], answer


def keys_inside(record: Truth) -> list[str]:
    """The words of the messages in an inner batch, each message's once; no index has them."""
    inside = members(record) if record["sysFlag"] & SysFlag.INNER_BATCH else ()
    of_each = ({*m.get("KEYS", "").split(" "), m.get("UNIQ_KEY", "")} for _, _, m in inside)
    return [word for words in of_each for word in words if word]


def assert_key_queries_are_right(golden: GoldenStore, answers: list[dict[str, Any]]) -> None:
    """Ours equal a search of the truth, and hold every answer of the broker that is one."""
    holders: dict[tuple[str, str], list[Truth]] = defaultdict(list)
    for record in golden.truth:
        for key in (*keys_of(record), *keys_inside(record)):
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


@pytest.mark.parametrize("name", few("some keys", STORES, *MODEST))
def test_a_key_query_finds_what_a_search_of_the_truth_finds(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    answers = golden.answers("queryMessage")
    assert_key_queries_are_right(golden, answers[:: max(1, len(answers) // 25)])


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("keys", STORES))
def test_all_key_queries_that_the_broker_was_asked(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    assert_key_queries_are_right(golden, golden.answers("queryMessage"))


@pytest.mark.parametrize("name", few("places", STORES, *MODEST))
def test_a_message_is_found_by_its_ids(untouched: Golden, name: str) -> None:
    """Of its place and host, and the one that its producer gave."""
    golden = untouched(name)
    named = [record for record in golden.truth if record["uniqKey"] in keys_of(record)]
    with golden.open() as store:
        for record in golden.truth[:: max(1, len(golden.truth) // 20)]:
            (message,) = store.messages_by_id(record["offsetMsgId"])
            assert message == store.message_at(record["commitLogOffset"])
            assert message == store.message_by_id(record["offsetMsgId"])
        assert store.messages_by_id("0" * 32) == []
        assert store.message_by_id("0" * 32) is None
        for record in named[:: max(1, len(named) // 3)]:
            wanted = [
                other["commitLogOffset"] for other in named if other["uniqKey"] == record["uniqKey"]
            ]
            found = [m.commit_log_offset for m in store.messages_by_id(record["uniqKey"])]
            assert [offset for offset in found if offset < log_end_of(golden)] == wanted
        assert named or name == "batches-5.5.0"
