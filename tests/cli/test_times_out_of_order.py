"""Ranges of times where the clock was set back by a minute: no row of another time, none missing."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from tests.support.golden import GoldenStore
from tests.support.running.commands import call, objects, run

COLUMNS = ("topic", "queueId", "rawBody", "sysFlag", "properties")
SIZES = {"mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000}
START, STEP, BACK = 1_795_253_000_000, 200, 60_000  # ms


@pytest.fixture
def set_back(store: GoldenStore, tmp_path: Path) -> tuple[Path, list[int]]:
    """The messages of a real broker, one each 200 ms; after half of them the clock is set back."""
    with store.open() as opened:
        batches = list(opened.read_batches("orders", columns=COLUMNS))
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = table.num_rows
    stamps = [START + n * STEP - (BACK if n >= rows // 2 else 0) for n in range(rows)]
    names = ["body" if name == "rawBody" else name for name in table.column_names]
    batch = table.rename_columns(names).append_column("storeTimestamp", pa.array(stamps))
    with MessageStore.create(tmp_path / "set-back", SIZES) as writer:
        writer.append_batch(batch.to_batches()[0])
    return tmp_path / "set-back", stamps


def test_a_range_of_times_has_the_messages_of_these_times(set_back: tuple[Path, list[int]]) -> None:
    path, stamps = set_back
    low, high = min(stamps), max(stamps)
    for part in range(10):
        begin = low + (high - low) * part // 12
        end = begin + (high - low) // 7
        expected = sum(begin <= stamp < end for stamp in stamps)
        for command in ("cat", "find"):
            chosen = ["--topic", "orders", "--since", str(begin), "--until", str(end)]
            found = objects(command, str(path), *chosen, "--columns", "queueOffset")
            assert len(found) == expected, (command, part)
            assert expected


def test_jobs_have_the_messages_of_a_range_of_times(
    set_back: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, stamps = set_back
    low, high = min(stamps), max(stamps)
    for part in (1, 3):
        begin = low + (high - low) * part // 5
        end = begin + (high - low) // 3
        expected = {n for n, stamp in enumerate(stamps) if begin <= stamp < end}
        times = ["--topic", "orders", "--since", str(begin), "--until", str(end)]
        new, files = tmp_path / f"new-{part}", tmp_path / f"files-{part}"
        run("replay", str(path), "--to", str(new), *times, "--engine", "local")
        with MessageStore.open(new) as store:
            assert sum(store.max_offset(*queue) for queue in store.queues("orders")) == len(
                expected
            )
        run("export", str(path), "--to", str(files), "--format", "jsonl", *times)
        rows = [json.loads(line) for file in files.rglob("*.jsonl") for line in file.open()]
        exported = [datetime.fromisoformat(row["storeTimestamp"]) for row in rows]
        in_time = [begin <= time.timestamp() * 1000 < end for time in exported]
        assert sum(in_time) == len(expected)


def test_counts_of_hours_say_that_they_may_be_wrong(tmp_path: Path, clean: GoldenStore) -> None:
    """The clock was ahead by hours for some messages: the parts of a queue are not those of hours."""
    hour, store = 3_600_000, str(tmp_path / "ahead")
    with MessageStore.create(store, SIZES) as writer:
        for begin, count in ((0, 300), (6 * hour, 100), (hour, 300), (2 * hour, 100)):
            for number in range(count):
                message = {"topic": "orders", "queueId": 0, "body": b"x"}
                writer.append({**message, "storeTimestamp": START + begin + number})
    said = "the log is not in the order of its store times"
    for by, warns in (("hour", True), ("day", True), ("topic,day", True), ("topic", False)):
        assert (said in call("usage", store, "--by", by).stderr) == warns
        assert said not in call("usage", clean.path, "--by", by).stderr
    assert said in call("table", store, "usage").stderr
    for path, warns in ((clean.path, False), (store, True)):
        page = tmp_path / f"{warns}.html"
        run("report", path, "--to", str(page))
        assert ("counted by day or hour may be wrong" in page.read_text("utf-8")) == warns
    counts = "SELECT count(*) AS n FROM messages GROUP BY date_trunc('hour', storeTimestamp)"
    assert sorted(row["n"] for row in objects("sql", store, counts)) == [100, 100, 300, 300]
