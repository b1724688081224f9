"""Stores in DLedger mode: rows of the source, and tables, against what a client was served."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GoldenStore, unpack_field, unpack_kind
from tests.support.spark.reads import rows_of

COLUMNS = "topic,queueId,queueOffset,commitLogOffset,storeSize,storeTimestamp,bodyCrc"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return unpack_kind("dledger-5.5.0", tmp_path_factory.mktemp("golden"))


def millis(row: dict[str, Any]) -> int:
    seconds: float = row["storeTimestamp"].timestamp()
    return round(seconds * 1000)


@pytest.mark.parametrize("source", ["queues", "commitlog"])
@pytest.mark.parametrize("size", ["20k", "1g"])
def test_rows_are_those_that_a_client_was_served(
    golden: GoldenStore, source: str, size: str
) -> None:
    options = {"path": golden.path, "brokerConf": golden.conf, "columns": COLUMNS}
    options |= {"maxbytesperpartition": size}
    options |= {} if source == "queues" else {"source": source}
    lines = golden.lines("served")
    rows = rows_of({**options, "topic": ",".join({line["topic"] for line in lines})})
    assert Counter(
        (r["topic"], r["queueId"], r["queueOffset"], r["commitLogOffset"], r["storeSize"])
        for r in rows
    ) == Counter((m["topic"], m["queue"], m["offset"], m["phy"], m["size"]) for m in lines)
    stored = {row["commitLogOffset"]: (millis(row), row["bodyCrc"]) for row in rows}
    assert stored == {line["phy"]: (line["storeTs"], line["bodyCrc"]) for line in lines}


def test_messages_of_a_time_of_a_store_with_two_logs(tmp_path: Path) -> None:
    root = unpack_field("mixed-dledger-old-log-there", tmp_path)
    options = {"path": str(root), "columns": COLUMNS, "maxbytesperpartition": "100k"}
    rows = rows_of(options)
    assert len(rows) == 3000
    times = sorted(millis(row) for row in rows)
    since = times[1500]
    wanted = Counter(row["commitLogOffset"] for row in rows if millis(row) >= since)
    for more in ({}, {"source": "commitlog"}):
        found = rows_of({**options, **more, "startingTimestamp": str(since)})
        assert Counter(row["commitLogOffset"] for row in found) == wanted
