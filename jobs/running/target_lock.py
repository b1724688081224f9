"""One process at a time on a target, by a lock that a killed process loses."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_store import StoreError
from rmq_store.errors import AccessError, InvalidArgumentError


class TargetLockedError(StoreError):
    """Another process works on the same target."""

    code = "RMQSTORE_TARGET_LOCKED"


class TargetLock:
    """An exclusive lock on the file `path`, which is there only while it is held."""

    def __init__(self, path: Path) -> None:
        """Raises TargetLockedError where another process holds it, AccessError."""
        self._path = path
        with refusals(path):
            self._descriptor: int | None = _locked(path)

    def release(self) -> None:
        """Let go; the file is removed."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise TargetLockedError(
                path,
                reason="another process works on this target",
                advice="Let it finish, or end it; then run this again",
            ) from None
        # Between opening and locking the one before may have removed the file.
        if _is_file_of(descriptor, path):
            return descriptor
        os.close(descriptor)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """What the operating system refuses as an AccessError about `path`."""
    try:
        yield
    except OSError as error:
        raise AccessError(
            error.filename or path,
            reason=f"cannot be written: {error.strerror or error}",
            advice="Name a folder that can be, or check permissions, disk and mount",
        ) from error


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def refuse_uri(target: str) -> None:
    """Raise InvalidArgumentError for what is no folder of a file system: it would become one here."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", target):
        raise InvalidArgumentError(
            None,
            reason="the target is a URI, and only folders are written to",
            expected="a local or mounted folder, which executors share",
            actual=target,
            advice="Write to a folder, and copy that to the object store",
        )


def has_content(path: str) -> bool:
    """Whether something is there: a file, or a folder that is not empty."""
    target = Path(path)
    return target.exists() and (not target.is_dir() or any(target.iterdir()))
