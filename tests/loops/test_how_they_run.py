"""What a user sees of loops that run interpreted; and what runs is what the sources say."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import hatch_build
from rmq_store import loops
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.testing.live_broker.needs import missing_here
from rmq_store.verify import verify
from tests.support.golden import Golden, GoldenStore
from tests.support.running.child import python

VERSION = "from rmq_store.cli.main import main; import sys; sys.argv[1:] = ['--version']; main()"


def version(**variables: str) -> str:
    return python(VERSION, env={**os.environ, **variables})


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
    clean: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert len(clean.truth) == 1_588
    monkeypatch.setattr(loops, "compiled", lambda: False)
    monkeypatch.setattr(loops, "MANY_RECORDS", many)
    monkeypatch.setattr(loops, "_done", [0])
    with caplog.at_level(logging.WARNING, "rmqstore"):
        if work == "verify":
            with clean.open() as opened:
                verify(opened)
        elif work == "rebuild":
            rebuild(clean.path, tmp_path / "new")
        else:
            salvage(clean.path, tmp_path / "new")
    said = sum("loops run interpreted" in record.message for record in caplog.records)
    assert said == (many < len(clean.truth))


def test_the_compiled_loops_are_those_of_the_sources() -> None:
    """A compiled module says what it was made from; one of other sources would hide a change."""
    present = hatch_build.compiled_in_place()
    if not present:
        missing_here("no loop is compiled here")
    stale = hatch_build.not_current()
    assert not stale, f"compiled from other sources, or not compiled: {stale}; run make venv"
    hidden = {name: paths for name, paths in present.items() if len(paths) > 1}
    assert not hidden, f"compiled twice: {hidden}; run make venv"
    gone = set(present) - {hatch_build.SHARED, *hatch_build.loop_names()}
    assert not gone, f"compiled, and without a source: {gone}; run make venv"


def test_both_say_whether_loops_are_compiled() -> None:
    compiled = set(hatch_build.loop_names()) <= set(hatch_build.compiled_in_place())
    asked = loops.INTERPRETED_VARIABLE == hatch_build.INTERPRETED_VARIABLE
    assert asked, "one variable, for the build and for a run"
    assert loops.compiled() == (compiled and loops.Sources not in __import__("sys").meta_path)
