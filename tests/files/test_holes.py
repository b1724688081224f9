"""Files are made at their full size and filled later: what is not stored is passed over, not read."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rmq_store import Gap, MessageStore
from rmq_store.commitlog import headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import records_and_gaps
from rmq_store.errors import DataLossError
from rmq_store.files.durable_files import cut
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Sources, Window
from rmq_store.format.byte_layout import Bytes
from rmq_store.recovery import recover
from tests.support.damage import write_at
from tests.support.golden import log_files, offsets, unpack, wanted

SIZE = 64 << 20


@pytest.fixture(params=["as it is", "untold"])
def holes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Holes as this file system reports them, and a file system that does not report any."""
    known = os.lseek

    def lseek(fd: int, position: int, whence: int, /) -> int:
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return known(fd, position, whence)

    how: str = request.param
    if how == "untold":
        monkeypatch.setattr(os, "lseek", lseek)
    return how


class Looked(np.ndarray):
    """Bytes that note how many of them a search for anything but zeros reads."""

    sizes: ClassVar[list[int]] = []

    def any(self, *args: Any, **how: Any) -> Any:
        self.sizes.append(self.size)
        return super().any(*args, **how)


def first_data(path: str) -> int:
    """Where the file system says that a file's first byte is stored; 0 where it does not tell."""
    with open(path, "rb") as file:
        try:
            return os.lseek(file.fileno(), 0, os.SEEK_DATA)
        except OSError:
            return 0


def sparse(folder: Path, *places: int) -> SegmentFile:
    """A file of zeros with one byte stored at each place."""
    path = folder / f"{0:020d}"
    with path.open("wb") as file:
        file.truncate(SIZE)
        for place in places:
            file.seek(place)
            file.write(b"\1")
    return SegmentFile(str(path), 0, SIZE)


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("place", [0, 4095, 4096, 1 << 20, SIZE - 1])
def test_what_is_passed_over_is_zeros(tmp_path: Path, place: int) -> None:
    chain = SegmentChain([str(tmp_path)], segments=[sparse(tmp_path, place)])
    for start in (0, 1, place, max(0, place - 10_000)):
        found = chain.stored_from(start)
        assert start <= found <= max(start, place)
        with chain.window(start, found) as window:
            assert not window.bytes.any()
    assert chain.stored_from(SIZE - 1) in (SIZE - 1, SIZE)


def test_a_hole_is_skipped_if_the_file_system_reports_it(tmp_path: Path, holes: str) -> None:
    segment, behind = sparse(tmp_path, SIZE // 2), SIZE // 2 + (1 << 20)
    chain = SegmentChain([str(tmp_path)], segments=[segment])
    reported = first_data(segment.path)
    if reported:
        assert holes == "as it is"
        assert SIZE // 2 - (1 << 20) < reported <= SIZE // 2
        assert (chain.stored_from(0), chain.stored_from(behind)) == (reported, SIZE)
    else:
        assert (chain.stored_from(0), chain.stored_from(behind)) == (0, behind)


@pytest.mark.usefixtures("holes")
def test_zeros_are_told_from_a_byte_wherever_it_is(tmp_path: Path) -> None:
    places = [100, 1 << 20, SIZE // 2, SIZE - 1]
    chain = SegmentChain([str(tmp_path)], segments=[sparse(tmp_path, *places)])
    for before, place in zip([-1, *places], places, strict=False):
        assert chain.is_zero(before + 1, place)
        assert not chain.is_zero(before + 1, place + 1)
    assert chain.is_zero(SIZE // 2, SIZE // 2)


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("stored", [(), (100,)])
def test_the_next_file_is_not_asked_for(tmp_path: Path, stored: tuple[int, ...]) -> None:
    first = sparse(tmp_path, *stored)
    second = SegmentFile(str(tmp_path / f"{SIZE:020}"), SIZE, SIZE)  # expired since it was listed
    chain = SegmentChain([str(tmp_path)], segments=[first, second])
    assert chain.is_zero(101, SIZE)
    assert chain.is_zero(SIZE, SIZE)


@pytest.mark.usefixtures("holes")
def test_a_file_that_was_cut_is_not_zero(tmp_path: Path) -> None:
    chain = SegmentChain([str(tmp_path)], segments=[sparse(tmp_path, 0)])
    with chain.window(0, 1 << 17) as window:  # maps the file
        assert window.bytes.any()
    os.truncate(chain.segments[0].path, 4096)
    with pytest.raises(DataLossError):
        chain.is_zero(SIZE // 2, SIZE)


def test_opening_to_append_reads_no_hole(holes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the log has a gigabyte by default, and most of it may be a hole."""
    looked_at: list[int] = []
    Looked.sizes.clear()
    in_piece, window, read = headers._next_in_piece, Sources.window, SegmentChain.read

    def looked(data: Bytes, base: int, start: int, stop: int) -> int | None:
        looked_at.append(base + start)
        return in_piece(data, base, start, stop)

    def windowed(sources: Sources, file: SegmentFile, start: int, stop: int, **how: Any) -> Window:
        if file.size == SIZE and stop - start < SIZE:
            looked_at.append(file.base + start)
        found = window(sources, file, start, stop, **how)
        found.bytes = found.bytes.view(Looked)
        return found

    def read_from(chain: SegmentChain, start: int, stop: int, *, counted: bool = False) -> Bytes:
        if chain.file_size == SIZE:
            looked_at.append(start)
        return read(chain, start, stop, counted=counted)

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # in memory, a look fills holes
        path = Path(folder, "s")
        with MessageStore.create(path, {"mappedFileSizeCommitLog": SIZE}) as writer:
            for number in range(400):
                writer.append({"topic": "orders", "queueId": 0, "body": b"%d" % number * 250})
            end = writer.log_range()[1]
        monkeypatch.setattr(headers, "_next_in_piece", looked)
        monkeypatch.setattr(Sources, "window", windowed)
        monkeypatch.setattr(SegmentChain, "read", read_from)
        with MessageStore.open(path, queues=False) as store:
            assert store.log_range()[1] == end
        MessageStore.append_to(path, recovery="refuse").close()
        reports_holes = first_data(sparse(Path(folder), SIZE // 2).path) > 0
    assert looked_at
    if holes == "as it is" and reports_holes:
        assert max(Looked.sizes) <= 1 << 20
        # And the last bytes of the file, which may be the front of a record.
        assert max(at for at in looked_at if at < SIZE - 4) < end + (1 << 20)


@pytest.mark.usefixtures("holes")
def test_what_is_cut_off_is_zeros_behind_holes_too(tmp_path: Path) -> None:
    places = [100, 5000, 1 << 20, SIZE // 2, SIZE // 2 + 5]
    path = Path(sparse(tmp_path, *places).path)
    assert not cut(path, SIZE // 2 + 6)
    (change,) = cut(path, 5001)
    assert change.bytes == SIZE // 2 + 6 - 5001
    change.make()
    assert path.read_bytes().rstrip(b"\0") == bytes(100) + b"\1" + bytes(4899) + b"\1"
    assert path.stat().st_size == SIZE


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("dense", [False, True], ids=["holes", "zeros"])
def test_a_log_far_larger_than_its_records_ends_alike(tmp_path: Path, dense: bool) -> None:
    """The tail as the file system keeps it, and as a copy has it that wrote every zero."""
    golden = unpack("crc-5.5.0", tmp_path)
    files = log_files(golden)
    last = next(path for path in reversed(files) if path.read_bytes().strip(b"\0"))
    with golden.open() as store:
        end = store.log_range()[1]
        expected = [extent.gap for extent in store.scan()]
    written = last.read_bytes()
    if dense:
        last.write_bytes(written)
    else:
        with last.open("wb") as file:
            file.truncate(len(written))
            file.seek(0)
            file.write(written.rstrip(b"\0"))
    shutil.rmtree(Path(golden.path, "consumequeue"))
    with golden.open() as store:
        assert store.log_range()[1] == end
        assert [extent.gap for extent in store.scan()] == expected
        assert sorted(offsets(store)) == sorted(wanted(golden))
    assert Gap.UNWRITTEN in expected


def leave_out(path: Path, start: int, stop: int) -> None:
    """Write a file again without its bytes [start, stop), which then read as zeros.

    They are a hole where the file system keeps such.
    """
    written = path.read_bytes()
    assert any(written[start:stop])
    with path.open("wb") as file:
        file.truncate(len(written))
        file.write(written[:start])
        file.seek(stop)
        file.write(written[stop:].rstrip(b"\0"))
    assert path.read_bytes() == written[:start] + bytes(stop - start) + written[stop:]


@pytest.mark.usefixtures("holes")
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, 100])
@pytest.mark.parametrize("more", [False, True], ids=["last", "more behind"])
def test_a_record_that_begins_at_the_end_of_a_hole_is_found(
    tmp_path: Path, before: int, more: bool
) -> None:
    """Its size begins with zeros, which may lie in a page that was never written."""
    page = 4096
    size = 240 if before == 3 else 392  # so many bytes of it are zeros
    wanted, stop = 4 * page - before, 4 * page - before + size
    with MessageStore.create(tmp_path / "store", {"mappedFileSizeCommitLog": 1 << 20}) as writer:

        def put(body: int) -> int:
            done = writer.append({"topic": "t", "queueId": 0, "body": b"x" * body})
            return done.commit_log_offset + done.store_size

        overhead = put(100) - 100
        end = 100 + overhead
        for goal in (page, wanted):
            while left := goal - end:
                end = put(left - overhead if left < 2000 else 900)
        assert end == wanted
        assert put(size - overhead) == stop
        if more:
            put(5000)
    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    if before <= 3:
        leave_out(log, page, 4 * page)  # at most the zeros in front of the record's size
    else:
        # No page is left out in part: write the zeros.
        write_at(log, page, bytes(3 * page - before))
    pieces = list(records_and_gaps(CommitLog([log.parent])))
    records = [extent.start for extent in pieces if extent.record is not None]
    assert wanted in records
    assert [(e.start, e.stop) for e in pieces if e.gap is Gap.DAMAGED] == [(page, wanted)]
    (tmp_path / "store" / "abort").touch()
    assert recover(tmp_path / "store").log_end >= stop
