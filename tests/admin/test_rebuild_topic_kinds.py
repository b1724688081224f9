"""Rebuilt queues are of the kind that topics.json, a folder or a record proves."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.errors import CorruptConfigError
from rmq_store.format.topics import SCHEDULE_TOPIC
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, unpack, verified
from tests.support.running.commands import run

UNIT = struct.Struct(">qiqqqhi4x")  # log offset, size, tags, time, first queue offset, count, ...


def kind_of(root: Path, topic: str) -> str | None:
    """queue.type in topics.json."""
    table = json.loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
    kind: str | None = table[topic]["attributes"].get("queue.type")
    return kind


def bytes_of(root: Path, kind: str, topic: str) -> dict[str, bytes]:
    """Files of a topic's queues, without the zeros at their end."""
    folder = root / kind / topic
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes().rstrip(b"\0") for path in files}


@pytest.fixture
def golden(copy: GoldenStore) -> GoldenStore:
    """A broker's store whose topic `inner` has a batch queue, without its configuration."""
    shutil.rmtree(Path(copy.path, "config"))
    return copy


@pytest.mark.parametrize("folder", [True, False])
def test_a_batch_topic_is_rebuilt_and_declared_as_one(
    golden: GoldenStore, tmp_path: Path, folder: bool
) -> None:
    root, new = Path(golden.path), tmp_path / "new"
    wanted = bytes_of(root, "batchconsumequeue", "inner")
    if not folder:  # its inner batches prove the kind
        shutil.rmtree(root / "batchconsumequeue")
    report = rebuild(root, new)
    assert bytes_of(new, "batchconsumequeue", "inner") == wanted
    assert not (new / "consumequeue" / "inner").exists()
    assert kind_of(new, "inner") == "BatchCQ"
    assert kind_of(new, "orders") is None
    assert report.kind_unknown == ()
    assert verified(new).nothing_wrong


def made(root: Path, *, inner: bool) -> list[tuple[int, int]]:
    """A store with a batch topic of plain messages, and perhaps of an inner batch after them.

    Returns place and size of each record, by the bytes of the log.
    """
    with MessageStore.create(root, {"mappedFileSizeCommitLog": 1 << 20}, release="5.5.0") as writer:
        writer.declare_topic("several", attributes={"queue.type": "BatchCQ"})
        for number in range(5):
            writer.append({"topic": "several", "queueId": 0, "body": b"%d" % number})
    path = root / "commitlog" / ("0" * 20)
    raw, found, at = path.read_bytes(), [], 0
    while struct.unpack_from(">I", raw, at + 4)[0] in (0xDAA320A7, 0xDAA320AB):
        found.append((at, struct.unpack_from(">i", raw, at)[0]))
        at += found[-1][1]
    if inner:
        flags = found[-1][0] + 36
        write_at(path, flags, struct.pack(">i", struct.unpack_from(">i", raw, flags)[0] | 1 << 7))
    return found


def units(root: Path) -> list[tuple[int, int]]:
    (file,) = (root / "batchconsumequeue" / "several" / "0").iterdir()
    raw = file.read_bytes()
    every = (UNIT.unpack_from(raw, at) for at in range(0, len(raw) - UNIT.size + 1, UNIT.size))
    return [(unit[0], unit[1]) for unit in every if unit[1]]


@pytest.mark.parametrize("without", ["config", "topics.json", "the topic"])
def test_a_folder_proves_the_kind_of_a_topic_of_plain_messages(
    tmp_path: Path, without: str
) -> None:
    root, new = tmp_path / "store", tmp_path / "new"
    records = made(root, inner=False)
    topics = root / "config" / "topics.json"
    if without == "config":
        shutil.rmtree(root / "config")
    elif without == "topics.json":
        for path in (root / "config").glob("topics.json*"):
            path.unlink()
    else:
        for path in (root / "config").glob("topics.json*"):
            path.write_text(re.sub('"several"', '"other"', path.read_text("utf-8")), "utf-8")
        assert "other" in topics.read_text("utf-8")
    report = rebuild(root, new)
    assert units(new) == records
    assert not (new / "consumequeue" / "several").exists()
    assert kind_of(new, "several") == "BatchCQ"
    assert report.kind_unknown == ()


def test_one_inner_batch_proves_the_kind_of_the_messages_before_it(tmp_path: Path) -> None:
    root, new = tmp_path / "store", tmp_path / "new"
    records = made(root, inner=True)
    for folder in ("config", "consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    rebuild(root, new)
    assert units(new) == records
    assert not (new / "consumequeue" / "several").exists()
    assert kind_of(new, "several") == "BatchCQ"


def test_what_topics_json_declares_counts_before_a_folder(tmp_path: Path) -> None:
    root, new = tmp_path / "store", tmp_path / "new"
    records = made(root, inner=False)
    for path in (root / "config").glob("topics.json*"):
        path.write_text(path.read_text("utf-8").replace('"queue.type":"BatchCQ"', ""), "utf-8")
    assert kind_of(root, "several") is None
    rebuild(root, new)
    (file,) = (new / "consumequeue" / "several" / "0").iterdir()
    entries = struct.iter_unpack(">qiq", file.read_bytes()[: 20 * len(records)])
    assert [(where, size) for where, size, _ in entries] == records
    assert kind_of(new, "several") is None


def test_a_kind_that_nothing_says_is_said_to_be_unknown(tmp_path: Path) -> None:
    root, new = tmp_path / "store", tmp_path / "new"
    made(root, inner=False)
    for folder in ("config", "consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder, ignore_errors=True)
    report = rebuild(root, new)
    assert report.kind_unknown == ("several",)
    assert report.to_dict()["kind_unknown"] == ["several"]
    again: dict[str, Any] = json.loads((new / "config" / "topics.json").read_bytes())
    assert "several" in again["topicConfigTable"]


def test_salvage_declares_what_an_inner_batch_proves(copy: GoldenStore, tmp_path: Path) -> None:
    root, new = Path(copy.path), tmp_path / "new"
    for folder in ("config", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    salvage(root, new)
    assert kind_of(new, "inner") == "BatchCQ"
    assert kind_of(new, "orders") is None


def test_a_topics_json_that_nobody_can_read_is_refused_before_anything_is_made(
    copy: GoldenStore, tmp_path: Path
) -> None:
    path = Path(copy.path, "config", "topics.json")
    path.write_text("{")
    Path(f"{path}.bak").unlink()
    with pytest.raises(CorruptConfigError, match=re.escape(str(path))):
        rebuild(copy.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    path.unlink()
    assert rebuild(copy.path, tmp_path / "new").all_well


def test_due_times_by_default_delay_levels_are_counted_and_named(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    assert "messageDelayLevel=" in Path(store.conf).read_text()
    delayed = [records for queue, records in store.by_queue.items() if queue[0] == SCHEDULE_TOPIC]
    count = sum(map(len, delayed))
    assert count
    assert rebuild(store.path, tmp_path / "own", config=store.conf).default_delays == 0
    assert rebuild(store.path, tmp_path / "default").default_delays == count
    said = run("rebuild", store.path, "--to", str(tmp_path / "again"))
    assert f"{count} entries of {SCHEDULE_TOPIC} got the times of the default delay levels" in said
    assert "default delay" not in run(
        "rebuild", store.path, "--to", str(tmp_path / "third"), "--broker-conf", str(store.conf)
    )
