"""Reads of golden stores in this process, as the tests of the Spark source put them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import LocalFile
from tests.support.golden import GoldenStore, Truth, in_a_queue
from tests.support.spark.reads import rows_of

NAME = "clean-5.5.0"
PLACE = {"columns": "brokerName,topic,queueId,queueOffset,commitLogOffset"}


def options_of(store: GoldenStore, **options: str) -> dict[str, str]:
    """Options as Spark hands them over; batches stay whole unless a test is about them."""
    given = {"path": store.path, "unwrapBatches": "false", **options}
    return {name.lower(): value for name, value in given.items()}


def places(rows: list[dict[str, Any]]) -> Counter[int]:
    """Where in the log the rows come from."""
    return Counter(row["commitLogOffset"] for row in rows)


def truth_where(store: GoldenStore, wanted: Callable[[Truth], bool]) -> Counter[int]:
    """Where in the log the listed messages stand that are wanted; never none."""
    found = Counter(r["commitLogOffset"] for r in store.truth if in_a_queue(r) and wanted(r))
    assert found
    return found


def watch_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that is mapped from here on."""
    opened: list[str] = []
    make = LocalFile.__init__

    def watching(self: LocalFile, segment: SegmentFile, *guarded: Any) -> None:
        opened.append(segment.path)
        make(self, segment, *guarded)

    monkeypatch.setattr(LocalFile, "__init__", watching)
    return opened


def plan_of(options: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of the table `plan`."""
    return rows_of({**options, "table": "plan"})
