"""Plans of a recovery as a broker are what the store classes of 5.5.0 made of the same stores.

`tests/golden/recoveries.jsonl` has what they made; `tests/live/test_recover.py` asks them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import UnrecoverableStoreError
from rmq_store.recovery import plan_recovery
from tests.support.golden import GOLDEN, unpack
from tests.support.hurt_stores import HURTS, RELEASE, STORES, Hurt

ANSWERS: dict[tuple[str, str], dict[str, Any]] = {
    (answer["store"], answer["hurt"]): answer
    for answer in map(json.loads, (GOLDEN / "recoveries.jsonl").read_text("utf-8").splitlines())
}


@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__)
@pytest.mark.parametrize("name", STORES)
def test_log_and_queues_end_where_the_broker_found_them(
    name: str, hurt: Hurt, tmp_path: Path
) -> None:
    golden = unpack(name, tmp_path)
    hurt(golden)
    answer = ANSWERS[name, hurt.__name__]
    if not answer["loaded"]:
        with pytest.raises(UnrecoverableStoreError):
            plan_recovery(golden.path, golden.conf, mode="broker", release=RELEASE)
        return
    plan = plan_recovery(golden.path, golden.conf, mode="broker", release=RELEASE)
    assert (plan.log_start, plan.log_end) == (answer["start"], answer["end"])
    queues = {f"{queue.topic}@{queue.queue_id}": list(ends) for queue, ends in plan.queues.items()}
    assert queues == answer["queues"]
