"""Reads of queues whose messages moved up, as a broker's rebuild of a log that lost records leaves them."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.errors import StoreError
from rmq_store.format.queues import Entries
from rmq_store.reading import slice_entries
from rmq_store.reading.slice_entries import OTHER_OFFSET
from rmq_store.snapshot.queue_view import QueueView
from tests.support.damage import write_at, write_in_log
from tests.support.golden import unpack

LOST = (200_000, 4096)  # log offset and length of the zeroed page
HIT = 90  # an entry behind the loss
WIDTH = 20


Rebuilt = tuple[Path, dict[tuple[str, int], list[int]]]


@pytest.fixture
def rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rebuilt:
    """A store rebuilt from a log with a zeroed page, and the log offsets of what is left, by queue."""
    monkeypatch.setattr(slice_entries, "_SAID", set())
    golden = unpack("clean-4.9.7", tmp_path / "golden")
    start, stop = LOST[0], sum(LOST)
    write_in_log(golden, start, bytes(stop - start))
    left: dict[tuple[str, int], list[int]] = defaultdict(list)
    for queue, records in golden.by_queue.items():
        for one in sorted(records, key=lambda record: record["queueOffset"]):
            at = one["commitLogOffset"]
            if at + one["storeSize"] <= start or at >= stop:
                left[queue.topic, queue.queue_id].append(at)
    rebuild(golden.path, tmp_path / "rebuilt")
    return tmp_path / "rebuilt", left


def test_it_gives_all_messages_that_the_log_has(
    rebuilt: Rebuilt, caplog: pytest.LogCaptureFixture
) -> None:
    path, left = rebuilt
    met: list[StoreError] = []
    got: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    with MessageStore.open(path) as store, caplog.at_level(logging.WARNING):
        for topic in {topic for topic, _ in left}:
            names = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]
            for batch in store.read_batches(topic, columns=names, on_damage=met.append):
                for row in batch.drop_columns("body").to_pylist():
                    key = row["topic"], row["queueId"]
                    got[key].append((row["queueOffset"], row["commitLogOffset"]))
    assert {queue: sorted(rows) for queue, rows in got.items()} == {
        queue: list(enumerate(offsets)) for queue, offsets in left.items()
    }
    assert not [error for error in met if "queue offset" in error.reason]
    (said,) = [r.getMessage() for r in caplog.records if "lists the record of" in r.getMessage()]
    assert "rmqstore verify" in said


def test_it_gives_the_same_from_a_range_of_queue_offsets(rebuilt: Rebuilt) -> None:
    path, left = rebuilt
    (topic, queue_id), offsets = max(left.items(), key=lambda item: len(item[1]))
    with MessageStore.open(path) as store:
        for start in (0, 70, len(offsets) - 1):
            for stop in (start + 1, len(offsets)):
                how: Any = {"columns": ["commitLogOffset", "body"], "on_damage": lambda _: None}
                rows = store.read_batches(topic, [queue_id], start, stop, **how).read_all()
                assert rows["commitLogOffset"].to_pylist() == offsets[start:stop]


@pytest.mark.parametrize("other", [-1, 1, 5])
def test_an_entry_that_lists_what_another_lists_stays_damage(rebuilt: Rebuilt, other: int) -> None:
    """Also where the queue has moved: no message comes twice, and none is missing without a word."""
    path, left = rebuilt
    (topic, queue_id), offsets = max(left.items(), key=lambda item: len(item[1]))
    file, *_ = sorted(Path(path, "consumequeue", topic, str(queue_id)).iterdir())
    source = (HIT + other) * WIDTH
    write_at(file, HIT * WIDTH, file.read_bytes()[source : source + WIDTH])
    met: list[StoreError] = []
    names = ["queueOffset", "commitLogOffset", "body"]
    with MessageStore.open(path) as store:
        batches = store.read_batches(topic, [queue_id], columns=names, on_damage=met.append)
        rows = [row for batch in batches for row in batch.drop_columns("body").to_pylist()]
    numbers = [row["queueOffset"] for row in rows]
    refused = [e.entry.queue_offset for e in met if e.entry and e.reason.endswith(OTHER_OFFSET)]
    assert refused
    assert sorted([*numbers, *refused]) == list(range(len(offsets)))
    assert len({row["commitLogOffset"] for row in rows}) == len(rows)


def test_an_entry_whose_file_expires_meanwhile_is_refused(
    rebuilt: Rebuilt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at its neighbours finds nothing then."""
    path, left = rebuilt
    (topic, queue_id), offsets = max(left.items(), key=lambda item: len(item[1]))
    monkeypatch.setattr(QueueView, "entries_starting_in", lambda *_: Entries.none())
    met: list[StoreError] = []
    with MessageStore.open(path) as store:
        batches = store.read_batches(
            topic, [queue_id], columns=["body"], unwrap_batches=True, on_damage=met.append
        )
        rows = sum(batch.num_rows for batch in batches)
    refused = [error for error in met if error.reason.endswith(OTHER_OFFSET)]
    assert refused
    assert rows + len(refused) == len(offsets)
