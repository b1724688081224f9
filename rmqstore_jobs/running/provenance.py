"""What a job read: the store, its offsets at that time, the options, and checksums of the files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rmq_store.errors import OsErrorsOf
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.files.remote.uri_filesystem import real_path
from rmq_store.format.queues import QueueSlice
from rmq_store.tables import TABLES
from rmq_store.text.progress import Progress
from rmq_store.text.times import shown_time
from spark_source.planning.pinned_plan import PinnedStore, ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE = 8 << 20
_FILES_A_TASK = 16
_TOPICS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FileSum:
    """A file when the job read it: size and SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """What was read, so that a reader can check later what the numbers refer to."""

    store: str
    broker_name: str
    log_range: tuple[int, int]  # commitLog offsets of the snapshot, half-open
    queues: Mapping[str, Mapping[int, tuple[int, int]]]  # topic -> queue id -> [start, stop) read
    options: Mapping[str, Any]
    version: str
    files: tuple[FileSum, ...] = ()  # on request
    verified: str | None = None  # the verdict of verify, on request


def provenance_of(
    spark: SparkSession | None,
    plan: ReadPlan,
    ranges: Iterable[QueueSlice],
    options: Mapping[str, Any],
    *,
    checksums: bool = False,
) -> Provenance:
    """The provenance of the store of a plan, and the queue ranges read. Several ranges of a queue become
    one, from first to last; times among the options are those of the plan. `checksums`: of every file
    of the store too. Raises the errors of that."""
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    for part in ranges:
        of_topic = queues.setdefault(part.queue.topic, {})
        start, stop = of_topic.get(part.queue.queue_id, (part.start, part.stop))
        of_topic[part.queue.queue_id] = (min(start, part.start), max(stop, part.stop))
    pinned, snapshot = plan.store, plan.store.snapshot
    since, until = plan.asked.times
    times = {"startingTimestamp": since, "since": since, "endingTimestamp": until, "until": until}
    return Provenance(
        store=real_path(pinned.path),
        broker_name=pinned.broker_name,
        log_range=(snapshot.log_start, snapshot.log_end),
        queues=queues,
        options={
            name: value if value is None or (ms := times.get(name)) is None else shown_time(ms)
            for name, value in options.items()
        },
        version=version("rmqstore"),
        files=tuple(_sums_of(spark, _files_of_store(pinned))) if checksums else (),
    )


def _files_of_store(pinned: PinnedStore) -> list[str]:
    """Every regular file of a store: log, queues, index, configuration."""
    with pinned.open() as store:
        paths: list[str] = TABLES["files"].of(store)["path"].to_pylist()
    return [path for path in paths if shadow_of(path) or os.path.isfile(path)]


def _sums_of(spark: SparkSession | None, paths: Sequence[str]) -> list[FileSum]:
    """Size and SHA-256 of files, computed by executors or here. Raises their errors."""
    if spark is None or not paths:
        with Progress("checksums") as progress:
            progress.expect(sum(map(_size, paths)) if progress.active else 0)
            sums = []
            for path in paths:
                sums.append(sum_of(path))
                progress(sums[-1].size)
            return sums
    tasks = max(1, -(-len(paths) // _FILES_A_TASK))
    found: list[FileSum] = spark.sparkContext.parallelize(paths, tasks).map(sum_of).collect()
    return found


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0  # the reading reports it


def sum_of(path: str) -> FileSum:
    """Size and SHA-256 of one file, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    with OsErrorsOf(path, "reading for its checksum"), open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return FileSum(path, size, digest.hexdigest())


def source_rows(source: Provenance) -> Iterator[tuple[str, str]]:
    """The provenance as names and values."""
    yield "store", source.store
    yield "broker", source.broker_name
    yield "log range", "{} to {}".format(*source.log_range)
    for topic, queues in list(source.queues.items())[:_TOPICS_SHOWN]:
        parts = (f"{queue}: {start} to {stop}" for queue, (start, stop) in queues.items())
        yield f"offsets of {topic}", "  ".join(parts)
    if len(source.queues) > _TOPICS_SHOWN:
        yield "offsets", f"of {len(source.queues) - _TOPICS_SHOWN:,} more topics: --json"
    for name, value in source.options.items():
        if value not in (None, [], (), {}, False) and name != "source":
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield name.replace("_", " "), text
    if source.files:
        size = sum(file.size for file in source.files)
        yield "files", f"{len(source.files)} with {size} bytes; --json has their SHA-256"
    yield "verified", source.verified or "not verified"
    yield "rmqstore", source.version
