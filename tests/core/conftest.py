"""What tests of the core share: reading must leave a store as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.golden import (
    GoldenStore,
)

BEFORE: dict[GoldenStore, dict[str, tuple[int, int, int]]] = {}  # as first seen in this run


@pytest.fixture
def untouched(golden: Callable[[str], GoldenStore]) -> Iterator[Callable[[str], GoldenStore]]:
    """`golden`, with the promise that reading left the files, their bytes and times as they were."""
    used: set[GoldenStore] = set()

    def get(name: str) -> GoldenStore:
        store = golden(name)
        BEFORE.setdefault(store, store.fingerprint())
        used.add(store)
        return store

    yield get
    for store in used:
        assert store.fingerprint() == BEFORE[store], f"reading changed {store.name}"
