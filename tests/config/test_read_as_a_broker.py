"""Which config files a broker reads, and which it leaves for the .bak; each use of a .bak is reported.

The expected values are what ConsumerOffsetManager#load of 4.9.7, 5.3.3 (fastjson 1), 5.4.0 and 5.5.0
(fastjson 2) answered for the same bytes: all of them alike, but for what only a hand writes: they read it.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.reset_offsets import apply_reset, plan_reset
from rmq_store.config import json_files
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import CorruptConfigError
from rmq_store.report.store_report import store_report
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, complaint

NAME = "clean-5.5.0"
GOOD = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:111,1:5\n\t\t}\n\t}\n}'
BAK = b'{"offsetTable":{"T@g":{0:49}}}'
MARK = b"\xef\xbb\xbf"
READ = {
    "mark": MARK + GOOD,
    "zeros after it": GOOD + bytes(20),
    "form feed": b"\f" + GOOD,
    "fractions": b'{"offsetTable":{"T@g":{0:111.9,1:5.0}}}',
}
BY_HAND = {
    "single quotes": b"{'offsetTable':{'T@g':{0:111,'1':5}}}",
    "last comma of queues": b'{"offsetTable":{"T@g":{0:111,1:5,}}}',
    "last": GOOD + b" // end",
    "before a brace": b'{"offsetTable":{"T@g":{0:111,1:5, // x\n}}}',
}
LEFT = {
    "zeros": bytes(400),
    "empty": b"",
    "two marks": MARK * 2 + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16-be"),
    "cut brace": GOOD[:-1],
    "no table": b'{"offsetTable":"x"}',
    "other bytes after it": GOOD + b"xyz",
}
NULL = {"null": b"null", "null table": b'{"offsetTable":null}'}


@pytest.fixture(autouse=True)
def nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "_WRITTEN_WITHIN_S", 0.001)


def put(store: Path, raw: bytes, bak: bytes | None = BAK) -> Path:
    path = store / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    if bak is not None:
        Path(f"{path}.bak").write_bytes(bak)
    return path


@pytest.mark.parametrize("case", READ)
def test_what_all_brokers_read_is_read_without_a_word(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, READ[case])
    assert read_consumer_offsets(tmp_path) == {"g": {"T": {0: 111, 1: 5}}}
    assert caplog.text == ""


@pytest.mark.parametrize("case", [*LEFT, *BY_HAND])
def test_what_no_broker_writes_leaves_the_bak_and_a_warning(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, (LEFT | BY_HAND)[case])
    assert read_consumer_offsets(tmp_path) == {"g": {"T": {0: 49}}}
    assert f"{path}.bak: read instead of consumerOffset.json: " in caplog.text
    Path(f"{path}.bak").unlink()
    with pytest.raises(CorruptConfigError, match=r"consumerOffset\.json"):
        read_consumer_offsets(tmp_path)


@pytest.mark.parametrize("case", NULL)
def test_null_is_no_table_and_the_bak_is_not_used(
    case: str, copy: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(Path(copy.path), NULL[case])
    assert read_consumer_offsets(copy.path) == {}
    assert f"{path}: it is null, or its table is" in caplog.text
    assert [(one.code, one.path) for one in copy.verified().findings] == [
        ("config-null", str(path))
    ]


@pytest.mark.parametrize("kind", ["dangling", "missing"])
def test_a_missing_file_leaves_the_bak_and_a_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b"")
    path.unlink()
    if kind == "dangling":
        path.symlink_to("nothing")
    assert read_consumer_offsets(tmp_path) == {"g": {"T": {0: 49}}}
    assert "read instead of consumerOffset.json" in caplog.text
    Path(f"{path}.bak").unlink()
    if kind == "dangling":
        with pytest.raises(CorruptConfigError, match="link to nothing"):
            read_consumer_offsets(tmp_path)
    else:
        assert read_consumer_offsets(tmp_path) == {}


def test_a_damaged_file_that_nobody_writes_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, bytes(400))
    waits: list[float] = []
    monkeypatch.setattr("rmq_store.config.json_files.time.sleep", waits.append)
    read_consumer_offsets(tmp_path)
    assert len(waits) == 1
    for one in (path, Path(f"{path}.bak")):
        os.utime(one, (time.time() - 3600,) * 2)
    read_consumer_offsets(tmp_path)
    path.with_name("consumerOffset.json.bak").unlink()
    with pytest.raises(CorruptConfigError):
        read_consumer_offsets(tmp_path)
    assert len(waits) == 1


# --- what says so ---------------------------------------------------------------------------------


def damaged(tmp_path: Path, name: str, *, bak: bool) -> GoldenStore:
    """A golden store whose file of config/ is of zeros; the .bak has its content, or is gone."""
    golden = unpack(NAME, tmp_path)
    path = Path(golden.path, "config", name)
    good = path.read_bytes()
    path.write_bytes(bytes(400))
    Path(f"{path}.bak").unlink(missing_ok=True)
    if bak:
        Path(f"{path}.bak").write_bytes(good)
    return golden


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "delayOffset.json"])
def test_commands_tables_verify_and_report_name_the_bak(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golden = damaged(tmp_path, name, bak=True)
    table, command = {
        "topics.json": ("topics", "topics"),
        "consumerOffset.json": ("groups", "lag"),
        "delayOffset.json": ("scheduled", "scheduled"),
    }[name]
    said = f"{name}.bak: read instead of {name}: it holds 400 zero bytes"
    assert call(command, golden.path).stderr.count(said) == 1
    with golden.open() as store:
        store.table(table)
        assert said in caplog.text
        found = [one for one in verify(store).findings if one.code == "config-backup-used"]
    assert [one.path for one in found] == [f"{golden.path}/config/{name}.bak"]
    remarks = [one.text for one in store_report(golden.path).remarks]
    assert any("config-backup-used" in text and name in text for text in remarks)


@pytest.mark.parametrize("name", ["subscriptionGroup.json", "consumerFilter.json", "other.json"])
def test_verify_looks_at_every_file_of_config(name: str, copy: GoldenStore) -> None:
    path = Path(copy.path, "config", name)
    Path(f"{path}.bak").write_bytes(b"{}")
    path.write_bytes(b"{")
    assert "config-backup-used" in {one.code for one in copy.verified().findings}
    Path(f"{path}.bak").write_bytes(b"")
    assert "config-unreadable" in {one.code for one in copy.verified().findings}


def test_topics_that_cannot_be_read_are_not_said_to_be_undeclared(tmp_path: Path) -> None:
    golden = damaged(tmp_path, "topics.json", bak=False)
    said = complaint("topics", golden.path, expect=1)
    assert "topics.json: neither this file nor its .bak can be read" in said
    with golden.open() as store:
        rows = store.table("topics").to_pylist()
    assert rows
    assert {row["declared"] for row in rows} == {None}
    assert all("topics.json" in row["problem"] for row in rows)


@pytest.mark.parametrize("command", ["lag", "offsets", "table groups", "table offsets"])
def test_offsets_that_cannot_be_read_are_no_empty_answer(command: str, tmp_path: Path) -> None:
    golden = damaged(tmp_path, "consumerOffset.json", bak=False)
    assert "RMQSTORE_CORRUPT_CONFIG" in complaint(*command.split(), golden.path, expect=2)


# --- what replaces a .bak -------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["zeros", "cut brace", "UTF-16", "no table"])
def test_only_a_readable_file_replaces_the_bak(case: str, copy: GoldenStore) -> None:
    path = Path(copy.path, "config", "consumerOffset.json")
    good = path.read_bytes()
    put(Path(copy.path), LEFT[case], good)
    with copy.open() as store:
        apply_reset(store, plan_reset(store, "g-slow", to="latest", topic="orders"))
    assert Path(f"{path}.bak").read_bytes() == good
    assert Path(f"{path}.damaged").read_bytes() == LEFT[case]
    first = path.read_bytes()
    with copy.open() as store:
        apply_reset(store, plan_reset(store, "g-slow", to="earliest", topic="orders"))
    assert Path(f"{path}.bak").read_bytes() == first


def test_a_writer_keeps_the_bak_of_damaged_topics(tmp_path: Path) -> None:
    golden = damaged(tmp_path, "topics.json", bak=True)
    path = Path(golden.path, "config", "topics.json")
    good = Path(f"{path}.bak").read_bytes()
    message = {"topic": "orders", "queueId": 0, "body": b"more"}
    with MessageStore.append_to(golden.path, golden.conf) as writer:
        writer.append(message)
    assert Path(f"{path}.bak").read_bytes() == good
    assert set(read_topic_configs(golden.path)) >= {"orders", "payments"}


def test_a_spark_read_names_the_bak(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from rmq_store.scan.parse_options import parse_options
    from rmq_store.scan.scan import Scan

    golden = damaged(tmp_path, "topics.json", bak=True)
    with caplog.at_level(logging.WARNING, logger="rmqstore"):
        Scan.of(parse_options({"path": golden.path, "topic": "orders"}))
    assert "topics.json.bak: read instead of topics.json" in caplog.text
