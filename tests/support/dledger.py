"""Entries of a DLedger log, read and made with struct alone."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct(">iiqqqiiii")
UNIT = struct.Struct(">iqiqq")


class Entry(NamedTuple):
    """One entry: its place in the log, its head's numbers, and its body."""

    place: int
    magic: int
    size: int
    number: int  # its index
    term: int
    body: bytes


def entries_of(data: Path) -> Iterator[Entry]:
    """The entries in the files of a folder, up to the first bytes that are none."""
    for path in sorted(data.iterdir()):
        raw, base, at = path.read_bytes(), int(path.name), 0
        while at + HEAD.size <= len(raw):
            magic, size, index, term, pos, *_, length = HEAD.unpack_from(raw, at)
            if magic == -1:
                break
            if magic == 0:
                return
            assert (pos, size) == (base + at, HEAD.size + length)
            body = raw[at + HEAD.size : at + size]
            yield Entry(pos, magic, size, index, term, body)
            at += size


def record_at(body: bytes, place: int) -> bytes:
    """A record with another physicalOffset."""
    return body[:28] + struct.pack(">q", place) + body[36:]


def entry(index: int, term: int, place: int, body: bytes, magic: int = 1) -> bytes:
    """The bytes of an entry; its record says that it is behind the entry's head."""
    moved = with_crc(record_at(body, place + HEAD.size)) if body else b""
    head = HEAD.pack(magic, HEAD.size + len(body), index, term, place, 0, 0, 0, len(body))
    return head + moved


class Log:
    """Writes entries into files of one size, as a member does (DLedgerMmapFileStore)."""

    def __init__(self, folder: Path, file_size: int, start: int = 0) -> None:
        self.folder, self.file_size, self.at = folder, file_size, start
        self.units: list[tuple[int, int, int, int, int]] = []
        (folder / "data").mkdir(parents=True)
        (folder / "index").mkdir()

    def add(self, index: int, term: int, body: bytes, magic: int = 1) -> int:
        """Append an entry. Returns its place."""
        size, room = HEAD.size + len(body), self.file_size - self.at % self.file_size
        if size + 8 > room:
            self._write(struct.pack(">ii", -1, room))
            self.at += room
        place = self.at
        self._write(entry(index, term, place, body, magic))
        self.units.append((magic, place, size, index, term))
        self.at += size
        return place

    def cut(self, place: int) -> None:
        """Write on from a place; the bytes behind it stay."""
        self.at = place
        self.units = [unit for unit in self.units if unit[1] < place]

    def close(self) -> None:
        """Write the index."""
        with (self.folder / "index" / f"{0:020d}").open("wb") as file:
            for unit in self.units:
                file.seek(unit[3] * UNIT.size)
                file.write(UNIT.pack(*unit))
            file.truncate(UNIT.size * 10_000)

    def _write(self, raw: bytes) -> None:
        base = self.at // self.file_size * self.file_size
        path = self.folder / "data" / f"{base:020d}"
        if not path.exists():
            path.touch()
            with path.open("r+b") as file:
                file.truncate(self.file_size)
        with path.open("r+b") as file:
            file.seek(self.at - base)
            file.write(raw)


def with_crc(record: bytes) -> bytes:
    """A record with the right CRC at its end, if it has one there (MessageDecoder#createCrc32)."""
    if record[-20:-11] != b"__CRC32#\x01":
        return record
    value = zlib.crc32(record[:-20]) & 0x7FFFFFFF
    return record[:-11] + f"{value:010d}"[::-1].encode() + b"\x02"


def put_records_into_entries(root: Path, file_size: int) -> None:
    """Make the log of a store, of files in `commitlog/`, that of a broker in DLedger mode.

    Its queues and index, which lead elsewhere then, go. Committed transactions name the same halves.
    """
    log, number = Log(root / "dledger-n0", file_size), 0
    moved: dict[int, int] = {}
    for path in sorted((root / "commitlog").iterdir()):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw):
            size, magic = struct.unpack_from(">iI", raw, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            body = raw[at : at + size]
            (flags,) = struct.unpack_from(">i", body, 36)
            halves = 76 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)
            (half,) = struct.unpack_from(">q", body, halves)
            if half:
                now = struct.pack(">q", moved.get(half, half))
                body = body[:halves] + now + body[halves + 8 :]
            moved[int(path.name) + at] = log.add(number, 1, body) + HEAD.size
            number, at = number + 1, at + size
    log.close()
    for part in ("commitlog", "consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(root / part, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
