"""verify as a command: the same answer in this process and on Spark."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.questions.answer_by_shares import ask
from rmq_store.verify.verify_store import VerifyQuestion
from rmqstore_jobs.running import spark_engine
from rmqstore_jobs.running.source_options import pinned_store
from rmqstore_jobs.running.spark_engine import engine_of
from tests.support.damage import flip_body
from tests.support.golden import STORES, Golden, GoldenStore, unpack
from tests.support.running.campaigns import some
from tests.support.running.commands import call, complaint
from tests.support.running.engines import ON_BOTH


def test_an_error_of_an_executor_is_one_of_the_command(
    spark: SparkSession, copy: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback of Spark; the error of the store is named."""

    def failing(*_: object) -> Any:
        def work(share: object) -> None:
            raise ValueError("[RMQSTORE_CORRUPT_RECORD] log: is damaged")

        return work

    monkeypatch.setattr(spark_engine, "_task", failing)
    said = complaint("verify", copy.path, "--engine", "spark", expect=2)
    assert said.endswith("rmqstore: [RMQSTORE_CORRUPT_RECORD] log: is damaged\n")


def test_auto_goes_by_bytes_and_says_what_it_took(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*_: object) -> None:
        raise click.UsageError("Spark would start now")

    store = golden("clean-5.5.0").path
    monkeypatch.setattr("rmqstore_jobs.running.spark_engine.builder_for", session)
    said = complaint("verify", store, "--engine", "auto", expect=0)
    assert "verify: running in this process; use --engine spark for a cluster" in said
    monkeypatch.setattr(spark_engine, "MOST_LOCAL_BYTES", 1000)
    large = call("verify", store, "--engine", "auto")
    assert (large.returncode, "Spark would start now" in large.stderr) == (2, True)
    assert "verify: running on Spark, because the log has" in large.stderr


def test_without_pyspark_the_error_says_what_to_install(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden("clean-5.5.0").path
    without = lambda name, *a: None if name == "pyspark" else find_spec(name, *a)  # noqa: E731
    monkeypatch.setattr(spark_engine, "find_spec", without)
    refused = call("verify", store, "--engine", "spark")
    assert (refused.returncode, "pip install 'rmqstore[spark]'" in refused.stderr) == (2, True)
    alone = call("verify", store, "--engine", "auto")
    assert (alone.returncode, alone.stderr) == (0, "verify: running in this process\n")
    monkeypatch.setattr(spark_engine, "MOST_LOCAL_BYTES", 1000)
    alone = call("verify", store, "--engine", "auto")
    assert (alone.returncode, "pyspark is not installed; the log has" in alone.stderr) == (0, True)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    refused = call("verify", store, "--engine", "spark")
    assert (refused.returncode, "pip install 'rmqstore[spark]'" in refused.stderr) == (2, True)


def test_a_master_means_spark(golden: Golden) -> None:
    store = golden("clean-5.5.0").path
    done = call("verify", store, "--engine", "local", "--master", "local[1]")
    assert (done.returncode, "--master is for --engine spark" in done.stderr) == (2, True)


def test_spark_that_does_not_start_is_an_error_of_the_command(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Builder:
        def getOrCreate(self) -> None:
            raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    monkeypatch.setattr("rmqstore_jobs.running.spark_engine.builder_for", lambda *given: Builder())
    said = complaint("verify", golden("clean-5.5.0").path, "--engine", "spark", expect=2)
    assert "Spark does not start: [JAVA_GATEWAY_EXITED]" in said


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


@ON_BOTH
def test_damage_is_reported_with_its_place(engine: SparkSession | None, copy: GoldenStore) -> None:
    flip_body(copy, "orders")
    min(Path(copy.path, "consumequeue/payments/0").iterdir()).unlink()
    where = "local" if engine is None else "spark"
    done = call("verify", copy.path, "--broker-conf", copy.conf, "--engine", where, "--json")
    expected = copy.verified(broker_conf=copy.conf).to_dict()
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
