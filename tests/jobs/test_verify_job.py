"""The verify job finds on executors what verify finds in one process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.verify.verify_store import verify
from rmqstore_jobs import verify as job
from rmqstore_jobs.running.job_command import EXIT_NOT_ALL, EXIT_OK, EXIT_REFUSED
from rmqstore_jobs.running.store_selection import pinned_store
from tests.conftest import GoldenStore, unpack
from tests.support.golden import STORES
from tests.support.running.engines import ON_BOTH

Golden = Callable[[str], GoldenStore]
# Its log is in folders that broker.conf names for the machine it ran on.
IN_ONE_FOLDER = [name for name in STORES if not name.startswith("multipath")]


@pytest.mark.parametrize("name", IN_ONE_FOLDER)
@ON_BOTH
def test_the_findings_are_those_of_verify(
    engine: SparkSession | None, golden: Golden, name: str
) -> None:
    store = golden(name)
    before = store.fingerprint()
    options = {"brokerConf": store.conf}
    found = job.examine(engine, pinned_store(store.path, options))
    with store.open(broker_conf=store.conf) as opened:
        expected = verify(opened)
    assert found is not None
    assert found.to_dict() == expected.to_dict()
    assert store.fingerprint() == before


def damaged(tmp_path: Path) -> GoldenStore:
    """A store with a byte of a body changed, and a queue file gone."""
    store = unpack("clean-5.5.0", tmp_path)
    record = next(r for r in store.truth if r["topic"] == "orders" and len(r["body"] or "") > 40)
    log = sorted((Path(store.path) / "commitlog").iterdir())
    size = log[0].stat().st_size
    at = record["commitLogOffset"]
    file = log[(at - int(log[0].name)) // size]
    raw = bytearray(file.read_bytes())
    raw[(at - int(file.name)) + record["storeSize"] // 2] ^= 0xFF
    file.write_bytes(raw)
    sorted((Path(store.path) / "consumequeue" / "payments" / "0").iterdir())[0].unlink()
    return store


def test_damage_is_reported_with_its_place(engine: SparkSession | None, tmp_path: Path) -> None:
    store = damaged(tmp_path)
    spec = job.VerifySpec(store.path, {"brokerConf": store.conf}, checksums=True)
    answer = job.run(engine, spec)
    with store.open(broker_conf=store.conf) as opened:
        expected = verify(opened).to_dict()
    assert not answer.ok
    assert [one["code"] for one in answer.tables["findings"]] == [
        one["code"] for one in expected["findings"]
    ]
    errors = [one for one in answer.tables["findings"] if one["severity"] == "error"]
    assert len(errors) == answer.numbers["errors"] > 0
    assert len(answer.source.files) == sum(p.is_file() for p in Path(store.path).rglob("*"))


def test_the_exit_code_says_whether_all_is_well(
    engine: SparkSession | None, golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden("clean-5.3.3")
    report = tmp_path / "report.json"
    assert job.main([store.path, "--brokerConf", store.conf, "--json", str(report)]) == EXIT_OK
    reported = json.loads(report.read_text("utf-8"))
    assert reported["numbers"]["records"] == len(store.truth)
    assert reported["ok"] is True
    assert job.main([damaged(tmp_path).path]) == EXIT_NOT_ALL
    capsys.readouterr()
    assert job.main([store.path, "--brokerCnf", store.conf]) == EXIT_REFUSED
    assert "--brokerConf" in capsys.readouterr().err
    assert job.main([str(tmp_path / "nothing")]) == EXIT_REFUSED


def test_the_report_says_whether_a_process_has_the_store_open_to_write(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    spec = job.VerifySpec(store.path, {"brokerConf": store.conf})
    assert job.run(None, spec).numbers["lock"].startswith("free: ")
    with MessageStore.append_to(store.path, store.conf):
        assert f"held: process {os.getpid()} " in job.run(None, spec).numbers["lock"]


def test_asked_to_stop_it_says_that_it_is_not_all(
    engine: SparkSession | None, golden: Golden
) -> None:
    store = golden("clean-5.5.0")
    answer = job.run(engine, job.VerifySpec(store.path, {}), should_stop=lambda: True)
    assert answer.stopped_by is not None
    assert not answer.ok
