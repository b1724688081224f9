"""JSON, settings and folder names that nobody expects: an error that names the file, no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.config import json_files
from rmq_store.config.json_files import parse_fastjson
from rmq_store.errors import CorruptConfigError, MissingFileError
from rmq_store.markers import Checkpoint
from tests.support.golden import GoldenStore, unpack
from tests.support.running.campaigns import few, some
from tests.support.running.commands import call, complaint

NAME = "clean-5.5.0"
DEEP = "[" * 100_000
WRONG = [
    '{"offsetTable":{"orders@g":{"0":NaN}}}',
    '{"offsetTable":{"orders@g":{"0":Infinity}}}',
    '{"offsetTable":{"orders@g":{"0":1e400}}}',
    '{"offsetTable":{"orders@g":{"x":1}}}',
    '{"offsetTable":{"orders@g":{"99999999999":1}}}',
    '{"offsetTable":{"orders@g":{"0":99999999999999999999}}}',
    '{"offsetTable":{"orders@g":{"0":{}}}}',
    '{"offsetTable":{"orders@g":[1]}}',
    '{"offsetTable":[1]}',
    '{"lmqOffsetTable":{"orders@g":[]}}',
    '{"offsetTable":' + DEEP,
    '{"offsetTable":' + '{"a":' * 200 + "1" + "}" * 201,
    '{"offsetTable":{"orders@\\ud800":{"0":1}}}',
    '"' + '\\"' * 500_000,
    "",
    "null",
    "[]",
]
COMMANDS = ["info", "topics", "queues", "lag", "verify", "offsets", "recover"]
TABLES = ["groups", "offsets", "config", "checkpoint", "topics", "index"]


@pytest.fixture(autouse=True)
def nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is read again after a while, because a broker may be writing it."""
    monkeypatch.setattr(json_files, "_WRITTEN_WITHIN_S", 0.001)


def all_commands(golden: GoldenStore, case: int) -> dict[str, str]:
    """What each command says; each ends by itself. Every second one prints JSON, others in the next case."""
    said = {}
    words = [[name, golden.path] for name in COMMANDS]
    words += [["table", name, golden.path] for name in TABLES]
    for number, one in enumerate(words, case):
        done = call(*one, *(["--json"] if number % 2 else []))  # raises what it does not handle
        assert done.returncode in (0, 1, 2), done.both
        said[" ".join(one[:-1])] = done.both
    return said


@pytest.mark.campaign
@pytest.mark.parametrize("case", some("odd offsets", range(len(WRONG)), 4))
def test_an_offset_file_that_is_no_table_is_named(copy: GoldenStore, case: int) -> None:
    text = WRONG[case]
    for name in ("consumerOffset.json", "delayOffset.json"):
        path = Path(copy.path, "config", name)
        path.write_text(text)
        Path(f"{path}.bak").unlink(missing_ok=True)
    said = all_commands(copy, case)
    if text not in ("", "null", "[]"):
        assert "RMQSTORE_CORRUPT_CONFIG" in said["table groups"]
        assert "consumerOffset.json" in said["table groups"]


ODD = [
    {"readQueueNums": 2**40},
    {"readQueueNums": -1},
    {"readQueueNums": "8"},
    {"perm": 2**40},
    {"attributes": [1]},
    {"attributes": {"queue.type": {}}},
    {"readQueueNums": 2**31 - 1, "writeQueueNums": 2**31 - 1},
    None,
    [],
]


@pytest.mark.parametrize("case", few("odd settings", range(len(ODD)), 0, 5, 7))
def test_odd_settings_of_a_topic_end_no_command(copy: GoldenStore, case: int) -> None:
    path = Path(copy.path, "config", "topics.json")
    topics = json.loads(path.read_text())
    topics["topicConfigTable"]["odd"] = ODD[case]
    path.write_text(json.dumps(topics))
    all_commands(copy, case)


def test_odd_topics_keep_a_writer_from_writing(copy: GoldenStore) -> None:
    path = Path(copy.path, "config", "topics.json")
    path.write_text('{"topicConfigTable":{"orders":{"readQueueNums":[]}},"dataVersion":[]}')
    with pytest.raises(CorruptConfigError, match=r"topics\.json"):
        MessageStore.append_to(copy.path, copy.conf)


@pytest.mark.parametrize(
    "text", ['{"a":NaN}', '{"a":-Infinity}', DEEP, '["\\udc00"]', '{"\\ud83d":1}']
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its kinds have nothing else in common
        parse_fastjson(text)


def test_what_is_json() -> None:
    assert parse_fastjson('{1:{-2:"\\ud83d\\ude00 \\\\"},"a{3:":[1.5e3]}') == {
        "1": {"-2": "😀 \\"},
        "a{3:": [1500.0],
    }
    assert parse_fastjson("[" * 90 + "]" * 90)


@pytest.mark.parametrize("value", [2**62, -(2**62), 2**63 - 1, 253_402_300_800_000])
def test_times_of_other_ages_are_numbers(copy: GoldenStore, value: int) -> None:
    Checkpoint(value, value, value, value, value, value).write(Path(copy.path, "checkpoint"))
    for path in Path(copy.path, "index").iterdir():
        times = value.to_bytes(8, "big", signed=True) * 2
        path.write_bytes(times + path.read_bytes()[len(times) :])
    for case in (0, 1):
        assert str(value) in all_commands(copy, case)["table checkpoint"]


def test_odd_folders_are_passed_over_and_named(
    copy: GoldenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queues = Path(copy.path, "consumequeue")
    (queues / "loop").symlink_to(queues / "loop")
    (queues / "orders" / "loop").symlink_to("loop")
    (queues / "orders" / "99999999999").mkdir()
    (queues / "orders" / ("9" * 200)).mkdir()
    (queues / "orders" / "0" / "0".zfill(20)).rename(tmp_path / "first")
    (queues / "orders" / "0" / "0".zfill(20)).symlink_to("0".zfill(20))
    (queues / os.fsdecode(b"bad\xff\xfe")).mkdir()
    (queues / "new\nline\ttab" / "0").mkdir(parents=True)
    (Path(copy.path) / "config" / "loop").symlink_to("loop")
    said = all_commands(copy, 0)
    for name in ("loop", "99999999999", "bad\\xff\\xfe"):
        assert name in caplog.text
    assert "payments" in said["topics"]
    assert "new\\nline\\ttab" in said["queues"]


@pytest.mark.parametrize("folder", ["/etc", "/proc"])
def test_a_folder_that_is_no_log_is_not_an_empty_log(tmp_path: Path, folder: str) -> None:
    golden = unpack(NAME, tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={folder}\n")
    said = complaint("info", golden.path, "--broker-conf", str(conf), expect=2)
    assert "there is no log file in this configured folder" in said
    assert folder in said
    assert repr(min(os.listdir(folder))) in said
    with pytest.raises(MissingFileError):
        MessageStore.open(golden.path, broker_conf=conf)


def test_a_log_on_a_new_disk_may_be_empty(copy: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    config = {"storePathCommitLog": str(tmp_path / "disk")}
    with MessageStore.open(copy.path, config=config, queues=False) as store:
        assert store.log_range() == (0, 0)
