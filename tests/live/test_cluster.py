"""Relative paths on a standalone cluster of Spark, whose executors run in folders of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_store import MessageStore
from tests.support.checkout import CHECKOUT
from tests.support.golden import Golden, user_topic
from tests.support.running.cluster import standalone_cluster

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def folder(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver: a store of a real broker, and its configuration."""
    place, store = tmp_path_factory.mktemp("driver"), golden("clean-5.5.0")
    shutil.copytree(store.path, place / "store")
    shutil.copy(Path(store.path).parent / "broker.conf", place)
    return place


@pytest.fixture(scope="module")
def answers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver in `folder` was answered."""
    with standalone_cluster(tmp_path_factory.mktemp("executors")) as master:
        driver = subprocess.run(
            [sys.executable, "-m", "tests.live.support.on_a_cluster", master],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert driver.returncode == 0, driver.stderr
    return dict(json.loads(line) for line in driver.stdout.splitlines())


def test_the_driver_sends_absolute_paths(
    golden: Golden, folder: Path, answers: dict[str, Any]
) -> None:
    records = Counter(row["topic"] for row in golden("clean-5.5.0").truth if user_topic(row))
    orders = records["orders"]
    everything = ("load", "broker.conf", "pattern", "list", "stores", "commitlog")
    assert {name: answers[name] for name in everything} == dict.fromkeys(
        everything, records.total()
    )
    with MessageStore.open(folder / "store") as store:
        assert answers["table queues"] == len(store.queues())
    assert answers["table usage"] >= len(records)
    assert (answers["table damage"], answers["diff"]) == (0, 0)
    assert (answers["stream"], answers["write"], answers["written"]) == (orders, None, orders)
    jobs = ("export", "replay", "replay to Parquet", "verify", "rebuild")
    assert {name: answers[name] for name in jobs} == dict.fromkeys(jobs, 0)
    with MessageStore.open(folder / "replayed") as store:
        assert sum(map(len, store.view.ranges_of(["orders"]))) == orders
    for place in ("exported", "deep/parquet"):
        files = (folder / place).rglob("*.parquet")
        assert sum(pq.read_metadata(file).num_rows for file in files) == orders
