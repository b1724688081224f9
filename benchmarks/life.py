"""Measure rebuild, recovery, and messages per second under SYNC_FLUSH.

    python -m benchmarks.life [--folder /where/the/disk/is] [--log-mib 1024]

Rebuild creates queues and index from the log, which it reads twice: first to find its end, with
CRCs. The real store classes do the same in the same run, alternating.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.core import RECORD_OVERHEAD, append_all
from benchmarks.javabench import run_bench
from benchmarks.traffic import one_layout
from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.recovery.recover_store import recover

BODY = 1024
BATCH = 4096
PASSES = 3
SYNC_SECONDS = 3.0


def fill(root: Path, log_bytes: int) -> None:
    """Write a store with about `log_bytes` of log and random bodies, and do not close it."""
    body = np.random.default_rng(7).bytes(BODY)
    number = 0
    store = MessageStore.create(root)
    while store.log_range()[1] < log_bytes:
        names = [f"{number + row:09d}" for row in range(BATCH)]
        store.append_batch(
            pa.RecordBatch.from_pydict(
                {
                    "topic": ["orders"] * BATCH,
                    "queueId": pa.array(np.arange(BATCH) % 8, pa.int32()),
                    "body": [body] * BATCH,
                    "keys": names,
                    "tags": ["a"] * BATCH,
                }
            )
        )
        number += BATCH
    store.close()
    (root / "abort").touch()
    (root / "checkpoint").unlink()  # without a checkpoint, recovery reads the whole log


def recovery(folder: Path, log_bytes: int) -> None:
    """Time to recover a crashed store whose checkpoint says nothing, page cache warm."""
    root = folder / "recovery"
    fill(root, log_bytes)
    for number in range(PASSES):
        (root / "abort").touch()
        (root / "checkpoint").unlink(missing_ok=True)
        report = recover(root)
        rate = report.log_end / report.seconds / 2**20
        print(
            f"recovery {number}: {report.log_end >> 20} MiB, {report.records} records of {BODY} B, "
            f"{report.index_items_rebuilt} index items: {report.seconds:.2f} s, {rate:.0f} MiB/s"
        )


def rebuilding(folder: Path, log_bytes: int, body_bytes: int, *, with_java: bool) -> None:
    """Queues and index from the log: ours, and the real classes' dispatch of the same log."""
    store, target = folder / "source", folder / "target"
    count = log_bytes // (body_bytes + RECORD_OVERHEAD)
    append_all(store, one_layout(count, body_bytes))
    ours, java = [], []
    for _ in range(PASSES):
        shutil.rmtree(target, ignore_errors=True)
        report = rebuild(store, target, log="link")
        ours.append(report.recovery.records / report.recovery.seconds)
        if with_java:
            java += [one.rate for one in run_bench("redispatch", store, warmups=0, passes=1)]
    rate = statistics.median(ours)
    line = f"rebuild, bodies of {body_bytes} B, {count:,} messages: {rate / 1e3:.0f} k/s"
    if java:
        theirs = statistics.median(java)
        line += f", store classes {theirs / 1e3:.0f} k/s, {rate / theirs:.2f} x"
    print(line, flush=True)


def fsync_rate(folder: Path) -> float:
    """Flushes per second of a file that is written at its end, like a log."""
    with (folder / "fsync").open("w+b", buffering=0) as file:
        file.truncate(64 << 20)
        done, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < SYNC_SECONDS:
            os.pwrite(file.fileno(), bytes(BODY), done * BODY % (64 << 20))
            os.fsync(file.fileno())
            done += 1
        return done / (time.perf_counter() - begun)


def sync_appends(folder: Path, threads: int) -> float:
    """Messages per second, each acknowledged when it is on the disk."""
    counts = [0] * threads
    until = [0.0]
    with MessageStore.create(folder / f"sync{threads}", {"flushDiskType": "SYNC_FLUSH"}) as store:
        message = {"topic": "orders", "queueId": 0, "body": bytes(BODY), "keys": "k"}
        for _ in range(50):
            store.append(message)

        def work(which: int) -> None:
            while time.perf_counter() < until[0]:
                store.append(message)
                counts[which] += 1

        begun = time.perf_counter()
        until[0] = begun + SYNC_SECONDS
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(counts) / (time.perf_counter() - begun)


def main() -> None:
    """Run all of it; prints lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", help="on the disk to be measured; default: where temporary files go"
    )
    parser.add_argument("--log-mib", type=int, default=1024)
    parser.add_argument("--no-java", action="store_true", help="only our side")
    parser.add_argument("--rebuild-only", action="store_true")
    chosen = parser.parse_args()
    for body_bytes in (1024, 100):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
            rebuilding(Path(name), chosen.log_mib << 20, body_bytes, with_java=not chosen.no_java)
    if chosen.rebuild_only:
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        for number in range(PASSES):
            alone = fsync_rate(folder)
            print(f"fsync {number}: {alone:.0f} a second")
            for threads in (1, 8):
                rate = sync_appends(folder / str(number), threads)
                print(f"SYNC_FLUSH {number}: {threads} threads {rate:.0f} messages a second")
        recovery(folder, chosen.log_mib << 20)


if __name__ == "__main__":
    main()
