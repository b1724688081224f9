"""Rows of a DataFrame as the store takes them: queues, times, bodies, properties."""

from __future__ import annotations

import zlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.errors import InvalidMessageError
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import java_string_hash
from rmq_store.format.record import decode_properties
from spark_source.writing import rows_to_append
from spark_source.writing.rows_to_append import QueuesInTurn, columns_and_records, staged_batches
from spark_source.writing.target import WriteOptions
from tests.support.golden import unpack

MAP = pa.map_(pa.string(), pa.string())


def ready(columns: dict[str, Any], **asked: Any) -> dict[str, list[Any]]:
    """The columns that become records."""
    batch = pa.RecordBatch.from_pydict(columns)
    return dict(columns_and_records(batch, WriteOptions("/new", **asked))[0].to_pydict())


def test_text_becomes_utf8_and_a_topic_is_for_all_rows() -> None:
    found = ready({"body": ["客户", ""], "queueId": [1, 2]}, topic="orders")
    assert found["body"] == ["客户".encode(), b""]
    assert found["topic"] == ["orders", "orders"]
    assert found["queueId"] == [1, 2]


@pytest.mark.parametrize("queues", [1, 4, 7])
def test_rows_with_keys_get_the_queue_of_the_clients_hash(queues: int) -> None:
    keys = ["a", "ORDER_1", "客户 7", "polygenelubricants", "x" * 300, "", None]
    found = ready({"topic": ["t"] * 7, "body": ["b"] * 7, "keys": keys}, queues=queues)
    # SelectMessageQueueByHash: hashCode() % size, and the absolute value of that.
    expected = [abs(java_string_hash(key)) % queues for key in keys if key]
    assert found["queueId"] == [*expected, None, None]


def test_a_given_queue_stays_and_keys_may_be_in_the_properties() -> None:
    properties = pa.array([[("KEYS", "k1")], [("KEYS", "k1")], [("a", "b")]], MAP)
    found = ready(
        {
            "topic": ["t"] * 3,
            "body": ["b"] * 3,
            "queueId": [6, None, None],
            "properties": properties,
        }
    )
    assert found["queueId"] == [6, abs(java_string_hash("k1")) % 4, None]


def test_rows_without_keys_take_turns_by_topic() -> None:
    turns = QueuesInTurn(3)

    def batch(topics: str, given: list[int | None]) -> list[int]:
        rows = {"topic": list(topics), "queueId": pa.array(given, pa.int32())}
        filled = turns.fill(pa.RecordBatch.from_pydict(rows))
        found: list[int] = filled["queueId"].to_pylist()
        return found

    assert batch("abab", [None] * 4) == [0, 0, 1, 1]
    assert batch("aaab", [None, 9, None, None]) == [2, 9, 0, 2]
    assert batch("ab", [5, 6]) == [5, 6]


def test_times_are_milliseconds_rounded_down() -> None:
    when = datetime(2026, 5, 1, 10, 0, 0, 123_999, timezone.utc)
    micros = pa.array([when, None], pa.timestamp("us", tz="UTC"))
    columns = {"topic": ["t", "t"], "body": ["b", "b"], "storeTimestamp": micros}
    found = ready({**columns, "bornTimestamp": micros}, keep_timestamps=True)
    millis = int(when.timestamp()) * 1000 + 123
    assert found["storeTimestamp"] == [millis, 0]  # 0: the store assigns it
    assert found["bornTimestamp"][0] == millis
    assert found["bornTimestamp"][1] > millis  # the time of the write
    assert "storeTimestamp" not in ready(columns)
    before_1970 = pa.array([-1], pa.timestamp("us"))
    old = ready({"topic": ["t"], "body": ["b"], "bornTimestamp": before_1970})
    assert old["bornTimestamp"] == [-1]


def test_a_time_in_an_hour_that_a_zone_has_twice_is_written() -> None:
    """The clock of New York goes back at 06:00 UTC on that day: 01:30 there is two times."""
    times = [1_793_511_000_000, 1_793_514_600_000]
    zoned = pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "America/New_York"))
    columns = {"topic": ["t", "t"], "body": ["b", "b"], "bornTimestamp": zoned}
    found = ready({**columns, "storeTimestamp": zoned}, keep_timestamps=True)
    assert found["bornTimestamp"] == found["storeTimestamp"] == times


def test_a_store_time_before_1970_is_refused_where_it_is_kept() -> None:
    times = pa.array([5, -5], pa.timestamp("ms"))
    columns = {"topic": ["t", "t"], "body": ["b", "b"], "storeTimestamp": times}
    with pytest.raises(InvalidMessageError, match=r"message 1 of .*: storeTimestamp is below 0"):
        ready(columns, keep_timestamps=True)
    assert "storeTimestamp" not in ready(columns)


@pytest.mark.parametrize("name", ["bornTimestamp", "storeTimestamp"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (1_795_253_026, "and 2026-11-21T09:23:46Z as seconds"),
        ("1795253026", "and 2026-11-21T09:23:46Z as seconds"),
        (1_795_253_026_123_000, "and 2026-11-21T09:23:46.123Z as microseconds"),
        (-(2**63), "and 1677-09-21T00:12:43.145Z as nanoseconds"),
    ],
)
def test_a_number_that_is_no_time_in_milliseconds_is_refused(
    name: str, number: int | str, reason: str
) -> None:
    columns = {"topic": ["t"] * 3, "body": ["b"] * 3}
    zero = type(number)(0)
    with pytest.raises(InvalidMessageError, match=reason) as refused:
        ready({**columns, name: [zero, None, number]}, keep_timestamps=True)
    assert refused.value.row == 2
    assert ready({**columns, name: [zero] * 3}, keep_timestamps=True)[name] == [0] * 3


def test_a_row_of_a_store_keeps_a_time_that_no_clock_had() -> None:
    stored = pa.array([0, 5], pa.timestamp("ms", tz="UTC"))
    found = ready(
        {"topic": ["t"] * 2, "body": ["b"] * 2, "bornTimestamp": stored, "storeTimestamp": stored},
        keep_timestamps=True,
    )
    assert found["bornTimestamp"] == found["storeTimestamp"] == [0, 5]


def test_null_in_an_optional_column_is_its_default() -> None:
    nothing = pa.nulls(1, pa.int32())
    found = ready(
        {
            "topic": ["t"],
            "body": ["b"],
            "flag": nothing,
            "reconsumeTimes": nothing,
            "tags": pa.nulls(1, pa.string()),
            "properties": pa.nulls(1, MAP),
            "bornHost": pa.nulls(1, pa.string()),
        }
    )
    assert (found["flag"], found["reconsumeTimes"], found["bornHost"]) == ([0], [0], [None])
    assert found["rawProperties"] == [b""]


def test_tags_keys_and_properties_are_stored_as_properties() -> None:
    found = ready({"topic": ["t"], "body": ["b"], "tags": ["A"], "keys": ["k1 k2"]})
    assert decode_properties(found["rawProperties"][0]) == {"KEYS": "k1 k2", "TAGS": "A"}


def test_a_body_that_was_decompressed_is_not_marked_as_compressed() -> None:
    flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB | SysFlag.TRANSACTION_COMMIT
    stored = zlib.compress(b"plain")
    columns = {"topic": ["t"], "sysFlag": pa.array([flag], pa.int32())}
    assert ready({**columns, "body": [b"plain"]})["sysFlag"] == [SysFlag.TRANSACTION_COMMIT]
    raw = ready({**columns, "body": [b"plain"], "rawBody": [stored]})
    assert (raw["sysFlag"], raw["body"]) == ([flag], [stored])


def test_messages_of_inner_batches_become_messages_and_whole_batches_are_refused(
    tmp_path: Path,
) -> None:
    with MessageStore.open(unpack("clean-5.5.0", tmp_path).path) as store:
        columns = ("topic", "queueId", "sysFlag", "body", "properties")
        members = pa.Table.from_batches(
            store.read_batches("inner", columns=columns, unwrap_batches=True)
        )
        whole = next(iter(store.read_batches("inner", columns=columns, unwrap_batches=False)))
    flags = members["sysFlag"].to_pylist()
    assert any(flag & SysFlag.INNER_BATCH for flag in flags)
    found = ready(members.to_pydict() | {"properties": members["properties"].combine_chunks()})
    assert not any(flag & (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP) for flag in found["sysFlag"])
    assert found["body"] == members["body"].to_pylist()
    with pytest.raises(InvalidMessageError, match="unwrapBatches=true"):
        list(staged_batches(whole, WriteOptions("/new")))
    with pytest.raises(InvalidMessageError, match="Add the column properties"):
        list(staged_batches(whole.drop_columns(["properties"]), WriteOptions("/new")))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": pa.nulls(1, pa.string())}, "body is null"),
        ({"topic": pa.nulls(1, pa.string())}, "topic is null"),
        ({"topic": ["a b"]}, "forbidden character"),
        ({"body": [b"." * 5000]}, "message 0 of the batch: the body"),
        ({"queueId": [-1]}, "queueId is below 0"),
        ({"queueId": ["one"]}, "column queueId does not fit"),
        ({"bornHost": ["nowhere"]}, "not ip:port"),
        ({"keys": ["a"], "properties": pa.array([[("KEYS", "b")]], MAP)}, "differ"),
        ({"sysFlag": [SysFlag.TRANSACTION_PREPARED]}, "no queue lists"),
        ({"sysFlag": [SysFlag.TRANSACTION_ROLLBACK]}, "no queue lists"),
    ],
)
def test_what_a_broker_would_not_store_is_refused(columns: dict[str, Any], message: str) -> None:
    from rmq_store.config.broker_conf import StoreConfig

    small = StoreConfig(maxMessageSize=4000)
    with pytest.raises(InvalidMessageError) as refused:
        ready({"topic": ["t"], "body": ["b"], **columns}, config=small)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "column", ["queueOffset", "commitLogOffset", "storeHost", "storeTimestamp", "rawBody"]
)
def test_rows_of_a_store_keep_what_a_new_message_may_not_have(column: str) -> None:
    of_store = {"storeHost": ["127.0.0.1:1"], "rawBody": [b"b"]}.get(column, [1])
    for topic in ("rocketmq.prod", "%RETRY%g:t", "t" * 200, "broker.a_REPLY_TOPIC"):
        columns = {"topic": [topic], "body": [b"b"], "sysFlag": [0]}
        found = ready({**columns, column: of_store})
        assert found["topic"] == [topic]
        if ":" not in topic:
            with pytest.raises(InvalidMessageError):
                ready(columns)
    for topic in ("a/b", "..", "", "a\0b", "\u4e2d" * 100):
        with pytest.raises(InvalidMessageError):
            ready({"topic": [topic], "body": [b"b"], "sysFlag": [0], column: of_store})


def test_large_rows_are_staged_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_to_append, "BATCH_BYTES", 1000)
    batch = pa.RecordBatch.from_pydict(
        {"topic": ["t"] * 50, "body": ["x" * (number * 10) for number in range(50)]}
    )
    found = list(staged_batches(batch, WriteOptions("/new")))
    records = [record for one in found for record in one["records"].to_pylist()]
    bodies = [body for record in records if (body := bytes(record[88:-4]))]
    assert bodies == [body.encode() for body in batch["body"].to_pylist() if body]
    sizes = [sum(map(len, one["records"].to_pylist())) for one in found]
    assert max(sizes) <= 1000
    assert len(found) > 15
