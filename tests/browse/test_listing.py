"""The newest messages, and those before them, page by page: none twice, none left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_store.browse.page import before, messages_in, newest_slices
from rmq_store.errors import StoreError
from rmq_store.search.queue_selection import Search, selected_slices
from tests.support.golden import GoldenStore

COUNT = 53
COLUMNS = ("queueId", "queueOffset", "commitLogOffset")
# Inner batches, light queues, queue extensions, large and small files, a crash.
STORES = ("batches-5.5.0", "lmq-5.3.3", "ext-5.5.0", "geometry-5.5.0", "hours-crash-5.5.0")


def fail(error: StoreError) -> None:
    raise error


@pytest.mark.parametrize("tags", [None, "paid"])
@pytest.mark.parametrize("name", STORES)
def test_pages_have_every_message_once(
    golden: Callable[[str], GoldenStore], name: str, tags: str | None
) -> None:
    with golden(name).open() as store:
        for topic in store.topics()[:6]:
            slices = selected_slices(store, Search([topic]))
            whole = messages_in(store, slices, COLUMNS, tags, fail).to_pylist()
            found = []
            while any(map(len, slices)):
                newest = newest_slices(store, slices, COUNT, tags)
                rows = messages_in(store, newest, COLUMNS, tags, fail).to_pylist()
                assert len(rows) >= COUNT or newest == slices
                found += rows
                places = [
                    store.log_offset_of(part.queue, part.start) for part in newest if len(part)
                ]
                slices = before(store, slices, min(places))
            assert found == whole
