"""Small records are loaded in one pass, but no byte that nobody asked for: its page may be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.format.array_types import Bytes
from rmq_store.reading.slice_reader import SliceReader

COUNT = 300


class Loaded(np.ndarray[Any, Any]):
    """Bytes that note when they are read in one pass."""

    passes: ClassVar[list[int]] = []

    def max(self, *args: Any, **how: Any) -> Any:
        self.passes.append(self.size)
        return super().max(*args, **how)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each pass over a window touches."""
    window = SliceReader._window

    def noted(self: SliceReader, rows: Any, first: int) -> Bytes | None:
        found = window(self, rows, first)
        return None if found is None else found.view(Loaded)

    monkeypatch.setattr(SliceReader, "_window", noted)
    monkeypatch.setattr(Loaded, "passes", [])
    return Loaded.passes


def store_of(folder: Path, body: int) -> Path:
    """Messages of two topics in turn."""
    batch = pa.record_batch(
        {
            "topic": ["orders", "payments"] * (COUNT // 2),
            "tags": ["paid", "sent"] * (COUNT // 2),
            "keys": ["one", "two"] * (COUNT // 2),
            "queueId": pa.array([0] * COUNT, pa.int32()),
            "body": pa.array([bytes([n % 251]) * body for n in range(COUNT)], pa.binary()),
        }
    )
    with MessageStore.create(folder / "store") as writer:
        writer.append_batch(batch)
    return folder / "store"


@pytest.mark.parametrize(
    ("body", "choice", "loaded"),
    [
        (100, {}, True),
        (100, {"columns": ["body"]}, True),
        (100, {"columns": ["tags"], "check_crc": False}, False),
        (2000, {}, False),
    ],
)
def test_only_small_records_with_bodies_are_loaded(
    tmp_path: Path, passes: list[int], body: int, choice: dict[str, Any], loaded: bool
) -> None:
    with MessageStore.open(store_of(tmp_path, body)) as store:
        assert sum(batch.num_rows for batch in store.read_batches(**choice)) == COUNT
    assert bool(passes) == loaded


def test_records_of_other_topics_are_not_read(tmp_path: Path, passes: list[int]) -> None:
    with MessageStore.open(store_of(tmp_path, 100)) as store:
        assert sum(batch.num_rows for batch in store.read_batches("orders")) == COUNT // 2
    assert passes == []


@pytest.mark.parametrize("choice", [{"tags": ["paid"]}, {"keys": ["one"]}])
@pytest.mark.parametrize("check_crc", [False, True])
def test_records_that_a_filter_leaves_out_are_loaded_for_their_crc_alone(
    tmp_path: Path, passes: list[int], choice: dict[str, Any], check_crc: bool
) -> None:
    with MessageStore.open(store_of(tmp_path, 100)) as store:
        batches = store.read_log(columns=["body"], check_crc=check_crc, **choice)
        assert sum(batch.num_rows for batch in batches) == COUNT // 2
    assert bool(passes) == check_crc
