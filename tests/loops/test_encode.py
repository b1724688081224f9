"""Property strings and records from columns, compiled and interpreted, beside the rules for one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rmq_store import Record
from rmq_store.format.byte_layout import (
    CRC_DIGITS,
    CRC_ITEM_SIZE,
    CRC_MASK,
    CRC_PROPERTY,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
)
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import body_crc, crc32
from rmq_store.format.record import crc_item
from rmq_store.loops import encode_records as encode
from tests.loops.interpreted import Form, both_forms, source_of
from tests.support.encode_record import encode_properties, encode_record


def joined(texts: list[bytes], before: int = 0) -> tuple[Any, Any]:
    """The bytes, behind some others, and their int32 ends."""
    ends = (np.cumsum([0, *map(len, texts)]) + before).astype(np.int32)
    return np.frombuffer(bytes(before) + b"".join(texts), np.uint8).data, ends.data


def word(chance: random.Random, most: int = 40) -> str:
    return "".join(chance.choices("abcdeé語", k=chance.randrange(most)))


@both_forms
@pytest.mark.parametrize("last", [True, False])
def test_items_of_maps_become_property_strings(form: Form, last: bool) -> None:
    chance = random.Random(1)
    rows = [
        {word(chance): word(chance) for _ in range(chance.choice((0, 0, 1, 2, 7)))}
        for _ in range(60)
    ]
    items = np.cumsum([3, *map(len, rows)]).astype(np.int32)  # behind three items of no row
    pairs = [("x", "yy")] * 3 + [pair for row in rows for pair in row.items()]
    keys, key_ends = joined([key.encode() for key, _ in pairs])
    values, value_ends = joined([value.encode() for _, value in pairs], 5)
    expected = [encode_properties(row, last_separator=last) for row in rows]
    out = np.empty(len(keys) + len(values) + 2 * len(pairs), np.uint8)
    ends = np.empty(len(rows) + 1, np.int32)
    used = form(encode).join_items(
        items.data, keys, key_ends, values, value_ends, last, out.data, ends.data
    )
    assert out[:used].tobytes() == b"".join(expected)
    assert np.diff(ends).tolist() == [*map(len, expected)]
    with pytest.raises(IndexError):
        form(encode).join_items(
            items.data, keys, key_ends, values, value_ends, last, out[: used - 9].data, ends.data
        )


@both_forms
@pytest.mark.parametrize("last", [True, False])
def test_words_become_property_strings(form: Form, last: bool) -> None:
    chance = random.Random(2)
    names = ("KEYS", "TAGS", "UNIQ_KEY")
    rows = [[chance.choice(("", word(chance))) for _ in names] for _ in range(60)]
    columns = [part for n in range(3) for part in joined([row[n].encode() for row in rows], n)]
    fronts = joined([name.encode() + b"\x01" for name in names])
    given = [{name: w for name, w in zip(names, row, strict=True) if w} for row in rows]
    expected = [encode_properties(row, last_separator=last) for row in given]
    out, ends = np.empty(60 * 160, np.uint8), np.empty(61, np.int32)
    used = form(encode).join_words(*fronts, *columns, last, out.data, ends.data)
    assert out[:used].tobytes() == b"".join(expected)
    assert np.diff(ends).tolist() == [*map(len, expected)]


@both_forms
def test_a_piece_is_found_before_an_end_alone(form: Form) -> None:
    piece = np.frombuffer(b"abc", np.uint8).data
    for texts, found in (
        ([b"", b"abcd", b"xabcde"], True),
        ([b"abc", b"abcde", b"bcde"], True),
        ([b"bcde", b"abcd", b"abcdef", b""], False),
        ([b"aaaaaaaab", b"cde"], False),  # of two texts
        ([], False),
    ):
        raw, ends = joined(texts)
        assert form(encode).any_has(raw, ends, piece, 5) is found


@both_forms
def test_items_are_found_by_their_names_alone(form: Form) -> None:
    fronts = joined([b"ORIGIN_A\x01", b"ORIGIN_B\x01"])
    texts = [
        (b"", 0),
        (b"ORIGIN_A\x01x", 1),
        (b"TAGS\x01t\x02ORIGIN_B\x01\x02", 1),
        (b"TAGS\x01t\x02ORIGIN_C\x01x\x02", 0),
        (b"NOTE\x01see ORIGIN_A\x01x\x02", 0),
        (b"\x02\x02ORIGIN_B\x01x", 1),
        (b"ORIGIN_A", 0),  # what follows is of the next string
        (b"\x01x\x02", 0),
        (b"XORIGIN_A\x01x\x02TAGS\x01ORIGIN_B\x02ORIGIN_B", 0),
        (b"TAGS\x01t\x02" * 40 + b"ORIGIN_A\x01x", 1),
    ]
    found = np.full(len(texts), 7, np.uint8)
    raw, ends = joined([text for text, _ in texts], 3)
    count = form(encode).have_item(raw, ends, *fronts, found.data)
    assert (count, found.tolist()) == (4, [has for _, has in texts])


@both_forms
def test_items_are_written_behind_property_strings(form: Form) -> None:
    chance = random.Random(3)
    numbers = [0, 9, 10, 99, 1_700_000_000_000, -1, -10, 2**63 - 1, -(2**63), 10**18, 10**18 - 1]
    rows = [
        (
            chance.choice((b"", b"A\x01b", b"A\x01b\x02", b"\x02", b"no value")),
            [*(word(chance) for _ in range(2)), *(str(chance.choice(numbers)) for _ in range(2))],
        )
        for _ in range(200)
    ] + [(b"", ["", "", str(number), str(-5)]) for number in numbers]
    names = ("first", "second", "third", "fourth")
    expected = [
        stored
        + (b"\x02" if stored and not stored.endswith(b"\x02") else b"")
        + b"".join(
            name.encode() + b"\x01" + value.encode() + b"\x02"
            for name, value in zip(names, values, strict=True)
        )
        for stored, values in rows
    ]
    given = (
        *joined([row[0] for row in rows], 6),
        *joined([name.encode() + b"\x01" for name in names]),
        *joined([values[0].encode() for _, values in rows]),
        *joined([values[1].encode() for _, values in rows], 9),
        np.array([int(values[item]) for item in (2, 3) for _, values in rows], np.int64).data,
    )
    out, ends = np.empty(len(b"".join(expected)), np.uint8), np.empty(len(rows) + 1, np.int32)
    used = form(encode).add_items(*given, out.data, ends.data)
    assert out[:used].tobytes() == b"".join(expected)
    assert np.diff(ends).tolist() == [*map(len, expected)]
    with pytest.raises(IndexError):
        form(encode).add_items(*given, out[: used - 1].data, ends.data)


def any_record(chance: random.Random) -> Record:
    long = chance.random() < 0.2
    hosts = [chance.randbytes(chance.choice((8, 20))) for _ in range(2)]
    flags = chance.choice((0, 1, SysFlag.TRANSACTION_COMMIT))
    flags |= SysFlag.BORN_HOST_V6 if len(hosts[0]) > 8 else 0
    flags |= SysFlag.STORE_HOST_V6 if len(hosts[1]) > 8 else 0

    def number(bits: int) -> int:
        return chance.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))

    return Record(
        queue_id=number(32),
        flag=number(32),
        queue_offset=number(64),
        physical_offset=number(64),
        sys_flag=flags,
        born_timestamp=number(64),
        born_host=hosts[0],
        store_timestamp=number(64),
        store_host=hosts[1],
        reconsume_times=number(32),
        prepared_transaction_offset=number(64),
        body=chance.randbytes(chance.choice((0, 3, 8, 33, 900))),
        topic=b"t" * (200 if long else chance.randrange(1, 30)),
        properties=chance.randbytes(chance.choice((0, 1, 31, 300))) + crc_item(0),
        magic=MAGIC_V2 if long else MAGIC_V1,
    )


def columns_of(records: list[Record]) -> list[Any]:
    """The arguments of put_records behind the first."""

    def numbers(name: str, kind: Any) -> Any:
        return np.array([getattr(record, name) for record in records], kind).data

    def hosts(name: str) -> list[Any]:
        table = b"".join(getattr(record, name).ljust(HOST_V6_SIZE, b"\xee") for record in records)
        return [np.frombuffer(table, np.uint8).data, np.arange(len(records), dtype=np.int32).data]

    widths = [2 if record.magic == MAGIC_V2 else 1 for record in records]
    topics = [
        len(record.topic).to_bytes(width, "big") + record.topic
        for record, width in zip(records, widths, strict=True)
    ]
    magics = np.array([record.magic for record in records], np.uint32).view(np.int32).data
    fields, topic_ends = joined(topics)
    bodies, body_ends = joined([record.body for record in records], 7)
    properties, property_ends = joined([record.properties for record in records])
    crcs = np.array([body_crc(record.body) for record in records], np.int64).data
    return [
        *(numbers("total_size", np.int64), crcs, numbers("queue_id", np.int32)),
        *(numbers("flag", np.int32), numbers("queue_offset", np.int64)),
        *(numbers("physical_offset", np.int64), numbers("sys_flag", np.int32)),
        *(numbers("born_timestamp", np.int64), *hosts("born_host")),
        *(numbers("store_timestamp", np.int64), *hosts("store_host")),
        numbers("reconsume_times", np.int32),
        *(numbers("prepared_transaction_offset", np.int64), body_ends, bodies),
        *(np.arange(len(records)).data, magics, topic_ends, fields, property_ends, properties),
    ]


@both_forms
@pytest.mark.parametrize("seed", range(10))
def test_records_are_those_of_the_readable_encoder(form: Form, seed: int) -> None:
    chance = random.Random(seed)
    records = [any_record(chance) for _ in range(20)]
    out = np.empty(sum(record.total_size for record in records), np.uint8)
    form(encode).put_records(out.data, *columns_of(records))
    assert out.tobytes() == b"".join(map(encode_record, records))
    ends = np.cumsum([record.total_size for record in records])
    whole = [encode_record(record, with_record_crc=True) for record in records]
    crcs = np.array([crc32(raw[:-CRC_ITEM_SIZE]) & CRC_MASK for raw in whole])
    form(encode).put_record_crcs(out.data, ends.data, crcs.data)
    assert out.tobytes() == b"".join(whole)
    assert CRC_PROPERTY.encode() in out.tobytes()


@both_forms
def test_a_buffer_that_is_too_short_is_refused(form: Form) -> None:
    records = [any_record(random.Random(1)) for _ in range(3)]
    size = sum(record.total_size for record in records)
    for room in (size - 1, size // 2, 50, 0):
        with pytest.raises(IndexError):
            form(encode).put_records(np.empty(room, np.uint8).data, *columns_of(records))


def test_the_numbers_of_the_loop_are_those_of_the_format() -> None:
    loop = source_of(encode)
    assert (loop._HOST_V4_SIZE, loop._HOST_V6_SIZE) == (HOST_V4_SIZE, HOST_V6_SIZE)
    assert (loop._CRC_DIGITS, loop._CRC_DIGITS_BEHIND) == (CRC_DIGITS, CRC_DIGITS + 1)
