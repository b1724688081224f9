"""Slices of one buffer as string and binary columns, beside Python's own slices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.arrow.string_slices import slices
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
