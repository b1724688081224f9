"""Export a broker's messages to Parquet, CSV, JSON lines or Delta, partitioned by topic and day.

Executors read and write; this process keeps the manifest. Each run adds the messages stored since
the last one, and none twice. A run after an interruption continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from rmq_store.cli.messages import CHARSET
from rmq_store.cli.options import option, rare_option
from rmq_store.commitlog.log import MARK_BYTES, Mark
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.files.journal import JournalError, refuse_uri
from rmq_store.files.parallel import looked_up_in_parallel
from rmq_store.files.remote.uri_filesystem import real_path
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.query import DROPMALFORMED, PERMISSIVE
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import HidesSecrets, without_secrets
from rmq_store.scan.tasks import cut_into_slices
from rmq_store.search.selection import LATEST
from rmq_store.text.bodies import TEXT, UTF8
from rmq_store.text.progress import Progress
from rmqstore_jobs.exporting.export_files import TEXT_FORMATS, ExportRead, write_files
from rmqstore_jobs.exporting.manifest import (
    DELTA,
    FORMATS,
    PARQUET,
    ExportedFile,
    ExportedRange,
    Manifest,
    Wave,
    ranges_without,
)
from rmqstore_jobs.running.failures import failure, refuse_if
from rmqstore_jobs.running.job_command import RANGES, SELECTION, Job, size, spec_from
from rmqstore_jobs.running.results import TablesResult, provenance_of
from rmqstore_jobs.running.source_options import (
    QUEUE_OPTIONS,
    pieces_in,
    scan_of,
    source_options,
    with_queues,
)
from rmqstore_jobs.running.spark_engine import Session, ShouldStop

DEFAULT_WAVE_BYTES = 8 << 30
_MOST_NAMED = 5  # queues of earlier runs that a problem names
_GO_ON = "Run the same command to continue"
_INSTEAD = "export into a new folder with --mode DROPMALFORMED or PERMISSIVE, or from"


@dataclass(frozen=True, slots=True)
class ExportSpec(HidesSecrets):
    """What to export, and the target. `options` are the source's own, by name. `wave_bytes`: about how many
    selected bytes a wave has. After an interruption its wave starts again."""

    store: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    format: str = PARQUET
    wave_bytes: int = DEFAULT_WAVE_BYTES
    checksums: bool = False
    charset: str | None = None
    body: str | None = None

    def asked(self) -> dict[str, str]:
        """The options that determine rows and columns, except those that select queue ranges."""
        own = {"charset": self.charset, "body": self.body}
        asked = own | {k: v for k, v in without_secrets(self.options).items() if k not in RANGES}
        return {name: value for name, value in asked.items() if value is not None}


def run(spark: Session, spec: ExportSpec, should_stop: ShouldStop = lambda: False) -> TablesResult:
    """Export the messages that are not in the target yet. Returns the result. `should_stop` is called
    between waves. Raises StoreError if the export is refused; then nothing was written."""
    check_spec(spec)
    if spec.format == DELTA:
        refuse_if(
            spark is None,
            "a Delta table is written by Spark",
            "Give --engine spark or auto, or --format parquet, csv or jsonl",
        )
        _delta().require_delta(spark)
    with Manifest(spec.target) as manifest:
        return _Export(spark, spec, manifest).run(should_stop)


def check_spec(spec: ExportSpec) -> None:
    """Raise InvalidArgumentError for an invalid spec, before a session starts."""
    advice = nearest(spec.format, FORMATS)
    refuse_if(spec.format not in FORMATS, f"unknown format {spec.format!r}", advice)
    refuse_if(
        spec.body is not None and spec.format != PARQUET,
        f"--body {spec.body} is for --format {PARQUET}",
        f"Leave it out: {' and '.join(TEXT_FORMATS)} have text, in CSV with --charset",
    )
    refuse_if(
        spec.charset is not None and spec.format not in TEXT_FORMATS and spec.body is None,
        f"format {spec.format} has the bytes of bodies, whatever their charset",
        f"Leave --charset out, or give --format {' or '.join(TEXT_FORMATS)}, or --body text",
    )
    refuse_if(
        spec.format == DELTA and spec.options.get("verifyQueue", "").lower() == "true",
        "verifyQueue is not for --format delta, which would read the whole log with every wave",
        "Leave it out: --verify verifies the store first",
    )
    refuse_uri(spec.target)
    source, target = Path(spec.store).resolve(), Path(spec.target).resolve()
    if source == target or source in target.parents or target in source.parents:
        raise InvalidArgumentError(target, reason="store and target must be separate folders")
    for name in spec.options:
        refuse_if(name not in SELECTION, f"option {name!r} is not an option of an export")


class _Export:
    """One call of `run`: the scan, the remaining ranges, and the waves written by this call."""

    def __init__(self, spark: Session, spec: ExportSpec, manifest: Manifest) -> None:
        self.spark, self.spec, self.manifest = spark, spec, manifest
        self.began = time.monotonic()
        self.scan = scan_of(spec.store, spec.options)
        self.problems = list[str]()
        self.stopped_by: str | None = None
        self.written: list[Wave] = []
        self._refuse_another_table()
        self.write_wave: Callable[[ExportRead, Wave], tuple[Wave, int]]
        if spec.format == DELTA:
            table = _delta().DeltaTarget(spark, manifest, spec.options)
            table.settle()
            self.write_wave = table.write
        else:
            charset = spec.charset or (UTF8 if spec.body else None)
            self.write_wave = partial(write_files, spark, manifest, charset)
        self._refuse_other_questions()
        done = manifest.finished(self.scan.store.broker_name)
        with self.scan.store.open() as store:
            self._refuse_another_store(store, done)
            if not done:
                self._refuse_another_name(store)
        finished = [part.slice for parts in done.values() for part in parts]
        self.left = replace(self.scan, ranges=tuple(ranges_without(self.scan.ranges, finished)))
        self._note_gaps(done)
        self._note_left_out()

    def _refuse_another_table(self) -> None:
        table, own = self.manifest.table, self.spec.format
        if table not in (None, own):
            raise JournalError(
                self.manifest.target,
                reason="the target has an export in another format",
                expected=table,
                actual=own,
                advice=f"Give --format {table}, or export into a new folder",
            )

    def _refuse_other_questions(self) -> None:
        before, request = self.manifest.asked, self.spec.asked()
        if before is not None and dict(before) != request:
            raise JournalError(
                self.manifest.folder,
                reason="the target was exported with other options",
                expected=_as_text(before),
                actual=_as_text(request),
                advice="Give the same options (topics, offsets and times may differ), or export "
                "into a new folder",
            )

    def _refuse_another_store(
        self, store: StoreReader, done: Mapping[Any, Sequence[ExportedRange]]
    ) -> None:
        """Check that the last exported message of each queue is where and what it was, or has expired."""
        own = set(store.queues())
        for queue, parts in done.items():
            last = parts[-1]
            if queue not in own or store.min_offset(*queue) >= last.stop:
                continue
            difference = _difference(store, last)
            if difference is not None:
                raise JournalError(
                    store.path,
                    reason=f"queue {queue.queue_id} of {queue.topic!r} has other messages than "
                    f"those exported from broker {store.broker_name!r}: its offset "
                    f"{last.stop - 1}",
                    expected=difference[0],
                    actual=difference[1],
                    advice="If this is another broker's store, give its --broker-name; if this one "
                    "was created again or cut by a recovery, export into a new folder",
                )

    def _refuse_another_name(self, store: StoreReader) -> None:
        """Check that the target does not have this store's messages under another name of its broker."""
        own = set(store.queues())
        for name in self.manifest.exported.ranges:
            lasts = [parts[-1] for parts in self.manifest.finished(name).values()]
            known = [last for last in lasts if last.slice.queue in own]
            if known and all(_difference(store, last) is None for last in known):
                raise JournalError(
                    store.path,
                    reason=f"the target has messages of this store as those of broker {name!r}",
                    actual=f"broker {self.scan.store.broker_name!r}",
                    advice=f"If the broker was renamed, go on with --broker-name {name}; if this is a copy "
                    "of its store, export into a new folder",
                )

    def _note_gaps(self, done: Mapping[Any, Sequence[ExportedRange]]) -> None:
        states = self.scan.store.snapshot.queues
        expired = [
            QueueSlice(queue, state.max_offset, state.max_offset)
            for queue, state in states.items()
            if state.min_offset == state.max_offset and self._is_whole(queue)
        ]
        for slice_ in (*self.scan.ranges, *expired):
            low = states[slice_.queue].min_offset
            before = [one.stop for one in done.get(slice_.queue, ()) if one.stop <= low]
            if before and max(before) < low and slice_.start <= low:
                self.problems.append(
                    f"queue {slice_.queue.queue_id} of {slice_.queue.topic}: offsets {max(before):,} to "
                    f"{low:,} expired before they were exported"
                )

    def _is_whole(self, queue: QueueId) -> bool:
        """Whether no option ends the range of a queue or selects times: so all that expired was asked for."""
        options, name = self.scan.options, self.scan.store.broker_name
        times = (
            options.starting_timestamps.of(name, queue),
            options.ending_timestamps.of(name, queue),
        )
        end = options.ending_offsets.of(name, queue)
        return {*options.times, *times} == {None} and end in (None, LATEST)

    def _note_left_out(self) -> None:
        """What no later run exports, because of damage. Where no manifest says it, numbers of messages do."""
        exported, asked = self.manifest.exported, self.scan.options
        noted = [words for one in exported.left_out for words in one.sentences()]
        if self._counts_all and asked.mode == DROPMALFORMED and asked.fail_on_data_loss:
            known = sum(some.count for one in exported.left_out for some in one.left_out)
            missing = exported.selected - exported.rows - known
            if missing > 0:
                noted.append(f"{missing:,}, of queues that the manifest does not name")
        if noted:
            further = f"; {len(noted) - _MOST_NAMED:,} more in the manifest"
            self.problems.append(
                "messages that earlier runs could not export because of damage: "
                f"{'; '.join(noted[:_MOST_NAMED])}{further if len(noted) > _MOST_NAMED else ''}. "
                "No run adds them to this target, also not from a repaired store: export into a new one"
            )

    def run(self, should_stop: ShouldStop) -> TablesResult:
        with self.scan.store.open() as store:
            ranges, size = self.left.ranges, self.spec.wave_bytes
            waves = cut_into_slices(store, ranges, size) if ranges else []
        with Progress("export", sum(wave.selected_bytes for wave in waves)) as progress:
            for wave in waves:
                try:
                    self._write(pieces_in(self.left, wave))
                except JournalError:
                    raise
                except Exception as error:
                    # An error of the read, or of Spark. Earlier waves are complete, and the answer
                    # has the reason.
                    self.stopped_by = failure(error, _INSTEAD, f". {_GO_ON}")
                    break
                progress(wave.selected_bytes)
                if should_stop():
                    self.stopped_by = f"stopped on request. {_GO_ON}"
                    break
        return self._answer()

    def _write(self, pieces: Sequence[QueueSlice]) -> None:
        if not pieces:
            return
        pinned = self.scan.store
        with pinned.open() as store:
            at_once = store.log.chain.cost.looks_at_once
            lasts = looked_up_in_parallel(partial(_last_of, store), pieces, at_once)
        ranges = tuple(ExportedRange(*p.queue, p.start, p.stop, *lasts[p]) for p in pieces)
        wave = Wave(
            number=self.manifest.next_number,
            store=real_path(self.spec.store),
            broker_name=pinned.broker_name,
            asked=self.spec.asked(),
            log_range=(pinned.snapshot.log_start, pinned.snapshot.log_end),
            ranges=ranges,
            rows=0,
            files=(),
            version=version("rmqstore"),
            written=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            table=self.spec.format,
        )
        read = ExportRead.of(self.scan, pieces, is_first=not self.written)
        done, damaged = self.write_wave(read, wave)
        self._compare(pieces, done, damaged)
        self.written.append(done)

    @property
    def _counts_all(self) -> bool:
        """Whether each queue offset of a range is a row, unless something is missing."""
        asked = self.scan.options
        return asked.tags is None and asked.keys is None and asked.unwrap_batches

    def _compare(self, pieces: Sequence[QueueSlice], done: Wave, damaged: int) -> None:
        asked = self.scan.options
        if asked.mode == PERMISSIVE:
            if damaged:
                self.problems.append(f"rows about damage (see their corruptRecord): {damaged:,}")
            return
        selected = sum(map(len, pieces))
        missing = selected - done.rows if self._counts_all else 0
        if missing:
            self.problems.append(f"{selected:,} messages were selected, and {done.rows:,} arrived")
        # Damage may also be of messages that no queue lists, so that none of them was selected.
        if damaged > max(missing, 0):
            self.problems.append(
                f"places that were left out because of damage: {damaged:,}, each a message, or where a queue "
                "or the log lacks some; rmqstore verify lists them"
            )

    def _answer(self) -> TablesResult:
        files = [file for wave in self.written for file in wave.files]
        by_folder: dict[str, list[ExportedFile]] = {}
        for file in files:
            by_folder.setdefault(str(Path(file.path).parent), []).append(file)
        table = [
            {
                "partition": folder,
                "messages": sum(file.rows for file in its),
                "files": len(its),
                "bytes": sum(file.size for file in its),
            }
            for folder, its in sorted(by_folder.items())
        ]
        exported = self.manifest.exported
        return TablesResult(
            job="export",
            ok=self.stopped_by is None and not self.problems,
            tables={"added": table},
            numbers={
                "messages added": sum(file.rows for file in files),
                "bytes added": sum(file.size for file in files),
                "messages in the target": exported.rows,
                "files in the target": exported.files,
                "bytes in the target": exported.bytes,
                "target": str(self.manifest.target),
            },
            source=provenance_of(
                self.spark,
                self.scan,
                (part.slice for wave in self.written for part in wave.ranges),
                dict(self.spec.options),
                checksums=self.spec.checksums,
            ),
            seconds=round(time.monotonic() - self.began, 3),
            problems=tuple(self.problems),
            resumed=exported.number > len(self.written),
            stopped_by=self.stopped_by,
        )


def _last_of(store: StoreReader, range_: QueueSlice) -> tuple[int, str | None]:
    """Log offset and digest of the last message of a range, as in ExportedRange."""
    queue, last = range_.queue, range_.stop - 1
    at, entry = store.log_offset_of(queue, last), store.view.entry_at(queue, last)
    mark = entry and Mark.of(store.log, at, at + min(int(entry.size), MARK_BYTES))
    return at, mark.digest if mark else None


def _difference(store: StoreReader, exported: ExportedRange) -> tuple[str, str] | None:
    """What was the last message of an exported range, and what a store has there instead; None: the same."""
    queue, last, before = exported.slice.queue, exported.stop - 1, exported.last_digest
    if not store.min_offset(*queue) <= last < store.max_offset(*queue):
        return f"log offset {exported.last_log_offset}", "no such offset"
    at, digest = _last_of(store, exported.slice)
    if at != exported.last_log_offset:
        return f"log offset {exported.last_log_offset}", f"log offset {at}"
    if None in (before, digest) or before == digest:
        return None
    return f"a record with digest {before} at log offset {at}", f"one with digest {digest}"


def _as_text(asked: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(asked.items())) or "no options"


def check_store(spec: ExportSpec) -> None:
    """Raise StoreError for a store or a selection that cannot be read."""
    check_spec(spec)
    scan_of(spec.store, spec.options)


def _delta() -> ModuleType:
    """What writes Delta, by PySpark, which other formats do without."""
    return import_module("rmqstore_jobs.exporting.delta")


_OPTIONS = {
    "target": option(
        "--to", required=True, metavar="DIR", help="The target folder, which only this export uses."
    ),
    "format": option(
        "--format",
        type=click.Choice(FORMATS),
        default=PARQUET,
        help="A folder of Parquet, CSV or JSON lines files, or a Delta table.",
    ),
    "wave_bytes": rare_option(
        "--wave-bytes", type=size, metavar="SIZE", default="8g", help="Bytes per wave."
    ),
    "body": option(
        "--body",
        type=click.Choice([TEXT]),
        help="Bodies of Parquet as text; others are null, and base64 in column bodyBase64.",
    ),
    "charset": CHARSET,
    **QUEUE_OPTIONS,
    **source_options(SELECTION),
}


main = Job(
    "export",
    """Export messages to Parquet, CSV, JSON lines or Delta, partitioned by topic and day; each run
    adds only new ones.

    Examples:
        rmqstore export /data/store --to /data/exported --topic orders
        rmqstore export /data/store --to lines --format jsonl --since 2026-11-21
    """,
    run,
    lambda given: spec_from(ExportSpec, with_queues(given), SELECTION),
    _OPTIONS,
    validate=check_store,
    prepare=lambda builder, spec: _delta().with_delta(builder) if spec.format == DELTA else builder,
    needs_spark=lambda spec: spec.format == DELTA,
)
