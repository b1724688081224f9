"""Bytes of a file for as long as they are used, and the check that they were there then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rmq_store.format.array_types import Bytes

if TYPE_CHECKING:
    from rmq_store.files.source import Source, Sources

_Item = TypeVar("_Item")


class Window:
    """Bytes of a file, to be used within a `with` block.

    Leaving the block raises DataLossError if a file was cut meanwhile. That error replaces another one
    of the block, because zeros in place of the bytes may have caused it.
    """

    __slots__ = ("_fetched", "_file", "_held", "_is_open", "_size", "_sources", "_start", "bytes")

    def __init__(self, sources: Sources, file: Source, start: int, stop: int, size: int) -> None:
        """The bytes [start, stop) of a file of `size` bytes; zeros where it is shorter.

        Raises DataLossError if the file became shorter than that.
        """
        self._sources, self._file, self._start = sources, file, start
        self._size = min(stop, size)
        self._held = held = max(0, self._size - start)
        self._fetched = False
        file.check(self._size)
        file.hold()
        self._is_open = True
        if held == stop - start:
            self.bytes: Bytes = file.bytes[start:stop]
        else:
            self.bytes = np.zeros(stop - start, dtype=np.uint8)
            self._copy()

    def fetch(self, starts: Iterable[int], stops: Iterable[int]) -> None:
        """Make ranges of the bytes available; positions count from the first byte of the window.

        An error ends the window, because it may come before the `with` block.
        """
        if not self._file.is_there:
            first = np.minimum(np.asarray(starts, dtype=np.int64), self._held) + self._start
            last = np.minimum(np.asarray(stops, dtype=np.int64), self._held) + self._start
            try:
                self._file.fetch(first, last, first=not self._fetched)
            except BaseException:
                self._release()
                raise
            self._fetched = True
            if self._held < len(self.bytes):
                self._copy()

    def _copy(self) -> None:
        if self._held:
            self.bytes[: self._held] = self._file.bytes[self._start : self._start + self._held]

    def checked(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Items made of the bytes, each after a check that all bytes were there."""
        for item in items:
            self._check()
            yield item

    def _check(self) -> None:
        self._sources.check_reads()
        # No fault shows that the file ends within a page now.
        self._file.check(self._size)

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._release()
        if kind is not GeneratorExit:
            self._check()

    def _release(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.release()
