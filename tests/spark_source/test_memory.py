"""A worker's memory does not grow with the size of its partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.files import segments
from rmq_store.files import source as sources
from spark_source.source import RmqStoreSource

PROMISED_MIB = 300
BODY = 4000


def rss_anon_mib() -> float:
    """Anonymous memory of this process; pages of mapped files are not in it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")


def write(path: Path, size: int) -> None:
    rows = 4096
    body = np.random.default_rng(3).bytes(rows * BODY)
    ends = np.arange(0, rows * BODY + 1, BODY, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(body)]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["orders"] * rows),
            "queueId": pa.array(np.arange(rows, dtype=np.int32) % 4),
            "keys": pa.array([f"k{number}" for number in range(rows)]),
            "body": pa.Array.from_buffers(pa.binary(), rows, buffers),
        }
    )
    with MessageStore.create(path) as writer:
        for _ in range(-(-size // (rows * BODY))):
            writer.append_batch(batch)


@pytest.mark.campaign
def test_a_partition_of_four_gibibytes_takes_no_more_than_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "store", 4 << 30)
    kept: list[int] = []
    get = sources.Sources.get

    def watching(self: sources.Sources, segment: segments.SegmentFile, **how: bool) -> object:
        mapping = get(self, segment, **how)
        kept.append(sum("/commitlog/" in path for path in self._kept))
        return mapping

    monkeypatch.setattr(sources.Sources, "get", watching)
    peaks = {}
    for size in ("128m", "8g"):
        source = RmqStoreSource({"path": str(tmp_path / "store"), "maxbytesperpartition": size})
        reader = source.reader(source.schema())
        first = reader.partitions()[0]
        before = rss_anon_mib()
        peak, rows = before, 0
        batches: Iterator[Any] = reader.read(first)
        for batch in batches:
            rows += batch.num_rows
            peak = max(peak, rss_anon_mib())
        peaks[size] = peak - before
        print(f"\npartition of {size}: {rows} rows, {peak - before:.0f} MiB over {before:.0f} MiB")
    assert rows * BODY >= 4 << 30
    assert max(peaks.values()) < PROMISED_MIB
    assert max(kept) <= 2
