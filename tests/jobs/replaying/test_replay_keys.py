"""The replay of messages with a key: the index says where they are, and no more is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.plan import narrowed_by_index, scan_of_run, waves_of
from tests.support.golden import GoldenStore, unpack
from tests.support.running.engines import ON_BOTH
from tests.support.spark.replays import NAME, arrived, expected_rows, spec, topics_of

WAVE = 4_000  # bytes: some hundred waves, were the log read through
LONGER_WAVE = 40_000  # some thirty of them: each that is read is a query of Spark's


def has(*keys: str) -> Callable[[dict[str, Any]], bool]:
    return lambda record: bool({record["uniqKey"], *(record["keys"] or "").split()} & set(keys))


def common_key(store: GoldenStore) -> str:
    """A key of many messages, in more than one topic."""
    words = [
        word
        for record in expected(store, lambda record: True)
        for word in (record["keys"] or "").split()
    ]
    return max(set(words), key=words.count)


def expected(store: GoldenStore, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    return [record for record in store.truth if wanted(record)]


@ON_BOTH
def test_only_what_has_the_key_is_read(
    engine: SparkSession | None, clean: GoldenStore, tmp_path: Path
) -> None:
    # Of a topic without inner batches, whose messages are in no index.
    orders = expected(clean, lambda record: record["topic"] == "orders")
    key = orders[300]["uniqKey"]
    new = str(tmp_path / "new")
    asked = spec(
        clean, to_store=new, topics=("orders",), keys=(key,), by_index=True, wave_bytes=WAVE
    )
    plan = scan_of_run(asked, None)
    with plan.store.open() as source:
        uncovered = sum(stop - start for start, stop in source.key_index().to_read())
    through, by_index = (waves_of(read, 0, WAVE) for read in (plan, narrowed_by_index(plan, asked)))
    assert len(through) > 100
    assert len(by_index) <= 2 + uncovered // WAVE
    report = run(engine, asked)
    wanted = expected_rows(clean, lambda record: record in orders and has(key)(record))
    assert wanted
    assert arrived(tmp_path / "new") == wanted
    assert report.ok, report.problems
    assert report.read == report.matched == len(wanted)
    assert report.skipped == {"other keys": report.selected - len(wanted)}


@pytest.mark.parametrize("lost", ["all of it", "a file in the middle"])
def test_what_the_index_lacks_is_found_in_the_log(tmp_path: Path, lost: str) -> None:
    store = unpack(NAME, tmp_path)
    index = Path(store.path) / "index"
    if lost == "all of it":
        shutil.rmtree(index)
    else:
        files = sorted(index.iterdir())
        files[len(files) // 2].unlink()
    key = common_key(store)
    new = str(tmp_path / "new")
    how = {"keys": (key,), "by_index": True, "wave_bytes": LONGER_WAVE}
    asked = spec(store, to_store=new, topics=topics_of(store), **how)
    report = run(None, asked)
    wanted = expected_rows(store, has(key))
    assert len(wanted) > 10
    assert arrived(tmp_path / "new") == wanted
    assert report.read == len(wanted)


def test_keys_and_tags_together_and_one_that_is_nowhere(clean: GoldenStore, tmp_path: Path) -> None:
    key = common_key(clean)
    tags = {record["tags"] for record in expected(clean, has(key)) if record["tags"]}
    tag = min(tags - {"*"})
    how = {"topics": topics_of(clean), "by_index": True}
    both = run(None, spec(clean, to_store=str(tmp_path / "a"), keys=(key,), tags=(tag,), **how))
    wanted = expected_rows(clean, lambda record: has(key)(record) and record["tags"] == tag)
    assert arrived(tmp_path / "a") == wanted
    assert both.skipped == {"other tags or keys": both.selected - len(wanted)}
    none = run(None, spec(clean, to_store=str(tmp_path / "b"), keys=("NOWHERE",), by_index=True))
    assert none.ok
    assert (none.read, none.matched) == (0, 0)
    assert arrived(tmp_path / "b") == []


def test_a_replay_of_keys_that_was_stopped_goes_on(clean: GoldenStore, tmp_path: Path) -> None:
    key = common_key(clean)
    new = str(tmp_path / "new")
    how = {"keys": (key,), "by_index": True, "wave_bytes": WAVE}
    asked = spec(clean, to_store=new, topics=topics_of(clean), **how)
    wanted = expected_rows(clean, has(key))
    stops = iter([False, True])
    assert run(None, asked, lambda: next(stops)).stopped_by == "stopped on request"
    assert 0 < len(arrived(tmp_path / "new")) < len(wanted)
    last = run(None, asked)
    assert last.ok, last.problems
    assert last.resumed
    assert last.read == last.matched == len(wanted)
    assert arrived(tmp_path / "new") == wanted
