"""How a read is cut into partitions, and what the plan says of it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rmq_store import is_system_topic
from spark_source.source import RmqStoreSource
from tests.support.golden import Golden, user_topic
from tests.support.spark.reads import partitions_of
from tests.support.spark.selections import NAME, PLACE, options_of, plan_of, truth_where


def test_partitions_hold_no_more_than_was_asked_for(golden: Golden) -> None:
    store = golden(NAME)
    expected = truth_where(store, user_topic)
    for options in (
        {"minPartitions": "9"},
        {"maxRecordsPerPartition": "50"},
        {"maxBytesPerPartition": "20k"},
        {"splitBy": "queue", "minPartitions": "5"},
        {"splitBy": "queue", "maxRecordsPerPartition": "120"},
        {"splitBy": "queue", "maxRecordsPerPartition": "350"},  # two queues fill no partition
    ):
        tables = partitions_of(options_of(store, **options, **PLACE))
        total: Counter[int] = Counter()
        for table in tables:
            total.update(table.column("commitLogOffset").to_pylist())
        assert total == expected, options
        most = max(table.num_rows for table in tables)
        if "minPartitions" in options:
            assert len(tables) >= int(options["minPartitions"])
        if options.get("maxRecordsPerPartition") in ("50", "350"):  # no queue has more than 350
            assert most <= int(options["maxRecordsPerPartition"])
        if "splitBy" in options:
            homes: dict[tuple[str, int], set[int]] = {}
            for number, table in enumerate(tables):
                rows = table.to_pylist()
                for row in rows:
                    homes.setdefault((row["topic"], row["queueId"]), set()).add(number)
                by_queue: dict[tuple[str, int], list[int]] = {}
                for row in rows:
                    by_queue.setdefault((row["topic"], row["queueId"]), []).append(
                        row["queueOffset"]
                    )
                assert all(offsets == sorted(offsets) for offsets in by_queue.values())
            assert all(len(numbers) == 1 for numbers in homes.values())


def test_the_plan_says_what_the_partitions_read(golden: Golden) -> None:
    store = golden(NAME)
    options = options_of(store, maxBytesPerPartition="100k", unwrapBatches="true", **PLACE)
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
    golden: Golden, more: dict[str, str]
) -> None:
    """A least number far beyond the messages costs no more than the messages do."""
    store = golden(NAME)
    source = RmqStoreSource(options_of(store, minPartitions="1000000000", **more, **PLACE))
    planned = len(source.reader(source.schema()).partitions())
    with store.open() as opened:
        start, end = opened.log_range()
        queues = [q for q in opened.queues() if not is_system_topic(q.topic)]
        messages = sum(opened.max_offset(*q) - opened.min_offset(*q) for q in queues)
    assert 1 < planned <= (messages if "source" not in more else (end - start) // 91)
