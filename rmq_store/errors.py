"""One tree of errors. Each says where to look, what was expected and found, and what to do next."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

SHOWN_AS: dict[str, str] = {}
"""Local folders that stand for something elsewhere -> what messages call them."""


def shown_path(path: str) -> str:
    """A path as users know it: of a file in an object store its address."""
    for folder, name in SHOWN_AS.items():
        if path == folder or path.startswith(folder + os.sep):
            return name + path[len(folder) :].replace(os.sep, "/")
    return path


class ListedAt(NamedTuple):
    """A queue entry: where it stands, and where in the log it leads to."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int  # bytes of the record, as the entry says


class StoreError(Exception):
    """Base of everything that `rmq_store` raises on purpose.

    `path` is the file or folder, `offset` a byte position (in the file, or in the CommitLog where
    the reason says so), `expected` and `actual` the two sides of a failed check, `advice` the next
    step. `code` is stable and meant for machines. `entry` is the queue entry that led there, where
    damage was met on the way from a queue to the log.
    """

    code = "RMQSTORE_ERROR"
    entry: ListedAt | None = None

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        reason: str,
        offset: int | None = None,
        expected: Any = None,
        actual: Any = None,
        advice: str | None = None,
    ) -> None:
        self.path = None if path is None else shown_path(os.fspath(path))
        self.offset = offset
        self.reason = reason
        self.expected = expected
        self.actual = actual
        self.advice = advice
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" at offset {self.offset}"
        both = (("expected", self.expected), ("found", self.actual))
        said = ", ".join(f"{side} {value}" for side, value in both if value is not None)
        sides = f" ({said})" if said else ""
        todo = "" if self.advice is None else f". {self.advice}"
        return f"[{self.code}] {where}{self.reason}{at}{sides}{todo}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions, and executors
        # send errors to the driver.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[StoreError], state: dict[str, Any]) -> StoreError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    Exception.__init__(error, error._sentence())
    return error


class NotAStoreError(StoreError):
    """The folder is no store, or is one level off."""

    code = "RMQSTORE_NOT_A_STORE"


class UnsupportedStoreError(StoreError):
    """A kind of store that is not read: DLedger, queues in RocksDB, tiered."""

    code = "RMQSTORE_UNSUPPORTED_STORE"


class MissingFileError(StoreError):
    """A file that was there is gone, or a range of the log is in no file."""

    code = "RMQSTORE_MISSING_FILE"


class TruncatedFileError(StoreError):
    """A file became shorter while it was being read."""

    code = "RMQSTORE_TRUNCATED_FILE"


class CorruptRecordError(StoreError):
    """Bytes of the CommitLog that should be a record, and are not a whole one."""

    code = "RMQSTORE_CORRUPT_RECORD"


class CorruptQueueError(StoreError):
    """An entry of a ConsumeQueue that does not lead to its record."""

    code = "RMQSTORE_CORRUPT_QUEUE"


class CorruptIndexError(StoreError):
    """An IndexFile whose header, slots or items contradict each other."""

    code = "RMQSTORE_CORRUPT_INDEX"


class IndexGeometryError(StoreError):
    """The number of slots and items of an IndexFile is not what was said, or cannot be told."""

    code = "RMQSTORE_INDEX_GEOMETRY"


class CorruptConfigError(StoreError):
    """A file of `config/`, a broker.conf or the checkpoint that cannot be read."""

    code = "RMQSTORE_CORRUPT_CONFIG"


class BodyError(StoreError):
    """A body that does not decompress, or grows over the limit."""

    code = "RMQSTORE_BODY"


class AccessError(StoreError):
    """The operating system refused: no permission, a full disk, a read-only folder."""

    code = "RMQSTORE_ACCESS"


class UnknownQueueError(StoreError):
    """A topic or queue that this store does not have."""

    code = "RMQSTORE_UNKNOWN_QUEUE"


class DataLossError(StoreError):
    """What was asked for has expired, before or while it was read."""

    code = "RMQSTORE_DATA_LOSS"


class InvalidArgumentError(StoreError, ValueError):
    """An argument or option that cannot be: unknown name, wrong type, out of range."""

    code = "RMQSTORE_INVALID_ARGUMENT"


class InvalidMessageError(StoreError, ValueError):
    """A message that the broker would refuse; nothing of it was written."""

    code = "RMQSTORE_INVALID_MESSAGE"


class ForeignLogError(StoreError):
    """The log that would be written to belongs to another store; nothing was changed."""

    code = "RMQSTORE_FOREIGN_LOG"


class StoreLockedError(StoreError):
    """Another process has the store open for writing."""

    code = "RMQSTORE_LOCKED"


class UndispatchedError(StoreError):
    """So many records are in no queue that a list of them would not fit into memory."""

    code = "RMQSTORE_UNDISPATCHED"


class UncleanStoreError(StoreError):
    """The store was not closed cleanly; writing to it needs a recovery first."""

    code = "RMQSTORE_UNCLEAN"


class UnrecoverableStoreError(StoreError):
    """A store that the broker would refuse to start on, or whose files contradict each other."""

    code = "RMQSTORE_UNRECOVERABLE"


class ReadOnlyStoreError(StoreError):
    """A verb of writing on a store that was opened to read, or any verb on a closed one."""

    code = "RMQSTORE_READ_ONLY"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known word next to `name`, or lists them all."""
    words = sorted(known)
    by_fold = {word.casefold(): word for word in words}
    close = get_close_matches(name.casefold(), list(by_fold), n=1, cutoff=0.6)
    if close:
        return f"Did you mean {by_fold[close[0]]!r}?"
    return f"Known are: {', '.join(words)}"


def from_os_error(path: str | os.PathLike[str], error: OSError, doing: str) -> StoreError:
    """Our error for an OSError met while `doing` something to `path`."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            path,
            reason=f"{doing}: the file is not there",
            advice="It may have expired and been deleted by the broker; open the store anew",
        )
    return AccessError(
        path,
        reason=f"{doing}: {error.strerror or error}",
        advice="Check the permissions, the disk and the mount",
    )
