"""Properties may be given in several columns: they agree, and null is not given, in both ways to write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.errors import InvalidMessageError
from rmq_store.format.compression import SysFlag
from tests.support.golden import unpack
from tests.support.stores import SMALL, batch_of

INNER = int(SysFlag.INNER_BATCH)
LMQ = {"INNER_MULTI_DISPATCH": "%LMQ%a", "TAGS": "x"}
LMQ_STORED = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02TAGS\x01x\x02"
AGREEING: dict[str, dict[str, Any]] = {
    "string alone": {"rawProperties": b"A\x01b\x02"},
    "string null": {"rawProperties": None, "properties": {"A": "b"}},
    "string and map null": {"rawProperties": None, "properties": None, "tags": "x"},
    "map null": {"rawProperties": b"A\x01b\x02", "properties": None},
    "tags null": {"rawProperties": b"TAGS\x01b\x02", "tags": None},
    "tags empty": {"properties": {"TAGS": "b"}, "tags": ""},
    "map null beside tags": {"properties": None, "tags": "x"},
    "both": {"rawProperties": b"A\x01b\x02TAGS\x01x\x02", "properties": {"TAGS": "x", "A": "b"}},
    "an empty value": {"rawProperties": b"E\x01\x02", "properties": {"E": ""}},
    "inner batch": {
        "topic": "batches",
        "rawProperties": b"INNER_NUM\x012\x02TAGS\x01x\x02",
        "properties": {"INNER_NUM": "2", "TAGS": "x"},
        "tags": "x",
        "sysFlag": INNER,
    },
    "light queue": {"rawProperties": LMQ_STORED, "properties": LMQ, "tags": "x"},
    "light queue, again": {"rawProperties": LMQ_STORED, "properties": LMQ},
}
DIFFERING: dict[str, dict[str, Any]] = {
    "map": {"rawProperties": b"A\x01b\x02", "properties": {"A": "c"}},
    "map has less": {"rawProperties": b"A\x01b\x02", "properties": {}},
    "tags": {"rawProperties": b"A\x01b\x02", "tags": "x"},
    "inner batch": {
        "rawProperties": b"INNER_NUM\x012\x02",
        "properties": {"INNER_NUM": "3"},
        "sysFlag": INNER,
    },
}
STORE = {**SMALL, "enableLmq": True, "enableMultiDispatch": True}


def rows_of(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"topic": "orders", "queueId": 0, "body": b"x", **one} for one in given]


def stored(path: Path) -> list[bytes]:
    with MessageStore.open(path) as store:
        batches = list(store.read_batches(columns=["rawProperties"]))
    return [raw for batch in batches for raw in batch["rawProperties"].to_pylist()]


def test_both_ways_store_the_same(tmp_path: Path) -> None:
    rows = rows_of(*AGREEING.values())
    with MessageStore.create(tmp_path / "single", STORE) as store:
        for row in rows:
            store.append(row)
    with MessageStore.create(tmp_path / "together", STORE) as store:
        store.append_batch(batch_of(rows))
    expected = stored(tmp_path / "single")
    assert stored(tmp_path / "together") == expected
    assert expected[:4] == [b"A\x01b\x02", b"A\x01b\x02", b"TAGS\x01x\x02", b"A\x01b\x02"]
    assert all(b"INNER_MULTI_QUEUE_OFFSET\x01%d\x02" % n in expected[n - 2] for n in (0, 1))


@pytest.mark.parametrize(("release", "last"), [("4.9.7", b""), ("5.5.0", b"\x02")])
def test_a_message_that_was_read_keeps_its_stored_properties(
    release: str, last: bytes, tmp_path: Path
) -> None:
    """A name without a value too, unless the caller gives other properties."""
    given = [b"A\x01b\x02E\x01\x02A\x01c\x02", b"A\x01b\x02E\x01", b""]
    with MessageStore.create(tmp_path / "first", STORE) as store:
        store.append_batch(batch_of(rows_of(*({"rawProperties": raw} for raw in given))))
    with MessageStore.open(tmp_path / "first") as store:
        messages = store.get_message("orders", 0, 0).messages
    with MessageStore.create(tmp_path / "second", STORE, release=release) as store:
        for message in messages:
            store.append(message)
        store.append(replace(messages[0], properties={"A": "d"}))
    expected = [b"A\x01b\x02E\x01\x02A\x01c" + last, b"A\x01b\x02E\x01" + last, b""]
    assert stored(tmp_path / "second") == [*expected, b"A\x01d" + last]


@pytest.mark.parametrize("others", [{"rawProperties": b"TAGS\x01x\x02"}, {"tags": "x"}])
@pytest.mark.parametrize("flag", [0, INNER])
def test_nulls_without_a_type_are_not_given(
    others: dict[str, Any], flag: int, tmp_path: Path
) -> None:
    if flag:
        others = {"rawProperties": b"INNER_NUM\x011\x02INNER_BASE\x010\x02TAGS\x01x\x02"}
    batch = batch_of(rows_of({**others, "sysFlag": flag}))
    with MessageStore.create(tmp_path / "s", STORE) as store:
        store.append_batch(batch.append_column("properties", pa.nulls(1)))
    assert stored(tmp_path / "s") == [others.get("rawProperties", b"TAGS\x01x\x02")]


@pytest.mark.parametrize("others", [{}, {"rawProperties": b"TAGS\x01x\x02"}])
def test_properties_that_are_no_map_are_refused(others: dict[str, Any], tmp_path: Path) -> None:
    (row,) = rows_of(others)
    with MessageStore.create(tmp_path / "s", STORE) as store:
        with pytest.raises(InvalidMessageError, match="not a map of names to values"):
            store.append({**row, "properties": "TAGS"})
        with pytest.raises(InvalidMessageError, match="properties has the wrong type"):
            store.append_batch(batch_of([row]).append_column("properties", pa.array(["TAGS"])))
        assert store.max_offset("orders", 0) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"queueId": 1 << 31}, "queueId of the message does not fit int32"),
        ({"queueId": None}, "the message lacks queueId"),
        ({"body": 5}, "body of the message does not fit binary"),
        ({"tags": b"\xff"}, "tags of the message is not a text"),
        ({"bornHost": "1.2.3.4"}, "bornHost is not ip:port"),
        ({"properties": {"A": 1}}, "properties of the message is not a map of names to values"),
        ({"property": {}}, "Did you mean 'properties'"),
    ],
)
def test_a_value_that_its_column_cannot_have_is_refused(
    wrong: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (row,) = rows_of(wrong)
    with MessageStore.create(tmp_path / "s", STORE) as store:
        with pytest.raises(InvalidMessageError, match=says):
            store.append(row)
        with pytest.raises(InvalidMessageError, match="this is no message"):
            store.append("abc")  # type: ignore[arg-type]
        assert store.log_range() == (0, 0)


def test_a_lone_surrogate_is_stored_as_java_stores_it(tmp_path: Path) -> None:
    rows = rows_of({"keys": "a\ud800"}, {"properties": {"KEYS": "\udfffé"}})
    with MessageStore.create(tmp_path / "s", STORE) as store:
        for row in rows:
            store.append(row)
    assert stored(tmp_path / "s") == [b"KEYS\x01a?\x02", "KEYS\x01?é\x02".encode()]


@pytest.mark.parametrize("case", DIFFERING)
def test_what_differs_is_refused(case: str, tmp_path: Path) -> None:
    (row,) = rows_of(DIFFERING[case])
    with MessageStore.create(tmp_path / "s", STORE) as store:
        with pytest.raises(InvalidMessageError, match="differ"):
            store.append(row)
        with pytest.raises(InvalidMessageError, match="differ"):
            store.append_batch(batch_of([row]))
        assert store.max_offset("orders", 0) == 0


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (
            {"properties": {"a": "x\x02TAGS\x01evil"}},
            "the value of a property has the separator 0x02",
        ),
        (
            {"properties": {"b": "y", "a\x01b": "x"}},
            "the name of a property has the separator 0x01",
        ),
        ({"properties": {"a\x02b": "x"}}, "the name of a property has the separator 0x02"),
        ({"properties": {"": "x"}}, "a property has no name"),
        ({"tags": "a\x02b"}, "tags has the separator 0x02"),
        ({"keys": "a", "uniqKey": "\x02"}, "uniqKey has the separator 0x02"),
    ],
)
def test_what_readers_take_for_other_properties_is_refused(
    message: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    """MessageDecoder#string2messageProperties ends an item at 0x02 and a name at the first 0x01."""
    with MessageStore.create(tmp_path / "new", SMALL) as store:
        with pytest.raises(InvalidMessageError, match=f"message 1 of the batch: {fault}"):
            store.append_batch(batch_of(rows_of(dict.fromkeys(message), message)))
        store.append({**rows_of({})[0], "properties": {"a": "x\x01y", "none": ""}})
    with MessageStore.open(tmp_path / "new") as store:
        assert store.get_message("orders", 0, 0).messages[0].properties == {"a": "x\x01y"}


def test_a_row_that_was_read_from_a_light_queue_is_refused(tmp_path: Path) -> None:
    """It lists the record of another topic, whose own row brings the entry: two counters for one queue."""
    golden = unpack("lmq-5.3.3", tmp_path)
    columns = ("topic", "queueId", "rawBody", "rawProperties", "sysFlag", "bornTimestamp")
    with golden.open() as source, MessageStore.create(tmp_path / "new", STORE) as target:
        for topic, fits in (("%LMQ%device-0", False), ("orders", True)):
            for batch in source.read_batches(topic, columns=columns):
                rows = batch.rename_columns({"rawBody": "body"})
                if fits:
                    target.append_batch(rows, copied=True)
                    continue
                with pytest.raises(
                    InvalidMessageError, match="read from the light queue"
                ) as refused:
                    target.append_batch(rows, copied=True)
                assert "Leave out the topics %LMQ%" in (refused.value.advice or "")
    with MessageStore.open(tmp_path / "new") as copy, golden.open() as source:
        for queue in source.queues("orders"):
            assert copy.max_offset(*queue) == source.max_offset(*queue)


def test_a_queue_that_no_topic_can_have_is_refused(tmp_path: Path) -> None:
    """topics.json has the number of queues in 32 bits; with more a broker does not read the file."""
    message = rows_of({})[0]
    with MessageStore.create(tmp_path / "new", SMALL) as store:
        with pytest.raises(InvalidMessageError, match="no topic has so many queues"):
            store.append({**message, "queueId": 2**31 - 1})
        store.append({**message, "queueId": 2**31 - 2})
    with MessageStore.append_to(tmp_path / "new", SMALL) as store:
        store.append({**message, "queueId": 2**31 - 2})


def test_a_message_of_a_light_queue_may_name_others(tmp_path: Path) -> None:
    """It is a record of its own, which is not the one that the other queue lists."""
    rows = rows_of({"topic": "%LMQ%b", "properties": LMQ})
    with MessageStore.create(tmp_path / "new", STORE) as store:
        store.append_batch(batch_of(rows))
        assert (store.max_offset("%LMQ%a", 0), store.max_offset("%LMQ%b", 0)) == (1, 1)
