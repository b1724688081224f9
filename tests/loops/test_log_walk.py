"""A walk of a log, compiled and interpreted."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from rmq_store.loops import bits, record_fields
from tests.loops.interpreted import interpreted

SOURCE = interpreted("record_fields")


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


@pytest.mark.parametrize("seed", range(300))
def test_compiled_equals_interpreted(seed: int) -> None:
    chosen = random.Random(seed)
    base = chosen.choice([0, 1000, 1 << 40])
    raw = memoryview(bytes(log(chosen, base)))
    start = chosen.choice([0, 0, 0, chosen.randrange(-2, 200)])
    stop = chosen.choice([len(raw), len(raw) + 9, chosen.randrange(len(raw) + 1)])
    answers: list[tuple[object, list[int]]] = []
    for module in (record_fields, SOURCE):
        found = np.full(chosen.choice([20, 20, 3]) if not answers else len(answers[0][1]), -1)
        try:
            answer = module.follow(raw, base, start, stop, found.data)
        except IndexError as error:
            answer = type(error)
        answers.append((answer, found.tolist()))
    assert answers[0] == answers[1]
