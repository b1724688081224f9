"""One suite for every source of queues: files, those of inner batches, RocksDB, DLedger, compaction.

Whoever plans a read asks ranges, places and times of a queue, and not where its entries come from. The rows
of a read, which hold each entry against its record, are the truth here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from rmq_store import MessageStore, QueueSlice
from tests.support.golden import GoldenStore, unpack, unpack_kind

Unpack = Callable[[str, Path], GoldenStore]
# How to unpack it, its name, and whether queues of compaction topics are those that consumers get.
SOURCES: list[tuple[Unpack, str, bool]] = [
    (unpack, "clean-4.3.2", False),
    (unpack, "crash-5.5.0", False),
    (unpack, "expired-5.5.0", False),
    (unpack, "batches-5.5.0", False),
    (unpack_kind, "rocksdb-5.5.0", False),
    (unpack_kind, "rocksdb-batch-5.5.0", False),
    (unpack_kind, "rocksdb-crash-5.5.0", False),
    (unpack_kind, "dledger-5.5.0", False),
    (unpack_kind, "compacted-5.5.0", False),
    (unpack_kind, "compacted-5.5.0", True),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{source[1]} {source[2]}")
def test_ranges_places_and_times_are_those_of_the_rows(
    tmp_path: Path, source: tuple[Unpack, str, bool]
) -> None:
    unpacked, name, compacted = source
    golden = unpacked(name, tmp_path)
    asked = 0
    with MessageStore.open(golden.path, config=golden.conf) as store:
        queues = store.ranges_for(compacted)
        for part in queues.ranges_of(store.topics()):
            rows = rows_of(store, part, compacted)
            offsets, places = rows["queueOffset"], rows["commitLogOffset"]
            assert (part.start, part.stop) == queues.limits(part.queue)
            assert not len(offsets) or part.start <= offsets[0] <= offsets[-1] < part.stop
            for row in {0, 1, len(offsets) // 2, len(offsets) - 1} & {*range(len(offsets))}:
                entry = queues.entry_at(part.queue, offsets[row])
                assert entry is not None
                assert entry.log_offset == places[row]
                assert queues.log_offset_of(part.queue, offsets[row]) == places[row]
                # The offset of no message, as of one that was compacted away, stands for the next one.
                at = queues.offset_at_log(part.queue, places[row])
                assert np.searchsorted(offsets, at) == np.searchsorted(places, places[row])
                since = queues.first_since(part.queue, rows["storeTimestamp"][row])
                assert np.searchsorted(offsets, since) == np.searchsorted(
                    rows["storeTimestamp"], rows["storeTimestamp"][row]
                )
                asked += 1
    assert asked


def rows_of(
    store: MessageStore, part: QueueSlice, compacted: bool
) -> dict[str, npt.NDArray[np.int64]]:
    """The messages of a queue, by their queue offsets. A body that is read is held against its CRC."""
    columns = ("queueOffset", "commitLogOffset", "storeTimestamp", "body")
    table = store.read_slices([part], columns=columns, compacted=compacted).read_all()
    ordered = table.sort_by("queueOffset").drop_columns("body")
    return {name: ordered[name].cast(pa.int64()).to_numpy() for name in ordered.column_names}
