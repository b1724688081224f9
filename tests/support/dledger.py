"""Entries of a DLedger log, read and made with struct alone."""

from __future__ import annotations

import struct
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
    moved = record_at(body, place + HEAD.size) if body else b""
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
