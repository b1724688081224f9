"""Options: strings to typed values, and the refusal of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store import QueueId
from rmq_store.errors import InvalidArgumentError
from rmq_store.scan.options import OPTIONS
from rmq_store.scan.parse_options import ScanOptions, parse_options
from rmq_store.search.selection import ByQueue


def parsed(**raw: str) -> ScanOptions:
    return parse_options({"path": "/store", **raw})


def test_a_path_is_enough() -> None:
    assert parsed() == ScanOptions(paths=("/store",))
    assert parsed().max_bytes_per_partition == 128 * 1024 * 1024


def test_the_case_of_a_name_does_not_matter() -> None:
    assert parsed(includesystemtopics="TRUE").include_system_topics
    assert parsed(MAXBYTESPERPARTITION="1k").max_bytes_per_partition == 1024


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("topic", "orders", "topics", ("orders",)),
        ("topic", " orders, payments ,orders", "topics", ("orders", "payments")),
        (
            "assign",
            '{"a": [1, 0], "b": ["2"]}',
            "assign",
            ((None, QueueId("a", 1)), (None, QueueId("a", 0)), (None, QueueId("b", 2))),
        ),
        ("assign", '{"a": {"broker-b": [3]}}', "assign", (("broker-b", QueueId("a", 3)),)),
        ("subscribe", "orders", "topics", ("orders",)),
        ("subscribePattern", "ord.*", "topic_pattern", "ord.*"),
        ("keys", "a || b", "keys", ("a", "b")),
        ("mode", "permissive", "mode", "PERMISSIVE"),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("splitBy", "queue", "split_by", "queue"),
        ("table", "queues", "table", "queues"),
        ("maxBodyBytes", "1m", "max_body_bytes", 1 << 20),
        ("minPartitions", "7", "min_partitions", 7),
        (
            "startingOffsetsByTimestamp",
            '{"a": {"0": 1700000000123, "broker-a": {"1": 0}}}',
            "starting_timestamps",
            ByQueue({(None, QueueId("a", 0)): 1700000000123, ("broker-a", QueueId("a", 1)): 0}),
        ),
        ("columns", "topic, body, topic", "columns", ("topic", "body")),
        ("tags", "a || b|| a", "tags", ("a", "b")),
        ("tags", "*", "tags", None),
        ("startingOffsets", "earliest", "starting_offsets", ByQueue()),
        (
            "startingOffsets",
            '{"a": {"0": 23}}',
            "starting_offsets",
            ByQueue({(None, QueueId("a", 0)): 23}),
        ),
        (
            "endingOffsets",
            '{"a": {"0": -1}}',
            "ending_offsets",
            ByQueue({(None, QueueId("a", 0)): -1}),
        ),
        ("endingOffsets", "Latest", "ending_offsets", ByQueue()),
        ("startingTimestamp", "1700000000123", "since", 1700000000123),
        ("startingTimestamp", "2023-11-14T22:13:20.123Z", "since", 1700000000123),
        ("endingTimestamp", "2023-11-15T06:13:20+08:00", "until", 1700000000000),
        ("endingTimestamp", "2023-11-14T22:13:20", "until", 1700000000000),
        ("endingTimestamp", "1969-12-31T23:59:59.999Z", "until", -1),
        ("maxBytesPerPartition", "64m", "max_bytes_per_partition", 64 << 20),
        ("maxBytesPerPartition", "1 GiB", "max_bytes_per_partition", 1 << 30),
        ("brokerName", "broker-a", "broker_name", "broker-a"),
        ("brokerConf", "/etc/broker.conf", "broker_conf", "/etc/broker.conf"),
    ],
)
def test_a_value_becomes_what_it_means(name: str, value: str, field: str, expected: Any) -> None:
    assert getattr(parsed(**{name: value}), field) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("includeSystemTopics", "yes", "neither true nor false"),
        ("maxBytesPerPartition", "0", "not a number of bytes"),
        ("maxBytesPerPartition", "lots", "not a number of bytes"),
        ("topic", " , ", "names nothing"),
        ("tags", "||", "names none"),
        ("columns", "topics", "Did you mean 'topic'"),
        ("minPartitions", "9" * 5000, "of at most 18 digits"),
        ("maxRecordsPerPartition", "9" * 19, "of at most 18 digits"),
        ("maxBytesPerPartition", "9" * 30, "below 8 EiB"),
        ("maxBytesPerPartition", "128", "128m is usual"),
        ("startingOffsets", '{"orders": {"0": ' + "9" * 5000 + "}}", "is not JSON"),
        ("assign", '{"orders": [99999999999]}', "as a queue id"),
        ("startingTimestamp", "1795253026", "2026-11-21T09:23:46Z as seconds"),
        ("startingTimestamp", "yesterday", "is not a time"),
        ("startingOffsetsByTimestamp", '{"orders": {"0": 1795253026}}', "as seconds"),
        ("startingOffsets", "latest", "cannot be 'latest'"),
        ("startingOffsets", "{", "not JSON"),
        ("startingOffsets", "[]", "not an object"),
        ("startingOffsets", '{"a": 5}', "no offsets by queue id"),
        ("startingOffsets", '{"a": {"0": -3}}', "-3"),
        ("startingOffsets", '{"a": {"x": 3}}', "'x' as a queue id"),
        ("assign", '{"a": 0}', "no list of queue ids"),
        ("assign", "{}", "names no queue"),
        ("brokerName", " ", "is empty"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parsed(**{name: value})
    assert message in str(refused.value)
    assert "RMQSTORE_INVALID_ARGUMENT" in str(refused.value)


def test_an_unknown_column_is_refused_as_by_the_library() -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_options({"path": "/data/store", "columns": "topc"})
    assert str(refused.value).startswith("[RMQSTORE_INVALID_ARGUMENT] unknown column 'topc'. ")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidArgumentError, match="Did you mean 'includeSystemTopics'"):
        parsed(includesystemtopic="true")


def test_stores_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="the path '/data/a' as a name"):
        parse_options({"stores": '{"/data/a": "broker-a"}'})
    # A folder that is named from here may lie beside, and a name may have a slash.
    assert parse_options({"stores": '{"a": "store", "b/c": "/x"}'}).stores


def test_no_path_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no path"):
        parse_options({})


def test_topic_and_assign_exclude_each_other() -> None:
    with pytest.raises(InvalidArgumentError, match="exclude each other"):
        parsed(topic="a", assign='{"a": [0]}')


def test_every_option_fills_a_field_of_its_own() -> None:
    fields = [option.field for option in OPTIONS if option.name != "topic"]
    of_commands = ["queue_ids", "include_lmq"]
    assert sorted([*fields, *of_commands]) == sorted(ScanOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"topic": "a", "subscribe": "b"}, "exclude each other"),
        ({"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"stores": '{"a": "/x"}'}, "exclude each other"),
        ({"includeUnqueued": "true"}, "source=commitlog"),
        ({"source": "commitlog", "splitBy": "queue"}, "does not read"),
        ({"source": "commitlog", "maxRecordsPerPartition": "5"}, "does not read"),
        ({"table": "queues", "columns": "topic"}, "not of table 'queues'"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"keys": "*"}, "leave it out"),
        ({"mode": "lenient"}, "none of FAILFAST"),
        ({"table": "queue"}, "none of topics"),
        ({"minPartitions": "0"}, "above 0"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "the timestamp -1"),
        ({"startingOffsets": '{"a": {"0": 1}, "a": {"1": 1}}'}, "names 'a' twice"),
        (
            {"startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a": {"0": 4}}'},
            "startingOffsets has 9 for queue a/0, and endingOffsets has 4",
        ),
        (
            {"startingTimestamp": "2026-12-01", "endingTimestamp": "2026-11-01"},
            "startingTimestamp has 2026-12-01T00:00:00.000Z, and endingTimestamp has 2026-11-01",
        ),
        (
            {
                "startingOffsets": '{"a": {"b1": {"0": 9}}}',
                "endingOffsets": '{"a": {"b1": {"0": 4}}}',
            },
            "startingOffsets has 9 for queue a/0 of broker 'b1', and endingOffsets has 4",
        ),
        (
            {"startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a": {"b1": {"0": 4}}}'},
            "startingOffsets has 9 for queue a/0 of broker 'b1', and endingOffsets has 4",
        ),
        (
            {
                "startingTimestamp": "2026-12-01",
                "endingOffsetsByTimestamp": '{"a": {"0": 1764547200000}}',
            },
            "startingTimestamp has 2026-12-01T00:00:00.000Z for queue a/0, and "
            "endingOffsetsByTimestamp has 2025-12-01",
        ),
        ({"location": "/x"}, "CREATE TEMPORARY VIEW"),
        ({"nameServer": "localhost:9876"}, "client of a live broker"),
        ({"kafka.bootstrap.servers": "x"}, "client of a live broker"),
        ({"consumerGroup": "g"}, "table=groups"),
        ({"rocketmq.anything": "g"}, "client settings have no meaning"),
        ({"maxOffsetsPerTrigger": "9"}, "has no triggers"),
        ({"includeHeaders": "true"}, "column properties always has"),
        ({"queueId": "0"}, 'Name queues with assign = {"orders": [0, 1]}'),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_the_reason(
    raw: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parsed(**raw)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        {"startingTimestamp": "2026-12-01", "endingTimestamp": "2026-12-01"},
        {"startingOffsets": '{"a": {"0": 4}}', "endingOffsets": '{"a": {"0": 4}}'},
        {"startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a": {"0": -1}}'},
        {
            "startingOffsets": '{"a": {"0": 9, "b1": {"0": 2}}}',
            "endingOffsets": '{"a": {"0": 9, "b1": {"0": 4}}}',
        },
        {
            "startingOffsets": '{"a": {"0": 9}}',
            "endingOffsets": '{"a": {"0": 4}}',
            "startingTimestamp": "2026-12-01",
        },
    ],
)
def test_ranges_that_are_not_reversed_are_taken(raw: dict[str, str]) -> None:
    parsed(**raw)


def test_a_list_of_paths_is_how_spark_hands_it_over() -> None:
    assert parse_options({"paths": '["/a", "/b"]'}).paths == ("/a", "/b")
