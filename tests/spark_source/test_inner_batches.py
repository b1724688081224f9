"""Inner batches, message by message."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store.format.compression import SysFlag
from tests.support.expected import members
from tests.support.golden import Golden, GoldenStore, in_a_queue, messages_in
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import NAME, options_of


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
@pytest.mark.parametrize("name", ["clean-5.1.1", "clean-5.3.3", NAME, "multipath-5.5.0"])
def test_inner_batches_come_message_by_message(
    golden: Golden, tmp_path: Path, name: str, source: str
) -> None:
    store = golden(name)
    batches = [r for r in store.truth if r["sysFlag"] & SysFlag.INNER_BATCH and in_a_queue(r)]
    assert batches
    expected: Counter[tuple[Any, ...]] = Counter()
    for record in batches:
        base = int(record["properties"]["INNER_BASE"])
        for number, (flag, body, properties) in enumerate(members(record)):
            place = (record["topic"], record["queueId"])
            at = (*place, base + number, record["commitLogOffset"])
            uniq, tags = properties.get("UNIQ_KEY"), properties.get("TAGS")
            expected.update([(*at, flag, body, uniq, tags)])
        assert number + 1 == messages_in(record)
    topics = sorted({r["topic"] for r in batches})
    options = options_of(
        store,
        topic=",".join(topics),
        unwrapBatches="true",
        source=source,
        columns="topic,queueId,queueOffset,commitLogOffset,flag,body,uniqKey,tags",
    )
    if name.startswith("multipath"):
        folders = store.log_folders["storePathCommitLog"]
        (tmp_path / "b.conf").write_text(f"storePathCommitLog={folders}")
        options["brokerconf"] = str(tmp_path / "b.conf")
    rows = rows_of(options)
    offsets = {r["commitLogOffset"] for r in batches}
    found = Counter(tuple(row.values()) for row in rows if row["commitLogOffset"] in offsets)
    assert found == expected
    few = {**options, "columns": "topic,queueId,queueOffset,commitLogOffset"}
    without_log = Counter(tuple(row.values()) for row in rows_of(few))
    assert without_log == Counter(tuple(row.values())[:4] for row in rows)


def test_messages_of_batches_stay_in_the_order_of_the_log(golden: Golden) -> None:
    """Also if no column shows it, and between messages that were sent alone. `tags` needs the log."""
    options = options_of(golden(NAME), unwrapBatches="true", includeSystemTopics="true")
    place = {**options, "columns": "commitLogOffset,topic,queueOffset,tags"}
    rows = [(r["topic"], r["queueOffset"]) for r in rows_of(place)]
    where = [r["commitLogOffset"] for r in rows_of(place)]
    assert where == sorted(where)
    body = rows_of({**options, "columns": "topic,queueOffset,tags"})
    assert [(r["topic"], r["queueOffset"]) for r in body] == rows


def test_a_range_may_begin_and_end_inside_a_batch(clean: GoldenStore) -> None:
    record = next(
        r for r in clean.truth if r["sysFlag"] & SysFlag.INNER_BATCH and messages_in(r) >= 4
    )
    base = int(record["properties"]["INNER_BASE"])
    topic, queue = record["topic"], str(record["queueId"])
    for source in ("consumequeue", "commitlog"):
        rows = rows_of(
            options_of(
                clean,
                unwrapBatches="true",
                source=source,
                assign=json.dumps({topic: [int(queue)]}),
                startingOffsets=json.dumps({topic: {queue: base + 1}}),
                endingOffsets=json.dumps({topic: {queue: base + 3}}),
            )
        )
        assert [row["queueOffset"] for row in rows] == [base + 1, base + 2]
