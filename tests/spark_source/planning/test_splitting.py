"""How a read is cut into partitions, and what the plan says of it."""

from __future__ import annotations

import json

import pytest

from rmq_store import is_system_topic
from spark_source.source import RmqStoreSource
from tests.support.golden import GoldenStore
from tests.support.spark.reads import partitions_of
from tests.support.spark.selections import PLACE, options_of, plan_of


def test_the_plan_says_what_the_partitions_read(clean: GoldenStore) -> None:
    options = options_of(clean, maxBytesPerPartition="100k", unwrapBatches="true", **PLACE)
    plan = plan_of(options)
    tables = partitions_of(options)
    assert [row["entries"] for row in plan] == [table.num_rows for table in tables]
    first = json.loads(plan[0]["ranges"])
    rows = tables[0].to_pylist()
    for topic, queues in first.items():
        for queue_id, ranges in queues.items():
            offsets = [
                r["queueOffset"]
                for r in rows
                if (r["topic"], r["queueId"]) == (topic, int(queue_id))
            ]
            assert [[min(offsets), max(offsets) + 1]] == ranges


@pytest.mark.parametrize("more", [{}, {"splitBy": "queue"}, {"source": "commitlog"}])
def test_no_partition_is_planned_that_no_message_can_be_in(
    clean: GoldenStore, more: dict[str, str]
) -> None:
    """A least number far beyond the messages costs no more than the messages do."""
    source = RmqStoreSource(options_of(clean, minPartitions="1000000000", **more, **PLACE))
    planned = len(source.reader(source.schema()).partitions())
    with clean.open() as opened:
        start, end = opened.log_range()
        queues = [q for q in opened.queues() if not is_system_topic(q.topic)]
        messages = sum(opened.max_offset(*q) - opened.min_offset(*q) for q in queues)
    assert 1 < planned <= (messages if "source" not in more else (end - start) // 91)
