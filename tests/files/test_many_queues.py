"""A store with many queues: each costs a few short reads to open, and one flush to write."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.files.source import stored_until
from tests.support.golden import STORES, unpack
from tests.support.running.campaigns import few

_TOPICS, _QUEUES, _ROUNDS = 10, 4, 3


def written(root: Path) -> None:
    """Three messages in each of forty queues, in files of full size that are mostly holes."""
    count = _TOPICS * _QUEUES
    with MessageStore.create(root) as writer:
        for number in range(_ROUNDS):
            columns = {
                "topic": [f"t{row // _QUEUES}" for row in range(count)],
                "queueId": pa.array([row % _QUEUES for row in range(count)], pa.int32()),
                "body": [f"{number} {row}".encode() for row in range(count)],
            }
            writer.append_batch(pa.RecordBatch.from_pydict(columns))


def reports_holes(folder: Path) -> bool:
    """Whether the file system says where a file has no bytes."""
    path = folder / "hole"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        found = stored_until(file.fileno(), 1 << 20)
    path.unlink()
    return found == 0


def test_a_queue_of_a_few_entries_is_opened_without_touching_its_holes(tmp_path: Path) -> None:
    """Bisection touched eighteen pages of holes in each queue: 12,000 queues took minutes."""
    if not reports_holes(tmp_path):
        pytest.skip("this file system does not report holes")
    written(tmp_path / "store")
    with MessageStore.open(tmp_path / "store") as store:
        assert len(store.queues()) == _TOPICS * _QUEUES
        assert {store.max_offset(*queue) for queue in store.queues()} == {_ROUNDS}
        assert store.queues("t3") == [QueueId("t3", number) for number in range(_QUEUES)]
        assert store.queues("t") == []
        assert not store.reads().queues.files


@pytest.mark.parametrize(
    "name", few("ends", STORES, "clean-5.5.0", "crash-4.9.7", "geometry-5.5.0")
)
@pytest.mark.parametrize("zeros", [None, (0, 60), (100, 60), (-60, 60)])
def test_the_ends_of_a_queue_are_where_a_search_ends(
    tmp_path: Path, name: str, zeros: tuple[int, int] | None
) -> None:
    """Also in a copy with holes, and where a crash left zeros."""
    store = unpack(name, tmp_path)
    folders = QueueFolders(Path(store.path), StoreConfig.of(None))
    looked = 0
    for queue, batch in folders.listed().items():
        files = folders.files(queue, batch=batch)
        if batch or not files.chain.segments:
            continue
        path = Path(files.chain.segments[-1].path)
        raw = bytearray(path.read_bytes())
        used = len(raw.rstrip(b"\0"))
        if zeros is not None:
            at = max(0, zeros[0] if zeros[0] >= 0 else used - 60)
            raw[at : at + zeros[1]] = bytes(len(raw[at : at + zeros[1]]))
        with path.open("wb") as sparse:  # in blocks, so that blocks of zeros become holes
            for start in range(0, len(raw), 4096):
                if any(block := raw[start : start + 4096]):
                    os.pwrite(sparse.fileno(), block, start)
            sparse.truncate(len(raw))
        seen = files.ends()
        if seen is not None:
            looked += 1
            assert seen.stop == files.find_end_unit(), queue
    assert looked or zeros is not None or name.startswith("tsp")
    folders.close()


def test_each_folder_of_new_queues_is_flushed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every queue flushed the folder of its topic too; none flushed the one above."""
    flushed: Counter[str] = Counter()
    flush = os.fsync

    def counted(descriptor: int) -> None:
        flushed[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
        flush(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", counted)
    written(tmp_path / "store")
    root = tmp_path / "store" / "consumequeue"
    folders = [root / f"t{topic}" for topic in range(_TOPICS)]
    folders += [topic / str(queue) for topic in folders for queue in range(_QUEUES)]
    assert {flushed[str(folder)] for folder in folders} == {1}
    assert flushed[str(root)] == 1
