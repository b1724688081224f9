"""`on_damage` by the name of a mode of the Spark source, on a damaged copy of a real broker's store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import CorruptRecordError, InvalidArgumentError
from rmq_store.reading.log_reader import QueueLimits
from tests.support.damage import flip_in_log
from tests.support.golden import Truth, unpack
from tests.support.running.commands import sent_to


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[tuple[MessageStore, list[Truth], Truth]]:
    """A store whose tenth message of `orders` has a wrong byte in its body, and that message."""
    store = unpack("clean-5.3.3", tmp_path)
    orders = sent_to(store, "orders")
    hurt = orders[10]
    flip_in_log(store, hurt["commitLogOffset"] + 95, 4)
    with store.open() as opened:
        yield opened, orders, hurt


def reads(store: MessageStore, **how: Any) -> dict[str, pa.Table]:
    """The messages of `orders` by both ways of reading."""

    def limits(queue: QueueId) -> QueueLimits | None:
        return QueueLimits() if queue.topic == "orders" else None

    return {
        "queues": pa.Table.from_batches(store.read_batches("orders", **how)),
        "log": pa.Table.from_batches(store.read_log(limits=limits, **how)),
    }


def test_permissive_returns_a_row_that_says_what_is_damaged(
    damaged: tuple[MessageStore, list[Truth], Truth],
) -> None:
    store, orders, hurt = damaged
    for rows in reads(store, on_damage="permissive").values():
        assert rows.num_rows == len(orders)
        (bad,) = rows.filter(rows["corruptRecord"].is_valid()).to_pylist()
        assert "RMQSTORE_CORRUPT_RECORD" in bad["corruptRecord"]
        assert bad["commitLogOffset"] == hurt["commitLogOffset"]
        assert bad["body"] is None
    few = store.read_batches(
        "orders", columns=["queueId", "queueOffset", "body"], on_damage="PERMISSIVE"
    )
    place = (hurt["queueId"], hurt["queueOffset"], None)
    assert place in {tuple(row.values()) for b in few for row in b.to_pylist()}


def test_a_search_has_no_rows_about_damage(
    damaged: tuple[MessageStore, list[Truth], Truth], caplog: pytest.LogCaptureFixture
) -> None:
    store, _, hurt = damaged
    ask = store.query_message, ("orders", hurt["uniqKey"])
    with pytest.raises(InvalidArgumentError, match="Give a function"):
        ask[0](*ask[1], on_damage="permissive")
    caplog.set_level(logging.WARNING, "rmqstore")
    assert ask[0](*ask[1], on_damage="dropmalformed") == []
    assert "left out, mode=DROPMALFORMED" in caplog.text
    assert "RMQSTORE_CORRUPT_RECORD" in caplog.text


def test_dropmalformed_leaves_the_message_out_and_logs_the_count(
    damaged: tuple[MessageStore, list[Truth], Truth], caplog: pytest.LogCaptureFixture
) -> None:
    store, orders, hurt = damaged
    caplog.set_level(logging.WARNING, "rmqstore")
    for rows in reads(store, on_damage="DropMalformed").values():
        assert rows.num_rows == len(orders) - 1
        assert hurt["commitLogOffset"] not in rows["commitLogOffset"].to_pylist()
        assert "corruptRecord" not in rows.column_names
    assert caplog.text.count("1 x RMQSTORE_CORRUPT_RECORD") == 2
    key = (hurt["keys"] or hurt["uniqKey"]).split()[0]
    assert store.query_message("orders", key, on_damage="dropmalformed") is not None


def test_failfast_raises_and_another_name_is_refused_at_once(
    damaged: tuple[MessageStore, list[Truth], Truth],
) -> None:
    store, _, _ = damaged
    with pytest.raises(CorruptRecordError):
        list(store.read_batches("orders", on_damage="failfast"))
    with pytest.raises(InvalidArgumentError, match="Did you mean 'PERMISSIVE'"):
        store.read_batches("orders", on_damage="permisive")
    with pytest.raises(InvalidArgumentError, match="FAILFAST or PERMISSIVE or DROPMALFORMED"):
        store.query_message("orders", "ORDER_1", on_damage="skip")
