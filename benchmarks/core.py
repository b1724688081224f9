"""Compare the storage core with the broker's store classes: both in one run, medians, ratios.

    python -m benchmarks.core                    # 1 KiB and 100 B bodies, a log of at least 1 GiB
    python -m benchmarks.core --log-bytes 200e6  # a quick look, about four minutes

Our side uses one core here; another one copies bodies beside the check of their CRCs where these have
several lengths. The store classes have threads of their own. The page cache is warm, and the sides
alternate. Java reads the store that we wrote. `read` compares queue to Arrow batches with getMessage and
decode, on an open store; `append` writes log, queue and index; `rebuild` makes queues and index of a log,
as a broker does that starts without them. The times exclude opening, and the flush at closing of an
append. They exclude the creation of our batches, but not that of Java's messages, 0.2 to 0.8 us each:
dispatch runs beside it, and would go on unmeasured. `mixed` has 20 layouts of properties with values of
random lengths, as real traffic has.

The body CRC is checked by default, and Java's reader does not check it: so there are rows without a
check, with it on both sides, and with it on our side alone. Processor time is that of all threads.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.javabench import Verb, run_bench
from benchmarks.traffic import Messages, mixed, one_layout
from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.arrow.column_definitions import DEFAULT_NAMES
from rmq_store.heap_settings import keep_freed_memory

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
# Messages, the verb with which Java writes such ones, and what the rows are called.
KINDS: tuple[tuple[Messages, Verb, str], ...] = (
    (one_layout, "put", ""),
    (mixed, "put-mixed", ", mixed"),
)


@dataclass(frozen=True)
class Taken:
    """One pass: seconds by the clock and of the processor for a number of messages."""

    messages: int
    seconds: float
    cpu: float


@dataclass
class Row:
    """One comparison: the passes of both sides."""

    name: str
    ours: list[Taken] = field(default_factory=list)
    java: list[Taken] = field(default_factory=list)

    def line(self) -> str:
        """As one line of the table."""
        text = f"{self.name:<44}{_rate(self.ours) / 1e3:>8.0f} k/s {_cpu(self.ours):>6.2f} s"
        if self.java:
            ratio = _rate(self.ours) / _rate(self.java)
            text += f"{_rate(self.java) / 1e3:>10.0f} k/s {_cpu(self.java):>6.2f} s {ratio:>7.2f} x"
        return text


def _rate(passes: Sequence[Taken]) -> float:
    """Messages a second by the clock."""
    return statistics.median(one.messages / one.seconds for one in passes)


def _cpu(passes: Sequence[Taken]) -> float:
    """Seconds of processor time for a million messages."""
    return statistics.median(one.cpu / one.messages for one in passes) * 1e6


def timed(work: Callable[[], int]) -> Taken:
    """One pass of ours."""
    start, cpu = time.perf_counter(), time.process_time()
    count = work()
    return Taken(count, time.perf_counter() - start, time.process_time() - cpu)


def append_all(store: Path, batches: Iterable[pa.RecordBatch]) -> Taken:
    """Write all batches with queue and index to a new store; their creation does not count."""
    shutil.rmtree(store, ignore_errors=True)
    count, seconds, cpu = 0, 0.0, 0.0
    with MessageStore.create(store) as writer:
        for batch in batches:
            one = timed(lambda b=batch: len(writer.append_batch(b)))  # type: ignore[misc]
            count, seconds, cpu = count + one.messages, seconds + one.seconds, cpu + one.cpu
    return Taken(count, seconds, cpu)


def read_all(reader: MessageStore, columns: tuple[str, ...] | None, check_crc: bool) -> int:
    """Read every message of every queue."""
    batches = reader.read_batches(columns=columns, check_crc=check_crc)
    return sum(batch.num_rows for batch in batches)


def rebuild_all(store: Path, target: Path) -> int:
    """Rebuild queues and index from the log, whose full files are linked."""
    return int(rebuild(store, target, log="link").recovery.records)


class Comparison:
    """The rows of the table for one kind of messages."""

    def __init__(self, work: Path, body_bytes: int, log_bytes: int, with_java: bool) -> None:
        self.store, self.other = work / "ours", work / "java"
        self.body_bytes = body_bytes
        self.count = int(log_bytes // (body_bytes + RECORD_OVERHEAD))
        self._with_java = with_java

    def _java(self, row: Row, verb: Verb, path: Path, **more: Any) -> None:
        if self._with_java:
            found = run_bench(verb, path, **more)
            row.java += [Taken(one.messages, one.seconds, one.cpu_seconds) for one in found]

    def append(self, messages: Messages, verb: Verb, suffix: str = "") -> Row:
        """Appends on both sides; leaves our store."""
        row = Row("append with queue and index" + suffix)
        for _ in range(ROUNDS):
            row.ours.append(append_all(self.store, messages(self.count, self.body_bytes)))
        few = self.count // 4
        sizes = {"messages": few, "body_bytes": self.body_bytes}
        self._java(row, verb, self.other, warmups=2, passes=3, **sizes)
        shutil.rmtree(self.other, ignore_errors=True)
        return row

    def read(self, suffix: str = "") -> list[Row]:
        """Reads of our store on both sides."""
        rows = {
            "all": Row("read, all columns" + suffix),
            "crc": Row("read, all columns, body CRC" + suffix),
            "no body": Row("read, without body" + suffix),
            "few": Row(f"read, {len(FEW)} columns" + suffix),
        }
        with MessageStore.open(self.store) as reader:
            read_all(reader, None, False)  # warms the page cache
            for name, columns, check, verb in READS:
                row = rows[name]
                for number in range(ROUNDS):
                    row.ours.append(timed(lambda c=columns, k=check: read_all(reader, c, k)))  # type: ignore[misc]
                    if verb is not None and number in (1, 3):
                        self._java(row, verb, self.store, warmups=5, passes=3)
        alone = Row("the same, CRC on our side alone" + suffix, rows["crc"].ours, rows["all"].java)
        return [rows["all"], rows["crc"], alone, rows["no body"], rows["few"]]

    def rebuild(self, suffix: str = "") -> Row:
        """Queues and index from the log on both sides; Java deletes and makes those of our store."""
        row = Row("queues and index from the log" + suffix)
        for _ in range(3):
            shutil.rmtree(self.other, ignore_errors=True)
            row.ours.append(timed(lambda: rebuild_all(self.store, self.other)))
        shutil.rmtree(self.other, ignore_errors=True)
        self._java(row, "redispatch", self.store, warmups=0, passes=2)
        return row


def compare(body_bytes: int, log_bytes: int, work: Path, with_java: bool) -> list[Row]:
    """All rows of the table for one size of bodies."""
    both = Comparison(work, body_bytes, log_bytes, with_java)
    rows: list[Row] = []
    for messages, verb, suffix in KINDS:
        rows += [both.append(messages, verb, suffix), *both.read(suffix), both.rebuild(suffix)]
    return rows


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
        print(
            f"\nbodies of {body_bytes} bytes{'':>26}ours    CPU{'':>8}store classes    CPU  ours/theirs"
        )
        for row in rows:
            print(row.line())
    print(
        "\nk/s: thousand messages a second; CPU: seconds of processor time for a million messages"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of our side: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
