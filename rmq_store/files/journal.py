"""The journal of a target: what a write, a replay or an export has begun there, and what is done.

One JSON file beside or inside the target: `begun` (what, from where) or null, and `done` (what, up to
where). It is always replaced as a whole and flushed, so after a kill it is the old one or the new one,
and the next process finishes or undoes what it has as begun. Whoever works on the target holds a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from rmq_store.errors import (
    AccessError,
    CorruptConfigError,
    InvalidArgumentError,
    StoreError,
    TargetExistsError,
    json_text,
)
from rmq_store.files.durable_files import LARGEST_JSON, read_file, replace_file

FORMAT = 1
_B = TypeVar("_B")
_D = TypeVar("_D")
_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Journal[Any, Any]")
_MOST_REMOVED = 1000


class JournalError(StoreError):
    """The journal of a target forbids what is asked for, or cannot be read."""

    code = "RMQSTORE_JOURNAL"


class TargetLockedError(StoreError):
    """Another process works on the same target."""

    code = "RMQSTORE_TARGET_LOCKED"


class Journal(Generic[_B, _D]):
    """The journal of one target. A context manager that holds the lock; a killed process loses it.

    `begun`: the work that is not closed, if any. `done`: what is done, oldest first. A subclass says
    who writes the file, of which types both are (`X | None` and `tuple[Y, ...]`, dataclasses), what to
    do with a file that cannot be read, and whether to wait for another process instead of raising
    TargetLockedError.
    """

    of: ClassVar[str]
    types: ClassVar[tuple[Any, Any]]
    in_doubt: ClassVar[str]
    waits: ClassVar[bool] = False

    def __init__(self, path: Path, lock: Path) -> None:
        self.path, self._lock_path = path, lock
        self._lock: int | None = None
        self.begun: _B | None = None
        self.done: tuple[_D, ...] = ()

    def __enter__(self: _Self) -> _Self:
        with as_access_error(self._lock_path):
            self._lock = _locked(self._lock_path, wait=self.waits)
        try:
            self.load()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def load(self) -> None:
        """Read the file; needs no lock and creates nothing. Raises JournalError."""
        entry = read_entry(self.path, self.of, self._decoded, self.in_doubt)
        self.begun, self.done = entry or (None, ())

    def _decoded(self, content: Mapping[str, Any]) -> tuple[_B | None, tuple[_D, ...]]:
        begun, done = self.types
        return from_json_value(begun, content["begun"]), from_json_value(done, content["done"])

    def save(self, begun: _B | None, *done: _D) -> None:
        """Replace the file, and flush it; without anything to say, delete it. Raises AccessError.

        If that fails, the file may be the old one or the new one; this object is as asked.
        """
        self.begun, self.done = begun, done
        if begun is not None or done:
            write_entry(self.path, self.of, {"begun": begun, "done": done})
        else:
            with as_access_error(self.path):
                self.path.unlink(missing_ok=True)

    def clear_begun(self) -> None:
        """Record that what had begun has left nothing to do."""
        self.save(None, *self.done)


def utc_now_text() -> str:
    """The time in UTC, ISO 8601, as journals have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- files ----------------------------------------------------------------------------------------


def write_entry(path: Path, of: str, content: Mapping[str, Any]) -> None:
    """Replace a file of a journal, and flush it. Raises AccessError."""
    with as_access_error(path):
        replace_file(path, entry_text(of, content) + "\n")


def entry_text(of: str, content: Mapping[str, Any]) -> str:
    """What such a file has, as one line of JSON. `of`: who writes it.

    A path that is not UTF-8 comes back as it is.
    """
    return json_text({"format": FORMAT, "journal": of, **content}, default=asdict)


def read_entry(
    path: Path, of: str, convert: Callable[[Mapping[str, Any]], _T], in_doubt: str
) -> _T | None:
    """The content of a file of a journal, by `convert`; None without a file.

    Raises JournalError, with `in_doubt` as the advice, for what `of` has not written, or another
    version, and for what `convert` cannot use.
    """
    with as_access_error(path):
        if not os.path.lexists(path):
            return None
    try:
        text = read_file(path, LARGEST_JSON).decode("utf-8")
    except (CorruptConfigError, UnicodeDecodeError) as error:
        raise _unreadable(path, of, error, in_doubt) from error
    return parse_entry(path, of, text, convert, in_doubt)


def parse_entry(
    path: Path, of: str, text: str, convert: Callable[[Mapping[str, Any]], _T], in_doubt: str
) -> _T:
    """As `read_entry`, from what `entry_text` gave; `path` is for the error."""
    try:
        content = json.loads(text)
        kind = content.pop("format", None), content.pop("journal", None)
        if kind != (FORMAT, of):
            raise ValueError(f"format and journal are {kind}, not {(FORMAT, of)}")
        return convert(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, of, error, in_doubt) from error


def _unreadable(path: Path, of: str, error: Exception, in_doubt: str) -> JournalError:
    return JournalError(
        path,
        reason=f"cannot be read as a journal of {of}: {error!r}",
        advice=f"Nothing was changed. {in_doubt}",
    )


def from_json_value(kind: Any, value: Any) -> Any:
    """A value of JSON as the type `kind`; the counterpart of `asdict`.

    Knows plain types, `X | None`, tuples, Mapping, named tuples and dataclasses. Raises ValueError
    for another type, KeyError for an unknown field, TypeError for a missing one.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or type(value) is kind:
        return value
    if origin is UnionType:
        (some,) = (item for item in inner if item is not NoneType)
        return None if value is None else from_json_value(some, value)
    if isinstance(value, list) and origin is tuple:
        kinds = inner[:1] * len(value) if Ellipsis in inner else inner
        return tuple(from_json_value(*pair) for pair in zip(kinds, value, strict=True))
    if isinstance(value, list) and hasattr(kind, "_fields"):
        return kind(
            *(from_json_value(*item) for item in zip(_fields(kind).values(), value, strict=True))
        )
    if isinstance(value, dict) and origin is not None and issubclass(origin, Mapping):
        return {name: from_json_value(inner[1], item) for name, item in value.items()}
    if isinstance(value, dict) and hasattr(kind, "__dataclass_fields__"):
        return kind(
            **{name: from_json_value(_fields(kind)[name], item) for name, item in value.items()}
        )
    raise ValueError(f"{value!r} is not {getattr(kind, '__name__', kind)}")


@cache
def _fields(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


# --- lock and target ------------------------------------------------------------------------------


def _locked(path: Path, *, wait: bool) -> int:
    """A descriptor of the file `path`, which exists only while its lock is held.

    Raises OSError where no file can be made, TargetLockedError if another process has it.
    """
    removed = 0
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            removed += 1  # the folder, by the previous holder; some file systems always say so
            if removed > _MOST_REMOVED:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise TargetLockedError(
                path,
                reason="another process works on this target",
                advice="Let it finish, or end it; then run this again",
            ) from None
        # Between open and lock, the previous holder may have removed the file.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


@contextmanager
def as_access_error(path: Path) -> Iterator[None]:
    """Convert errors of the operating system to an AccessError about `path`."""
    try:
        yield
    except OSError as error:
        raise AccessError(
            error.filename or path,
            reason=f"cannot be written: {error.strerror or error}",
            advice="Name a writable folder, or check permissions, disk and mount",
        ) from error


def refuse_uri(target: str) -> None:
    """Raise InvalidArgumentError for a URI, which would become a local folder of that name."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", target)
    if scheme:
        raise InvalidArgumentError(
            reason="the target is a URI, and stores and exports are written to folders",
            expected="a local or mounted folder, which executors share",
            actual=f"{scheme[0]}...",  # the rest may hold credentials
            advice="Write to a folder, and copy it to the object store",
        )


def has_content(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a file, or a folder that is not empty."""
    target = Path(path)
    return target.exists() and (not target.is_dir() or any(target.iterdir()))


def refuse_content(path: str | os.PathLike[str], advice: str) -> None:
    """Raise TargetExistsError unless a folder can be made at `path`. `advice`: of one with content."""
    if not has_content(path):
        return
    if not Path(path).is_dir():
        raise TargetExistsError(path, reason="the target is a file", advice="Name a new folder")
    raise TargetExistsError(path, reason="the target exists already, with content", advice=advice)
