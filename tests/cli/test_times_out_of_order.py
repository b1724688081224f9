"""Ranges of times where the clock was set back by a minute: no row of another time, none missing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from tests.support.golden import GoldenStore
from tests.support.running.commands import objects

COLUMNS = ("topic", "queueId", "rawBody", "sysFlag", "properties")
SIZES = {"mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000}
START, STEP, BACK = 1_795_253_000_000, 200, 60_000  # ms


@pytest.fixture
def set_back(store: GoldenStore, tmp_path: Path) -> tuple[Path, list[int]]:
    """The messages of a real broker, one each 200 ms; after half of them the clock is set back."""
    with store.open() as opened:
        batches = list(opened.read_batches("orders", columns=COLUMNS))
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = table.num_rows
    stamps = [START + n * STEP - (BACK if n >= rows // 2 else 0) for n in range(rows)]
    names = ["body" if name == "rawBody" else name for name in table.column_names]
    batch = table.rename_columns(names).append_column("storeTimestamp", pa.array(stamps))
    with MessageStore.create(tmp_path / "set-back", SIZES) as writer:
        writer.append_batch(batch.to_batches()[0])
    return tmp_path / "set-back", stamps


def test_a_range_of_times_has_the_messages_of_these_times(set_back: tuple[Path, list[int]]) -> None:
    path, stamps = set_back
    low, high = min(stamps), max(stamps)
    for part in range(10):
        begin = low + (high - low) * part // 12
        end = begin + (high - low) // 7
        expected = sum(begin <= stamp < end for stamp in stamps)
        for command in ("cat", "find"):
            chosen = ["--topic", "orders", "--since", str(begin), "--until", str(end)]
            found = objects(command, str(path), *chosen, "--columns", "queueOffset")
            assert len(found) == expected, (command, part)
            assert expected
