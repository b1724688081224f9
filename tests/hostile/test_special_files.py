"""A FIFO, device, socket, folder or endless file in the place of a file stops no command."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.files.durable_files import LARGEST_JSON, LARGEST_SETTINGS, read_file
from rmq_store.markers import StoreLock, lock_state
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import unpack
from tests.support.running.child import run_python

NAME = "crash-5.5.0"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


def looping(path: Path) -> None:
    path.symlink_to(path)


KINDS = [fifo, a_socket, endless, folder, large, looping]
# All that reads some stores, in one process; a hang ends it by its time limit.
READS = """
import json, sys
from rmq_store.cli.main import main
from rmq_store.config import json_files

json_files._WRITTEN_WITHIN_S = 0.001  # nobody writes these files
for words in json.loads(sys.argv[1]):
    sys.argv = ["rmqstore", *words]
    try:
        main()
    except SystemExit as ended:
        print("ENDED", words[0], ended.code)
"""
COMMANDS = ["info", "topics", "queues", "lag", "usage", "verify", "recover", "offsets"]
TABLES = ["files", "index", "checkpoint", "config"]


@pytest.mark.campaign
@pytest.mark.parametrize(
    "places",
    [
        ["checkpoint", "abort", "config/topics.json", "config/topics.json.bak", "lock"],
        ["config/consumerOffset.json", "config/other.json", "commitlog/00000000000099999999"],
        ["commitlog/00000000000000000000", "index/20260101000000000"],
        ["consumequeue/orders/0/00000000000000000000"],
    ],
)
def test_no_command_waits_or_fails_for_it(tmp_path: Path, places: list[str]) -> None:
    calls = []
    for kind in KINDS:
        golden = unpack(NAME, tmp_path / kind.__name__)
        for place in places:
            path = Path(golden.path, place)
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            kind(path)
        calls += [[name, golden.path] for name in COMMANDS]
        calls += [["table", name, golden.path] for name in TABLES]
    done = run_python("-c", READS, json.dumps(calls), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    ended = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert len(ended) == len(calls), done.stdout + done.stderr
    assert set(ended) <= {"0", "1", "2"}, done.stdout + done.stderr


@pytest.mark.parametrize("kind", [fifo, endless, a_socket, folder])
@pytest.mark.parametrize("name", ["checkpoint", "abort", "lock", "config/topics.json"])
def test_no_writer_waits_for_it(tmp_path: Path, name: str, kind: Callable[[Path], None]) -> None:
    golden = unpack(NAME, tmp_path)
    path = Path(golden.path, name)
    path.unlink(missing_ok=True)
    kind(path)
    for call in (plan_recovery, recover):
        with suppress(StoreError):
            call(golden.path, golden.conf)


@pytest.mark.parametrize("kind", [fifo, endless, a_socket, folder, large])
def test_a_small_file_is_a_regular_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    path = tmp_path / "x"
    kind(path)
    with pytest.raises(CorruptConfigError, match=r"not a file|larger than any"):
        read_file(path)
    with pytest.raises(CorruptConfigError):
        StoreConfig.read(path)


@pytest.mark.parametrize("limit", [LARGEST_SETTINGS, LARGEST_JSON])
def test_a_small_file_has_a_limit(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    os.truncate(path, limit)
    assert len(read_file(path, limit)) == limit
    os.truncate(path, limit + 1)
    with pytest.raises(CorruptConfigError, match=f"at most {limit} bytes"):
        read_file(path, limit)


def test_the_bak_is_read_instead(tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path)
    with MessageStore.open(golden.path) as store:
        expected = store.view.topics.declared
    path = Path(golden.path, "config", "topics.json")
    path.rename(f"{path}.bak")
    os.mkfifo(path)
    with MessageStore.open(golden.path) as store:
        assert store.view.topics.declared == expected


def test_the_lock_of_a_store_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert lock_state(tmp_path).held in (None, False)
    with pytest.raises(CorruptConfigError, match="a FIFO"):
        StoreLock(tmp_path)
