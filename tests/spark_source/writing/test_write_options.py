"""The options of a write: each alone, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rmq_store.errors import InvalidArgumentError, MissingFileError
from rmq_store.scan.options import WRITE_OPTIONS
from spark_source.writing.rows_to_append import check_columns
from spark_source.writing.target import WriteOptions, parse_write_options


def parsed(**raw: str) -> WriteOptions:
    return parse_write_options({"path": "/data/new", **raw}, stream=False)


def texts(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def test_defaults_are_those_of_the_table() -> None:
    found = parsed()
    assert (found.path, found.topic, found.release) == ("/data/new", None, None)
    defaults = {option.field: option.default for option in WRITE_OPTIONS}
    assert str(found.queues) == defaults["queues"]
    assert str(found.keep_timestamps).lower() == defaults["keep_timestamps"]
    assert str(found.flush).lower() == defaults["flush"]
    assert found.if_exists == defaults["if_exists"]


@pytest.mark.parametrize(
    ("raw", "field", "value"),
    [
        ({"topic": "orders"}, "topic", "orders"),
        ({"queues": "16"}, "queues", 16),
        ({"release": "4.9.7"}, "release", "4.9.7"),
        ({"KeepTimestamps": "TRUE"}, "keep_timestamps", True),
        ({"flush": "false"}, "flush", False),
        ({"ifexists": "Ignore"}, "if_exists", "ignore"),
        ({"path": "file:///data/other"}, "path", "/data/other"),
        ({"path": "file:/data/other"}, "path", "/data/other"),
    ],
)
def test_each_option_alone(raw: dict[str, str], field: str, value: Any) -> None:
    assert getattr(parsed(**raw), field) == value


def test_the_configuration_gives_the_file_sizes(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=8192\nbrokerName=a\n")
    assert parsed(brokerConf=str(conf)).config.mappedFileSizeCommitLog == 8192
    with pytest.raises(MissingFileError):
        parsed(brokerConf=str(tmp_path / "other.conf"))


def test_a_link_to_a_folder_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert parsed(path=str(tmp_path / "link" / "store")).path == os.path.realpath(
        tmp_path / "real" / "store"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"topik": "orders"}, "Did you mean 'topic'"),
        ({"queue": "3"}, "Did you mean 'queues'"),
        ({"queues": "0"}, "'queues' is not a whole number above 0"),
        ({"release": "3.9"}, "release '3.9' is not supported"),
        ({"keepTimestamps": "yes"}, "neither true nor false"),
        ({"flush": "1"}, "neither true nor false"),
        ({"ifExists": "replace"}, "none of append, error, ignore"),
        ({"mode": "append"}, "df.write.mode"),
        ({"startingOffsets": "earliest"}, "'startingOffsets' is for reading"),
        ({"maxbytespertrigger": "1m"}, "'maxBytesPerTrigger' is for reading"),
        ({"checkpointLocation": "checkpoint"}, "'checkpointLocation' is for reading"),
        ({"path": "s3://bucket/store"}, "the target is a URI"),
        ({"path": " "}, "'path' is empty"),
        ({"path": "/data/*/store"}, "is a pattern"),
    ],
)
def test_wrong_options_are_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parsed(**raw)
    assert message in str(refused.value)


def test_a_write_without_a_path_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no path"):
        parse_write_options({"topic": "orders"}, stream=False)


def test_a_stream_takes_the_options_of_its_query_and_no_others() -> None:
    raw = {"path": "/data/new", "checkpointlocation": "/c", "queryname": "q", "queues": "2"}
    assert parse_write_options(raw, stream=True).queues == 2
    with pytest.raises(InvalidArgumentError, match="no meaning in a stream"):
        parse_write_options({**raw, "ifExists": "error"}, stream=True)


@pytest.mark.parametrize(
    ("names", "topic", "message"),
    [
        (["topic", "body", "tag"], None, "Did you mean 'tags'"),
        (["topic", "body", "orderNumber"], None, "'orderNumber' is not a column of a store"),
        (["body"], None, "no column 'topic'"),
        (["topic", "body"], "orders", "a column 'topic', and the option 'topic'"),
        (["topic"], None, "no column 'body'"),
        (["topic", "rawBody"], None, "no column 'sysFlag'"),
        (["topic", "body", "body"], None, "is there twice"),
    ],
)
def test_wrong_columns_are_refused(names: list[str], topic: str | None, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_columns(texts(*names), WriteOptions("/data/new", topic=topic))
    assert message in str(refused.value)


def test_columns_of_the_source_are_accepted() -> None:
    columns = texts("brokerName", "topic", "queueOffset", "msgId", "body")
    check_columns(columns, WriteOptions("/new"))
    check_columns(texts("body"), WriteOptions("/new", topic="orders"))
