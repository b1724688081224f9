"""Names chosen by others never lead to a path outside the folder that is written to."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.errors import UnsafeNameError
from rmq_store.files.remote import remote_store
from rmq_store.files.safe_paths import is_plain_name, path_inside
from rmq_store.recovery import recover
from tests.hostile.support.canaries import canaries, state_of
from tests.support.golden import GoldenStore, unpack

TOPIC = b"documents"
OUTSIDE = b"../../can"  # as long: two folders up, and into the canaries


def with_hostile_topic(folder: Path) -> tuple[GoldenStore, int]:
    """A store of a real broker some of whose records have a topic that leads out of it."""
    golden = unpack("clean-5.5.0", folder)
    changed = 0
    for path in Path(golden.path, "commitlog").iterdir():
        raw = path.read_bytes()
        changed += raw.count(TOPIC)
        path.write_bytes(raw.replace(TOPIC, OUTSIDE))
    assert changed
    return golden, changed


def test_a_rebuild_writes_into_its_target_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golden, _ = with_hostile_topic(tmp_path / "source")
    before = canaries(tmp_path)
    with caplog.at_level(logging.WARNING, logger="rmqstore"):
        report = rebuild(golden.path, tmp_path / "target", config=golden.conf)
    assert state_of(tmp_path) == before
    assert "../../can" in caplog.text
    topics = {queue.topic for queue in report.recovery.queues}
    assert "orders" in topics
    assert OUTSIDE.decode() not in topics


def test_a_recovery_writes_into_its_store_alone(tmp_path: Path) -> None:
    golden, _ = with_hostile_topic(tmp_path)
    store = Path(golden.path)
    assert store.parent != tmp_path
    before = canaries(store.parent)
    for path in (store / "consumequeue" / TOPIC.decode()).rglob("0*"):
        if path.is_file():
            path.unlink()
    (store / "abort").touch()
    (store / "checkpoint").unlink()
    recover(golden.path, golden.conf)
    assert state_of(store.parent) == before


def test_reading_shows_such_a_topic_as_what_it_is(tmp_path: Path) -> None:
    golden, _ = with_hostile_topic(tmp_path)
    with MessageStore.open(golden.path, broker_conf=golden.conf, queues=False) as store:
        batches = list(store.read_log(columns=["topic"]))
        assert OUTSIDE.decode() in {topic for b in batches for topic in b.column(0).to_pylist()}


@pytest.mark.parametrize(
    "key", ["../victim.txt", "commitlog/../../victim.txt", "commitlog//victim.txt", "./victim.txt"]
)
def test_a_key_of_a_bucket_stays_in_the_shadow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: GoldenStore, key: str
) -> None:
    """An object beside a normal store; the shadow is a folder of the temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = canaries(tmp_path)

    class Bucket:
        """A file system with one key more than the folder has."""

        def __init__(self) -> None:
            self._files = pafs.LocalFileSystem()

        def get_file_info(self, asked: Any) -> list[Any]:
            found = list(self._files.get_file_info(asked))
            path = f"{clean.path}/{key}"
            return [*found, pafs.FileInfo(path, type=pafs.FileType.File, size=10, mtime_ns=1)]

        def open_input_file(self, path: str) -> Any:
            return self._files.open_input_file(path)

    monkeypatch.setattr(
        remote_store, "file_system", lambda uri, options: (Bucket(), uri.removeprefix("far://"))
    )
    with MessageStore.open(f"far://{clean.path}") as opened:
        assert "orders" in opened.topics()
        assert state_of(tmp_path) == before
        assert key not in {listed.path for listed in opened.listing() or ()}
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b", "x" * 256, "ä" * 128])
def test_what_is_no_file_name_makes_no_path(name: str) -> None:
    assert not is_plain_name(name)
    with pytest.raises(UnsafeNameError, match="RMQSTORE_UNSAFE_NAME"):
        path_inside("folder", name)


@pytest.mark.parametrize(
    "name", ["orders", "%RETRY%group", "...", "ä" * 127, "a b", "00000000000000000000"]
)
def test_what_brokers_write_makes_a_path(name: str) -> None:
    assert path_inside("folder", name, "0") == os.path.join("folder", name, "0")
