"""A RocksDB database is read while another process writes, flushes and compacts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import QueueId
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import StoreError
from rmq_store.files.rocksdb import open_database
from tests.support.checkout import CHECKOUT
from tests.support.rocksdb import write_queue_database

WRITER = """
import struct, sys
from rocksdict import Options, Rdict, WriteOptions
from tests.support.rocksdb import key_of, max_key_of
from rmq_store import QueueId

options = Options(raw_mode=True)
options.create_if_missing(True)
options.set_atomic_flush(True)
options.set_write_buffer_size(1 << 16)
options.set_level_zero_file_num_compaction_trigger(2)
database = Rdict(sys.argv[1], options=options)
offsets = database.create_column_family("offset", Options(raw_mode=True))
queues = [QueueId(f"topic-{number}", number) for number in range(20)]
no_log = WriteOptions()
no_log.disable_wal = True
print("ready", flush=True)
for offset in range(100_000):
    for number, queue in enumerate(queues):
        place = (offset * len(queues) + number) * 100
        database.put(key_of(queue, offset), struct.pack(">qiqq", place, 100, number, 0), no_log)
        offsets.put(max_key_of(queue), struct.pack(">qq", place, offset), no_log)
    if offset % 50 == 49:
        database.flush()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[None]:
    """A process that writes until the test is over."""
    folder = tmp_path / "consumequeue"
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


@pytest.mark.usefixtures("writer")
@pytest.mark.campaign
def test_each_look_is_one_moment(tmp_path: Path) -> None:
    """The entries of all queues were written in turn, and flushed together."""
    last, looks = -1, 0
    while looks < 25 or last < 100:
        folders = QueueFolders(tmp_path, StoreConfig.of(None))
        listed = folders.listed()
        stops = set()
        for queue in listed:
            files = folders.files(queue)
            stops.add(files.find_end_unit())
            entries = files.entries(0, files.find_end_unit())
            number = queue.queue_id
            wanted = [(at * 20 + number) * 100 for at in range(files.find_end_unit())]
            assert entries.log_offset.tolist() == wanted
            assert set(entries.tags_code.tolist()) == {number}
        assert len(listed) in (0, 20)
        # A flush happens between two writes, not between two turns.
        assert max(stops, default=0) - min(stops, default=0) <= 1
        assert max(stops, default=0) >= last
        last, looks = max(stops, default=0), looks + 1
        folders.close()


def test_a_folder_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    def damaged(problem: str) -> StoreError:
        return StoreError(tmp_path, reason=problem)

    with pytest.raises(StoreError):
        open_database(str(tmp_path / "nothing"), ("default",), damaged)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError):
        open_database(str(tmp_path / "empty"), ("default",), damaged)


def test_nothing_is_left_of_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "aside"))
    queue = QueueId("t", 0)
    write_queue_database(tmp_path / "store" / "consumequeue", {queue: {0: (0, 100, 0)}})
    folders = QueueFolders(tmp_path / "store", StoreConfig.of(None))
    assert folders.listed() == {queue: False}
    assert list((tmp_path / "aside").iterdir()) == []
    assert folders.files(queue).unit(0) == (0, 100)
    folders.close()
