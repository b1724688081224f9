"""What is said to people: errors, each with its place, what was expected and found, and the next step;
the log of warnings; and how foreign text is shown in them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}  # as in JSON
# Controls, what XML refuses, line separators, marks that reorder a line, and halves of surrogate pairs,
# which stand for bytes of a name that is not UTF-8.
CONTROLS = (
    "\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff"
)
_UNPRINTABLE = re.compile(f"[{CONTROLS}\ud800-\udfff]")
_URI = re.compile(r"(?<![\w+.-])([a-zA-Z][a-zA-Z0-9+.-]+):(/{1,2})([^\s'\"]+)")
_WITHOUT_PORTS = ("s3", "gs", "gcs")  # a bucket has none
_WITH_CONTAINERS = ("abfs", "abfss")  # container@account


def printable(text: object) -> str:
    """A text without control characters: each is written as in JSON, such as `\\u001b` or `\\n`.

    A byte of a file name that is not UTF-8 is written as `\\xff`.
    """
    words = str(text)
    return words if words.isprintable() else _UNPRINTABLE.sub(_escape, words)


def without_credentials(text: str) -> str:
    """A text whose URIs show no user, password or settings: `s3://***@bucket/store`.

    A secret may hold slashes, so all of a URI up to its last `@` is hidden if it may begin with a user and a
    password. A port is none.
    """
    if ":/" not in text:
        return text
    return _URI.sub(_without_credentials, text)


def _without_credentials(uri: re.Match[str]) -> str:
    scheme, slashes, rest = uri.groups()
    if scheme == "file":
        return uri[0]
    place = rest.partition("/")[0]
    _, colon, port = place.partition(":")
    if "@" in place:
        has_user = bool(colon) or scheme not in _WITH_CONTAINERS
    else:  # a secret with a slash, or a port
        is_port = port.isdigit() and scheme not in _WITHOUT_PORTS
        has_user = bool(colon) and "@" in rest and not is_port
    if has_user:
        rest = "***@" + rest.rpartition("@")[2]
    front, _, settings = rest.partition("?")
    return f"{scheme}:{slashes}{f'{front}?***' if '=' in settings else rest}"


def is_utf8(name: str) -> bool:
    """Whether a name from the file system is UTF-8."""
    return name.isprintable() or not re.search("[\ud800-\udfff]", name)


def json_text(
    value: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None
) -> str:
    """A value as JSON without control characters in its strings; on one line without blanks, unless `indent`
    says otherwise. `default`: makes a value of JSON of another one."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=False, default=default, indent=indent, separators=separators
    )
    return "\n".join(_UNPRINTABLE.sub(_in_json, line) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(match[0]) or f"\\u{code:04x}"


def _in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _as_printable(record: logging.LogRecord) -> bool:
    """Escape a line for the log, which names topics, groups and files, and hide credentials in it."""
    record.msg, record.args = printable(without_credentials(record.getMessage())), None
    return True


LOG = logging.getLogger("rmqstore")
"""The logger of all packages here, with every line escaped."""
LOG.addFilter(_as_printable)

_MOST_SAID = 10_000
_said: set[str] = set()


def warn_once(text: str, *values: object) -> None:
    """Log a warning about a fact of the files, once a process: every open of a store finds it again.

    Not for what one read leaves out: each read says that.
    """
    said = text % values
    if said not in _said:
        if len(_said) < _MOST_SAID:
            _said.add(said)
        LOG.warning("%s", said)


SHOWN_AS: dict[str, str] = {}
"""Local folder of a remote store's shadow -> the address that messages show instead."""


def shown_path(path: str) -> str:
    """The path as users know it: for a file of an object store, its address, without credentials."""
    for folder, name in SHOWN_AS.items():
        if path == folder or path.startswith(folder + os.sep):
            return name + path[len(folder) :].replace(os.sep, "/")
    return without_credentials(path)


_words: list[Callable[[str], str]] = [str]


def spoken(advice: str) -> str:
    """An advice in the words of the front that this process has."""
    return _words[-1](advice)


@contextmanager
def spoken_as(words: Callable[[str], str]) -> Iterator[None]:
    """While the context lasts, errors and warnings advise in the words of a front: what `words` makes of
    those of the library."""
    _words.append(words)
    try:
        yield
    finally:
        _words.pop()


def speak_as(words: Callable[[str], str]) -> None:
    """As `spoken_as`, for a process that has one front as long as it lives, such as a worker of Spark."""
    _words[0] = words


class Place(int):
    """The place of a fault, of one of three kinds. `kind`: what messages call it."""

    kind = "offset"


class FileOffset(Place):
    """A byte of the named file, or of the files of the named folder, one after the other."""


class LogOffset(Place):
    """A physicalOffset: a byte of the whole CommitLog."""

    kind = "log offset"


class QueueOffset(Place):
    """A queueOffset of the queue that the reason names."""

    kind = "queueOffset"


class ListedAt(NamedTuple):
    """A queue entry: its queue offset, and the place in the CommitLog that it points to."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int  # bytes of the record, according to the entry
    messages: int = 1  # that are hidden with it, as far as that is known

    @property
    def name(self) -> str:
        """The queue in messages."""
        return f"{self.topic}/{self.queue_id}"

    @property
    def is_of_queue(self) -> bool:
        """Whether it stands for a queue that cannot be read at all: no record, and nobody knows how many."""
        return self.log_offset < 0 and not self.messages


_Error = TypeVar("_Error", bound="StoreError")


class StoreError(Exception):
    """Base of all errors that `rmq_store` raises on purpose.

    `path` is the file or folder. `offset` is the place of the fault, an int: FileOffset (of that file),
    LogOffset or QueueOffset. `expected` and `actual` are the two sides of a failed check. `advice` is the
    next step. `code` is stable, for programs. `entry` is the queue entry that points to the damage,
    if a reader came from a queue.
    """

    code = "RMQSTORE_ERROR"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        reason: str,
        offset: int | None = None,
        expected: Any = None,
        actual: Any = None,
        advice: str | None = None,
        entry: ListedAt | None = None,
    ) -> None:
        self.path = None if path is None else shown_path(os.fspath(path))
        self.offset = offset if offset is None or isinstance(offset, Place) else FileOffset(offset)
        self.reason = without_credentials(reason)
        self.expected = _shown(expected)
        self.actual = _shown(actual)
        self.advice = None if advice is None else without_credentials(spoken(advice))
        self.entry = entry
        super().__init__(self._sentence())

    @property
    def log_offset(self) -> int | None:
        """Where the damage is in the CommitLog: the record of `entry`, if there is one; None if unknown."""
        if self.entry is not None:
            return self.entry.log_offset if self.entry.log_offset >= 0 else None
        return self.offset if isinstance(self.offset, LogOffset) else None

    def with_advice(self: _Error, advice: str) -> _Error:
        """The same error with another next step."""
        other = copy(self)
        other.advice = spoken(advice)
        other.args = (other._sentence(),)
        return other

    def _sentence(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" at {self.offset.kind} {self.offset}"
        both = (("expected", self.expected), ("found", self.actual))
        compared = ", ".join(f"{side} {value}" for side, value in both if value is not None)
        sides = f" ({compared})" if compared else ""
        todo = f". {self.advice}" if self.advice else ""
        return printable(f"[{self.code}] {where}{self.reason}{at}{sides}{todo}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions, and executors
        # send errors to the driver.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _shown(value: Any) -> Any:
    return without_credentials(value) if isinstance(value, str) else value


def _rebuild(kind: type[StoreError], state: dict[str, Any]) -> StoreError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    Exception.__init__(error, error._sentence())
    return error


class NotAStoreError(StoreError):
    """The folder is not a store."""

    code = "RMQSTORE_NOT_A_STORE"


class TargetExistsError(StoreError):
    """The target exists already."""

    code = "RMQSTORE_TARGET_EXISTS"


class UnsupportedStoreError(StoreError):
    """A kind of store that is not read, such as tiered storage, or RocksDB without the extra."""

    code = "RMQSTORE_UNSUPPORTED_STORE"


class MissingFileError(StoreError):
    """A file is gone, or no file holds a range of the log."""

    code = "RMQSTORE_MISSING_FILE"


class CorruptRecordError(StoreError):
    """Bytes of the CommitLog that should be a record and are not."""

    code = "RMQSTORE_CORRUPT_RECORD"


class CorruptQueueError(StoreError):
    """A ConsumeQueue entry that does not point to its record."""

    code = "RMQSTORE_CORRUPT_QUEUE"


class CorruptIndexError(StoreError):
    """An IndexFile that contradicts itself."""

    code = "RMQSTORE_CORRUPT_INDEX"


class IndexGeometryError(StoreError):
    """The numbers of slots and items of an IndexFile are wrong or not known."""

    code = "RMQSTORE_INDEX_GEOMETRY"


class CorruptConfigError(StoreError):
    """An unreadable file: in `config/`, a broker.conf, or the checkpoint."""

    code = "RMQSTORE_CORRUPT_CONFIG"


class BodyError(StoreError):
    """A body that does not decompress, or decompresses to more than the limit."""

    code = "RMQSTORE_BODY"


class AccessError(StoreError):
    """The operating system refused."""

    code = "RMQSTORE_ACCESS"


class UnknownQueueError(StoreError):
    """A topic or queue that the store lacks."""

    code = "RMQSTORE_UNKNOWN_QUEUE"


class DataLossError(StoreError):
    """Messages expired, or were deleted with their topic; the log lost its end; or a file became shorter
    while it was read."""

    code = "RMQSTORE_DATA_LOSS"


class LogCutError(DataLossError):
    """The log was cut before a place that was read: a broker lost what it had not flushed."""

    code = "RMQSTORE_LOG_CUT"


class OtherStoreError(StoreError):
    """Another store is at the path than before."""

    code = "RMQSTORE_OTHER_STORE"


class InvalidArgumentError(StoreError, ValueError):
    """An argument or option that is invalid."""

    code = "RMQSTORE_INVALID_ARGUMENT"


class InvalidMessageError(StoreError, ValueError):
    """A message that the broker would refuse; no part of it was written.

    `row`: its number in a batch, and `fault`: what is wrong with it, if the message is of a batch.
    """

    row: int | None = None
    fault = ""
    code = "RMQSTORE_INVALID_MESSAGE"


class UnsafeNameError(StoreError):
    """A name from foreign files, or a link, would lead a writer out of its folder."""

    code = "RMQSTORE_UNSAFE_NAME"


class ForeignLogError(StoreError):
    """The log to write to belongs to another store; nothing was changed."""

    code = "RMQSTORE_FOREIGN_LOG"


class StoreLockedError(StoreError):
    """Another process has the store open for writing."""

    code = "RMQSTORE_LOCKED"


class UndispatchedError(StoreError):
    """The queues lack more records than fit into memory."""

    code = "RMQSTORE_UNDISPATCHED"


class UncleanStoreError(StoreError):
    """The store was not closed cleanly: before a write it needs a recovery."""

    code = "RMQSTORE_UNCLEAN"


class UnrecoverableStoreError(StoreError):
    """A store on which no broker would start, or whose files contradict each other."""

    code = "RMQSTORE_UNRECOVERABLE"


class ReadOnlyStoreError(StoreError):
    """A write to a store that is open for reading, or any call on a closed one."""

    code = "RMQSTORE_READ_ONLY"


class SqlError(StoreError):
    """A query that DuckDB refuses or cannot answer."""

    code = "RMQSTORE_SQL"


class SqlUnavailableError(StoreError):
    """SQL needs DuckDB."""

    code = "RMQSTORE_SQL_UNAVAILABLE"


class ReportUnavailableError(StoreError):
    """A report needs Jinja2 and matplotlib."""

    code = "RMQSTORE_REPORT_UNAVAILABLE"


class BrowseUnavailableError(StoreError):
    """Browsing needs Starlette, uvicorn, and what reports and SQL need."""

    code = "RMQSTORE_BROWSE_UNAVAILABLE"


# Modules of each extra, and the names that people know.
_SQL = {"duckdb": "DuckDB"}
_REPORT = {"jinja2": "jinja2", "matplotlib": "matplotlib"}
_BROWSE = {"starlette": "Starlette", "uvicorn": "uvicorn"} | _REPORT | _SQL
_EXTRAS: Mapping[str, tuple[type[StoreError], str, Mapping[str, str]]] = {
    "sql": (SqlUnavailableError, "SQL", _SQL),
    "report": (ReportUnavailableError, "a report", _REPORT),
    "browse": (BrowseUnavailableError, "browsing", _BROWSE),
}


def require_extra(extra: str) -> None:
    """Raise the error of an extra, such as SqlUnavailableError, unless its libraries are installed."""
    unavailable, what, libraries = _EXTRAS[extra]
    missing = [name for module, name in libraries.items() if find_spec(module) is None]
    if missing:
        reason = f"{what} needs {' and '.join(missing)}"
        raise unavailable(reason=reason, advice=f"pip install 'rmqstore[{extra}]'")


_MOST_NAMES = 10


def nearest(
    name: str, names: Iterable[str], *, last: Callable[[str], bool] = lambda word: False
) -> str:
    """Advice for an unknown name: the most similar known word, or some of the known words.

    `last`: words that are meant least often.
    """
    words = sorted(names, key=lambda word: (last(word), word))
    if not words:
        return "There are none"
    by_fold = {word.casefold(): word for word in words}
    close = get_close_matches(str(name).casefold(), list(by_fold), n=1, cutoff=0.6)
    if close:
        return f"Did you mean {by_fold[close[0]]!r}?"
    more = f" and {len(words) - _MOST_NAMES} more" if len(words) > _MOST_NAMES else ""
    return f"Known names: {', '.join(words[:_MOST_NAMES])}{more}"


class OsErrorsOf:
    """A context that raises, for an OSError while it does something to `path`, what `from_os_error` makes
    of it."""

    def __init__(self, path: str | os.PathLike[str], doing: str) -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise from_os_error(self._path, error, self._doing) from error


def cannot_create(path: str | os.PathLike[str], what: str, error: OSError) -> AccessError:
    """The AccessError for an OSError raised while a new folder was made; unlike of files that are read,
    nothing there can have expired."""
    return AccessError(
        path,
        reason=f"creating {what}: {error.strerror or error}",
        advice="Name a folder that can be created",
    )


def from_os_error(path: str | os.PathLike[str], error: OSError, doing: str) -> StoreError:
    """The StoreError for an OSError raised while `doing` something to `path`."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            path,
            reason=f"{doing}: the file does not exist",
            advice="It may have expired and been deleted by the broker; open the store again",
        )
    return AccessError(
        path,
        reason=f"{doing}: {error.strerror or error}",
        advice="Check the permissions, the disk and the mount",
    )
