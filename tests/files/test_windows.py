"""Short reads of a file, which do not map it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store.errors import AccessError, CorruptRecordError, DataLossError
from rmq_store.files import source
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import Bytes

SIZE = 4096
CONTENT = bytes(n % 251 for n in range(SIZE))


@pytest.fixture
def chain(tmp_path: Path) -> SegmentChain:
    (tmp_path / "0".zfill(20)).write_bytes(CONTENT)
    return SegmentChain([tmp_path])


def test_a_window_maps_the_file_and_a_read_does_not(
    chain: SegmentChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[str] = []
    map_file = source.LocalFile._map

    def counted(file: source.LocalFile) -> Bytes:
        mapped.append("mapped")
        return map_file(file)

    monkeypatch.setattr(source.LocalFile, "_map", counted)
    for _ in range(2):
        assert chain.read(10, 30).tobytes() == CONTENT[10:30]
    assert not mapped
    for _ in range(2):
        with chain.window(10, 30) as window:
            assert window.bytes.tobytes() == CONTENT[10:30]
    assert len(mapped) == 1


def test_a_file_cut_within_a_page_is_data_loss_where_its_window_is_left(
    chain: SegmentChain, tmp_path: Path
) -> None:
    """No fault shows it: the rest of the last page reads as zeros."""

    def use() -> None:
        with chain.window(10, 30) as window:
            os.truncate(tmp_path / "0".zfill(20), 20)
            assert window.bytes.tobytes() == CONTENT[10:20] + bytes(10)

    with pytest.raises(DataLossError, match="became shorter"):
        use()


def test_the_loss_takes_the_place_of_an_error_that_zeros_caused(
    chain: SegmentChain, tmp_path: Path
) -> None:
    def use() -> None:
        with chain.window(10, 30):
            os.truncate(tmp_path / "0".zfill(20), 20)
            raise CorruptRecordError(None, reason="zeros")

    with pytest.raises(DataLossError):
        use()


def test_each_item_of_a_window_is_checked(chain: SegmentChain, tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        yield 1
        os.truncate(tmp_path / "0".zfill(20), 20)
        yield 2

    given: list[int] = []

    def use() -> None:
        with chain.window(10, 30) as window:
            given.extend(window.checked(items()))

    with pytest.raises(DataLossError):
        use()
    assert given == [1]


def test_a_file_that_was_cut_is_data_loss(chain: SegmentChain, tmp_path: Path) -> None:
    os.truncate(tmp_path / "0".zfill(20), 20)
    with pytest.raises(DataLossError, match="became shorter"):
        chain.read(10, 30)


def test_a_file_that_is_cut_while_it_is_mapped_is_data_loss(
    chain: SegmentChain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_file = mmap.mmap

    def cut_and_map(fd: int, size: int, **how: int) -> mmap.mmap:
        os.truncate(tmp_path / "0".zfill(20), 20)
        return map_file(fd, size, **how)

    monkeypatch.setattr(mmap, "mmap", cut_and_map)
    with pytest.raises(DataLossError, match="became shorter"):
        chain.window(10, 30)


def test_a_fifo_in_its_place_makes_nobody_wait(chain: SegmentChain, tmp_path: Path) -> None:
    path = tmp_path / "0".zfill(20)
    path.unlink()
    os.mkfifo(path)
    for _ in range(2):
        with pytest.raises((AccessError, DataLossError)):
            chain.read(10, 30)
