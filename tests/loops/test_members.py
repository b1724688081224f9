"""Members of inner batches, compiled and interpreted, beside a walk in plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmq_store.format.byte_layout import MEMBER_HEAD, PROPERTIES_LENGTH_SIZE
from rmq_store.loops import members
from tests.loops.interpreted import Form, both_forms, source_of

MOST = 4


def member(chance: random.Random) -> bytes:
    body, properties = chance.randbytes(chance.randrange(9)), chance.randbytes(chance.randrange(5))
    size = MEMBER_HEAD.itemsize + len(body) + PROPERTIES_LENGTH_SIZE + len(properties)
    head = np.array([(size, 0, 0, chance.randrange(-9, 9), len(body))], MEMBER_HEAD).tobytes()
    return head + body + len(properties).to_bytes(2, "big") + properties


def any_body(chance: random.Random) -> bytes:
    raw = bytearray(b"".join(member(chance) for _ in range(chance.choice((0, 1, 2, 4, 5)))))
    if raw and chance.random() < 0.5:
        raw[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(raw[: len(raw) - chance.choice((0, 0, 0, 1, 3, 19))])


def walked(raw: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """Flag, body and properties of each member; None if they do not add up."""
    found, at = [], 0
    while at < len(raw):
        head = raw[at : at + MEMBER_HEAD.itemsize]
        if len(head) < MEMBER_HEAD.itemsize:
            return None
        size, _, _, flag, length = np.frombuffer(head, MEMBER_HEAD)[0].tolist()
        body_at = at + MEMBER_HEAD.itemsize
        if length < 0 or body_at + length + PROPERTIES_LENGTH_SIZE > len(raw):
            return None
        properties_at = body_at + length + PROPERTIES_LENGTH_SIZE
        width = int.from_bytes(raw[properties_at - 2 : properties_at], "big", signed=True)
        behind = properties_at + width
        if width < 0 or behind > len(raw) or size != behind - at:
            return None
        found.append((flag, raw[body_at : body_at + length], raw[properties_at:behind]))
        at = behind
    return found if len(found) <= MOST else None


@both_forms
@pytest.mark.parametrize("seed", range(20))
def test_members_are_those_of_the_plain_walk(form: Form, seed: int) -> None:
    chance = random.Random(seed)
    bodies = [any_body(chance) for _ in range(60)]
    expected = [walked(body) for body in bodies]
    data = np.frombuffer(b"".join(bodies), np.uint8)
    ends, counts = np.cumsum([0, *map(len, bodies)]).astype(np.int32), np.empty(60, np.int64)
    form(members).count_members(data.data, ends.data, MOST, counts.data)
    assert counts.tolist() == [-1 if found is None else len(found) for found in expected]
    counts = np.maximum(counts, 0)
    places = np.empty((6, counts.sum()), np.int64)
    flags = np.empty(counts.sum(), np.int32)
    row, number, *rest = (column.data for column in places)
    form(members).split_members(data.data, ends.data, counts.data, row, number, flags.data, *rest)
    whole = [(n, m, *one) for n, its in enumerate(expected) for m, one in enumerate(its or [])]
    raw = data.tobytes()
    assert whole == [
        (row, number, flag, raw[at : at + size], raw[start : start + width])
        for (row, number, at, size, start, width), flag in zip(
            places.T.tolist(), flags.tolist(), strict=True
        )
    ]
    assert -1 in (len(found or "") - 1 for found in expected)


def test_the_numbers_of_the_loop_are_those_of_the_format() -> None:
    loop, fields = source_of(members), MEMBER_HEAD.fields
    assert fields is not None
    assert MEMBER_HEAD.itemsize == loop._HEAD_SIZE
    assert loop._LENGTH_SIZE == PROPERTIES_LENGTH_SIZE
    assert fields["flag"][1] == loop._FLAG_AT
    assert fields["body_length"][1] == loop._BODY_LENGTH_AT
