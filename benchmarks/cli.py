"""How long the `rmqstore` command takes from its cold start: find, info, cat.

    python -m benchmarks.cli                    # 5 million messages of 100 B
    python -m benchmarks.cli --messages 500000  # a quick look

Each figure is the duration of a whole process with a warm page cache: the median of ten, and the
range. `cat` writes into a pipe, and a second process discards the output.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.core import append_all
from benchmarks.traffic import one_layout
from tests.snapshot.test_scale import SparseStore

COMMAND = [sys.executable, "-c", "from rmq_store.cli.main import main; main()"]
ROUNDS = 10
CAT_ROUNDS = 3
BODY = json.dumps({"order": 4711, "state": "paid", "amount": 12.5, "note": "x" * 60})


def timed(words: list[str]) -> float:
    """Seconds of one call. A reader of the pipe discards its output."""
    start = time.perf_counter()
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE) as process:
        subprocess.run(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL, check=True)
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return time.perf_counter() - start


def report(name: str, call: Callable[[], list[str]], rounds: int, per: int = 0) -> None:
    """Print median and range; with `per`, also messages per second."""
    taken = [timed(call()) for _ in range(rounds)]
    median = statistics.median(taken)
    rate = f"{per / median / 1e3:>8.0f} k messages/s" if per else ""
    print(f"{name:<44}{median:>7.3f} s  ({min(taken):.3f} to {max(taken):.3f}){rate}", flush=True)


def with_text(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same messages with JSON as bodies."""
    for batch in batches:
        body = pa.array([BODY.encode()] * batch.num_rows, pa.binary())
        at = batch.schema.get_field_index("body")
        yield batch.set_column(at, "body", body)


def main() -> None:
    """Make the stores and time the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, help="folder for the stores")
    chosen = parser.parse_args()
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as work:
        store = Path(work) / "store"
        append_all(store, with_text(one_layout(chosen.messages, 100)))
        path, a_topic = str(store), chosen.messages // 4
        cat = ["cat", path, "--topic", "order-topic-1"]
        timed(cat)  # warms the page cache
        report(
            f"find --key in {chosen.messages:,} messages",
            lambda: ["find", path, "--key", f"ORDER_{choose.randrange(chosen.messages)}"],
            ROUNDS,
        )
        report("cat", lambda: cat, CAT_ROUNDS, a_topic)
        report("cat --json, all columns", lambda: [*cat, "--json"], CAT_ROUNDS, a_topic)
        sparse = SparseStore(Path(work) / "sparse", topics=100, queues=4, files_a_queue=1, short=5)
        report("info on a sparse store of 1 TiB", lambda: ["info", str(sparse.root)], ROUNDS)


if __name__ == "__main__":
    main()
