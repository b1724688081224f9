"""Reads of a store in which the folder of a topic or a queue is gone, although the log has its messages."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from rmq_store import QueueId
from tests.support.golden import unpack
from tests.support.running.commands import complaint, run

NAME, TOPIC = "clean-5.5.0", "orders"


def test_queues_of_a_deleted_topic_that_a_recovery_listed_again(tmp_path: Path) -> None:
    """The broker lists the newest messages of the log again, of some queues of the topic."""
    golden = unpack(NAME, tmp_path)
    for queue_id in "123":
        shutil.rmtree(Path(golden.path, "consumequeue", TOPIC, queue_id))
    topics = Path(golden.path, "config/topics.json")
    declared = json.loads(topics.read_text("utf-8"))
    del declared["topicConfigTable"][TOPIC]
    topics.write_text(json.dumps(declared), "utf-8")
    with golden.open() as store:
        left = golden.by_queue[QueueId(TOPIC, 0)]
        assert store.read_batches(TOPIC).read_all().num_rows == len(left)
    assert "queue-missing" not in run("verify", golden.path, expect=1)


def test_queues_are_read_in_one_order(tmp_path: Path) -> None:
    """Rows that share a place of the log, as those of light queues, come in the order of the ranges."""
    with unpack("lmq-5.3.3", tmp_path).open() as store:
        queues = [part.queue for part in store.view.ranges_of(store.topics())]
        assert queues == sorted(store.queues())


def test_a_cut_log_file_of_a_crashed_store(tmp_path: Path) -> None:
    path = unpack("crash-5.5.0", tmp_path).path
    os.truncate(Path(path, "commitlog/00000000000001835008"), 18_000)
    for command in ("queues", "topics", "lag"):
        assert "log offset 1853008 to 2097152 is in no file" in complaint(command, path, expect=1)
