"""What all tests share: stores that real brokers wrote, unpacked once, and one Spark."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running import campaigns, jvm
from tests.support.running.roomy_folder import use_roomy_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

jvm.set_options()


def pytest_configure(config: pytest.Config) -> None:
    # A run in the background of a shell ignores ctrl-C, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    is_one_of_many = hasattr(config, "workerinput")  # the first process has chosen for it
    if not is_one_of_many and config.option.basetemp is None:
        use_roomy_folder(brokers="not live" not in config.option.markexpr)


def pytest_report_header() -> str:
    return campaigns.reported()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that share a Spark in the middle of the others.

    Of two processes one then runs all of them, and the other, which takes from its end, starts and
    warms no Spark of its own.
    """
    in_spark = [item for item in items if _runs_in_spark(item)]
    others = [item for item in items if not _runs_in_spark(item)]
    items[:] = [*others[: len(items) // 2], *in_spark, *others[len(items) // 2 :]]


def _runs_in_spark(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    call = getattr(item, "callspec", None)
    on = None if call is None else call.params.get("engine")
    return on == "spark" or "spark" in item.fixturenames


def pytest_collection_finish() -> None:
    """Collect garbage rarely: each search goes through thousands of tests and modules that stay."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """`golden(name)` is that store, unpacked once a run; it must not be changed."""
    folder = tmp_path_factory.mktemp("golden")
    known: dict[str, GoldenStore] = {}

    def get(name: str) -> GoldenStore:
        if name not in known:
            known[name] = unpack(name, folder)
        return known[name]

    return get


@pytest.fixture
def copy(tmp_path: Path) -> GoldenStore:
    """A store of a release of today, and the test's own: it may be changed."""
    return unpack("clean-5.5.0", tmp_path)


@pytest.fixture
def clean(golden: Golden) -> GoldenStore:
    """The same store, which must not be changed."""
    return golden("clean-5.5.0")


BEFORE: dict[GoldenStore, dict[str, tuple[int, int, int]]] = {}  # as first seen in this run


@pytest.fixture
def untouched(golden: Golden) -> Iterator[Golden]:
    """`golden`, with the promise that reading left the files, their bytes and times as they were."""
    used: set[GoldenStore] = set()

    def get(name: str) -> GoldenStore:
        store = golden(name)
        BEFORE.setdefault(store, store.fingerprint())
        used.add(store)
        return store

    yield get
    for store in used:
        assert store.fingerprint() == BEFORE[store], f"reading changed {store.name}"


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local Spark of two cores whose workers are this Python.

    Hardly a query of a fast test comes twice, and compiling it takes longer than interpreting it. A
    run with live tests compiles, as the Spark of users does.
    """
    compiles = any(item.get_closest_marker("live") for item in request.session.items)
    # Read when the JVM starts: too late to set once there is a session.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmqstore tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.codegen.wholeStage", str(compiles).lower())
        .config("spark.sql.codegen.factoryMode", "FALLBACK" if compiles else "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()
