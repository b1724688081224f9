"""Opening and planning cost no more with more messages: what is read is counted, time is printed."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from spark_source.source import RmqStoreSource
from tests.snapshot.test_scale import QUEUES_A_TOPIC, TOPICS, UNITS, Counts, SparseStore
from tests.snapshot.test_scale import counts as counts  # a fixture

PROMISED_S = 5.0


@pytest.mark.campaign
def test_ten_thousand_queues_of_three_billion_entries_are_planned(
    tmp_path: Path, counts: Counts
) -> None:
    store = SparseStore(tmp_path / "store", TOPICS, QUEUES_A_TOPIC, 1, 0)
    queues = len(store.queues)
    assert queues * UNITS >= 10**9
    begun = time.perf_counter()
    source = RmqStoreSource({"path": str(store.root), "columns": "topic,queueOffset"})
    schema = source.schema()  # opens the store
    opened = time.perf_counter() - begun
    reader = source.reader(schema)
    partitions = reader.partitions()
    took = time.perf_counter() - begun
    sizes = [len(pickle.dumps(one)) for one in (reader, partitions[0])]
    print(
        f"\nopen {opened:.2f} s, open and plan {took:.2f} s (promised: {PROMISED_S} s): "
        f"{queues} queues of {UNITS} entries, {len(partitions)} partitions, "
        f"reader {sizes[0]} bytes, {dict(counts.seen)}"
    )
    assert partitions
    # A handful of looks at each queue, however many entries it has; nothing of them is mapped.
    assert counts.seen["mapped"] <= 64
    assert counts.seen["read"] <= 2 * queues + 3 * queues


@pytest.mark.campaign
def test_more_entries_are_planned_with_as_many_looks(tmp_path: Path, counts: Counts) -> None:
    looks = []
    for name, files in (("few", 1), ("many", 4)):
        store = SparseStore(tmp_path / name, 1, 2, files, short=10)
        source = RmqStoreSource({"path": str(store.root), "columns": "topic,queueOffset"})
        schema = source.schema()  # opens the store
        counts.seen.clear()
        assert source.reader(schema).partitions()
        looks.append(counts.seen["read"] + counts.seen["windows"] + counts.seen["mapped"])
    # A few more for the holes between the first and the last file of the log, which are damage.
    assert looks[1] <= looks[0] + 16
