"""A ledger on disk: one JSON object that is replaced as a whole, under a lock of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.files.durable_files import LARGEST_JSON, read_file, write_whole
from rmq_store.files.journal import refusals
from spark_source.writing.target.lock import TargetLock

FORMAT = 1
_T = TypeVar("_T")


class LedgerFile:
    """The file and the lock of a ledger. A killed process loses the lock.

    `refusal`: the error for a ledger that cannot be read. `in_doubt`: what its user does then.
    """

    def __init__(self, path: Path, lock: Path, *, refusal: type[StoreError], in_doubt: str) -> None:
        self.path = path
        self._lock_path = lock
        self._lock: TargetLock | None = None
        self._refusal, self._in_doubt = refusal, in_doubt

    def lock(self, *, wait: bool = False) -> None:
        """Lock out other processes. Raises TargetLockedError, unless `wait`, and AccessError."""
        self._lock = TargetLock(self._lock_path, wait=wait)

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def load(self, convert: Callable[[Mapping[str, Any]], _T]) -> _T | None:
        """The content, by `convert`; None without a file. Raises `refusal`, also for what `convert`
        cannot use."""
        with refusals(self.path):
            if not self.path.exists():
                return None
        try:
            content = json.loads(read_file(self.path, LARGEST_JSON))
            if content["format"] != FORMAT:
                raise self._refusal(
                    self.path,
                    reason="this version does not know the ledger's format",
                    expected=FORMAT,
                    actual=content["format"],
                    advice=f"Use the version that wrote it. {self._in_doubt}",
                )
            return convert(content)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            CorruptConfigError,
        ) as error:
            raise self._refusal(
                self.path, reason=f"cannot be read as a ledger: {error!r}", advice=self._in_doubt
            ) from error

    def save(self, content: Mapping[str, Any]) -> None:
        """Replace the file, and flush it."""
        with refusals(self.path):
            text = json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False)
            write_whole(self.path, text + "\n")

    def remove(self) -> None:
        """Delete the file, if there is one."""
        with refusals(self.path):
            self.path.unlink(missing_ok=True)
