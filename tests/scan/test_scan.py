"""A scan without Spark: planned in one process, read in others."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptRecordError, OtherStoreError
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import Scan, pinned_scan
from tests.support.damage import flip_body
from tests.support.golden import Golden, in_a_queue, unpack

FIELDS = ("topic", "queueId", "queueOffset", "commitLogOffset")
TO_PASS = "mode=PERMISSIVE returns a row about it, mode=DROPMALFORMED leaves it out"


def scan_of(path: str, *columns: str, **options: str) -> Scan:
    columns = columns or FIELDS
    return Scan.of(parse_options({"path": path, "columns": ",".join(columns), **options}))


def rows_of_task(pickled: bytes) -> list[tuple[object, ...]]:
    scan, task = pickle.loads(pickled)
    batches = (batch.to_pydict() for batch in scan.read(task))
    return [row for batch in batches for row in zip(*(batch[f] for f in FIELDS), strict=True)]


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_other_processes_read_the_tasks_of_a_scan(golden: Golden, source: str) -> None:
    """Each message of the topic is in one task."""
    store = golden("clean-5.5.0")
    scan = scan_of(store.path, topic="orders", source=source, minPartitions="5")
    tasks = [pickle.dumps((scan, task)) for task in scan.plan()]
    assert len(tasks) >= 5
    spawn = multiprocessing.get_context("spawn")  # which inherits nothing
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        rows = [row for rows in pool.map(rows_of_task, tasks) for row in rows]
    sent = [r for r in store.truth if r["topic"] == "orders" and in_a_queue(r)]
    assert sorted(rows) == sorted(tuple(r[f] for f in FIELDS) for r in sent)


def test_an_error_of_damage_advises_the_modes_that_pass_it(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    flip_body(store, "orders")
    scan = scan_of(store.path, *FIELDS, "body", topic="orders")
    with pytest.raises(CorruptRecordError) as failed:
        [list(scan.read(task)) for task in scan.plan()]
    assert failed.value.advice is not None
    assert failed.value.advice.count(TO_PASS) == 1


def test_an_error_that_no_mode_passes_advises_none(golden: Golden, tmp_path: Path) -> None:
    path = shutil.copytree(golden("clean-5.1.1").path, tmp_path / "store")
    scan = scan_of(str(path))
    task = scan.plan()[0]
    shutil.rmtree(path)
    shutil.copytree(golden("clean-5.5.0").path, path)
    with pytest.raises(OtherStoreError) as failed:
        list(scan.read(task))
    assert "mode=" not in str(failed.value)


def test_ranges_that_a_job_extends_keep_the_limits_of_queues(tmp_path: Path) -> None:
    """The clock was set back after message 2; jobs take what other reads find within five minutes."""
    start, minute, store = 1_700_000_000_000, 60_000, str(tmp_path / "store")
    times = [start + n * minute for n in range(20)]
    times[2] = start + 11 * minute
    with MessageStore.create(store) as writer:
        for time in times:
            writer.append({"topic": "t", "queueId": 0, "body": b"", "storeTimestamp": time})

    def range_of(**options: object) -> list[tuple[int, int]]:
        given = {"path": store, **{name: str(value) for name, value in options.items()}}
        return [(part.start, part.stop) for part in pinned_scan(parse_options(given)).ranges]

    since = start + 10 * minute
    assert range_of(startingTimestamp=since, endingTimestamp=start + 15 * minute) == [
        (2, 3),
        (10, 15),
    ]
    times_of_queue = json.dumps({"t": {"0": since}})
    assert range_of(
        endingTimestamp=start + 15 * minute, startingOffsetsByTimestamp=times_of_queue
    ) == [(10, 15)]
    assert range_of(startingTimestamp=since, endingOffsets=json.dumps({"t": {"0": 3}})) == []
