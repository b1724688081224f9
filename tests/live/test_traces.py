"""Reports of traces, encoded and decoded by the real client, equal our rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.testing.live_broker.java import class_path, jdk_tool, run
from tests.support.client_traces import assert_as_the_client_decodes
from tests.support.running.campaigns import some

pytestmark = pytest.mark.live
SEED = "2026"


@pytest.mark.parametrize("release", some("traces", ["4.9.7", "5.3.3", "5.5.0"], 3))
def test_reports_of_the_real_client(release: str) -> None:
    classes = class_path(Path(__file__).with_name("Traces.java"), release)
    printed = run([jdk_tool("java"), "-cp", classes, "Traces", SEED, "3000"]).splitlines()
    lines = [line for line in printed if line.startswith("TRACE ")]  # the others are of its logger
    assert len(lines) == 3000
    assert assert_as_the_client_decodes(lines) > 3000
