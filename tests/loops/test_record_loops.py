"""Fields, texts, properties and CRCs of records, compiled and interpreted."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rmq_store.arrow.property_columns import LOOKED_AT
from rmq_store.format import byte_layout
from rmq_store.format.byte_layout import Property
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import CRC32_IN_C
from rmq_store.format.record import decode_properties
from rmq_store.loops import bits, checksums, property_items, queue_entries, record_fields, texts
from tests.loops.interpreted import interpreted
from tests.support.golden import log_files, unpack

ROWS = 40
SEEDS = 20  # of one test


@pytest.fixture(scope="module", params=["clean-5.5.0", "direct-5.5.0", "crc-5.5.0"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of a real broker, from its first record on."""
    store = unpack(request.param, Path(tmp_path_factory.mktemp("store")))
    return log_files(store)[0].read_bytes()[: 1 << 20]


def places(log: bytes) -> list[int]:
    found, at = [], 0
    while log[at + 4 : at + 7] == byte_layout.MAGIC_V1.to_bytes(4, "big")[:3]:
        size = int.from_bytes(log[at : at + 4], "big")
        if at + size > len(log):
            break
        found.append(at)
        at += size
    return found


def damaged(log: bytes, at: Sequence[int], chosen: random.Random) -> bytes:
    """Some bytes of some records are others, mostly those of lengths; the end may be missing."""
    raw = bytearray(log)
    for place in at:
        if chosen.random() < 0.4:
            where = chosen.choice([0, 3, 5, 7, 39, 84, 87, chosen.randrange(88, 260)])
            raw[min(place + where, len(raw) - 1)] = chosen.choice([0, 1, 2, 0x10, 0x30, 0x7F, 0xFF])
    return bytes(raw[: at[-1] + chosen.choice([0, 50, 95, 4000])])


def numbers(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int64)


def both(
    module: ModuleType, call: Callable[[ModuleType, list[Any]], Any], rooms: Callable[[], list[Any]]
) -> list[Any]:
    """What a call returns and fills, which is the same compiled and interpreted."""
    answers = []
    for form in (module, interpreted(module.__name__.rpartition(".")[2])):
        filled = rooms()
        try:
            found = call(form, filled)
        except IndexError:
            answers.append([IndexError])
            continue
        answers.append([found, *(room.tolist() for room in clipped(filled))])
    assert answers[0] == answers[1]
    return answers[0]


def clipped(rooms: list[Any]) -> list[Any]:
    """The rooms; texts without what a copy leaves behind the last one, which their ends follow."""
    pairs = zip(rooms, [*rooms[1:], None], strict=True)
    return [
        room[: ends.max()]
        if room.dtype == np.uint8 and ends is not None and ends.dtype == np.int32
        else room
        for room, ends in pairs
    ]


def split(raw: bytes, at: Any) -> tuple[Any, Any]:
    longs = np.zeros((len(record_fields.LONG_FIELDS), len(at)), dtype=np.int64)
    ints = np.zeros((len(record_fields.INT_FIELDS), len(at)), dtype=np.int32)
    both(
        record_fields,
        lambda form, rooms: form.split(memoryview(raw), 0, at.data, *(r.data for r in rooms)),
        lambda: [longs, ints],
    )
    return longs, ints


@pytest.mark.parametrize("seed", range(12))
def test_fields(log: bytes, seed: int) -> None:
    chosen = random.Random(seed)
    at = sorted(chosen.sample(places(log), ROWS))
    raw = damaged(log, at, chosen) if seed else log
    some = numbers([*at, -1, len(raw) - 5, len(raw), 1 << 60])
    _, ints = split(raw, some)
    faults = {record_fields.FAULTS[number] for number in ints[-1].tolist()}
    assert faults == {"intact", "outside"} or seed


@pytest.mark.parametrize("seed", range(12))
def test_texts(log: bytes, seed: int) -> None:
    chosen = random.Random(seed)
    some = numbers(sorted(chosen.sample(places(log), ROWS)))
    longs, ints = split(log, some)
    flags = ints[record_fields.INT_FIELDS.index("sys_flag")].copy()
    if seed % 2:  # what an IPv6 host would be, whatever stands there
        flags |= np.array([chosen.choice([0, 0x10, 0x20, 0x30]) for _ in some], dtype=np.int32)
    raw = memoryview(log)
    fields = dict(zip(record_fields.LONG_FIELDS, longs, strict=True))

    def texts_and_ends(size: int) -> list[Any]:
        return [np.zeros(size * ROWS + 64, np.uint8), np.zeros(ROWS + 1, np.int32)]

    for of_store, name in ((False, "born_host"), (True, "store_host")):
        both(
            texts,
            lambda form, rooms, s=of_store, n=name: form.hosts(  # type: ignore[misc]
                raw, some.data, flags.data, fields[n].data, s, rooms[0].data, rooms[1].data
            ),
            lambda: texts_and_ends(texts.LONGEST_HOST),
        )
    ids = both(
        texts,
        lambda form, rooms: form.message_ids(
            raw,
            some.data,
            flags.data,
            fields["store_host"].data,
            fields["physical_offset"].data,
            *(r.data for r in rooms),
        ),
        lambda: texts_and_ends(texts.LONGEST_MESSAGE_ID),
    )
    first = bytes(ids[1][: ids[2][1]])
    assert first.endswith(log[some[0] + 28 : some[0] + 36].hex().upper().encode())
    lengths = longs[record_fields.LONG_FIELDS.index("topic_length")].copy()
    starts = longs[record_fields.LONG_FIELDS.index("topic_at")]
    names = sorted({log[s : s + n] for s, n in zip(starts, lengths, strict=True)})
    stops = np.cumsum([len(name) for name in names]).astype(np.int32)
    begins = stops - np.array([len(name) for name in names], dtype=np.int32)
    codes = numbers([chosen.randrange(len(names)) for _ in some])
    ids = ints[record_fields.INT_FIELDS.index("queue_id")].copy()
    of_queues = np.array([chosen.choice(ids) for _ in names], dtype=np.int32)
    codes[0] = names.index(log[starts[0] : starts[0] + lengths[0]])
    of_queues[codes[0]] = ids[0]
    faults = np.array([chosen.random() < 0.1 for _ in some], dtype=np.int32)
    faults[0] = 0
    totals, offsets = fields["total"].copy(), fields["queue_offset"].copy()
    sizes = totals + numbers([chosen.random() < 0.1 for _ in some])
    listed = offsets - numbers([chosen.choice([0, 0, 1 << 40, -1]) for _ in some])
    sizes[0], listed[0] = totals[0], offsets[0]
    joined = memoryview(b"".join(names))
    count, found = both(
        queue_entries,
        lambda form, rooms: form.compare(
            raw,
            *(faults.data, totals.data, starts.data, lengths.data, ids.data, offsets.data),
            *(joined, begins.data, stops.data, of_queues.data, codes.data),
            *(listed.data, sizes.data, rooms[0].data),
        ),
        lambda: [np.zeros(ROWS, np.uint8)],
    )
    for row, code in enumerate(codes):
        written = log[starts[row] : starts[row] + lengths[row]]
        if faults[row] or totals[row] != sizes[row]:
            assert found[row] == queue_entries.OTHER_RECORD
        elif names[code] != written or of_queues[code] != ids[row]:
            assert found[row] == queue_entries.OTHER_QUEUE
        elif listed[row] >= 0 and listed[row] != offsets[row]:
            assert found[row] == queue_entries.OTHER_OFFSET
        else:
            assert found[row] == queue_entries.SAME
    assert count == found.count(queue_entries.SAME) > 0
    _, copied, copy_ends = both(
        texts,
        lambda form, rooms: form.gather_numbered(
            joined, begins.data, stops.data, codes.data, *(r.data for r in rooms)
        ),
        lambda: texts_and_ends(max(map(len, names))),
    )
    assert bytes(copied[: copy_ends[-1]]) == b"".join(names[code] for code in codes)
    assert copy_ends == [0, *np.cumsum([len(names[code]) for code in codes])]
    values = np.stack([starts, starts + lengths], axis=1)
    values[chosen.randrange(ROWS)] = 0
    both(
        texts,
        lambda form, rooms: form.gather_values(
            raw, values.reshape(-1).data, 0, 2, *(r.data for r in rooms)
        ),
        lambda: [*texts_and_ends(128), np.zeros(ROWS, np.uint8)],
    )


@pytest.mark.parametrize("remembered", [1, 3, 1024])
@pytest.mark.parametrize("seed", range(8))
def test_equal_slices_have_one_number_while_they_are_remembered(seed: int, remembered: int) -> None:
    chance = random.Random(seed)
    # Of equal length, equal at both ends, prefixes of each other, and longer than two words.
    names = [
        "",
        "a",
        "b",
        "orders-1",
        "orders-2",
        "orders-12",
        "orders-13",
        "orders-1-eu",
        "orders-2-eu",
    ]
    names += ["retry-of-" + middle + "-of-the-west" for middle in ("orders", "stocks")]
    rows = [chance.choice(names).encode() for _ in range(200)]
    length = numbers([len(row) for row in rows])
    at, raw = np.cumsum(length) - length, memoryview(b"".join(rows) + b".")
    count, memory, found, first = both(
        texts,
        lambda form, rooms: form.number(raw, at.data, length.data, *(room.data for room in rooms)),
        lambda: [
            np.zeros(remembered, np.int32),
            np.zeros(200, np.int64),
            np.full(200, -1, np.int64),
        ],
    )
    assert [rows[first[number]] for number in found] == rows
    assert sorted(set(found)) == list(range(count))
    assert first[:count] == [found.index(number) for number in range(count)]
    assert max(memory) <= count
    if remembered == 1024:
        assert count == len(set(rows))


@pytest.mark.parametrize(("at", "length"), [(9, 5), (2, -1), (10, 1), (-1, 2)])
def test_slices_outside_of_the_bytes_have_no_number(at: int, length: int) -> None:
    raw, slices = memoryview(b"0123456789"), (numbers([8, at]), numbers([2, length]))
    answer = both(
        texts,
        lambda form, rooms: form.number(
            raw, *(column.data for column in slices), *(room.data for room in rooms)
        ),
        lambda: [np.zeros(8, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64)],
    )
    assert answer == [IndexError]


@pytest.mark.parametrize("first", range(0, 200, SEEDS))
def test_properties(first: int) -> None:
    for seed in range(first, first + SEEDS):
        check_made_properties(seed)


def check_made_properties(seed: int) -> None:
    chosen = random.Random(seed)
    pieces = [
        b"TAGS",
        b"KEYS",
        b"UNIQ_KEY",
        b"\1",
        b"\1",
        b"\2",
        b"\2",
        b"a",
        b"\0",
        "é日".encode(),
    ]
    strings = [
        b"".join(chosen.choice([*pieces, chosen.randbytes(3)]) for _ in range(chosen.randrange(40)))
        for _ in range(9)
    ]
    check_properties(strings)


def check_properties(strings: list[bytes]) -> None:
    """Compare both forms of the loops, and the result with that of the rule, string by string."""
    raw = memoryview(b"".join(strings))
    length = numbers([len(one) for one in strings])
    at = np.cumsum(length) - length
    longest = int(length.max())

    def room() -> list[Any]:
        shapes = (len(strings) * property_items.PLACES, longest + 1, 4 * (longest // 3 + 1))
        return [np.zeros(shape, dtype=np.int64) for shape in shapes]

    def rooms() -> list[Any]:
        total = len(raw)
        one = [np.zeros(total + 40, np.uint8), np.zeros(total + 2, np.int32)]
        more = [
            np.zeros(total + 40, np.uint8),
            np.zeros(total + 2, np.int32),
            np.zeros(len(strings) + 1, np.int32),
        ]
        seen = np.zeros(1 << (longest + 2).bit_length(), np.int64)
        _, *places_and_items = room()
        values = [
            part
            for _ in LOOKED_AT
            for part in (np.zeros(total + 40, np.uint8), np.zeros(len(strings) + 1, np.int32))
        ]
        return [
            *(np.zeros(property_items.PLACES, np.int64), *places_and_items),
            *(seen, np.zeros(property_items.LAYOUTS, np.int64), *one, *more),
            *(*values, np.zeros(len(LOOKED_AT) * len(strings), np.uint8)),
        ]

    answer, values, *_ = both(
        property_items,
        lambda form, some: form.look(raw, at.data, length.data, *(r.data for r in some)),
        room,
    )
    assert answer == (not raw.tobytes().isascii())
    _, *found = both(
        property_items,
        lambda form, some: cut(
            form.split(raw, at.data, length.data, *(r.data for r in some)), some
        ),
        rooms,
    )
    for number, one in enumerate(strings):
        first = number * property_items.PLACES
        for place, name in enumerate(["TAGS", "KEYS", "UNIQ_KEY", "INNER_MULTI_QUEUE_OFFSET"]):
            start, end = values[first + 2 * place : first + 2 * place + 2]
            if one.isascii():
                assert raw[start:end].tobytes().decode() == decode_properties(one).get(name, "")
    whole = [pairs_of(one) for one in strings]
    assert split_items(found, len(strings)) == [list(one.items()) for one in whole]
    *_, tags, tag_ends, keys, key_ends, ids, id_ends, known = found
    expected = [one.get(name.encode()) for name in LOOKED_AT for one in whole]
    copied = [
        bytes(data[ends[row] : ends[row + 1]])
        for data, ends in ((tags, tag_ends), (keys, key_ends), (ids, id_ends))
        for row in range(len(strings))
    ]
    assert copied == [value or b"" for value in expected]
    assert known == [value is not None for value in expected]


def cut(answer: Any, rooms: list[Any]) -> Any:
    """Write zeros behind the items: a string whose name comes twice is copied twice, once too long."""
    names, name_ends, texts, text_ends, row_ends = rooms[5:10]
    for some, ends in ((names, name_ends), (texts, text_ends)):
        ends[row_ends[-1] + 1 :] = 0
        some[ends[row_ends[-1]] :] = 0
    return answer


def pairs_of(stored: bytes) -> dict[bytes, bytes]:
    """The properties of a string as bytes, by the rule of MessageDecoder#string2messageProperties."""
    found: dict[bytes, bytes] = {}
    for item in stored.split(b"\2"):
        name, _, value = item.partition(b"\1")
        if name and value:
            found.pop(name, None)  # the place of a repeated name is that of its last item
            found[name] = value
    return found


def split_items(rooms: list[Any], rows: int) -> list[list[tuple[bytes, bytes]]]:
    """The items of each string that `split` wrote."""
    names, name_ends, texts, text_ends, row_ends = rooms[5:10]
    return [
        [
            (
                bytes(names[name_ends[item] : name_ends[item + 1]]),
                bytes(texts[text_ends[item] : text_ends[item + 1]]),
            )
            for item in range(row_ends[row], row_ends[row + 1])
        ]
        for row in range(rows)
    ]


def test_numbers_are_those_that_java_reads() -> None:
    least = -(2**63)
    texts = [
        *("0", "7", "-1", "+5", "007", str(2**63 - 1), str(least), "-0", str(10**18)),
        *("", "-", "+", "x", "1x", " 1", "1 ", "1_0", "--1", "+-1", "0x1", "1.0", "\u0661"),
        *(str(2**63), str(least - 1), str(2**64 + 3), "9" * 30, "-" + "9" * 30),
    ]
    strings = [f"a\1b\2DELAY\1{text}\2DELAYS\0019\2".encode() for text in texts]
    expected: list[int | None] = [
        int(text) if re.fullmatch("[+-]?[0-9]+", text) and least <= int(text) < 2**63 else None
        for text in texts
    ]
    strings += [
        b"DELAY\0013\2x\1y\2DELAY\0014",
        b"DELAY\1z\2DELAY\1\2",
        b"DELAY\0015\1",
        b"DELAY",
        b"",
    ]
    expected += [4, None, None, None, None]
    raw, length = b"".join(strings), numbers([len(one) for one in strings])
    at, most = np.cumsum(length) - length, int(length.max())

    def rooms() -> list[Any]:
        return [
            np.full(len(strings), -7),
            np.zeros(most + 1, np.int64),
            np.zeros(4 * most, np.int64),
        ]

    _, found, *_ = both(
        property_items,
        lambda form, some: form.numbers(
            memoryview(raw),
            at.data,
            length.data,
            memoryview(b"DELAY"),
            *(room.data for room in some),
        ),
        rooms,
    )
    assert found == [-7 if number is None else number for number in expected]


def test_properties_of_more_layouts_than_have_a_place() -> None:
    strings = []
    for first in range(60):
        name = b"%d" % first
        strings.append(name + b"\1v\2")
        strings += [name + b"\1v\2" + b"b" * size + b"\1w\2" for size in range(1, 100)]
    check_properties(strings)


@pytest.mark.parametrize("seed", range(60))
def test_properties_of_few_layouts(seed: int) -> None:
    chosen = random.Random(seed)
    names = [
        b"TAGS",
        b"KEYS",
        b"UNIQ_KEY",
        b"INNER_MULTI_QUEUE_OFFSET",
        b"a",
        b"WAIT",
        b"__TIMES_OF",
    ]
    layouts = [chosen.sample(names, chosen.randrange(2, 7)) for _ in range(3)]
    layouts += [
        [*layouts[0], layouts[0][0]],
        layouts[0][:-1],
    ]  # a name that comes twice, and one less
    # The first name is the same, and the sizes of all.
    layouts.append([layouts[0][0], *(name.swapcase() for name in layouts[0][1:])])
    strings = []
    for _ in range(80):
        items = [
            name + b"\1" + (chosen.randbytes(chosen.randrange(80)).hex().encode() or b"v")
            for name in chosen.choice(layouts)
        ]
        one = b"\2".join(items) + chosen.choice([b"\2", b"\2", b"", b"\2rest", b"\1"])
        if chosen.random() < 0.2:  # a separator more, or one instead of a byte
            at = chosen.randrange(len(one))
            one = one[:at] + chosen.choice([b"\1", b"\2"]) + one[at + chosen.randrange(2) :]
        strings.append(one)
    check_properties(strings)


@pytest.mark.parametrize("function", [0, CRC32_IN_C], ids=["called", "in C"])
@pytest.mark.parametrize("seed", range(8))
def test_checksums(log: bytes, seed: int, function: int) -> None:
    chosen = random.Random(seed)
    some = numbers(sorted(chosen.sample(places(log), ROWS)))
    longs, _ = split(log, some)
    fields = dict(zip(record_fields.LONG_FIELDS, longs, strict=True))
    raw, at, length = memoryview(log), fields["body_at"], fields["body_length"]
    expected = [zlib.crc32(log[s : s + n]) for s, n in zip(at, length, strict=True)]
    _, found = both(
        checksums,
        lambda form, rooms: form.of_slices(
            zlib.crc32, function, raw, at.data, length.data, rooms[0].data
        ),
        lambda: [np.zeros(ROWS, np.int64)],
    )
    assert found == expected
    _, copies, _ends, found = both(
        checksums,
        lambda form, rooms: form.of_copies(
            zlib.crc32, function, raw, at.data, length.data, *(r.data for r in rooms)
        ),
        lambda: [
            np.zeros(int(length.sum()), np.uint8),
            np.zeros(ROWS + 1, np.int32),
            np.zeros(ROWS, np.int64),
        ],
    )
    assert found == expected
    assert bytes(copies) == b"".join(log[s : s + n] for s, n in zip(at, length, strict=True))
    damage = bytearray(log)
    for place, size in zip(fields["properties_at"], fields["properties_length"], strict=True):
        if size and chosen.random() < 0.5:
            damage[place + chosen.randrange(max(0, size - 22), size)] = chosen.choice(b"\1\2x9")
    both(
        checksums,
        lambda form, rooms: form.stored_in_records(
            memoryview(bytes(damage)),
            fields["properties_at"].data,
            fields["properties_length"].data,
            rooms[0].data,
        ),
        lambda: [np.zeros(ROWS, np.int64)],
    )


def test_numbers_of_the_format() -> None:
    names = [name for name in vars(bits) if name.isupper() and not name.startswith("_")]
    text = Path(str(bits.__file__)).with_suffix(".pxd").read_text()
    words = {"TAGS": b"TAGS", "KEYS": b"KEYS", "UNIQ_KEY": b"UNIQ_KEY"}
    words |= {
        f"OTHER_QUEUES_{number + 1}": Property.INNER_MULTI_QUEUE_OFFSET.encode()[at : at + 8]
        for number, at in enumerate((0, 8, 16))
    }
    of_the_format = 0
    for name in names:
        value = getattr(bits, name)
        if name in words:
            assert value == int.from_bytes(words[name], "little")
            assert f"#define rmq_{name.lower()} {value:#X}ULL\n".replace("0X", "0x") in text
            continue
        assert f"    {name} = {value}\n" in text or f"    {name} = {value:#x}\n" in text.replace(
            "0x7FFFFFFF", "0x7fffffff"
        )
        known = getattr(SysFlag, name, None) or getattr(byte_layout, name, None)
        assert known is None or value & 0xFFFFFFFF == known
        of_the_format += known is not None
    assert of_the_format >= 11
