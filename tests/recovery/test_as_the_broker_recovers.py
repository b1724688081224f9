"""Plans of a recovery as a broker are what the store classes of 5.5.0 made of the same stores.

`tests/golden/recoveries.jsonl` has what they made; `tests/live/test_recover.py` asks them again.
"""

from __future__ import annotations

import json
import shutil
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import UnrecoverableStoreError
from rmq_store.recovery import plan_recovery
from tests.support.golden import GOLDEN, GoldenStore, messages_in, unpack
from tests.support.hurt_stores import HURTS, RELEASE, STORES, Hurt
from tests.support.running.campaigns import few

ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    (answer["store"], answer["hurt"]): answer
    for answer in map(json.loads, (GOLDEN / "recoveries.jsonl").read_text("utf-8").splitlines())
}


@pytest.mark.parametrize(
    "case",
    few("as the broker", list(product(STORES, HURTS)), *zip(cycle(STORES), HURTS, strict=False)),
    ids=lambda case: f"{case[0]}-{case[1].__name__}",
)
def test_log_and_queues_end_where_the_broker_found_them(
    case: tuple[str, Hurt], tmp_path: Path
) -> None:
    name, hurt = case
    golden = unpack(name, tmp_path)
    hurt(golden)
    answer = ANSWERS[name, hurt.__name__]
    if not answer["loaded"]:
        with pytest.raises(UnrecoverableStoreError):
            plan_recovery(golden.path, golden.conf, method="broker", release=RELEASE)
        return
    plan = plan_recovery(golden.path, golden.conf, method="broker", release=RELEASE)
    assert (plan.log_start, plan.log_end) == (answer["start"], answer["end"])
    queues = {f"{queue.topic}@{queue.queue_id}": list(ends) for queue, ends in plan.queues.items()}
    assert queues == answer["queues"]


def test_a_batch_queue_ends_before_the_file_that_was_made_ahead(tmp_path: Path) -> None:
    """The classes of 5.5.0 find the same ends in this store."""
    golden = unpack("batches-5.5.0", tmp_path)
    Path(golden.path, "abort").touch()
    last = sorted(Path(golden.path, "batchconsumequeue/inner/0").iterdir())[-1]
    size = last.stat().st_size
    (last.parent / f"{int(last.name) + size:020}").write_bytes(bytes(size))
    plan = plan_recovery(golden.path, golden.conf, method="broker", release=RELEASE)
    assert plan.queues == {
        queue: (0, listed[-1]["queueOffset"] + messages_in(listed[-1]))
        for queue, listed in golden.by_queue.items()
    }


def test_a_queue_that_is_lost_after_a_clean_stop_stays_lost(copy: GoldenStore) -> None:
    """A broker then lists only the records after those that its queues have."""
    shutil.rmtree(Path(copy.path, "consumequeue/orders/3"))
    plan = plan_recovery(copy.path, copy.conf, method="broker", release=RELEASE)
    assert (plan.entries_rebuilt, plan.index_items_rebuilt) == (0, 0)
    assert ("orders", 3) not in plan.queues


def test_the_queues_of_an_expired_log_begin_with_its_first_records(tmp_path: Path) -> None:
    golden = unpack("expired-5.5.0", tmp_path)
    plan = plan_recovery(golden.path, golden.conf, method="broker", release=RELEASE)
    with golden.open() as store:
        assert (plan.log_start, plan.log_end) == store.log_range()
        for queue in store.queues("%RETRY%g1"):
            ends = (store.min_offset(*queue), store.max_offset(*queue))
            assert plan.queues[queue] == ends != (0, ends[1])


def test_a_folder_among_the_files_of_a_log_and_a_queue_is_passed_over(copy: GoldenStore) -> None:
    before = plan_recovery(copy.path, copy.conf, method="broker", release=RELEASE)
    for folder in ("commitlog", "consumequeue/orders/0"):
        Path(copy.path, folder, "lost+found").mkdir()
    after = plan_recovery(copy.path, copy.conf, method="broker", release=RELEASE)
    assert (after.log_end, after.queues) == (before.log_end, before.queues)
