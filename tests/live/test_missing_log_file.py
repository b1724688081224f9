"""What a real broker does with a log that lacks a file, or has a short one: as `verify` says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import QueueId
from rmq_store.testing.live_broker.harness import boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from tests.admin.test_rebuild import settings_of
from tests.support.golden import unpack, verified
from tests.support.running.campaigns import some

pytestmark = [pytest.mark.live, pytest.mark.campaign]

RELEASES = ["4.9.7", "5.3.3", "5.5.0"]
TOPICS = ("orders", "payments")


@pytest.mark.parametrize("release", some("a lost file", RELEASES, 3))
def test_a_broker_starts_without_a_file_in_the_middle_of_its_log(
    release: str, tmp_path: Path
) -> None:
    need_jars(release)
    store = unpack(f"clean-{release}", tmp_path)
    path = sorted(Path(store.path, "commitlog").iterdir())[1]
    gone = range(int(path.name), int(path.name) + path.stat().st_size)
    path.unlink()
    finding = next(f for f in verified(store.path).findings if f.code == "log-file-missing")
    assert "A broker starts all the same" in finding.meaning
    with boot_copy(Path(store.path), tmp_path / "run", release, settings_of(store)) as broker:
        served = {
            (row["topic"], row["queueId"], row["queueOffset"]) for row in read_all(broker, TOPICS)
        }
    left = {
        (*queue, record["queueOffset"])
        for queue, records in store.by_queue.items()
        for record in records
        if queue[0] in TOPICS and record["commitLogOffset"] not in gone
    }
    # Behind the truth may stand what the broker delivers when it starts.
    ends = {q: len(of) for q, of in store.by_queue.items()}
    assert left <= served
    assert all(offset >= ends[QueueId(topic, queue)] for topic, queue, offset in served - left)
