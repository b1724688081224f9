"""The first small look into a file, which does not map it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store.errors import AccessError, DataLossError
from rmq_store.files import mapping
from rmq_store.files.mapping import Mapping
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile

SIZE = 4096
CONTENT = bytes(n % 251 for n in range(SIZE))


@pytest.fixture
def chain(tmp_path: Path) -> SegmentChain:
    (tmp_path / "0".zfill(20)).write_bytes(CONTENT)
    return SegmentChain([tmp_path])


def mapped_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are mapped from now on."""
    found: list[str] = []

    class Counted(Mapping):
        def __init__(self, segment: SegmentFile) -> None:
            found.append(segment.path)
            super().__init__(segment)

    monkeypatch.setattr(mapping, "Mapping", Counted)
    return found


def test_the_second_look_maps_the_file(
    chain: SegmentChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = mapped_files(monkeypatch)
    assert chain.window(10, 30).tobytes() == CONTENT[10:30]
    assert not mapped
    assert chain.window(10, 30).tobytes() == CONTENT[10:30]
    assert len(mapped) == 1


def test_a_file_that_was_cut_is_data_loss(chain: SegmentChain, tmp_path: Path) -> None:
    os.truncate(tmp_path / "0".zfill(20), 20)
    with pytest.raises(DataLossError, match="became shorter"):
        chain.window(10, 30)


def test_a_fifo_in_its_place_makes_nobody_wait(chain: SegmentChain, tmp_path: Path) -> None:
    path = tmp_path / "0".zfill(20)
    path.unlink()
    os.mkfifo(path)
    for _ in range(2):
        with pytest.raises((AccessError, DataLossError)):
            chain.window(10, 30)
