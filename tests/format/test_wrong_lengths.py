"""A length inside a record that does not fit is named in the error, with its value."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmq_store.errors import CorruptRecordError
from rmq_store.format.record import decode_record
from tests.support.golden import unpack
from tests.support.log_records import V2, parts, records


class Field(NamedTuple):
    """A length in a record: its name, place and form, and the value that is right."""

    name: str
    at: int
    form: str
    value: int


def fields(raw: bytes) -> list[Field]:
    """The lengths of a record, found without the product."""
    wide = 12 * bin(struct.unpack_from(">i", raw, 36)[0] & 0x30).count("1")
    _, body, topic, properties = parts(raw)
    behind = 88 + wide + len(body)
    form = ">h" if struct.unpack_from(">I", raw, 4)[0] == V2 else ">b"
    last = behind + struct.calcsize(form) + len(topic)
    (kept,) = struct.unpack_from(">h", raw, last)  # `parts` leaves INNER_BASE out
    assert kept >= len(properties)
    return [
        Field("total size", 0, ">i", len(raw)),
        Field("body length", 84 + wide, ">i", len(body)),
        Field("topic length", behind, form, len(topic)),
        Field("properties length", last, ">h", kept),
    ]


def wrong_values(field: Field) -> Iterator[int]:
    most = {">i": 2**31 - 1, ">h": 2**15 - 1, ">b": 127}[field.form]
    yield from (-1, -most - 1, most)
    yield from (field.value + 1, max(field.value - 1, 0), field.value + 70_000, 0)


@pytest.mark.parametrize("name", ["clean-5.5.0", "direct-5.5.0"])
def test_the_error_names_the_length_and_its_value(tmp_path: Path, name: str) -> None:
    store = unpack(name, tmp_path)
    kinds = set()
    for _, at, raw in list(records(store.path))[::23]:
        offset = struct.unpack_from(">q", raw, 28)[0]
        kinds.add((raw[7], raw[39] & 0x30))
        for field in fields(raw):
            for value in wrong_values(field):
                smallest, largest = {">i": (-(2**31), 2**31 - 1), ">h": (-(2**15), 2**15 - 1)}.get(
                    field.form, (-128, 127)
                )
                if value == field.value or not smallest <= value <= largest:
                    continue
                changed = bytearray(raw)
                struct.pack_into(field.form, changed, field.at, value)
                with pytest.raises(CorruptRecordError) as refused:
                    decode_record(bytes(changed) + bytes(100), 0, offset)
                assert f"{field.name} {value}" in refused.value.reason, (at, field, value)
                assert refused.value.expected is not None
    assert len(kinds) > 1 or name == "clean-5.5.0"
