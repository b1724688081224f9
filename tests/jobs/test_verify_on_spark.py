"""verify finds on executors what it finds in one process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.questions.answer_by_shares import ask
from rmq_store.verify.verify_store import VerifyQuestion
from rmqstore_jobs.running.spark_engine import engine_of
from rmqstore_jobs.running.store_selection import pinned_store
from tests.support.damage import flip_in_log
from tests.support.golden import STORES, Golden, GoldenStore, unpack
from tests.support.running.campaigns import some
from tests.support.running.commands import call
from tests.support.running.engines import ON_BOTH

# Its log is in folders that broker.conf names for the machine it ran on.
IN_ONE_FOLDER = [name for name in STORES if not name.startswith("multipath")]


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("verify on Spark", IN_ONE_FOLDER, 6))
@ON_BOTH
def test_the_findings_are_those_of_verify(
    engine: SparkSession | None, golden: Golden, name: str
) -> None:
    store = golden(name)
    before = store.fingerprint()
    options = {"brokerConf": store.conf}
    pinned = pinned_store(store.path, options)
    found = ask(VerifyQuestion(), pinned, engine_of(engine))
    expected = store.verified(broker_conf=store.conf)
    assert found.to_dict() == expected.to_dict()
    assert store.fingerprint() == before


def damaged(tmp_path: Path) -> GoldenStore:
    """A store with a byte of a body changed, and a queue file gone."""
    store = unpack("clean-5.5.0", tmp_path)
    record = next(r for r in store.truth if r["topic"] == "orders" and len(r["body"] or "") > 40)
    flip_in_log(store, record["commitLogOffset"] + record["storeSize"] // 2, 0xFF)
    sorted((Path(store.path) / "consumequeue" / "payments" / "0").iterdir())[0].unlink()
    return store


@ON_BOTH
def test_damage_is_reported_with_its_place(engine: SparkSession | None, tmp_path: Path) -> None:
    store = damaged(tmp_path)
    where = "local" if engine is None else "spark"
    done = call("verify", store.path, "--broker-conf", store.conf, "--engine", where, "--json")
    expected = store.verified(broker_conf=store.conf).to_dict()
    assert done.returncode == 1
    *findings, summary = map(json.loads, done.stdout.splitlines())
    assert [one["code"] for one in findings] == [one["code"] for one in expected["findings"]]
    errors = [one for one in findings if one["severity"] == "error"]
    assert len(errors) == summary["severities"]["error"] > 0


def test_the_report_says_whether_a_process_has_the_store_open_to_write(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    words = ("verify", store.path, "--broker-conf", store.conf)
    assert "lock" not in call(*words).stdout
    with MessageStore.append_to(store.path, store.conf):
        assert f"lock held: process {os.getpid()} " in call(*words).stdout
