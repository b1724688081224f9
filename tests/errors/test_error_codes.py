"""Every error has a code of its own, for machines, and a sentence."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from rmq_store.errors import ListedAt, LogOffset, QueueOffset, StoreError


def kinds(base: type[StoreError] = StoreError) -> Iterator[type[StoreError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_codes_are_stable_words_and_each_is_one_kind() -> None:
    codes = {kind.code: kind for kind in kinds() if kind.__module__.startswith("rmq_store")}
    ours = {kind for kind in kinds() if kind.__module__.startswith("rmq_store")}
    assert len(codes) == len(ours) >= 17
    assert all(code.startswith("RMQSTORE_") and code.isupper() for code in codes)
    for kind in ours:
        assert "code" in vars(kind), kind


def test_an_error_survives_the_way_to_the_driver() -> None:
    for kind in {k for k in kinds() if k.__module__.startswith("rmq_store")}:
        error = kind("/store/file", offset=7, reason="why", expected=1, actual=2, advice="do")
        error.entry = ListedAt("orders", 1, 2, 3, 4)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.entry) == (kind, str(error), error.entry)
        assert str(copy).startswith(f"[{kind.code}] /store/file: why at offset 7")
        other = error.with_advice("look")
        assert (type(other), other.entry, other.advice) == (kind, error.entry, "look")
        assert str(other) == str(pickle.loads(pickle.dumps(other))) == str(error)[:-2] + "look"
        assert str(error).endswith(". do")


@pytest.mark.parametrize(
    ("place", "said"), [(LogOffset(7), "log offset 7"), (QueueOffset(7), "queueOffset 7")]
)
def test_an_error_says_in_its_place_what_the_offset_counts(place: int, said: str) -> None:
    error = StoreError("/store/file", offset=place, reason="why", expected=1, advice="Do")
    assert str(error).endswith(f"/store/file: why at {said} (expected 1). Do")
