"""Bodies with the mark of a compression that no client opens, written over those of a real broker."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from tests.support.damage import log_file_at
from tests.support.golden import GoldenStore, Truth
from tests.support.running.commands import objects, run

COMPRESSED, KIND = 1, 0x700
LENGTH_AT, BODY_AT, CRC_AT = 84, 88, 8  # in a record with IPv4 hosts
CODE = "body-not-compressed"


def write_over(store: GoldenStore, record: Truth, change: Callable[[bytes], bytes]) -> None:
    """Change the stored body of a record, and its CRC with it."""
    place = record["commitLogOffset"]
    file = log_file_at(store, place)
    raw, at = bytearray(file.read_bytes()), place - int(file.name)
    (length,) = struct.unpack_from(">i", raw, at + LENGTH_AT)
    body = change(bytes(raw[at + BODY_AT : at + BODY_AT + length]))
    assert len(body) == length
    raw[at + BODY_AT : at + BODY_AT + length] = body
    struct.pack_into(">i", raw, at + CRC_AT, zlib.crc32(body) & 0x7FFFFFFF)
    file.write_bytes(raw)


def marked(store: GoldenStore, kind: int) -> list[Truth]:
    return [r for r in store.truth if r["sysFlag"] & COMPRESSED and r["sysFlag"] & KIND == kind]


def found(store: GoldenStore, *words: str) -> list[tuple[str, int]]:
    """Code and count of each finding; of a report with findings, verify ends with 1."""
    rows = objects("verify", store.path, *words, expect=1)
    return [(row["code"], row["count"]) for row in rows if "code" in row]


@pytest.mark.parametrize("kind", [0x100, 0x200, 0x300])
def test_marked_bodies_that_are_raw_are_counted(kind: int, copy: GoldenStore) -> None:
    for record in marked(copy, kind)[:2]:
        write_over(copy, record, lambda stored: (b'{"order": 1}' * 999)[: len(stored)])
    assert sum(count for _, count in found(copy)) == 2
    assert {code for code, _ in found(copy)} == {CODE}


def test_with_bodies_those_that_end_early_are_counted_too(copy: GoldenStore) -> None:
    record = marked(copy, 0x300)[0]
    write_over(copy, record, lambda stored: stored[:-40] + bytes(40))
    assert "no problems found" in run("verify", copy.path)
    assert found(copy, "--bodies") == [(CODE, 1)]
    assert found(copy, "--bodies", "--workers", "2") == [(CODE, 1)]
