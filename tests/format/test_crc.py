"""CRC-32 of many slices, beside zlib's of each."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from rmq_store.format.hashes import CRC32_IN_C, crc32_of_slices


@pytest.mark.parametrize(
    ("shortest", "longest"),
    [
        (0, 12),
        (13, 768),
        (0, 2_000),
        (1, 1),
        (100, 100),
        (2_048, 2_048),
        (2_049, 2_049),
        (12, 13),
        (768, 769),
    ],
)
def test_the_crc_of_many_slices_is_that_of_each(shortest: int, longest: int) -> None:
    # Slices of several sizes are read in different ways, and may overlap or descend.
    random = np.random.default_rng(longest)
    data = random.integers(0, 256, 100_000, dtype=np.uint8)
    lengths = random.integers(shortest, longest, 1_500, endpoint=True)
    starts = random.integers(0, len(data) - longest, len(lengths), endpoint=True)
    places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    expected = [zlib.crc32(data[start:stop].tobytes()) for start, stop in places]
    assert crc32_of_slices(data, starts, lengths).tolist() == expected


def test_no_slices_have_no_crcs() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert crc32_of_slices(np.zeros(8, np.uint8), none, none).tolist() == []


def test_the_function_in_c_is_found() -> None:
    assert CRC32_IN_C, (
        "the wheel of zlib-ng no longer exports zng_crc32_z: checks of bodies are slower"
    )
