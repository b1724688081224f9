"""Compare the storage core with the broker's store classes: both in one run, medians, ratios.

    python -m benchmarks.core                    # 1 KiB and 100 B bodies, a log of at least 1 GiB
    python -m benchmarks.core --log-bytes 200e6  # a quick look

Each side uses one core and a warm page cache, and the sides alternate. Java reads the store that we
wrote. `read` compares queue to Arrow batches with getMessage and decode, on an open store; `append`
writes log, queue and index. The times exclude opening, the flush at closing, and the creation of
the messages. The body CRC is checked by default; Java's reader does not check it, so the first row
has no check on either side, and the second row has it on both.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.javabench import Verb, run_bench
from rmq_store import MessageStore
from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.arrow.message_columns import DEFAULT_NAMES
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.dispatch import dispatch
from rmq_store.consumequeue.writer import QueueWriter
from rmq_store.files.writer import OpenFiles
from rmq_store.format.layout import COMMITLOG_DIR
from rmq_store.malloc import keep_freed_memory

TOPICS, QUEUES = 4, 4
BATCH = 8192
RECORD_OVERHEAD = 210  # bytes of a record besides its body, about
FEW = ("topic", "queueId", "queueOffset", "tags", "storeTimestamp")
NO_BODY = tuple(name for name in DEFAULT_NAMES if name != "body")
ROUNDS = 5
# Row, columns, whether body CRCs are checked, and the verb that Java runs.
READS: tuple[tuple[str, tuple[str, ...] | None, bool, Verb | None], ...] = (
    ("all", None, False, "read"),
    ("crc", None, True, "read-crc"),
    ("no body", NO_BODY, False, "read-nobody"),
    ("few", FEW, False, None),
)


@dataclass
class Row:
    """One comparison: messages per second of both sides, per round."""

    name: str
    ours: list[float] = field(default_factory=list)
    java: list[float] = field(default_factory=list)
    mb: float = 0.0  # megabytes of record per message, for MB/s

    def line(self) -> str:
        """As one line of the table."""
        ours = statistics.median(self.ours)
        text = f"{self.name:<34}{ours / 1e3:>9.0f} k/s {ours * self.mb:>7.0f} MB/s"
        if self.java:
            java = statistics.median(self.java)
            text += f"{java / 1e3:>9.0f} k/s {ours / java:>7.2f} x"
        return text


def messages(count: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same messages as on the Java side: topics, queues, tags, keys and ids, with random
    bodies."""
    body = np.random.default_rng(1).bytes(body_bytes)
    for start in range(0, count, BATCH):
        number = np.arange(start, min(start + BATCH, count))
        digits = pc.cast(pa.array(number), pa.string())
        yield pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([f"order-topic-{i}" for i in range(TOPICS)]).take(
                    pa.array(number % TOPICS)
                ),
                "queueId": pa.array((number // TOPICS % QUEUES).astype(np.int32)),
                "body": pa.array([body], pa.binary()).take(
                    pa.array(np.zeros(len(number), np.int32))
                ),
                "tags": pa.array([f"Tag{i}" for i in range(5)]).take(pa.array(number % 5)),
                "keys": pc.binary_join_element_wise("ORDER_", digits, ""),
                "uniqKey": pc.binary_join_element_wise(
                    "7F000001", pc.utf8_lpad(digits, 24, "0"), ""
                ),
                "bornTimestamp": pa.array(np.full(len(number), 1_700_000_000_000)),
            }
        )


def timed(work: Callable[[], int]) -> float:
    """Messages per second of one pass."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)


def append_all(store: Path, batches: Iterable[pa.RecordBatch]) -> float:
    """Write all batches with queue and index to a new store. Returns messages per second."""
    shutil.rmtree(store, ignore_errors=True)
    count, seconds = 0, 0.0
    with MessageStore.create(store) as writer:
        for batch in batches:
            start = time.perf_counter()
            count += len(writer.append_batch(batch))
            seconds += time.perf_counter() - start
    return count / seconds


def read_all(reader: MessageStore, columns: tuple[str, ...] | None, check_crc: bool) -> int:
    """Read every message of every queue."""
    batches = reader.read_batches(columns=columns, check_crc=check_crc)
    return sum(batch.num_rows for batch in batches)


def rebuild_queues(store: Path, target: Path) -> int:
    """Rebuild every queue from the log."""
    shutil.rmtree(target, ignore_errors=True)
    files = OpenFiles()
    queues = QueueWriter(target, StoreConfig(), files, {})
    count = 0
    for segment, window, at in CommitLog([store / COMMITLOG_DIR]).runs_from(0):
        for start in range(0, len(at), 1 << 16):
            headers = Headers(window, at[start : start + (1 << 16)], segment.base)
            found = dispatch(DecodedRecords.of(headers), delay_levels_ms={})
            queues.add_entries(found)
            count += len(found)
    files.close()
    return count


def compare(body_bytes: int, log_bytes: int, work: Path, with_java: bool) -> list[Row]:
    """All rows of the table for one size of bodies."""
    count = int(log_bytes // (body_bytes + RECORD_OVERHEAD))
    store, other = work / "ours", work / "java"
    sizes = body_bytes + RECORD_OVERHEAD
    rows = {
        "all": Row("read, all columns", mb=sizes / 1e6),
        "crc": Row("read, all columns, body CRC", mb=sizes / 1e6),
        "no body": Row("read, without body", mb=sizes / 1e6),
        "few": Row(f"read, {len(FEW)} columns", mb=sizes / 1e6),
        "append": Row("append with queue and index", mb=sizes / 1e6),
        "rebuild": Row("queues from the log", mb=sizes / 1e6),
    }

    def java(name: str, verb: Verb, path: Path, **more: Any) -> None:
        if with_java:
            rows[name].java += [one.rate for one in run_bench(verb, path, **more)]

    for _ in range(ROUNDS):
        rows["append"].ours.append(append_all(store, messages(count, body_bytes)))
    java("append", "put", other, warmups=2, passes=3, messages=count // 4, body_bytes=body_bytes)
    shutil.rmtree(other, ignore_errors=True)
    with MessageStore.open(store) as reader:
        read_all(reader, None, False)  # warms the page cache
        for name, columns, check, verb in READS:
            for round_ in range(ROUNDS):
                rows[name].ours.append(timed(lambda c=columns, k=check: read_all(reader, c, k)))  # type: ignore[misc]
                if verb is not None and round_ in (1, 3):
                    java(name, verb, store, warmups=5, passes=3)
    for _ in range(3):
        rows["rebuild"].ours.append(timed(lambda: rebuild_queues(store, other)))
    shutil.rmtree(other, ignore_errors=True)
    java("rebuild", "redispatch", store, warmups=0, passes=2)
    return list(rows.values())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log-bytes", type=float, default=1.1 * 2**30, help="size of the log")
    parser.add_argument("--bodies", type=int, nargs="*", default=[1024, 100], help="bytes")
    parser.add_argument("--no-java", action="store_true", help="only our side")
    parser.add_argument("--folder", type=Path, help="folder for the stores")
    chosen = parser.parse_args()
    keep_freed_memory()  # as the command, the jobs and Spark's workers do
    for body_bytes in chosen.bodies:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as work:
            rows = compare(body_bytes, int(chosen.log_bytes), Path(work), not chosen.no_java)
        print(f"\nbodies of {body_bytes} bytes{'':>20}ours{'':>26}store classes   ours/theirs")
        for row in rows:
            print(row.line())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of our side: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
