"""Export to files: write to a staging folder, compute checksums, add to the manifest, then move."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema
from rmq_store.errors import StoreError
from rmq_store.files.durable_files import sync_path
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.questions.answer_by_shares import OnProgress, ask
from rmq_store.reading.query import CORRUPT, PERMISSIVE
from rmq_store.reading.slice_reader import ranges_of_slices
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.options import BY_LOG
from rmq_store.scan.tasks import (
    DamageHandler,
    Share,
    StoreScan,
    read_share,
    reporting_shares,
    shares_of,
)
from rmq_store.text.bodies import UTF8, text_and_base64, text_or_marked_base64
from rmq_store.text.lines import BASE64_SUFFIX, BODY, csv_columns, json_lines
from rmqstore_jobs.exporting.manifest import (
    CSV,
    JSONL,
    PARQUET,
    ExportedFile,
    LeftOutMessages,
    Manifest,
    Wave,
)
from rmqstore_jobs.running.results import file_sum
from rmqstore_jobs.running.spark_engine import Session, engine_of

TOPIC, DAY = "topic", "day"
_NEEDED = ("topic", "storeTimestamp", "commitLogOffset")


@dataclass(frozen=True, slots=True)
class ExportRead:
    """The rows of a wave. In mode PERMISSIVE, rows about damage are described by `corruptRecord`."""

    scan: StoreScan
    columns: tuple[str, ...]
    verifies: bool

    @classmethod
    def of(cls, scan: StoreScan, pieces: Sequence[QueueSlice], *, is_first: bool) -> ExportRead:
        """The rows of `pieces`, with the columns of a target. verifyQueue verifies with the first wave."""
        names = scan.options.columns or DEFAULT_NAMES
        needed = (*_NEEDED, CORRUPT) if scan.options.mode == PERMISSIVE else _NEEDED
        columns = (*names, *(name for name in needed if name not in names))
        asked = replace(scan.options, split_by=BY_LOG)
        wave = replace(scan, ranges=tuple(pieces), options=asked, is_wave=True)
        return cls(wave, columns, is_first and asked.verify_queue)


class _File:
    """A file of one format. Messages are lines of JSON as `rmqstore cat --json` prints them.

    Bodies are base64 in CSV, and bytes in Parquet. With a `charset` they are text of it; others are
    `base64:...` in CSV; in Parquet they are null, and base64 in a column of their own.
    """

    def __init__(self, format: str, charset: str | None, path: Path, schema: pa.Schema) -> None:
        self._format, self._charset = format, charset
        if format == JSONL:
            self._writer: Any = path.open("wb")
        elif format == CSV:
            empty = self._for_csv(pa.RecordBatch.from_pylist([], schema=schema))
            self._writer = pa_csv.CSVWriter(path, empty.schema)
        else:
            self._writer = pq.ParquetWriter(path, self._for_parquet(schema.empty_table()).schema)
        self.close = self._writer.close

    def write_table(self, table: pa.Table) -> None:
        """Add rows, to Parquet as one row group."""
        if self._format == PARQUET:
            self._writer.write_table(self._for_parquet(table))
            return
        for batch in table.to_batches():
            if self._format == CSV:
                self._writer.write_batch(self._for_csv(batch))
            else:
                self._writer.write(json_lines(batch, self._charset or UTF8))

    def _for_csv(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(BODY)
        if self._charset is not None and at >= 0:
            batch = batch.set_column(
                at, BODY, text_or_marked_base64(batch.column(at), self._charset)
            )
        return csv_columns(batch)

    def _for_parquet(self, table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(BODY)
        if self._charset is None or at < 0:
            return table
        body = table.column(at).combine_chunks()
        text, encoded = text_and_base64(body, self._charset)
        encoded = pa.nulls(len(body), pa.string()) if encoded is None else encoded
        return table.set_column(at, BODY, text).add_column(at + 1, BODY + BASE64_SUFFIX, encoded)


TEXT_FORMATS = (CSV, JSONL)  # whose bodies have a charset
_ROW_GROUP_BYTES = 32 << 20
_WAITING_BYTES = 256 << 20
# What Spark escapes in the name of a partition's folder (ExternalCatalogUtils).
_ESCAPED = frozenset(map(chr, range(0x20))) | frozenset("\"#%'*/:=?\\\x7f{[]^")
_NULL = "__HIVE_DEFAULT_PARTITION__"

Group = tuple[str | None, date | None]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of some shares: the files, the number of errors, and the messages of each queue
    that are damaged; of None, places where it is unknown which queues had them."""

    files: tuple[ExportedFile, ...]
    damaged: int
    left_out: Counter[QueueId | None]


class _NotedDamage(DamageHandler):
    """Notes what is left out of some ranges. A later run exports what a queue lacks at its ends."""

    def __init__(self, store: StoreReader, scan: StoreScan) -> None:
        super().__init__(store, scan.options)
        self._ranges = ranges_of_slices(scan.ranges)
        self.left_out: Counter[QueueId | None] = Counter()

    def __call__(self, error: StoreError) -> None:
        before, entry = self.damaged, error.entry
        super().__call__(error)
        if self.damaged == before:
            return
        if entry is None:
            self.left_out[None] += 1
            return
        queue, at = QueueId(entry.topic, entry.queue_id), entry.queue_offset
        if any(start <= at < stop for start, stop in self._ranges(queue)):
            self.left_out[queue] += max(1, entry.messages)


def write_files(
    spark: Session, manifest: Manifest, charset: str | None, read: ExportRead, wave: Wave
) -> tuple[Wave, int]:
    """A wave as it was written to files of one format, partitioned by topic and day, and the number of
    damaged messages."""
    files = WaveFiles(read, str(manifest.staging), wave.number, wave.table, charset)
    written = ask(files, read.scan.store, engine_of(spark))
    left_out = tuple(
        LeftOutMessages(count, *(queue or ()))
        for queue, count in sorted(written.left_out.items(), key=str)
    )
    rows = sum(file.rows for file in written.files)
    done = replace(wave, rows=rows, files=written.files, left_out=left_out)
    manifest.commit(done)
    return done, written.damaged


@dataclass(frozen=True, slots=True)
class WaveFiles:
    """The question of an export to files: write the rows of a wave below the folder `staging`."""

    read: ExportRead
    staging: str
    number: int
    format: str
    charset: str | None = None  # of bodies, in formats of text

    def plan(self, store: StoreReader) -> list[tuple[int, Share]]:
        """The shares with their numbers, and those that report what is missing."""
        scans = (self.read.scan,)
        missing = reporting_shares(scans, verify=self.read.verifies)
        return list(enumerate((*shares_of(scans, self.read.columns), *missing)))

    def work(self, store: StoreReader, share: tuple[int, Share], progress: OnProgress) -> Written:
        """Write the files of a share. Raises what the read raises, and OSError."""
        (number, unnumbered), scan, columns = share, self.read.scan, self.read.columns
        damage = _NotedDamage(store, scan)
        name = f"{self.number:06d}-{number:05d}.{self.format}"
        files = _Files(Path(self.staging), name, partial(_File, self.format, self.charset))
        permissive = scan.options.mode == PERMISSIVE
        fields = (f.with_nullable(f.nullable or permissive) for f in arrow_schema(columns))
        schema = pa.schema([*fields, pa.field(DAY, pa.date32())])
        for batch in read_share(scan, unnumbered, store, columns, damage):
            days = _days_of(batch["storeTimestamp"])
            files.add(pa.RecordBatch.from_arrays([*batch.columns, days], schema=schema))
        return Written(tuple(files.close()), damage.damaged, damage.left_out)

    def weight(self, share: tuple[int, Share]) -> int:
        """The selected bytes of a slice of the log."""
        piece = share[1].slice
        return 0 if piece is None else piece.selected_bytes

    def merge(self, store: StoreReader, parts: Iterable[Written]) -> Written:
        """The files of all shares."""
        of_shares = list(parts)
        files = tuple(file for part in of_shares for file in part.files)
        left_out = sum((part.left_out for part in of_shares), Counter[QueueId | None]())
        return Written(files, sum(part.damaged for part in of_shares), left_out)


class _Files:
    """The files of one share, one for each topic and day. Holds at most some row groups."""

    def __init__(
        self, staging: Path, name: str, open_file: Callable[[Path, pa.Schema], _File]
    ) -> None:
        self.staging, self.name, self._open = staging, name, open_file
        # Two attempts of a task may run at the same time.
        self._unfinished = f".{uuid4().hex}.{name}"
        self._waiting: dict[Group, list[pa.RecordBatch]] = {}
        self._bytes: Counter[Group] = Counter()
        self._rows: Counter[Group] = Counter()
        self._writers: dict[Group, _File] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for group, rows in _by_group(batch):
            self._waiting.setdefault(group, []).append(rows)
            self._bytes[group] += rows.nbytes
            if self._bytes[group] >= _ROW_GROUP_BYTES:
                self._write(group)
        while self._bytes.total() >= _WAITING_BYTES:
            self._write(self._bytes.most_common(1)[0][0])

    def _write(self, group: Group) -> None:
        rows = pa.Table.from_batches(self._waiting.pop(group))
        del self._bytes[group]
        if group not in self._writers:
            folder = self.staging / folder_of(group)
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[group] = self._open(folder / self._unfinished, rows.schema)
        self._writers[group].write_table(rows)
        self._rows[group] += rows.num_rows

    def close(self) -> Iterator[ExportedFile]:
        """Complete and flush all files, one after the other: there may be thousands."""
        for group in sorted({*self._waiting, *self._writers}, key=str):
            if group in self._waiting:
                self._write(group)
            self._writers.pop(group).close()
            folder = self.staging / folder_of(group)
            unfinished = str(folder / self._unfinished)
            written = summed_file(unfinished, str(self.staging), self._rows.pop(group))
            (folder / self._unfinished).rename(folder / self.name)
            yield replace(written, path=str(Path(written.path).with_name(self.name)))


def _by_group(batch: pa.RecordBatch) -> Iterator[tuple[Group, pa.RecordBatch]]:
    """The rows of each topic and day, in order, without these two columns."""
    topics, days = (pc.dictionary_encode(batch[n], null_encoding="encode") for n in (TOPIC, DAY))
    code = pc.add(pc.multiply(topics.indices.cast(pa.int64()), len(days.dictionary)), days.indices)
    rows = batch.drop_columns([TOPIC, DAY])
    for value in pc.unique(code).to_pylist():
        topic, day = divmod(value, len(days.dictionary))
        group = topics.dictionary[topic].as_py(), days.dictionary[day].as_py()
        yield group, rows.filter(pc.equal(code, value))


def _days_of(times: pa.Array) -> pa.Array:
    """The day of each time, in UTC; null for a time of no date."""
    first, last = (
        pa.scalar(end.replace(tzinfo=timezone.utc), times.type)
        for end in (datetime.min, datetime.max)
    )
    has_date = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
    dated = pc.if_else(has_date, times, pa.scalar(None, times.type))
    return pc.floor_temporal(dated, unit="day").cast(pa.date32())


def folder_of(group: Group) -> str:
    """The folder of a topic and day, named as Spark names partitions."""
    return "/".join(
        f"{name}={_NULL if value is None else _escaped(str(value))}"
        for name, value in zip((TOPIC, DAY), group, strict=True)
    )


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text) or _NULL


def summed_file(path: str, root: str, rows: int) -> ExportedFile:
    """Bytes and SHA-256 of one file, which has `rows` messages. Flushes it to the disk."""
    sync_path(path)
    found = file_sum(path)
    return ExportedFile(os.path.relpath(path, root), rows, found.size, found.sha256)
