"""A read that lets go of the log's order: the same rows, queue after queue."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from rmq_store import MessageStore, QueueSlice
from rmq_store.consumequeue import log_order
from tests.support.golden import Golden

OF_THE_QUEUE = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode")
STORES = ("clean-5.5.0", "geometry-5.5.0", "clean-4.9.7")

Row = tuple[object, ...]


def slices_of(store: MessageStore) -> list[QueueSlice]:
    states = store.view.snapshot.queues
    return [
        QueueSlice(queue, state.min_offset, state.max_offset) for queue, state in states.items()
    ]


def rows_of(
    store: MessageStore,
    *,
    columns: tuple[str, ...] = OF_THE_QUEUE,
    unwrap: bool = False,
    **how: Any,
) -> list[Row]:
    batches = store.read_slices(
        slices_of(store),
        columns=columns,
        unwrap_batches=unwrap,
        on_damage=lambda error: None,
        **how,
    )
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("unwrap", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_the_rows_are_those_of_a_read_in_log_order(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, name: str, unwrap: bool
) -> None:
    with golden(name).open() as store:
        ordered = rows_of(store, log_order=True, unwrap=unwrap)
        found = rows_of(store, log_order=False, unwrap=unwrap)
        monkeypatch.setattr(log_order, "_FIRST_ENTRIES_READ", 3)  # several blocks of a queue
        small = rows_of(store, log_order=False, unwrap=unwrap, batch_rows=7, first_batch_rows=2)
    assert found == small
    assert sorted(found) == sorted(ordered)
    assert found != ordered
    assert [row[3] for row in ordered] == sorted(row[3] for row in ordered)  # type: ignore[type-var]


@pytest.mark.parametrize("unwrap", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_each_queue_comes_once_and_in_its_order(golden: Golden, name: str, unwrap: bool) -> None:
    with golden(name).open() as store:
        rows = rows_of(store, log_order=False, unwrap=unwrap)
        queues = [part.queue for part in slices_of(store) if part.start < part.stop]
    groups = [(queue, list(group)) for queue, group in groupby(rows, key=lambda row: row[:2])]
    assert [queue for queue, _ in groups] == [tuple(queue) for queue in queues]
    for _, group in groups:
        offsets = [row[2] for row in group]
        assert offsets == sorted(offsets)  # type: ignore[type-var]


def test_records_are_read_in_log_order_all_the_same(golden: Golden) -> None:
    """They lie in one log, and a read goes through it once."""
    columns = (*OF_THE_QUEUE, "bodyCrc")
    with golden("clean-5.5.0").open() as store:
        ordered = rows_of(store, log_order=True, columns=columns)
        assert rows_of(store, log_order=False, columns=columns) == ordered
