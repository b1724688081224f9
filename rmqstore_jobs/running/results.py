"""The result of a job: what it read, as a provenance, its tables, and both as text and JSON.

On a terminal tables are drawn, with at most 40 rows. In a pipe they are tab-separated, with every row
and numbers without separators.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len

from rmq_store.cli.output import Output, cell, print_line, print_styled
from rmq_store.cli.table_layout import padded
from rmq_store.errors import OsErrorsOf, json_text, printable
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.files.remote.uri_filesystem import real_path
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.store_reader import PinnedStore
from rmq_store.scan.tasks import StoreScan
from rmq_store.tables import TABLES
from rmq_store.text.json_keys import as_json_object, camel_case
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmqstore_jobs.running.spark_engine import Session

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
    spark: Session,
    scan: StoreScan,
    ranges: Iterable[QueueSlice],
    options: Mapping[str, Any],
    *,
    checksums: bool = False,
) -> Provenance:
    """The provenance of the store of a scan, and the queue ranges read. Several ranges of a queue become
    one, from first to last; times among the options are those of the scan. `checksums`: of every file
    of the store too. Raises the errors of that."""
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    for slice_ in ranges:
        of_topic = queues.setdefault(slice_.queue.topic, {})
        start, stop = of_topic.get(slice_.queue.queue_id, (slice_.start, slice_.stop))
        of_topic[slice_.queue.queue_id] = (min(start, slice_.start), max(stop, slice_.stop))
    pinned, snapshot = scan.store, scan.store.snapshot
    since, until = scan.options.times
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
        files=_sums_of(spark, pinned) if checksums else (),
    )


def _sums_of(spark: Session, pinned: PinnedStore) -> tuple[FileSum, ...]:
    """Size and SHA-256 of the files of a store, computed by executors or here. Raises their errors."""
    with pinned.open() as store:
        files = TABLES["files"].of(store).select(["path", "size"]).to_pylist()
    files = [file for file in files if shadow_of(file["path"]) or os.path.isfile(file["path"])]
    paths = [file["path"] for file in files]
    if spark is not None and paths:
        tasks = -(-len(paths) // _FILES_A_TASK)
        return tuple(spark.sparkContext.parallelize(paths, tasks).map(file_sum).collect())
    sums = []
    with Progress("checksums", sum(file["size"] for file in files)) as progress:
        for path in paths:
            sums.append(file_sum(path))
            progress(sums[-1].size)
    return tuple(sums)


def file_sum(path: str) -> FileSum:
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


Row = Mapping[str, Any]
_MOST_ROWS = 40
# Columns of dead letters that a narrow terminal has to show.
_KEPT = ("consumerGroup", "originTopic", "uniqKey", "reconsumeTimes", "died")


class JobResult(ABC):
    """What every job returns, a dataclass. `ok` decides the exit code; `stopped_by`: why the job
    ended early, and how to continue."""

    __slots__ = ()

    ok: bool
    stopped_by: str | None
    problems: tuple[str, ...]
    source: Provenance

    def to_json(self, indent: int | None = None) -> str:
        """The result as one JSON object, keys in camelCase; times as ISO 8601, in UTC."""
        return json_text(self._as_json_object(), indent=indent, default=plain_value)

    def _as_json_object(self) -> dict[str, Any]:
        fields: dict[str, Any] = as_json_object(self)
        fields["source"]["options"] = as_json_object(self.source.options)
        return fields

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json(indent=1) + "\n", encoding="utf-8")

    def show(self, warnings: int = 0) -> None:
        """Print for a person: how the job ended, the tables and what was read; on stderr what is wrong.
        `warnings`: how many the job has logged."""
        stopped = self.stopped_by is not None
        color = "red" if stopped else "green" if self.ok else "yellow"
        after = f"; {counted(warnings, 'warning')} before" if warnings else ""
        print_line(self._how_it_ended() + after, err=stopped, fg=color, bold=True)
        for problem in self.problems:
            print_line(f"! {problem}", err=True, fg="red", bold=True)
        self._show_tables()
        print_pairs("what was read", source_rows(self.source))

    @abstractmethod
    def _how_it_ended(self) -> str:
        """The first line."""

    @abstractmethod
    def _show_tables(self) -> None:
        """Print the tables of the job."""


@dataclass(frozen=True, slots=True)
class TablesResult(JobResult):
    """A job's result: tables by title, numbers by name."""

    job: str
    ok: bool
    tables: Mapping[str, Sequence[Row]]
    source: Provenance
    seconds: float
    numbers: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    resumed: bool = False
    stopped_by: str | None = None

    def _as_json_object(self) -> dict[str, Any]:
        tables = {_key_of(title): [*map(_with_keys, rows)] for title, rows in self.tables.items()}
        fields = JobResult._as_json_object(self)
        return fields | {"numbers": _with_keys(self.numbers), "tables": tables}

    def _how_it_ended(self) -> str:
        took = f"in {self.seconds:.1f} s{' (continued an earlier run)' * self.resumed}"
        if self.stopped_by is not None:
            return f"stopped {took}: {self.stopped_by}"
        return f"{'no problems' if self.ok else 'finished with problems'}, {took}"

    def _show_tables(self) -> None:
        for title, rows in self.tables.items():
            print_table(f"{self.job}: {title}", rows)
        print_pairs(f"{self.job}: total", self.numbers.items())


def _with_keys(row: Row) -> dict[str, Any]:
    return {_key_of(name): as_json_object(value) for name, value in row.items()}


def _key_of(name: str) -> str:
    return camel_case(name.replace(" ", "_"))


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows with the names of their columns; nothing without rows."""
    if not rows:
        return
    _print_title(title)
    shown = rows[:_MOST_ROWS] if sys.stdout.isatty() else rows
    cells = ([_cell(value) for value in row.values()] for row in shown)
    kept = [name for name in rows[0] if name in _KEPT]
    Output(False).rows(shown, list(rows[0]), cells, kept=kept)
    if len(rows) > len(shown):
        print_line(f"and {len(rows) - len(shown):,} more; --json has all rows")


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values."""
    _print_title(title)
    shown = [(printable(name), printable(_cell(value))) for name, value in pairs]
    on_screen = sys.stdout.isatty()
    width = max((cell_len(name) for name, _ in shown), default=0) if on_screen else 0
    for name, value in shown:
        print_styled(padded(name, width) + ("  " if on_screen else "\t") + value)


def _print_title(title: str) -> None:
    if not sys.stdout.isatty():
        click.echo()
    print_line(title, italic=True)


def _cell(value: Any) -> str:
    if sys.stdout.isatty() and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
    return plain_value(value)


def plain_value(value: Any) -> str:
    """A value as text, as the commands have it; numbers with at most three decimals."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    # Spark returns times in the zone of this process, without a zone, which `cell` knows.
    return f"{value:.3f}" if isinstance(value, float) else cell(value)
