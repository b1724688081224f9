"""Read a store in one way, in a process that must not die when somebody cuts the files of the store.

    python -m tests.hostile.support.cut_reader WAY STORE FOLDER [WINDOWS]

Prints `begins`, then reads again and again until an error, or until FOLDER has a file `stop`. Prints
`rows` or the code of our error at the end. With WINDOWS, reads once, and cuts all files of the store
itself after so many windows on them, before anything uses the bytes of the last one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_store import MessageStore, StoreError
from rmq_store.files.source import Sources
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import pinned_scan
from rmq_store.scan.tasks import DamageHandler, read_share, shares_of
from rmqstore_jobs.export import ExportSpec
from rmqstore_jobs.export import run as export
from tests.support.running.commands import call

COLUMNS = ("topic", "queueId", "queueOffset", "keys", "properties", "body")
_CODE = re.compile(r"RMQSTORE_[A-Z_]+")


def files_of(store: Path) -> list[Path]:
    """The files of log, queues and index."""
    parts = [store / name for name in ("commitlog", "consumequeue", "index")]
    return sorted(path for part in parts for path in part.rglob("*") if path.is_file())


def command(*words: str) -> None:
    """Run a command of `rmqstore`. Raises StoreError's text as RuntimeError if it could not."""
    done = call(*words)
    if done.returncode == 2:
        raise RuntimeError(done.stderr)


def share(store: str) -> None:
    """What a task of Spark does, without Spark."""
    plan = pinned_scan(parse_options({"path": store}))
    with plan.store.open() as opened:
        damage = DamageHandler(opened, plan.options)
        for part in shares_of((plan,), COLUMNS):
            for batch in read_share(plan, part, opened, COLUMNS, damage):
                batch.validate(full=True)


def log_alone(store: str) -> None:
    """The log without queues, as a stream reads it."""
    with MessageStore.open(store, queues=False) as opened:
        for batch in opened.read_log(columns=COLUMNS):
            batch.validate(full=True)


def exported(store: str) -> None:
    with tempfile.TemporaryDirectory() as target:
        answer = export(None, ExportSpec(store, target))
        if answer.stopped_by is not None:
            raise RuntimeError(answer.stopped_by)


def spark(store: str) -> None:
    from pyspark.sql import SparkSession  # takes long to import

    from spark_source.source import RmqStoreSource

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").getOrCreate()
    session.dataSource.register(RmqStoreSource)
    session.read.format("rmqstore").load(store).write.format("noop").mode("overwrite").save()


WAYS: dict[str, Callable[[str], None]] = {
    "cat": lambda store: command("cat", store, "--topic", "orders", "--json"),
    "tail": lambda store: command("tail", store, "-n", "1000"),
    "verify": lambda store: command("verify", store),
    "find": lambda store: command("find", store, "--key", "k77", "--topic", "orders"),
    "info": lambda store: command("info", store),
    "share": share,
    "log": log_alone,
    "export": exported,
    "spark": spark,
}


def cut_after(windows: int, store: Path) -> None:
    """Cut all files once so many windows on them were made."""
    made = 0

    def then_cut(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any, **how: Any) -> Any:
            nonlocal made
            found = read(*args, **how)
            made += 1
            if made == windows:
                for path in files_of(store):
                    os.truncate(path, 0)
            return found

        return reading

    Sources.window = then_cut(Sources.window)  # type: ignore[method-assign]


def work(way: str, store: str, folder: Path, windows: int | None) -> str:
    if windows is not None:
        cut_after(windows, Path(store))
    print("begins", flush=True)
    try:
        WAYS[way](store)
        while windows is None and not (folder / "stop").exists():
            WAYS[way](store)
    except StoreError as error:
        return error.code
    except Exception as error:  # one of ours, as a command or Spark shows it
        found = _CODE.search(str(error))
        if found is None:
            raise
        return found[0]
    return "rows"


if __name__ == "__main__":
    given = sys.argv[4:]
    print(work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(given[0]) if given else None))
