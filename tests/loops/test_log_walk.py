"""A walk of a log, compiled and interpreted."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest

from rmq_store.loops import bits, record_fields
from tests.loops.interpreted import interpreted

SOURCE = interpreted("record_fields")

SEEDS = 20  # of one test


def log(chosen: random.Random, base: int) -> bytearray:
    """Records of random sizes; a field of some of their fronts is wrong."""
    raw = bytearray()
    for _ in range(chosen.randrange(12)):
        size = chosen.randrange(bits.MIN_RECORD_SIZE, 160)
        record = bytearray(chosen.randbytes(size))
        magic = chosen.choice([bits.MAGIC_V1, bits.MAGIC_V2])
        struct.pack_into(">ii", record, 0, size, magic)
        struct.pack_into(">q", record, 28, base + len(raw))
        if chosen.random() < 0.1:
            record[chosen.choice([0, 1, 2, 3, 4, 7, 28, 35])] ^= 1 << chosen.randrange(8)
        raw += record
    return raw[: len(raw) - chosen.choice([0, 0, 1, 40, 130])]


def entries(chosen: random.Random, base: int) -> bytearray:
    """Records in entries; a field of some heads or fronts is wrong, and the term ascends."""
    raw, index, term = bytearray(), chosen.randrange(5), 0
    for _ in range(chosen.randrange(12)):
        size = chosen.randrange(bits.MIN_RECORD_SIZE, 160)
        at = base + len(raw)
        entry = bytearray(struct.pack(">iiqqqiiii", 1, 48 + size, index, term, at, 0, 0, 0, size))
        entry += chosen.randbytes(size)
        struct.pack_into(">ii", entry, 48, size, chosen.choice([bits.MAGIC_V1, bits.MAGIC_V2]))
        struct.pack_into(">q", entry, 76, at + 48)
        if chosen.random() < 0.1:
            entry[chosen.randrange(84)] ^= 1 << chosen.randrange(8)
        raw += entry
        index, term = index + 1, term + (chosen.random() < 0.05)
    return raw[: len(raw) - chosen.choice([0, 0, 1, 40, 130])]


@pytest.mark.parametrize("first", range(0, 300, SEEDS))
@pytest.mark.parametrize(("loop", "made"), [("follow", log), ("follow_entries", entries)])
def test_compiled_equals_interpreted(
    loop: str, made: Callable[[random.Random, int], bytearray], first: int
) -> None:
    for seed in range(first, first + SEEDS):
        both_ways(loop, made, seed)


def both_ways(loop: str, made: Callable[[random.Random, int], bytearray], seed: int) -> None:
    chosen = random.Random(seed)
    base = chosen.choice([0, 1000, 1 << 40])
    raw = memoryview(bytes(made(chosen, base)))
    start = chosen.choice([0, 0, 0, chosen.randrange(-2, 200)])
    stop = chosen.choice([len(raw), len(raw) + 9, chosen.randrange(len(raw) + 1)])
    answers: list[tuple[object, list[int]]] = []
    for module in (record_fields, SOURCE):
        found = np.full(chosen.choice([20, 20, 3]) if not answers else len(answers[0][1]), -1)
        try:
            answer = getattr(module, loop)(raw, base, start, stop, found.data)
        except IndexError as error:
            answer = type(error)
        answers.append((answer, found.tolist()))
    assert answers[0] == answers[1], f"seed {seed}"


def test_entries_are_followed_up_to_the_first_that_does_not_fit() -> None:
    """Each field that is compared, in the fourth of ten entries; others are of no interest to it."""
    chosen = random.Random(1)
    raw, places = bytearray(), []
    for index in range(10):
        body = bytearray(chosen.randbytes(100))
        struct.pack_into(">iI", body, 0, 100, bits.MAGIC_V1 & 0xFFFFFFFF)
        struct.pack_into(">q", body, 28, len(raw) + 48)
        places.append(len(raw) + 48)
        raw += struct.pack(">iiqqqiiii", 1, 148, index, 2, len(raw), 7, 7, 7, 100) + body
    compared = {*range(0, 32), *range(44, 56), *range(76, 84)}  # of an entry: its head and a front
    for at in range(148):
        changed = bytearray(raw)
        changed[3 * 148 + at] ^= 1
        found = np.full(20, -1)
        count, stop = record_fields.follow_entries(
            memoryview(bytes(changed)), 0, 0, len(raw), found.data
        )
        wanted = 3 if at in compared else 10
        assert (count, stop) == (wanted, wanted * 148), at
        assert found[:count].tolist() == places[:wanted]
