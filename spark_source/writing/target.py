"""The target of a write: its options, its journal, and how a write that was killed is undone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rmq_store.config.broker_conf import StoreConfig, paths_in
from rmq_store.config.locate import refuse_foreign_log
from rmq_store.config.topics_json import update_topics
from rmq_store.errors import LOG, InvalidArgumentError, nearest
from rmq_store.files.durable_files import sync_path
from rmq_store.files.journal import (
    Journal,
    JournalError,
    as_access_error,
    has_content,
    refuse_uri,
    utc_now_text,
)
from rmq_store.files.remote.uri_filesystem import has_pattern, local_path
from rmq_store.format.byte_layout import ABORT_FILE, COMMITLOG_DIR, LOCK_FILE
from rmq_store.format.releases import dialect
from rmq_store.markers import StoreLock, remove_abort
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.recover_store import recover_under_lock
from rmq_store.scan.options import OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS
from rmq_store.scan.parse_options import parse_option, refused_options
from rmq_store.writing.store_writer import without_log_paths
from spark_source.writing.staging import Staging, folder_beside, remove_if_empty

APPEND, ERROR, IGNORE = "append", "error", "ignore"
_OWN = {option.name.casefold(): option for option in WRITE_OPTIONS}
_OF_A_READ = {option.name.casefold(): option.name for option in (*OPTIONS, *STREAM_OPTIONS)}
_OF_A_QUERY = frozenset(("checkpointlocation", "queryname"))  # Spark passes its own on


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. `path`: absolute, links followed. `config`: of brokerConf."""

    path: str
    topic: str | None = None
    queues: int = 4
    release: str | None = None
    config: StoreConfig = field(default_factory=StoreConfig)
    keep_timestamps: bool = False
    flush: bool = True
    if_exists: str = APPEND

    def config_of_target(self) -> StoreConfig:
        """The configuration with the log that the target has under its own root, as at its
        creation; as given where the log lies elsewhere."""
        own = without_log_paths(self.config)
        names = paths_in(own.storePathCommitLog) or [COMMITLOG_DIR]
        return own if all(Path(self.path, name).is_dir() for name in names) else self.config


def parse_write_options(raw: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """The options of a write as typed values. Names are compared without case.

    Raises InvalidArgumentError for an unknown name (with the nearest known one), an option of a
    read, an invalid value, a missing path, and a URI as the target. Raises MissingFileError for a
    brokerConf that does not exist.
    """
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if stream and name.casefold() in _OF_A_QUERY:
            continue
        option = _OWN.get(name.casefold())
        if option is None:
            raise _unknown(name)
        if stream and option.name == "ifExists":
            raise refused_options(
                "option 'ifExists' has no meaning in a stream",
                "A stream appends what its journal does not list; leave the option out",
            )
        fields[option.field] = parse_option(option, value)
    if "path" not in fields:
        raise refused_options("no path", "Give the store's folder: save('/path/to/store')")
    path = local_path(fields["path"])
    refuse_uri(path)
    if has_pattern(path) and not os.path.isdir(path):
        raise refused_options(
            f"the path {path!r} is a pattern, and a write has one target", "Name one folder"
        )
    fields["path"] = os.path.realpath(path)
    dialect(fields.get("release"))  # raises for one that is not supported
    conf = fields.pop("broker_conf", None)
    return WriteOptions(**fields, config=StoreConfig.of(conf))


def _unknown(name: str) -> InvalidArgumentError:
    if name.casefold() == "mode":
        return refused_options(
            "option 'mode' is for reading", 'Give df.write.mode("append") or mode("overwrite")'
        )
    if name.casefold() in _OF_A_READ:
        return refused_options(
            f"option {_OF_A_READ[name.casefold()]!r} is for reading",
            f"A write takes {', '.join(option.name for option in WRITE_OPTIONS)}",
        )
    return refused_options(
        f"unknown option {name!r}", nearest(name, [option.name for option in WRITE_OPTIONS])
    )


APPENDING, REPLACING = "appending", "replacing"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a stream: the id of the query, and Spark's number of the batch."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class BegunWrite:
    """A write that has begun.

    `start`: where the log of the target ended before it. `signed`: it is about to append, and its
    mark is in the store's lock file. `end`: where the log ends with this write; set once everything
    is there, and from then on the write is done. The store that takes the target's place is whole
    when its write begins, and has the mark in its lock file.
    """

    write_id: str
    kind: str
    start: int = 0
    signed: bool = False
    end: int | None = None
    stream: StreamBatch | None = None
    at: str = ""

    @property
    def mark(self) -> bytes:
        """4 bytes in the store's lock file that say that nobody opened it since this write."""
        return self.write_id[-4:].encode("ascii")


@dataclass(frozen=True, slots=True)
class DoneWrite:
    """The last batch of a query that is in the target, and where the log ended after it."""

    query: str
    batch: int
    end: int
    at: str = ""


class WriteJournal(Journal[BegunWrite, DoneWrite]):
    """The journal of one target, in the folder of its writes.

    It waits for another write into the same target: the driver of a killed query may live on for
    the rest of its commit.
    """

    of = "a write"
    types = (BegunWrite | None, tuple[DoneWrite, ...])
    waits = True
    in_doubt = (
        "What the last write has done is unknown. Compare the store with what was written, then "
        "delete the file"
    )

    def __init__(self, target: str) -> None:
        self.folder = folder_beside(target)
        super().__init__(self.folder / "journal.json", self.folder / "lock")

    def __exit__(self, *exc: object) -> None:
        super().__exit__()
        remove_if_empty(self.folder)

    def done_of(self, query: str) -> DoneWrite | None:
        """The last batch of a query that is in the target."""
        return next((done for done in self.done if done.query == query), None)

    def begin(self, begun: BegunWrite) -> BegunWrite:
        """Record that a write is about to change the target."""
        begun = replace(begun, at=utc_now_text())
        self.save(begun, *self.done)
        return begun

    def sign(self) -> None:
        """Record that the write that has begun is about to append."""
        assert self.begun is not None
        self.save(replace(self.begun, signed=True), *self.done)

    def finish(self, end: int, *, closed: bool, replaced: bool = False) -> None:
        """Record that the write is done: its rows are in the target, whose log ends at `end`.

        `closed`: the store is closed too, so nothing is left to do. `replaced`: the target is
        another store now, so the ends of other queries mean nothing.
        """
        assert self.begun is not None
        stream, done = self.begun.stream, self.done
        if replaced:
            done = tuple(replace(write, end=0) for write in done)
        if stream is not None:
            others = (write for write in done if write.query != stream.query)
            done = (*others, DoneWrite(stream.query, stream.batch, end, utc_now_text()))
        self.save(None if closed else replace(self.begun, end=end), *done)


# Undo or finish a write that was killed.
#
# A writer signs the store's lock file before it appends. A process that opens the store to write takes
# the mark away. So a mark that is still there proves that what follows in the log is of that writer.


def finish_or_undo(journal: WriteJournal, options: WriteOptions) -> bool:
    """Undo the write that the journal has as begun, or finish it if all its rows are in the target.

    Returns whether there was such a write and it is finished. Raises JournalError if that is
    not known any more, because another process has opened the store since.
    """
    begun = journal.begun
    if begun is None:
        return False
    how = "undone" if begun.end is None else "finished"
    LOG.warning("%s: the write begun at %s was interrupted; it is %s", options.path, begun.at, how)
    if begun.kind == APPENDING:
        finish_or_undo_append(begun, options, journal.path)
        journal.clear_begun()
        return begun.end is not None
    return _settle_replacement(journal, begun, options)


def _settle_replacement(journal: WriteJournal, begun: BegunWrite, options: WriteOptions) -> bool:
    staging, placed = Staging(options.path, begun.write_id), False
    if signature_in(staging.new_store / LOCK_FILE) == begun.mark:  # it is still to be put in place
        _put_back(staging.old_store, Path(options.path), begun)
        journal.clear_begun()
    elif not has_content(options.path):
        journal.clear_begun()  # the store was deleted since
    else:
        _refuse_unknown(staging, begun, options, journal.path)
        sync_path(Path(options.path).parent)  # the journal must not be ahead of the disk
        journal.finish(log_end_of_target(options), closed=True, replaced=True)
        placed = True
    if staging.path.exists():
        staging.remove()
    return placed


def _put_back(aside: Path, target: Path, begun: BegunWrite) -> None:
    """Undo the first of the two steps that replace a store where there is no exchange."""
    with as_access_error(target):
        if not aside.exists():
            return
        if has_content(str(target)):
            raise JournalError(
                target,
                reason=f"a write that began at {begun.at} was interrupted while it replaced the "
                "store, and another folder has appeared in its place since",
                advice=f"The store is at {aside}. Move one of the two away",
            )
        aside.rename(target)


def _refuse_unknown(
    staging: Staging, begun: BegunWrite, options: WriteOptions, journal: Path
) -> None:
    """Raise JournalError if nothing shows whether the new store is in its place."""
    # Its folder without the new store shows it, as does the mark in the target.
    marked = signature_in(Path(options.path) / LOCK_FILE) == begun.mark
    if not marked and not staging.path.exists():
        raise JournalError(
            options.path,
            reason=f"a write that began at {begun.at} was interrupted, and its folder was deleted "
            "since; whether this store is the old one or the new one is unknown",
            expected=staging.path,
            advice=f"Compare the store with what was written, and then delete {journal}",
        )


# --- an append -----------------------------------------------------------------------------------


def finish_or_undo_append(begun: BegunWrite, options: WriteOptions, journal: Path) -> None:
    """Finish or undo an interrupted append.

    `journal`: the file that says so. Raises JournalError if another process has opened the store
    since, so that nobody knows which messages are of that write.
    """
    root, config = Path(options.path), options.config_of_target()
    if not has_content(options.path):
        return  # the store was deleted since
    unclean = (root / ABORT_FILE).exists()
    nobody_since = signature_in(root / LOCK_FILE) == begun.mark
    if begun.signed and unclean and nobody_since:
        _recover(begun, root, config, options.release)
        return
    if begun.end is not None:
        return  # it was done, and the store was closed, or opened by another since
    end = log_end_of_target(options)
    if end == begun.start:
        if unclean and not begun.signed:
            _recover(begun, root, config, options.release)  # killed while it opened the store
        return
    if begun.signed:
        raise JournalError(
            root,
            reason=f"a write that began at {begun.at} was interrupted, and another process has "
            "opened the store since; which messages are of that write is unknown",
            expected=f"a log that ends at {begun.start}",
            actual=end,
            advice="Compare the messages from there on with what was written. To keep them, delete "
            f"{journal}",
        )


def log_end_of_target(options: WriteOptions) -> int:
    """Where the log of the target ends; 0 without a target."""
    if not has_content(options.path):
        return 0
    with StoreReader.open(options.path, config=options.config_of_target(), queues=False) as store:
        return store.log_range()[1]


def signature_in(lock: Path) -> bytes:
    """The 4 bytes that the last writer of a store left in its lock file; empty without a file."""
    with as_access_error(lock):
        return lock.read_bytes()[:4] if lock.exists() else b""


def _recover(begun: BegunWrite, root: Path, config: StoreConfig, release: str | None) -> None:
    """Recover the store to where the log ends with the write, or without it."""
    refuse_foreign_log(root, config)
    until = begun.start if begun.end is None else begun.end
    with StoreLock(root, begun.mark):  # a second attempt sees that it was this one
        report = recover_under_lock(root, config, dialect(release), until=until)
        if begun.end is not None:
            update_topics(root, dialect(release), list(report.queues), {})
        remove_abort(root)
