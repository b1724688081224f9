"""What a user sees of loops that run interpreted."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_store import loops
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.verify import verify
from tests.support.golden import Golden

VERSION = "from rmq_store.cli.main import main; import sys; sys.argv[1:] = ['--version']; main()"


def version(**variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", VERSION],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_version_says_that_loops_run_interpreted() -> None:
    first, second = version(RMQSTORE_INTERPRETED="1").splitlines()
    assert first.startswith("rmqstore, version ")
    assert second == "loops run interpreted, and so slowly: RMQSTORE_INTERPRETED is set"


@pytest.mark.skipif(not loops.compiled(), reason="loops run interpreted here")
def test_the_version_of_compiled_loops_is_one_line() -> None:
    (line,) = version().splitlines()
    assert line.startswith("rmqstore, version ")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_long_read_warns_once_a_process(
    compiled: bool,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loops, "compiled", lambda: compiled)
    monkeypatch.setattr(loops, "MANY_RECORDS", 900)  # of 971
    monkeypatch.setattr(loops, "_done", [0])

    def warnings_of_a_read(stop: int) -> int:
        caplog.clear()
        with golden("clean-5.5.0").open() as store, caplog.at_level(logging.WARNING, "rmqstore"):
            assert sum(batch.num_rows for batch in store.read_batches("orders", stop=stop))
        return sum("loops run interpreted" in record.message for record in caplog.records)

    seen = [warnings_of_a_read(stop) for stop in (2, 1000, 1000)]
    assert seen == [0, 0 if compiled else 1, 0]


@pytest.mark.parametrize("work", ["verify", "rebuild", "salvage"])
@pytest.mark.parametrize("many", [1_500, 20_000])
def test_verify_rebuild_and_salvage_warn_too(
    work: str,
    many: int,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = golden("clean-5.5.0")
    assert len(store.truth) == 1_588
    monkeypatch.setattr(loops, "compiled", lambda: False)
    monkeypatch.setattr(loops, "MANY_RECORDS", many)
    monkeypatch.setattr(loops, "_done", [0])
    with caplog.at_level(logging.WARNING, "rmqstore"):
        if work == "verify":
            with store.open() as opened:
                verify(opened)
        elif work == "rebuild":
            rebuild(store.path, tmp_path / "new")
        else:
            salvage(store.path, tmp_path / "new")
    said = sum("loops run interpreted" in record.message for record in caplog.records)
    assert said == (many < len(store.truth))
