"""`df.write` and `df.writeStream` of the format, as Spark calls them; streams from PySpark 4.1 on.

Spark creates a writer for the tasks of each micro-batch, and another one for its commit. What they share
comes with the messages of the tasks: the id of the write, and that of the query.

A commit makes prepared rows messages of the target store, all of them or none. A new store is built beside
the target and takes its place when it is whole. Rows for a store that exists are appended to it; where its
log ended before is in the journal, and the rows of a write that was killed are cut off again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders, require_store
from rmq_store.errors import (
    LOG,
    InvalidArgumentError,
    InvalidMessageError,
    NotAStoreError,
    StoreError,
    TargetExistsError,
)
from rmq_store.files.durable_files import sync_path
from rmq_store.files.journal import JournalError, as_access_error, has_content
from rmq_store.files.parallel import made_ahead
from rmq_store.format.byte_layout import OF_A_ROOT
from rmq_store.heap_settings import settle_worker
from rmq_store.markers import StoreLock, refuse_locked
from rmq_store.recovery.strict_recovery import refuse_abort
from rmq_store.writing.store_writer import StoreWriter
from spark_source.spark_types import plain_errors
from spark_source.writing.rows_to_append import (
    QueuesInTurn,
    append_staged,
    check_columns,
    staged_batches,
)
from spark_source.writing.staging import StagedPart, Staging, remove_abandoned
from spark_source.writing.target import (
    APPEND,
    APPENDING,
    ERROR,
    IGNORE,
    REPLACING,
    BegunWrite,
    StreamBatch,
    WriteJournal,
    WriteOptions,
    finish_or_undo,
    log_end_of_target,
    parse_write_options,
)

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# File systems and systems without an exchange answer so.
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
# A rename onto a folder with content, and onto a file.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def put_in_place(new: Path, target: Path) -> None:
    """Put the folder `new` at `target`, which is missing or an empty folder.

    Raises TargetExistsError, and changes nothing, if anything else is there.
    """
    with as_access_error(target):
        try:
            new.rename(target)  # replaces an empty folder, and never one with content
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            raise TargetExistsError(
                target,
                reason="the target appeared meanwhile",
                expected="a folder that does not exist or is empty, as when the write began",
                advice="The target is as it was, and nothing was written. Run the write again",
            ) from error
    sync_path(target.parent)
    sync_path(new.parent)


def exchange_folders(new: Path, target: Path, aside: Path) -> None:
    """Put the folder `new` at `target`. The folder that was at `target` is then at `new` or `aside`.

    At every moment `target` is the old folder or the new one. Where the file system cannot exchange
    two folders (NFS), `target` is missing for a moment, and the old folder is at `aside`.
    """
    with as_access_error(target):
        if not _exchanged(new, target):
            target.rename(aside)
            new.rename(target)
    sync_path(target.parent)
    sync_path(aside.parent)


def _exchanged(new: Path, target: Path) -> bool:
    """Exchange two folders with renameat2; False where that does not exist."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = os.fsencode(new), os.fsencode(target)
    if call(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_HERE:
        return False
    raise OSError(number, os.strerror(number), str(target))


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """One write into a store. Plain data, so that executors can use it."""

    write_id: str
    options: WriteOptions
    overwrite: bool = False

    @property
    def staging(self) -> Staging:
        """The folder of the rows that tasks prepare."""
        return Staging(self.options.path, self.write_id)


def is_write_needed(write: StoreWrite) -> bool:
    """Whether the write has anything to do: False for ifExists=ignore and a target that exists.

    Raises the error of a target that cannot be written to: NotAStoreError for a folder with other
    files, TargetExistsError for ifExists=error, StoreLockedError while a broker runs on it.
    """
    path = write.options.path
    if write.overwrite and write.options.if_exists != APPEND:
        raise InvalidArgumentError(
            path,
            reason=f"the option ifExists is {write.options.if_exists!r}, and the mode is 'overwrite'",
            advice="Nothing was written. ifExists is for mode('append'); leave it out to replace the "
            "store",
        )
    if not has_content(path):
        return True
    if write.options.if_exists == IGNORE:
        return False
    if write.options.if_exists == ERROR:
        raise TargetExistsError(
            path,
            reason="the target exists, and the option ifExists is 'error'",
            advice="Nothing was written. Name a new folder, or leave the option out to append",
        )
    root = require_store(path, write.options.config_of_target())
    if write.overwrite:
        _refuse_other_files(root, write.options.config_of_target())
    refuse_locked(root)
    return True


def commit(
    write: StoreWrite, parts: Sequence[StagedPart], stream: StreamBatch | None = None
) -> bool:
    """Make the rows of all parts messages of the target, and remove their files.

    With `stream` that batch is written once, whatever was killed before. Returns False if it was
    done already. Raises StoreError; the target is then as it was.
    """
    staging = write.staging
    with WriteJournal(write.options.path) as journal:
        staging.begin(commit=True)
        finish_or_undo(journal, write.options)
        of = None if stream is None else f"{stream.query}-"
        remove_abandoned(write.options.path, but=staging.path.name, of=of)
        done = None if stream is None else journal.done_of(stream.query)
        again = stream is not None and done is not None and stream.batch <= done.batch
        if not again and is_write_needed(write) and _has_work(write, parts, stream):
            if done is not None and not write.overwrite:
                _refuse_shorter(write.options, done.end)
            turns = QueuesInTurn(write.options.queues)
            # A thread reads and checks them.
            with closing(made_ahead(map(turns.fill, staging.take(parts)))) as rows:
                if write.overwrite or not has_content(write.options.path):
                    _replace(journal, write, rows, stream)
                else:
                    _append(journal, write, rows, stream)
        staging.remove()
    return not again


def _has_work(write: StoreWrite, parts: Sequence[StagedPart], stream: StreamBatch | None) -> bool:
    """False for no rows: they change a store only where it is created or replaced by a batch."""
    creates = write.overwrite or (stream is None and not has_content(write.options.path))
    return creates or any(part.rows for part in parts)


# --- append ---------------------------------------------------------------------------------------


def _append(
    journal: WriteJournal,
    write: StoreWrite,
    rows: Iterator[pa.RecordBatch],
    stream: StreamBatch | None,
) -> None:
    options = write.options
    config = options.config_of_target()
    refuse_abort(require_store(options.path, config))
    start = log_end_of_target(options)
    # From here on the target may change; what fails is undone, here or by the next write.
    begun = journal.begin(BegunWrite(write.write_id, APPENDING, start, stream=stream))
    done = False
    try:
        writer = StoreWriter.append_to(
            options.path, config, release=options.release, recovery="refuse"
        )
        if writer.log_range()[1] != start:
            writer.close()  # nothing was appended
            raise JournalError(
                options.path,
                reason="another process wrote into the store while this write began",
                expected=f"a log that ends at {start}",
                actual=writer.log_range()[1],
                advice="Run the write again",
            )
        try:
            writer.sign(begun.mark)
            journal.sign()
            _append_all(writer, rows, options)
            journal.finish(writer.log_range()[1], closed=False)
        except BaseException:
            writer.abandon()
            raise
        done = True
        writer.close(sync=options.flush)
        journal.clear_begun()
    except Exception as error:
        if not _settled(journal, options, done):
            raise
        LOG.warning(
            "%s: the rows are written; what came after that failed: %s", options.path, error
        )


def _settled(journal: WriteJournal, options: WriteOptions, done: bool) -> bool:
    """Settle a write that failed. Returns whether its rows are in the target all the same.

    `done`: the journal has the write as done, so an error would make its user write the rows again.
    """
    try:
        return finish_or_undo(journal, options) or done
    except Exception as error:
        if not done:
            raise
        LOG.warning("%s: the next write, or a recovery, closes the store: %s", options.path, error)
        return True


def _append_all(store: StoreWriter, rows: Iterator[pa.RecordBatch], options: WriteOptions) -> None:
    with store.watching_times(options.path) if options.keep_timestamps else nullcontext():
        for batch in rows:
            append_staged(store, batch)
    if options.flush:
        store.flush()
    else:
        store.dispatch()


def _refuse_shorter(options: WriteOptions, end: int) -> None:
    """Raise JournalError if the target has lost what a query has written into it."""
    actual = log_end_of_target(options)
    if actual < end:
        raise JournalError(
            options.path,
            reason="the store has lost messages that this query has written",
            expected=f"a log that ends at {end} or later",
            actual=actual,
            advice="Restore the store, or write into a new one with a new checkpoint",
        )


# --- new store ------------------------------------------------------------------------------------


def _replace(
    journal: WriteJournal,
    write: StoreWrite,
    rows: Iterator[pa.RecordBatch],
    stream: StreamBatch | None,
) -> None:
    """Build a store with the rows, and put it in the place of the target."""
    options, target = write.options, Path(write.options.path)
    new, aside = write.staging.new_store, write.staging.old_store
    begun = BegunWrite(write.write_id, REPLACING, stream=stream)
    writer = StoreWriter.create(new, options.config, release=options.release)
    try:
        _append_all(writer, rows, options)
        end = writer.log_range()[1]
        writer.sign(begun.mark)
    except BaseException:
        writer.abandon()
        raise
    writer.close(sync=options.flush)
    journal.begin(begun)
    try:
        if write.overwrite and has_content(options.path):
            _exchange_locked(new, options, aside)
        else:
            put_in_place(new, target)
    except BaseException as error:
        if not finish_or_undo(journal, options) or not isinstance(error, Exception):
            raise
        LOG.warning("%s: the store is replaced; what came after failed: %s", target, error)
    else:
        journal.finish(end, closed=True, replaced=True)


def _exchange_locked(new: Path, options: WriteOptions, aside: Path) -> None:
    """Exchange the stores. Raises NotAStoreError if files of others appeared in the target while
    the new store was built."""
    target = require_store(options.path, options.config_of_target())
    # A broker must not run on the store that is replaced. The lock also replaces the mark of an
    # earlier write in that store, so that only the new store has one.
    with StoreLock(target):
        _refuse_other_files(target, options.config_of_target())
        exchange_folders(new, target, aside)


def _refuse_other_files(root: Path, config: StoreConfig) -> None:
    """Raise NotAStoreError if replacing the store would delete what is not a store's."""
    folders = commitlog_folders(root, config)
    for folder in folders:
        if Path(os.path.realpath(root)) not in Path(os.path.realpath(folder)).parents:
            raise NotAStoreError(
                root,
                reason="the log of this store lies outside of its folder, so it cannot be replaced",
                actual=folder,
                advice="Nothing was written. Name a new folder",
            )
    expected = OF_A_ROOT | {folder.name for folder in folders}
    other = sorted(path.name for path in root.iterdir() if path.name not in expected)
    if other:
        raise NotAStoreError(
            root,
            reason=f"the folder holds {other[0]!r}, which is not of a store, and overwrite would "
            "delete it",
            advice="Nothing was written. Name a new folder, or move what is not of the store away",
        )


_NAMING = ("topic", "queueId", "keys", "uniqKey")
"""Columns that name a row in an error."""


@dataclass
class PreparedPart(WriterCommitMessage):
    """What a task has prepared; of a stream, the ids of write and query as the task knows them."""

    part: StagedPart
    write_id: str = ""
    query: str = ""


class RmqStoreWriter(DataSourceArrowWriter):
    """Checks the target on the driver, prepares rows in the tasks, and commits on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises StoreError for what can be known before a task runs."""
        parsed = parse_write_options(options, stream=False)
        check_columns(schema, parsed)
        self.job = StoreWrite(uuid.uuid4().hex, parsed, overwrite)
        self.wanted = is_write_needed(self.job)
        if self.wanted:
            self.job.staging.begin()

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare the rows of one task."""
        if not self.wanted:
            return PreparedPart(StagedPart(partition_id()))
        rows = prepared_rows(iterator, self.job.options)
        return PreparedPart(self.job.staging.write(partition_id(), rows))

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks have prepared."""
        if self.wanted:
            settle_worker()
            prepared = [message for message in messages if isinstance(message, PreparedPart)]
            commit(self.job, [message.part for message in prepared])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have prepared."""
        self.job.staging.remove()


def partition_id() -> int:
    """The number of the task's partition."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def prepared_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, checked and in the form in which they are staged."""
    settle_worker()  # this process is a Spark worker that only writes
    before = 0
    for batch in batches:
        if batch.num_rows:
            try:
                yield from staged_batches(batch, options)
            except InvalidMessageError as error:
                raise _of_partition(error, batch, before, options) from None
        before += batch.num_rows


def _of_partition(
    error: InvalidMessageError, batch: pa.RecordBatch, before: int, options: WriteOptions
) -> InvalidMessageError:
    """The error with what its row can be found by in the DataFrame: batches are Spark's own."""
    if error.row is None:
        return error
    row = batch.slice(error.row, 1)
    values = {"topic": options.topic}
    values |= {name: row[name][0].as_py() for name in _NAMING if name in batch.schema.names}
    named = ", ".join(f"{name} {value!r}" for name, value in values.items() if value is not None)
    return InvalidMessageError(
        reason=f"row {before + error.row} of partition {partition_id()}, counted from 0"
        + (f" ({named})" if named else "")
        + f": {error.fault}",
        expected=error.expected,
        actual=error.actual,
        advice=(error.advice or "").replace("Nothing of the batch", "Nothing"),
    )


_QUERY = "sql.streaming.queryId"  # StreamExecution.QUERY_ID_KEY; the id that the checkpoint keeps


class UnknownQueryError(StoreError):
    """Spark does not say which query a task of a stream belongs to."""

    code = "RMQSTORE_UNKNOWN_QUERY"


class RmqStoreStreamWriter(DataSourceStreamArrowWriter):
    """Prepares the rows of a micro-batch in the tasks, and commits each batch once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises StoreError for what can be known before a task runs. `overwrite`: output mode
        complete, where each batch replaces the store."""
        self.options = parse_write_options(options, stream=True)
        self.overwrite = overwrite
        check_columns(schema, self.options)
        self.token = uuid.uuid4().hex
        is_write_needed(self._job(self.token))

    def _job(self, write_id: str) -> StoreWrite:
        return StoreWrite(write_id, self.options, self.overwrite)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare the rows of one task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        if query is None:
            raise UnknownQueryError(
                reason=f"the task has no property {_QUERY}",
                advice="Write with foreachBatch and df.write instead",
            )
        job = self._job(f"{query}-{self.token}")
        rows = prepared_rows(iterator, self.options)
        part = job.staging.write(partition_id(), rows, begin=True)
        return PreparedPart(part, job.write_id, query)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write what all tasks have prepared, unless the journal lists the batch."""
        prepared = [message for message in messages if isinstance(message, PreparedPart)]
        if prepared:
            settle_worker()
            write, batch = self._job(prepared[0].write_id), StreamBatch(prepared[0].query, batchId)
            commit(write, [message.part for message in prepared], batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks have prepared; what failed tasks leave, the next commit removes."""
        for write_id in {m.write_id for m in messages if isinstance(m, PreparedPart)}:
            self._job(write_id).staging.remove()
