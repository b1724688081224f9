"""Measure how long a report of a store takes, and how much memory.

    python -m benchmarks.report [--folder /where/the/disk/is] [--messages 5000000] [--queues 80]

The store has bodies of 100 bytes to 1 KiB over five days, groups that are behind, and dead letters. It
is deleted at the end. The report is made by a new process with a cold import, and a warm page cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.core import append_all

BATCH = 8192
TOPICS = 20
FIRST_MS = 1_790_000_000_000
DAYS_MS = 5 * 86_400_000
GROUPS = 5


def messages(count: int, queues: int) -> Iterator[pa.RecordBatch]:
    """Messages of all sizes; a topic's share falls with its number."""
    random = np.random.default_rng(5)
    body = random.bytes(1024)
    names = pa.array([f"topic-{number}" for number in range(TOPICS - 1)] + ["%DLQ%group-0"])
    weights = 1 / np.arange(1, TOPICS + 1)
    for start in range(0, count, BATCH):
        rows = min(BATCH, count - start)
        lengths = random.integers(100, 1025, rows)
        chosen = random.choice(TOPICS, rows, p=weights / weights.sum())
        numbers = np.arange(start, start + rows)
        yield pa.RecordBatch.from_pydict(
            {
                "topic": names.take(pa.array(chosen)),
                "queueId": pa.array((numbers % max(1, queues // TOPICS)).astype(np.int32)),
                "body": [body[:length] for length in lengths.tolist()],
                "uniqKey": [f"7F000001{number:024d}" for number in numbers.tolist()],
                "tags": ["a"] * rows,
                "storeTimestamp": pa.array(FIRST_MS + numbers * DAYS_MS // count),
            }
        )


def commit(store: Path, count: int, queues: int) -> None:
    """Offsets of groups that have consumed a tenth, two tenths, ... of each queue."""
    ids = range(max(1, queues // TOPICS))
    shares = 1 / np.arange(1, TOPICS + 1)
    most = (count * shares / shares.sum() / len(ids)).astype(int).tolist()
    table = {
        f"topic-{topic}@group-{group}": {str(q): most[topic] * (group + 1) // 10 for q in ids}
        for topic in range(TOPICS - 1)
        for group in range(GROUPS)
    }
    path = store / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": table}))


def peak_of(process: subprocess.Popen[bytes]) -> int:
    """The most memory of its own that a process had, KiB; mapped files do not count. Waits for its
    end."""
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        lines = [line for line in status.splitlines() if line.startswith("RssAnon:")]
        peak = max(peak, *(int(line.split()[1]) for line in lines), 0)
        time.sleep(0.05)
    return peak


def main() -> None:
    """Fill a store, make its report a few times, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--queues", type=int, default=80)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rmqstore-report-", dir=given.folder))
    try:
        store = work / "store"
        append_all(store, messages(given.messages, given.queues))
        commit(store, given.messages, given.queues)
        log = sum(file.stat().st_size for file in (store / "commitlog").iterdir())
        print(f"{given.messages:,} messages, {given.queues} queues, {log / 2**30:.1f} GiB of log")
        command = [sys.executable, "-c", "from rmq_store.cli.main import main; main()"]
        for number in range(3):
            start = time.perf_counter()
            target = work / "report.html"
            words = [*command, "report", str(store), "-o", str(target)]
            with subprocess.Popen(words) as process:
                peak = peak_of(process)
            seconds = time.perf_counter() - start
            print(f"report {number}: {seconds:.1f} s, at most {peak >> 10} MiB of its own memory")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
