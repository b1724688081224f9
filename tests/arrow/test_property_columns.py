"""Property strings as columns: the fast path gives what the readable rule gives."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.property_columns import LOOKED_AT, decode_property_columns
from rmq_store.format.record import decode_properties
from tests.support.records import property_strings
from tests.support.running.examples import campaign, fast


def check_properties(stored: list[bytes]) -> None:
    columns = decode_property_columns(pa.array(stored, pa.binary()), with_map=True)
    wanted = [decode_properties(raw) for raw in stored]
    assert columns.properties is not None
    columns.properties.validate(full=True)
    assert columns.properties.type == PROPERTIES
    maps = columns.properties.to_pylist()
    assert [dict(items) for items in maps] == wanted
    assert [len(items) for items in maps] == [len(found) for found in wanted]
    for name, column in zip(LOOKED_AT, (columns.tags, columns.keys, columns.uniq_key), strict=True):
        column.validate(full=True)
        assert column.to_pylist() == [found.get(name) for found in wanted]
    bare = decode_property_columns(pa.array(stored, pa.binary()), with_map=False)
    assert (bare.tags, bare.keys, bare.uniq_key) == (columns.tags, columns.keys, columns.uniq_key)


@st.composite
def rows_of_one_length(draw: st.DrawFn) -> list[bytes]:
    """One string several times over, with some bytes of some rows changed, separators among them."""
    first = draw(property_strings()) or b"TAGS\x01a\x02KEYS\x01bb\x02"
    rows = [bytearray(first) for _ in range(draw(st.integers(1, 5)))]
    places = st.tuples(
        st.integers(0, len(rows) - 1),
        st.integers(0, len(first) - 1),
        st.sampled_from(b"\x00\x01\x02aZ\x7f\x80\xc3\xa9"),
    )
    for row, at, byte in draw(st.lists(places, max_size=4)):
        rows[row][at] = byte
    return [bytes(row) for row in rows]


@fast(100)
@given(rows_of_one_length())
@example([b"TAGS\x01a\x02", b"TAGS\x01\x02\x02"])
@example([b"KEYS\x01a\x02TAGS\x01b\x02", b"KEYZ\x01a\x02TAGS\x01b\x02"])
def test_rows_of_one_length_read_like_any_others(stored: list[bytes]) -> None:
    check_properties(stored)


@pytest.mark.campaign
@campaign(3000)
@given(rows_of_one_length())
def test_rows_of_one_length_read_like_any_others_at_length(stored: list[bytes]) -> None:
    check_properties(stored)


@fast(150)
@given(st.lists(property_strings(), max_size=6))
@example([b"", b""])
@example([b"TAGS\x01a\x02", b"", b"TAGS\x01a\x02"])
@example([b"a\x01b\x02" * 3, b"a\x01b\x02"])
@example([b"TAGS\x01\xed\xa0\x80", b"TAGS\x01\xed"])
def test_property_columns_equal_the_readable_rule(stored: list[bytes]) -> None:
    check_properties(stored)


@fast(100)
@given(property_strings(), st.integers(1, 20))
def test_property_columns_of_one_shape_equal_the_readable_rule(raw: bytes, count: int) -> None:
    check_properties([raw] * count)


@pytest.mark.campaign
@campaign(6000)
@given(st.lists(property_strings(), max_size=6))
def test_property_columns_equal_the_readable_rule_at_length(stored: list[bytes]) -> None:
    check_properties(stored)


@st.composite
def rows_of_few_patterns(draw: st.DrawFn) -> list[bytes]:
    """Rows with the names of a few patterns, and values of their own; some have a name twice."""
    letters = st.sampled_from("aZ_é日")
    of_ours = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY"])
    names = draw(
        st.lists(of_ours | st.text(letters, min_size=1, max_size=36), min_size=1, max_size=6)
    )
    patterns = draw(st.lists(st.lists(st.sampled_from(names), max_size=5), min_size=1, max_size=4))
    values = st.text(letters, min_size=1, max_size=12)
    rows = draw(st.lists(st.sampled_from(patterns), min_size=1, max_size=8))
    return [
        "".join(f"{name}\x01{draw(values)}\x02" for name in pattern).encode() for pattern in rows
    ]


@fast(100)
@given(rows_of_few_patterns())
@example([b"TAGS\x01a\x02", b"KEYS\x01bb\x02TAGS\x01c\x02", b""])
@example([b"a\x01b\x02", b"", b"", b"c\x01d\x02"])
@example([b"%c\x01v\x02" % n * 2 + b"x\x01y\x02" for n in b"pq"])
def test_rows_of_few_patterns_read_like_any_others(stored: list[bytes]) -> None:
    check_properties(stored)
