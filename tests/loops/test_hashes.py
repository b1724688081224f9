"""Java's hashes of texts, compiled and interpreted, beside the rules in plain Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rmq_store.format.byte_layout import Property
from rmq_store.format.hashes import index_key, index_key_hash, java_string_hash, tags_code
from rmq_store.format.record import decode_properties, decode_utf8
from rmq_store.loops import hashes, property_items
from tests.loops.interpreted import Form, both_forms

PIECES = (
    *(b"a", b"Tag", b" ", b"\x01", b"\x02", b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"\x00"),
    *("é".encode(), "語".encode(), "😀".encode(), b"INNER_MULTI_QUEUE_OFFSET\x01", b"\xed\xa0"),
    *(b"TAGS\x01TagA\x02", b"KEYS\x01one two  three\x02", b"UNIQ_KEY\x017F00000112AB\x02"),
    *(b"\xff", b"\xc3", b"\xe8\xaa", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90", b"\xe0\x80"),
)


def any_texts(seed: int, count: int = 400) -> list[bytes]:
    chance = random.Random(seed)
    texts = [bytes(chance.choices(range(256), k=chance.randrange(9))) for _ in range(count)]
    return texts + [b"".join(chance.choices(PIECES, k=chance.randrange(14))) for _ in range(count)]


def joined(texts: list[bytes]) -> tuple[Any, Any]:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), ends


@both_forms
def test_hashes_are_those_of_the_text_that_java_reads(form: Form) -> None:
    texts = any_texts(1)
    data, ends = joined(texts)
    found = np.empty(len(texts), np.int32)
    form(hashes).hash_texts(data.data, ends.data, found.data)
    assert found.tolist() == [java_string_hash(decode_utf8(text)) for text in texts]


@both_forms
def test_items_are_those_of_the_decoded_properties(form: Form) -> None:
    texts, topics = any_texts(2), ["t", "longer-topic-語"]
    data, ends = joined(texts)
    count = len(texts)
    code = np.array(random.Random(3).choices((0, 1), k=count), dtype=np.int64)
    rolled_back = np.array(random.Random(4).choices((0, -1), (9, 1), k=count), dtype=np.int64)
    longest = int(np.diff(ends).max())
    table = np.empty((count, property_items.PLACES), np.int64)
    form(property_items).look(
        *(data.data, ends[:-1].copy().data, np.diff(ends).data, table.reshape(-1).data),
        *(np.empty(longest + 1, np.int64).data, np.empty(4 * longest, np.int64).data),
    )
    values, other = table.reshape(-1), table[:, 7] > 0
    codes = np.empty(count, np.int64)
    form(hashes).tags_codes(data.data, values.data, codes.data)
    fronts, tag_fronts = (
        np.array([java_string_hash(topic + end) for topic in topics], np.int32)
        for end in ("#", "#T#")
    )
    counts, items = rolled_back.copy(), np.empty(0, np.int32)
    row = some = 0
    while True:  # with less room than is needed, at first
        row, some = form(hashes).index_items(
            *(data.data, values.data, code.data, fronts.data, tag_fronts.data, True, True),
            *(row, some, counts.data, items.data),
        )
        if row == count:
            break
        items = np.concatenate([items, np.empty(50, np.int32)])
    expected = []
    for number, text in enumerate(texts):
        properties = decode_properties(text)
        assert bool(other[number]) == (Property.INNER_MULTI_QUEUE_OFFSET in properties)
        assert codes[number] == tags_code(properties.get(Property.TAGS))
        topic = topics[code[number]]
        keys = [properties.get(Property.UNIQ_KEY, "")]
        keys += properties.get(Property.KEYS, "").split(" ")
        its = [index_key_hash(index_key(topic, key)) for key in keys if key]
        if tags := properties.get(Property.TAGS):
            its.append(index_key_hash(index_key(topic, f"T#{tags}")))
        its = [] if rolled_back[number] else its
        assert counts[number] == len(its)
        expected += its
    assert items[:some].tolist() == expected
    assert len(expected) > 200


@both_forms
def test_the_smallest_int_becomes_0(form: Form) -> None:
    raw = np.frombuffer(b"olygenelubricants", np.uint8)
    values = np.array([0, 0, 0, 0, 0, len(raw), 0, 0, 0, 0], np.int64)
    front = np.array([java_string_hash("p")], np.int32)
    counts, items = np.zeros(1, np.int64), np.full(1, 7, np.int32)
    form(hashes).index_items(
        *(raw.data, values.data, counts.copy().data, front.data, front.data, True, True),
        *(0, 0, counts.data, items.data),
    )
    assert items[0] == 0


@both_forms
def test_places_outside_of_the_buffer_are_refused(form: Form) -> None:
    raw = np.zeros(20, np.uint8)
    values, items = np.empty(property_items.PLACES, np.int64), np.empty(36, np.int64)
    for start, length in ((21, 1), (-1, 4)):
        starts, lengths = np.array([start], np.int64), np.array([length], np.int64)
        with pytest.raises(IndexError):
            form(property_items).look(
                *(raw.data, starts.data, lengths.data, values.data),
                *(np.empty(9, np.int64).data, items.data),
            )
    with pytest.raises(IndexError):
        form(hashes).hash_texts(
            raw.data, np.array([18, 40], np.int64).data, np.empty(1, np.int32).data
        )
