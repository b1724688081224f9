"""One file of an odd size does not decide what the others are: it is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import UnrecoverableStoreError
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import complaint


def files_of(golden: GoldenStore, *folders: str) -> list[Path]:
    return sorted(Path(golden.path, *folders).iterdir())


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("size", [2**31 - 1, 262_145])
def test_a_log_file_that_is_too_large_is_named(copy: GoldenStore, which: int, size: int) -> None:
    odd = files_of(copy, "commitlog")[which]
    os.truncate(odd, size)
    said = complaint("info", copy.path, expect=2)
    assert "RMQSTORE_UNRECOVERABLE" in said
    assert str(odd) in said
    assert "at most 262144 bytes" in said


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_queue_file_that_is_too_large_is_named(copy: GoldenStore, which: int) -> None:
    odd = files_of(copy, "consumequeue", "orders", "0")[which]
    os.truncate(odd, 1 << 30)
    with pytest.raises(UnrecoverableStoreError, match="files beside it") as refused:
        MessageStore.open(copy.path)
    assert refused.value.path == str(odd)


def test_one_queue_does_not_decide_the_size_of_all(copy: GoldenStore) -> None:
    with MessageStore.open(copy.path) as store:
        expected = store.geometry()
        assert expected.mappedFileSizeConsumeQueue
    odd = Path(copy.path, "consumequeue", "AAA", "0")
    odd.mkdir(parents=True)
    (odd / "0".zfill(20)).write_bytes(bytes(2 * expected.mappedFileSizeConsumeQueue))
    with MessageStore.open(copy.path) as store:
        assert store.geometry() == expected


@pytest.mark.parametrize("left", [1, 100_000, 262_143])
def test_a_cut_last_file_does_not_change_the_size(tmp_path: Path, left: int) -> None:
    golden = unpack("crash-5.5.0", tmp_path)
    with MessageStore.open(golden.path) as store:
        size = store.log.chain.file_size
    os.truncate(files_of(golden, "commitlog")[-1], left)
    with MessageStore.open(golden.path, queues=False) as store:
        assert store.log.chain.file_size == size


def test_an_index_file_without_items_does_not_say_how_many_it_can_have(copy: GoldenStore) -> None:
    with MessageStore.open(copy.path) as store:
        expected = store.geometry()
    newest = files_of(copy, "index")[-1]
    newest.write_bytes(bytes(newest.stat().st_size))
    with MessageStore.open(copy.path) as store:
        assert store.geometry() == expected
