"""What runs is what the sources say."""

from __future__ import annotations

import hatch_build
from rmq_store import loops
from rmq_store.testing.live_broker.harness import missing_here


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
