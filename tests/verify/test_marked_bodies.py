"""Bodies with the mark of a compression that no client opens, written over those of a real broker."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damage import log_file_at
from tests.support.golden import GoldenStore, Truth, in_a_queue, unpack
from tests.support.running.commands import objects, run

COMPRESSED, KIND = 1, 0x700
LENGTH_AT, BODY_AT, CRC_AT, SYS_FLAG_AT = 84, 88, 8, 36  # in a record with IPv4 hosts
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


@pytest.mark.parametrize("kind", [0x100, 0x200, 0x300, 0x400])
def test_an_empty_body_with_the_mark_is_read_as_empty(kind: int, tmp_path: Path) -> None:
    """Clients open no empty body, whatever its mark says."""
    store = unpack("direct-5.5.0", tmp_path)
    empty = (r for r in store.truth if in_a_queue(r) and r["topic"] == "orders" and not r["body"])
    record = next(empty)
    file, place = log_file_at(store, record["commitLogOffset"]), record["commitLogOffset"]
    raw = bytearray(file.read_bytes())
    at = place - int(file.name) + SYS_FLAG_AT
    struct.pack_into(">i", raw, at, record["sysFlag"] | COMPRESSED | kind)
    file.write_bytes(raw)
    for words in ((), ("--bodies",)):
        assert "no problems found" in run("verify", store.path, "--broker-conf", store.conf, *words)
    (found,) = (
        row
        for row in objects("cat", store.path, "--topic", "orders")
        if row["commitLogOffset"] == place
    )
    assert found["body"] == ""
