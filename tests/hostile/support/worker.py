"""Everything that is done to a store, done to many hostile ones, in a process with limits.

    python -m tests.hostile.support.worker FOLDER SEED...

Prints the seed before each case. Prints FAILED with what happened for what is neither a result nor
an error of ours, and ends by itself after 20 seconds of work in one case, or 200 by the clock (with a
traceback), or at 2 GB.
"""

from __future__ import annotations

import faulthandler
import logging
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore, StoreError
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.config import json_files
from rmq_store.reading.query import DROPMALFORMED, FAILFAST, PERMISSIVE
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.tasks import DamageHandler
from rmqstore_jobs.export import ExportSpec, run
from tests.hostile.support.canaries import Canaries, canaries, state_of, tree
from tests.hostile.support.generator import Generator
from tests.support.golden import unpack
from tests.support.running.commands import call

GOLDEN = "clean-5.5.0"
SECONDS = 20  # of processor time; a busy machine needs more by the clock
SECONDS_BY_CLOCK = 10 * SECONDS
_ADDRESSES = 2 << 30  # more than the process has before the first case
_TABLES = (
    "topics",
    "queues",
    "groups",
    "offsets",
    "config",
    "checkpoint",
    "index",
    "files",
    "damage",
    "scheduled",
    "transactions",
    "deadLetters",
    "retries",
    "traces",
)
# The last two columns open bodies and properties.
_COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "keys", "properties", "body")


def read(store: Path, mode: str) -> None:
    """Every message of every queue, system topics too."""
    with MessageStore.open(store, broker_name="broker-a") as opened:
        damage = DamageHandler(opened, ScanOptions(paths=(str(store),), mode=mode))
        batches = opened.read_slices(
            opened.view.ranges_of(opened.topics()),
            columns=_COLUMNS,
            on_damage=damage,
            verify_queue=True,
        )
        for batch in batches:
            batch.validate(full=True)
        list(damage.rows((*_COLUMNS, "corruptRecord")))


def read_log(store: Path) -> None:
    with MessageStore.open(store, queues=False) as opened:
        met: list[StoreError] = []
        for batch in opened.read_log(columns=_COLUMNS, include_unqueued=True, on_damage=met.append):
            batch.validate(full=True)


def scan(store: Path) -> None:
    """All rows of a dataset, and those of filters that narrow what is read."""
    with MessageStore.open(store, broker_name="broker-a") as opened:
        met: list[StoreError] = []
        dataset = opened.messages(
            include_system_topics=True, unwrap_batches=False, on_damage=met.append
        )
        rows = dataset.to_table(columns=["topic", "queueId", "queueOffset", "storeTimestamp"])
        topics = rows.column("topic").to_pylist()
        if topics:
            # With a column of the records: what the queues alone have, damaged records have too.
            wanted = pc.field("topic") == topics[-1]
            found = dataset.to_table(columns=["storeTimestamp"], filter=wanted)
            assert found.num_rows == topics.count(topics[-1])
            dataset.count_rows(wanted)
        time = pa.scalar(0, pa.int64()).cast(TIMESTAMP)
        dataset.count_rows((pc.field("storeTimestamp") > time) & (pc.field("keys") == "k"))
        dataset.count_rows(pc.field("commitLogOffset") > 1000)


def command(*words: str) -> Callable[[], None]:
    def run_it() -> None:
        done = call(*words)
        if done.returncode not in (0, 1, 2):
            raise AssertionError(f"exit code {done.returncode}: {done.stderr}")

    return run_it


def export(store: Path, target: Path) -> None:
    run(None, ExportSpec(str(store), str(target), {"mode": DROPMALFORMED}))


def steps(case: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is done, by name: first what changes nothing."""
    store = case / "store"
    for mode in (FAILFAST, PERMISSIVE, DROPMALFORMED):
        yield f"read {mode}", lambda mode=mode: read(store, mode)  # type: ignore[misc]
    yield "read the log", lambda: read_log(store)
    yield "scan a dataset", lambda: scan(store)
    for words in (
        ["info", store], ["cat", store, "--topic", "orders", "--skip-damaged", "--json"],
        ["find", store, "--key", "k"], ["find", store, "--text", "a", "--json"],
        ["trace", store, "k"], ["verify", store], ["lag", store], ["usage", store], ["recover", store],
        *(["table", name, store] for name in _TABLES),
    ):  # fmt: skip
        yield " ".join(map(str, words[:2])), command(*map(str, words))
    yield "salvage", command("salvage", str(store), str(case / "salvaged"))
    yield "rebuild", command("rebuild", str(store), str(case / "rebuilt"))
    yield "export", lambda: export(store, case / "exported")
    yield "recover --apply", command("recover", str(store), "--apply")


def one_case(generator: Generator, seed: str, case: Path) -> Iterator[str]:
    """Yields a description of everything that should not have happened."""
    case.mkdir()
    before: Canaries = canaries(case)
    (case / "can" / "file").write_text("of somebody else")
    before = state_of(case)
    lies = generator.make(seed, case / "store")
    whole = tree(case / "store")
    for name, step in steps(case):
        try:
            step()
        except StoreError:
            pass
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            yield f"{seed} {lies} {name}: {traceback.format_exc()}"
        if state_of(case) != before:
            yield f"{seed} {lies} {name}: a file outside was changed"
            before = state_of(case)
        if name != "recover --apply" and tree(case / "store") != whole:
            yield f"{seed} {lies} {name}: the store was changed"
            whole = tree(case / "store")


def work(folder: Path, seeds: list[str]) -> int:
    """Run the cases. Returns how many failed."""
    logging.getLogger("rmqstore").addHandler(logging.NullHandler())
    logging.getLogger("rmqstore").propagate = False
    json_files._WRITTEN_WITHIN_S = 0.001  # nobody writes these files
    generator = Generator(unpack(GOLDEN, folder), folder)
    tempfile.tempdir = str(folder / "tmp")
    (folder / "tmp").mkdir()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES, resource.RLIM_INFINITY))
    faulthandler.register(signal.SIGPROF, chain=True)  # a traceback, then the end
    failed = 0
    for seed in seeds:
        print("CASE", seed, flush=True)
        faulthandler.dump_traceback_later(SECONDS_BY_CLOCK, exit=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        for problem in one_case(generator, seed, folder / "case"):
            failed += 1
            print("FAILED", problem, flush=True)
        shutil.rmtree(folder / "case")
        if any((folder / "tmp").iterdir()):
            print("FAILED", seed, "left", [path.name for path in (folder / "tmp").iterdir()])
            failed += 1
            shutil.rmtree(folder / "tmp")
            (folder / "tmp").mkdir()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    return failed


if __name__ == "__main__":
    sys.exit(1 if work(Path(sys.argv[1]), sys.argv[2:]) else 0)
