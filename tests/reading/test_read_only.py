"""Reading writes nothing, asks for nothing it needs not, and ends when the store is closed."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import AccessError, ReadOnlyStoreError
from tests.support.golden import Golden, offsets, unpack, unpack_kind, wanted
from tests.support.running.child import become_nobody, in_a_child, python

WATCH = """
import os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.chmod",
           "os.link", "os.symlink", "shutil.rmtree"}
opened = []

def watch(event, args):
    if event == "open":
        path, mode, flags = args
        if str(path).startswith(STORE):
            opened.append(path)
            assert not (flags or 0) & WRITES, (path, mode, flags)
    elif event in CHANGES and str(args[0]).startswith(STORE):
        raise AssertionError((event, args))

STORE = sys.argv[1]
from rmq_store import MessageStore
sys.addaudithook(watch)
with MessageStore.open(STORE) as store:
    list(store.scan())
    rows = sum(batch.num_rows for batch in store.read_batches(include_system_topics=True))
    for queue in store.queues():
        store.get_message(*queue, store.min_offset(*queue))
        store.get_message(*queue, store.min_offset(*queue), as_broker=True)
        store.offset_by_time(*queue, 0)
        store.query_message(queue.topic, "key")
    store.consumer_offsets()
    store.messages_by_id("0" * 32)
print(rows, len(opened))
"""


def test_no_file_is_opened_with_a_write_flag(golden: Golden) -> None:
    store = golden("clean-5.3.3")
    rows, opened = map(int, python(WATCH, store.path).split())
    assert rows == len(wanted(store))
    assert opened > 20


def test_a_folder_that_may_not_be_read_is_our_error() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        golden = unpack("crc-5.5.0", Path(open_to_all))
        folder = Path(golden.path, "commitlog")
        for path in (Path(open_to_all), *Path(open_to_all).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

        def opened() -> None:
            become_nobody()
            golden.open().close()

        def refused() -> None:
            become_nobody()
            with pytest.raises(AccessError) as caught:
                golden.open()
            assert caught.value.path == str(folder)

        assert in_a_child(opened) == 0
        folder.chmod(0)
        assert in_a_child(refused) == 0
        folder.chmod(0o755)


def test_a_store_in_a_read_only_folder_is_read(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    folders = [path for path in Path(golden.path).rglob("*") if path.is_dir()]
    for folder in [*folders, Path(golden.path)]:
        folder.chmod(0o555)
    try:
        with golden.open() as store:
            assert offsets(store) == wanted(golden)
    finally:
        for folder in [Path(golden.path), *folders]:
            folder.chmod(0o755)


def test_a_closed_store_says_so(golden: Golden) -> None:
    store = golden("crc-5.5.0").open()
    store.close()
    store.close()
    for read in (store.scan, lambda: store.message_at(0), lambda: store.get_message("a", 0, 0)):
        with pytest.raises(ReadOnlyStoreError, match="closed"):
            read()
    with pytest.raises(TypeError, match="not picklable"):
        pickle.dumps(store)


PANDAS = """
import sys
from rmq_store import MessageStore
with MessageStore.open(sys.argv[1]) as store:
    rows = sum(batch.num_rows for batch in store.read_batches())
print(rows, "pandas" in sys.modules)
"""


def test_a_read_does_not_load_pandas(tmp_path: Path) -> None:
    # pyarrow loads it for many a conversion, half a second of each Spark worker.
    pytest.importorskip("pandas")
    golden = unpack("crc-5.5.0", tmp_path)
    rows, loaded = python(PANDAS, golden.path).split()
    assert int(rows) > 10
    assert loaded == "False"


def test_another_thread_can_end_the_reads_of_a_store(golden: Golden) -> None:
    """And of those that it was opened again as, whose threads close them."""
    with golden("clean-5.5.0").open() as store, store.reopen() as again, again.reopen() as third:
        batches = [one.read_batches("orders", batch_rows=8) for one in (store, again, third)]
        for one in batches:
            assert one.read_next_batch().num_rows == 8
        again.end_reads()
        assert batches[0].read_next_batch().num_rows == 8
        store.end_reads()
        for one in batches:
            with pytest.raises(ReadOnlyStoreError):
                one.read_all()


def test_a_store_outlives_the_one_that_it_was_opened_from(golden: Golden) -> None:
    with golden("clean-5.5.0").open() as store:
        again = store.reopen()
        assert type(again) is type(store)
    with again:
        assert again.read_batches("orders").read_all().num_rows > 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("end", ["close", "release_files"])
def test_no_file_of_a_store_that_is_closed_stays_mapped(tmp_path: Path, end: str) -> None:
    golden = unpack_kind("compacted-5.5.0", tmp_path)

    def mapped() -> set[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = (Path(line.split(maxsplit=5)[-1]) for line in maps)
        inside = (
            path.relative_to(golden.path) for path in paths if Path(golden.path) in path.parents
        )
        return {path.parts[0] for path in inside}

    with MessageStore.open(golden.path) as store:
        for compacted in (True, False):
            for _ in store.read_slices(
                store.ranges_for(compacted).ranges_of(store.topics()), compacted=compacted
            ):
                pass
        assert mapped() == {"commitlog", "compaction"}
        getattr(store, end)()
        assert not mapped()
