"""A queue whose file has the number of a distant one: one error for all that no file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store import QueueId, QueueSlice, StoreError
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call

QUEUE = QueueId("orders", 0)
FILE = 2000  # bytes: 100 entries


def files_of(golden: GoldenStore) -> list[Path]:
    return sorted(Path(golden.path, "consumequeue", *map(str, QUEUE)).iterdir())


def read(golden: GoldenStore, part: QueueSlice, **how: Any) -> tuple[int, list[StoreError]]:
    met: list[StoreError] = []
    with golden.open() as store:
        batches = store.read_slices([part], columns=["queueOffset"], on_damage=met.append, **how)
        return sum(batch.num_rows for batch in batches), met


@pytest.mark.parametrize("number", [50, 10_000, 10**15])
@pytest.mark.parametrize("log_order", [True, False])
def test_a_file_with_the_name_of_a_distant_one_is_one_error(
    number: int, log_order: bool, tmp_path: Path
) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    last = files_of(golden)[-1]
    last.rename(last.with_name(f"{number * FILE:020d}"))
    with golden.open() as store:
        end = store.max_offset(*QUEUE)
    assert end == number * 100 + 49
    how = {"check_ends": False, "log_order": log_order}
    rows, (error,) = read(golden, QueueSlice(QUEUE, 0, end), **how)
    assert rows == 249
    assert f"no file for its queue offsets 200 to {number * 100 - 1}" in error.reason
    assert error.entry is not None
    assert (error.entry.queue_offset, error.entry.messages) == (200, number * 100 - 200)
    rows, (error,) = read(golden, QueueSlice(QUEUE, 150, 1000), **how)
    assert rows == 50
    assert "queue offsets 200 to 999:" in error.reason
    assert "queue offsets 200 to" in call("cat", golden.path, "--topic", "orders").stderr


def test_the_messages_of_one_file_that_is_gone_are_accounted_for_one_by_one(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    files_of(golden)[1].unlink()
    rows, met = read(golden, QueueSlice(QUEUE, 0, 249), check_ends=False)
    assert rows == 149
    assert [error.entry and error.entry.queue_offset for error in met] == list(range(100, 200))
    gone = "has no file for its queue offset 100: a file is gone"
    assert gone in met[0].reason
    assert gone in call("cat", golden.path, "--topic", "orders", "--queue", "0").stderr
    assert gone in call("verify", golden.path).stdout
