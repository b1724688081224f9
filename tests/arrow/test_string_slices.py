"""Slices of one buffer as string and binary columns, beside Python's own slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.arrow.property_columns import number_array, numbers_of, slices, texts_array
from rmq_store.errors import InvalidArgumentError


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize(
    ("shortest", "longest"),
    [(0, 0), (0, 12), (12, 13), (13, 13), (13, 40), (256, 256), (257, 257), (300, 2_000)],
)
def test_slices_are_those_of_the_buffer(kind: pa.DataType, shortest: int, longest: int) -> None:
    # Arrow copies slices of several sizes in different ways; they ascend and may overlap.
    random = np.random.default_rng(longest)
    data = random.integers(0, 128, 100_000, dtype=np.uint8)
    lengths = random.integers(shortest, longest, 1_500, endpoint=True)
    starts = np.sort(random.integers(0, len(data) - longest, len(lengths), endpoint=True))
    found = slices(data, starts, lengths, kind)
    found.validate(full=True)
    assert found.type == kind
    places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    expected = [data[start:stop].tobytes() for start, stop in places]
    assert found.cast(pa.binary()).to_pylist() == expected


def test_more_than_offsets_count_is_refused() -> None:
    # 4 GiB and 4 MiB: offsets of 32 bits would end above 0 again.
    data = np.zeros(4 << 20, np.uint8)
    count = 1025
    lengths = np.full(count, len(data), dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match="2 GiB"):
        slices(data, np.zeros(count, dtype=np.int64), lengths, pa.binary())


def test_no_slices_are_an_empty_column() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert slices(np.zeros(8, np.uint8), none, none, pa.binary()).to_pylist() == []


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_numbers_are_those_that_pyarrow_makes(width: type[np.signedinteger[Any]]) -> None:
    values = np.arange(-3, 20, dtype=width)
    for some in (values, values[:0], values[2:9], values[::2]):
        assert number_array(some).equals(pa.array(some))
        assert number_array(some, nulls=some < 0).equals(pa.array(some, mask=some < 0))
        assert numbers_of(pa.array(values)[3:9], width).tolist() == values[3:9].tolist()
    assert numbers_of(pa.nulls(0, pa.int32()), np.int32).tolist() == []


def test_texts_are_those_that_pyarrow_makes() -> None:
    for texts in ([], [""], ["a", "", "\u4e2d\U0001f600", "%RETRY%g"]):
        found = texts_array(texts)
        found.validate(full=True)
        assert found.equals(pa.array(texts, pa.string()))
