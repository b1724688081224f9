"""Export to Delta: one commit of the table per wave. The commit says which wave it is.

Delta's commit decides. It has the wave (its queue ranges) as the writer's metadata, and an
application transaction with the wave's number, which Delta accepts once. If a process is killed
between the commit and the manifest, the next run finds the commit and adds it to the manifest. If
it is killed before the commit, its files belong to no version, and VACUUM removes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib.util import find_spec
from itertools import groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq_store.errors import StoreError
from rmq_store.files.journal import JournalError
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import CORRUPT, FAILFAST, PERMISSIVE
from rmq_store.scan.parse_options import reveal
from rmqstore_jobs.exporting.export_files import DAY, TOPIC, ExportRead, summed_file
from rmqstore_jobs.exporting.manifest import (
    ExportedFile,
    LeftOutMessages,
    Manifest,
    Wave,
    from_json,
    refuse_outside,
    to_json,
)
from rmqstore_jobs.running.job_command import RANGES
from rmqstore_jobs.running.source_options import range_options
from rmqstore_jobs.running.spark_engine import started_by_spark_submit

APPLICATION = "rmqstore-export"
_DAY_MS = 86_400_000
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SETTINGS = {"spark.sql.extensions": _EXTENSION, "spark.sql.catalog.spark_catalog": _CATALOG}
_HOW = (
    "pip install 'rmqstore[delta]' and run rmqstore export; or give spark-submit "
    "--packages io.delta:delta-spark_<Spark, as 4.2>_2.13:<Delta's release> "
    + " ".join(f"--conf {name}={value}" for name, value in _SETTINGS.items())
)


class DeltaUnavailableError(StoreError):
    """This Spark does not have Delta."""

    code = "RMQSTORE_DELTA_UNAVAILABLE"


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add Delta to the Spark session that is about to start. Raises DeltaUnavailableError.

    A session that spark-submit started gets jars and settings from spark-submit.
    """
    if started_by_spark_submit():
        return builder
    if find_spec("delta") is None:
        raise DeltaUnavailableError(reason="the package delta-spark is not installed", advice=_HOW)
    from delta import configure_spark_with_delta_pip

    made: SparkSession.Builder = configure_spark_with_delta_pip(builder).config(map=_SETTINGS)
    return made


def require_delta(spark: SparkSession) -> None:
    """Raise DeltaUnavailableError unless this session can write Delta."""
    set_to = {name: spark.conf.get(name, "") or "" for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        if value not in set_to[name].split(","):
            raise DeltaUnavailableError(
                reason=f"the session has no Delta: {name}",
                expected=value,
                actual=set_to[name] or "not set",
                advice=_HOW,
            )
    try:
        # If Spark does not find an extension, it only logs that and continues.
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_EXTENSION)
    except Py4JError:
        raise DeltaUnavailableError(
            reason="the session is configured for Delta, but its jar is missing", advice=_HOW
        ) from None


class DeltaTarget:
    """A Delta table, partitioned by topic and day."""

    def __init__(self, spark: SparkSession, manifest: Manifest, options: Mapping[str, str]) -> None:
        """`options`: those of the export, by the source's names."""
        self.spark, self.manifest, self.options = spark, manifest, options
        self.table: Path = manifest.target
        self._seen = -1  # the version up to which commits were read

    def settle(self) -> None:
        """Add commits of the table that are missing in the manifest to the manifest."""
        recorded, begun = self.manifest.exported.delta_version, self.manifest.begun
        latest = latest_version(self.table)
        if recorded is not None and latest < recorded:
            raise JournalError(
                self.table,
                reason="the Delta table here is not the one of the manifest: its version",
                expected=f"{recorded} or later",
                actual=latest if latest >= 0 else "no table",
                advice="Put the table back, or export into a new folder",
            )
        killed = begun is not None and begun.wave >= self.manifest.next_number
        self._seen = (
            begun.delta_version
            if begun is not None and killed
            else -1
            if recorded is None
            else recorded
        )
        while self._name_next(whole=killed) is not None:
            pass
        if killed:
            # The next run starts here, because Delta deletes old parts of its log.
            self.manifest.begin(self._seen)

    def write(self, read: ExportRead, wave: Wave) -> tuple[Wave, int]:
        """Add a wave to the table. Returns it with its files, and the number of damaged messages."""
        self.manifest.begin(self._seen)
        rows = _rows_of(self.spark, read, self.options)
        order = [name for name in ("queueId", "queueOffset") if name in rows.columns]
        day = F.floor(F.unix_millis("storeTimestamp") / F.lit(_DAY_MS)).cast("int")
        rows = rows.withColumn(DAY, F.date_from_unix_date(day))  # in UTC; null as in files
        rows = rows.withColumn(DAY, F.when(F.year(DAY).between(1, 9999), F.col(DAY)))
        rows = rows.sortWithinPartitions(TOPIC, DAY, "commitLogOffset", *order)
        (
            rows.write.format("delta")
            .mode("append")
            .partitionBy(TOPIC, DAY)
            .option("txnAppId", APPLICATION)
            .option("txnVersion", wave.number)
            .option("userMetadata", to_json(wave))
            .save(str(self.table))
        )
        done = self._name_next(whole=True)
        if done is None:
            done = self._name_empty(rows, wave)
        if done.ranges != wave.ranges:
            raise JournalError(
                self.table,
                reason=f"an interrupted export added wave {wave.number} meanwhile",
                advice="Nothing is lost or duplicated; run this again",
            )
        damaged = self._damaged(read, done)
        if damaged:
            done = replace(done, left_out=(LeftOutMessages(damaged),))
            self.manifest.note_left_out(done)
        return done, damaged

    def _damaged(self, read: ExportRead, done: Wave) -> int:
        mode, paths = read.scan.options.mode, [str(self.table / file.path) for file in done.files]
        if mode == FAILFAST or (mode == PERMISSIVE and not paths):
            return 0
        if mode == PERMISSIVE:
            written = self.spark.read.parquet(*paths)
        else:
            written = _rows_of(self.spark, read, {**self.options, "mode": PERMISSIVE}, CORRUPT)
        return written.where(F.col(CORRUPT).isNotNull()).count()

    def _name_next(self, *, whole: bool) -> Wave | None:
        """Add the next wave if a commit not read yet has it. `whole`: all these commits must be there."""
        wanted = APPLICATION, self.manifest.next_number
        stop = latest_version(self.table) + 1
        for commit in commits(self.table, self._seen + 1, stop, whole=whole):
            self._seen = commit.version
            if commit.transaction == wanted:
                done = self._wave_of(commit)
                self.manifest.commit(done)
                return done
        self._seen = stop - 1
        return None

    def _name_empty(self, rows: DataFrame, wave: Wave) -> Wave:
        """Add a wave without files. Delta has no commit for it, nor for a transaction it already had."""
        if not rows.isEmpty():
            raise JournalError(
                self.table,
                reason=f"Delta already has wave {wave.number}, but the manifest does not",
                advice="Restore the newest manifest, or export into a new folder",
            )
        done = replace(wave, delta_version=self._seen if self._seen >= 0 else None)
        self.manifest.commit(done)
        return done

    def _wave_of(self, commit: Commit) -> Wave:
        paths, files = [str(self.table / path) for path in commit.added], tuple[ExportedFile, ...]()
        if paths:
            tasks = min(len(paths), 4 * self.spark.sparkContext.defaultParallelism)
            summed = partial(_summed_parquet, str(self.table))
            files = tuple(self.spark.sparkContext.parallelize(paths, tasks).map(summed).collect())
        log = self.table / "_delta_log" / f"{commit.version:020d}.json"
        wave, rows = from_json(log, commit.said or ""), sum(file.rows for file in files)
        return replace(wave, rows=rows, files=files, delta_version=commit.version)


def _summed_parquet(root: str, path: str) -> ExportedFile:
    return summed_file(path, root, pq.read_metadata(path).num_rows)


def _rows_of(
    spark: SparkSession, read: ExportRead, options: Mapping[str, str], *more: str
) -> DataFrame:
    """The rows of a wave through the source: mapInArrow would need pandas. `more`: further columns."""
    scan, columns = read.scan, dict.fromkeys((*read.columns, *more))
    kept = {name: value for name, value in options.items() if name not in RANGES}
    scan_options = {**kept, "columns": ",".join(columns), "brokerName": scan.store.broker_name}
    revealed = {name: reveal(value) for name, value in scan_options.items()}
    source = spark.read.format("rmqstore").options(**revealed)
    parts = [
        source.options(**range_options(ranges)).load(scan.store.path)
        for ranges in with_one_range_a_queue(scan.ranges)
    ]
    return reduce(DataFrame.unionAll, parts)


def with_one_range_a_queue(pieces: Sequence[QueueSlice]) -> list[list[QueueSlice]]:
    """The ranges in lists that have each queue once: the options of the source allow one range per queue."""
    of_queues = [list(parts) for _, parts in groupby(sorted(pieces), attrgetter("queue"))]
    turns = zip_longest(*of_queues)
    return [[piece for piece in turn if piece is not None] for turn in turns]


# Versions and commits of the log of a Delta table, by Delta's transaction log protocol ("Delta Log
# Entries", "Actions"): the package that writes Delta cannot say which files version N added.


_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a version did: the files it added, its application transaction, the writer's metadata."""

    version: int
    added: tuple[str, ...]  # relative to the table's folder
    transaction: tuple[str, int] | None  # application, its version
    said: str | None


def latest_version(table: Path) -> int:
    """The newest version of a table; -1 if there is none."""
    log = table / "_delta_log"
    names = (path.name for path in log.iterdir()) if log.is_dir() else ()
    return max((int(match[1]) for match in map(_COMMIT.fullmatch, names) if match), default=-1)


def commits(table: Path, start: int, stop: int, *, whole: bool) -> Iterator[Commit]:
    """The versions [start, stop), oldest first. `whole`: raise JournalError if Delta deleted one."""
    for number in range(start, stop):
        path = table / "_delta_log" / f"{number:020d}.json"
        try:
            with path.open(encoding="utf-8") as lines:
                yield _commit(number, lines)
        except FileNotFoundError:
            if whole:
                raise JournalError(
                    path,
                    reason="Delta deleted this part of its log, which says what an interrupted "
                    "export added to the table",
                    advice="Compare the table with the newest wave of the manifest; export into a "
                    "new folder if in doubt",
                ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(
                path,
                reason=f"cannot be read as a commit of a Delta table: {error!r}",
                advice="Check the table with Delta, or export into a new folder",
            ) from error


def _commit(version: int, lines: Iterator[str]) -> Commit:
    added: list[str] = []
    transaction: tuple[str, int] | None = None
    said: str | None = None
    for line in lines:
        action = json.loads(line)
        if "add" in action:
            # The path is a URI, so % and blanks in a name are encoded.
            path = unquote(action["add"]["path"])
            refuse_outside(path)
            added.append(path)
        elif "txn" in action:
            transaction = action["txn"]["appId"], int(action["txn"]["version"])
        elif "commitInfo" in action:
            said = action["commitInfo"].get("userMetadata")
    return Commit(version, tuple(added), transaction, said)
