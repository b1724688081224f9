"""Wrong arguments of a store's reads are refused by name; one value is as good as a list of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError, UnknownQueueError
from tests.support.golden import Golden

Read = Callable[[Any], Any]


@pytest.fixture(scope="module")
def store(golden: Golden) -> Iterator[MessageStore]:
    with golden("clean-5.5.0").open() as opened:
        yield opened


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda s: s.messages(topics=5), "topics is a text, or several (found 5)"),
        (lambda s: s.messages(topics=["orders", 5]), "topics is a text, or several"),
        (lambda s: s.messages(keys=5), "keys is a text, or several"),
        (lambda s: s.messages(since="today"), "since='today' is not a time"),
        (lambda s: s.messages(queue_ids=["a"]), "queue_ids is a whole number, or several"),
        (lambda s: s.read_batches(5), "topics is a text, or several"),
        (lambda s: s.read_batches(topic="orders"), "a read has no option 'topic'"),
        (lambda s: s.read_batches("orders", queue_ids="0"), "queue_ids is a whole number"),
        (lambda s: s.read_batches("orders", start="0"), "start is a whole number"),
        (lambda s: s.read_batches("orders", columns=5), "columns is a text, or several"),
        (lambda s: s.read_batches("orders", tags=5), "tags is a text, or several"),
        (lambda s: s.read_batches("orders", batch_rows="8"), "batch_rows is a whole number"),
        (lambda s: s.read_batches("orders", on_damage=5), "on_damage is a function or the name"),
        (lambda s: s.read_log("0"), "start is a whole number"),
        (lambda s: s.message_at("0"), "commit_log_offset is a whole number"),
        (lambda s: s.offset_by_time("orders", 0, "0"), "timestamp is a whole number"),
        (lambda s: s.min_offset("orders", "0"), "a queue has a whole number (found '0')"),
        (lambda s: s.table(5), "there is no table 5 of a store"),
        (lambda s: s.queues(5), "topic is a text (found 5)"),
        (lambda s: s.messages_by_id(5), "message_id is a text (found 5)"),
        (lambda s: s.query_message("orders", 5), "key is a text (found 5)"),
        (lambda s: s.get_message("orders", "0", 0), "queue_id is a whole number (found '0')"),
        (lambda s: s.get_message("orders", 0, "0"), "offset is a whole number (found '0')"),
    ],
)
def test_a_wrong_argument_is_named(store: MessageStore, read: Read, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(store)
    assert said in str(caught.value)


def test_one_value_is_a_list_of_it(store: MessageStore) -> None:
    for how in ({"keys": "ORDER_0"}, {"keys": ["ORDER_0"]}):
        assert store.messages("orders", **how).count_rows() == 1
        assert store.read_batches("orders", **how).read_all().num_rows == 1
    (name,) = store.read_batches("orders", columns="body").schema.names
    assert name == "body"
    one = store.read_batches("orders", np.int64(1)).read_all()
    assert one.num_rows == store.max_offset("orders", np.int64(1))
    assert store.read_batches([]).read_all().num_rows == 0
    assert store.read_batches("orders", keys=[]).read_all().num_rows == 0


def test_a_queue_that_a_topic_does_not_have_is_refused_by_all_reads(store: MessageStore) -> None:
    for read in (store.messages, store.read_batches):
        with pytest.raises(UnknownQueueError, match="topic 'orders' has no queue 99"):
            read("orders", queue_ids=[0, 99])
