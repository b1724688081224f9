"""Measure a store in a distant object store: requests one after another, and in parallel.

    python -m benchmarks.objectstore [--delay-ms 30] [--rounds 5]

The server (moto's) is on loopback; every answer is delayed. Both ways alternate in one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.files import parallel as sidebyside
from rmq_store.search.find_messages import plan_keys
from rmq_store.tables.table import all_ranges
from tests.support.slow_s3 import FarAway, s3_server, upload

QUEUES = 64
MESSAGES = 100_000
BODY = 1024
FILE_SIZE = 64 << 20


def main() -> None:
    """Make a store, put it on the server, and time opening, one key and a full read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, s3_server() as server:
        folder = Path(scratch) / "store"
        make(folder)
        uri = upload(server, str(folder), "store")
        with FarAway(server, args.delay_ms / 1000) as far:
            report(uri, far, args.rounds)


def make(folder: Path) -> None:
    """A store of one topic."""
    sizes = {"mappedFileSizeCommitLog": FILE_SIZE, "maxHashSlotNum": 500_000}
    schema = arrow_schema(["topic", "queueId", "body", "keys"])
    with MessageStore.create(folder, {**sizes, "maxIndexNum": 1_000_000}) as store:
        for first in range(0, MESSAGES, 2000):
            rows = [
                {"topic": "orders", "queueId": n % QUEUES, "body": bytes(BODY), "keys": f"k{n}"}
                for n in range(first, first + 2000)
            ]
            store.append_batch(pa.RecordBatch.from_pylist(rows, schema=schema))


@contextmanager
def at_once(data: int, looks: int) -> Iterator[None]:
    """Limit the number of parallel requests."""
    with (
        patch("rmq_store.files.parallel.IN_FLIGHT", data),
        patch("rmq_store.snapshot.snapshot.LOOKS_IN_FLIGHT", looks),
    ):
        yield


def report(uri: str, far: FarAway, rounds: int) -> None:
    """Print the medians of both ways, with requests and bytes."""
    ways = {
        "one by one": (1, 1),
        "side by side": (sidebyside.IN_FLIGHT, sidebyside.LOOKS_IN_FLIGHT),
    }
    times: dict[tuple[str, str], list[float]] = {}
    asked: dict[str, tuple[int, int]] = {}
    for _ in range(rounds):
        for way, limits in ways.items():
            with at_once(*limits):
                for step, seconds, reads in steps(uri, far):
                    times.setdefault((step, way), []).append(seconds)
                    asked[step] = reads
    for step, (requests, fetched) in asked.items():
        one, many = (statistics.median(times[step, way]) for way in ways)
        print(
            f"{step:22} {requests:5} requests {fetched / 1e6:8.2f} MB   "
            f"one by one {one:6.2f} s   side by side {many:6.2f} s   {one / many:.1f}x"
        )


def steps(uri: str, far: FarAway) -> Iterator[tuple[str, float, tuple[int, int]]]:
    """Each step with its duration, requests and bytes."""
    start = time.perf_counter()
    config = {"maxHashSlotNum": 500_000, "maxIndexNum": 1_000_000}
    with MessageStore.open(uri, config=config, storage_options=far.options) as store:
        seen = store.reads()[-2:]
        yield "open", time.perf_counter() - start, seen

        def timed(step: str, work: Callable[[], int], expected: int) -> tuple[str, float]:
            begin = time.perf_counter()
            assert work() == expected
            return step, time.perf_counter() - begin

        def one_key() -> int:
            plan = plan_keys(store, all_ranges(store), ["k77"])
            assert plan is not None
            return len(plan.hits)

        def whole() -> int:
            return sum(batch.num_rows for batch in store.read_batches())

        for step, work, expected in (("plan of one key", one_key, 1), ("read", whole, MESSAGES)):
            done = timed(step, work, expected)
            now = store.reads()[-2:]
            yield *done, (now[0] - seen[0], now[1] - seen[1])
            seen = now


if __name__ == "__main__":
    main()
