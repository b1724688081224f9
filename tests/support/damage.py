"""Stores damaged on purpose: bits flipped, ranges zeroed, cut, swapped or made up, files renamed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rmq_store.format.queues import QUEUE_ENTRY
from tests.support.golden import GoldenStore, Truth, log_files, unpack

# What may be hit, and how often compared with the others.
PARTS = {
    "commitlog": 6,
    "consumequeue": 5,
    "batchconsumequeue": 5,
    "consumequeue_ext": 2,
    "index": 4,
    "checkpoint": 1,
    "config": 2,
}
_NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))

_BODY = 88  # bytes of a record before its body, of hosts with IPv4

_WIDTHS = (1, 4, 8, 20, 200, 5000)


def _flip(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    for _ in range(random_.choice((1, 1, 5, 50))):
        if at < len(raw):
            raw[at] ^= 1 << random_.randrange(8)
        at = random_.randrange(used)


def _zero(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    width = random_.choice(_WIDTHS)
    raw[at : at + width] = bytes(len(raw[at : at + width]))


def _cut(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    del raw[random_.choice((at, random_.randrange(len(raw) + 1))) :]


def _swap(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    first, second = sorted((at, random_.randrange(used)))
    size = min(random_.choice(_WIDTHS), second - first, len(raw) - second)
    one, other = raw[first : first + size], raw[second : second + size]
    raw[first : first + size], raw[second : second + size] = other, one


def _number(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    size = random_.choice((2, 4, 8))
    place = at - at % random_.choice((1, 4, 20, 46))
    place += random_.choice((0, 0, 8, 28, 36))
    if place + size <= len(raw):
        raw[place : place + size] = (random_.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(
            size, "big"
        )


def _noise(random_: random.Random, raw: bytearray, at: int, used: int) -> None:
    width = random_.choice(_WIDTHS)
    raw[at : at + width] = random_.randbytes(len(raw[at : at + width]))


def write_at(path: Path, at: int, raw: bytes) -> None:
    """Write bytes over those of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Flip bits of a byte of a file."""
    write_at(path, at, bytes([path.read_bytes()[at] ^ mask]))


def exchange(one: Path, other: Path) -> None:
    """Give two files the bytes of each other."""
    mine, its = one.read_bytes(), other.read_bytes()
    one.write_bytes(its)
    other.write_bytes(mine)


def log_file_at(store: GoldenStore, log_offset: int) -> Path:
    """The file of the log in which a log offset lies."""
    return max(path for path in log_files(store) if int(path.name) <= log_offset)


def write_in_log(store: GoldenStore, log_offset: int, raw: bytes) -> None:
    """Write bytes over those of the log, into the file where they begin."""
    path = log_file_at(store, log_offset)
    write_at(path, log_offset - int(path.name), raw)


def flip_in_log(store: GoldenStore, log_offset: int, mask: int = 1) -> None:
    """Flip bits of a byte of the log."""
    path = log_file_at(store, log_offset)
    flip(path, log_offset - int(path.name), mask)


def flip_body(store: GoldenStore, topic: str) -> Truth:
    """A message of a topic with KEYS, from the middle of the log; one bit of its body is flipped."""
    some = [r for r in store.truth if r["topic"] == topic and r["keys"]]
    record = some[len(some) // 2]
    flip_in_log(store, record["commitLogOffset"] + _BODY + 3)
    return record


_TO_BYTES = {
    "flip": _flip,
    "zero": _zero,
    "cut": _cut,
    "swap": _swap,
    "number": _number,
    "noise": _noise,
}


@dataclass
class DamagedStore:
    """A copy of a store that is damaged, looked at and mended again, many times over."""

    path: Path
    whole: dict[Path, bytes] = field(default_factory=dict)
    hit: list[str] = field(default_factory=list)  # what was done, for the message of a failure

    @classmethod
    def of(cls, store: str, target: Path) -> DamagedStore:
        """A copy of `store` in the folder `target`."""
        shutil.copytree(store, target, ignore=shutil.ignore_patterns("rocksdbstore", "compaction"))
        found = sorted(path for path in target.rglob("*") if path.is_file())
        return cls(target, {path: path.read_bytes() for path in found})

    def mend(self) -> None:
        """Make all files what they were."""
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and path not in self.whole:
                path.unlink()
        for path, raw in self.whole.items():
            if not path.is_file() or path.read_bytes() != raw:
                path.write_bytes(raw)
        self.hit = []

    def damage(self, seed: int) -> set[str]:
        """Damage one to three places as `seed` has it; which parts of the store were hit."""
        random_ = random.Random(seed)
        there = {path: path.relative_to(self.path).parts[0] for path in self.whole}
        parts = [part for part in PARTS if part in there.values()]
        struck = set()
        for _ in range(random_.choice((1, 1, 2, 3))):
            (part,) = random_.choices(parts, [PARTS[part] for part in parts])
            path = random_.choice([path for path, mine in there.items() if mine == part])
            self._strike(random_, path)
            struck.add(part)
        return struck

    def _strike(self, random_: random.Random, path: Path) -> None:
        if not path.exists():
            return
        kind = random_.choice((*_TO_BYTES, *_TO_BYTES, "rename", "delete", "empty"))
        if kind in _TO_BYTES:
            raw = bytearray(path.read_bytes())
            used = max(1, len(bytes(raw).rstrip(b"\0")))
            _TO_BYTES[kind](random_, raw, random_.randrange(used), used)
            path.write_bytes(raw)
        elif kind == "rename":
            self._rename(random_, path)
        elif kind == "delete":
            path.unlink()
        else:
            path.write_bytes(b"")
        self.hit.append(f"{kind} {path.relative_to(self.path)}")

    def _rename(self, random_: random.Random, path: Path) -> None:
        if not path.name.isdigit():
            path.rename(path.with_name(path.name + ".other"))
            return
        number = random_.choice(
            (
                int(path.name) + path.stat().st_size * random_.choice((1, 3, 10**6)),
                int(path.name) + 7,
                10 ** len(path.name) - 1,
                2**63 - 20,
            )
        )
        target = path.with_name(f"{number:0{len(path.name)}d}")
        if not target.exists():
            path.rename(target)


def damage_entry(folder: Path, number: int) -> None:
    """Let an entry in the first file of the queue in `folder` lead into the log's first record."""
    file = min(folder.iterdir())
    raw = bytearray(file.read_bytes())
    np.frombuffer(raw, QUEUE_ENTRY)["log_offset"][number] = 5
    file.write_bytes(raw)


def log_bytes(store: Path, folders: tuple[str, ...] = ("commitlog",)) -> dict[int, bytes]:
    """The files of a log by the offset of their first byte."""
    return {
        int(path.name): path.read_bytes()
        for folder in folders
        for path in (store / folder).iterdir()
        if path.name.isdigit()
    }


def same_bytes(one: dict[int, bytes], other: dict[int, bytes], at: int, size: int) -> bool:
    """Whether two logs hold the same `size` bytes at log offset `at`, each in one file."""

    def piece(log: dict[int, bytes]) -> bytes | None:
        for base, raw in log.items():
            if base <= at and at + size <= base + len(raw):
                return raw[at - base : at - base + size]
        return None

    found = piece(one)
    return found is not None and found == piece(other)


def break_start(store: GoldenStore, width: int) -> int:
    """Damage the first bytes of the last file that has a record; gives the log offset."""
    last = max(r["commitLogOffset"] for r in store.truth)
    file = log_file_at(store, last)
    raw = bytearray(file.read_bytes())
    raw[4 : 4 + width] = bytes(byte ^ 0x5A for byte in raw[4 : 4 + width])
    file.write_bytes(raw)
    return int(file.name)


# What nothing may print as it is.
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def hostile_store(folder: Path, topics: Iterable[str], offsets: Iterable[str]) -> str:
    """A real store with more topics, one of bytes that are no UTF-8, and offsets of `topic@group`."""
    store = unpack("clean-5.2.0", folder)
    queues = Path(store.path, "consumequeue")
    for name in (*topics, os.fsdecode(b"raw\xff")):
        shutil.copytree(queues / "payments", queues / name)
    table = {"offsetTable": {key: {"0": 1} for key in offsets}}
    Path(store.path, "config", "consumerOffset.json").write_text(json.dumps(table))
    return store.path
