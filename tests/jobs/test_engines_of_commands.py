"""verify as a command: the same answer in this process and on Spark."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from rmqstore_jobs.running import spark_engine
from tests.support.golden import Golden, unpack
from tests.support.running.commands import call, complaint


def test_an_error_of_an_executor_is_one_of_the_command(
    spark: SparkSession, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback of Spark; the error of the store is named."""
    store = unpack("clean-5.5.0", tmp_path)

    def failing(*_: object) -> Any:
        def work(share: object) -> None:
            raise ValueError("[RMQSTORE_CORRUPT_RECORD] log: is damaged")

        return work

    monkeypatch.setattr(spark_engine, "_task", failing)
    said = complaint("verify", store.path, "--engine", "spark", expect=2)
    assert said.endswith("rmqstore: [RMQSTORE_CORRUPT_RECORD] log: is damaged\n")


def test_auto_goes_by_bytes_and_says_what_it_took(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*_: object) -> None:
        raise click.UsageError("Spark would start now")

    store = golden("clean-5.5.0").path
    monkeypatch.setattr("rmqstore_jobs.running.engine_of_commands.builder_for", session)
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

    monkeypatch.setattr(
        "rmqstore_jobs.running.engine_of_commands.builder_for", lambda *given: Builder()
    )
    said = complaint("verify", golden("clean-5.5.0").path, "--engine", "spark", expect=2)
    assert "Spark does not start: [JAVA_GATEWAY_EXITED]" in said
