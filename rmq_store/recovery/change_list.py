"""The changes of a recovery, in their order: made one by one, or only listed, as a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.files.changes import Change
from rmq_store.files.segment_writer import OpenFiles


class _Written(NamedTuple):
    """What a file gets at byte `at`; a missing file is created with `size` bytes."""

    path: Path
    size: int
    at: int
    data: memoryview


class ChangeList(OpenFiles):
    """Takes changes in order and makes each at once; a plan (`planned`) makes none.

    `made`: the changes but for what is written, which may be gigabytes.
    """

    def __init__(self, *, planned: bool, read_back: bool = False) -> None:
        """`read_back`: a plan keeps what would be written, for `read`."""
        super().__init__()
        self.planned = planned
        self.made: list[Change] = []
        self._held: list[Change | _Written] | None = None
        self._kept: dict[Path, list[_Written]] | None = {} if planned and read_back else None
        self._gone: set[Path] = set()

    @property
    def net(self) -> list[Change]:
        """The changes of each file, without those before its removal."""
        last = {
            change.path: number
            for number, change in enumerate(self.made)
            if change.what == "removed"
        }
        return [one for number, one in enumerate(self.made) if number >= last.get(one.path, 0)]

    def add(self, change: Change | _Written) -> None:
        """Make this change, or note it."""
        if self._held is not None:
            self._held.append(change)
        elif isinstance(change, Change):
            self.made.append(change)
            if not self.planned:
                change.make()
            elif self._kept is not None and change.what == "removed":
                self._kept.pop(Path(change.path), None)
                self._gone.add(Path(change.path))
        elif not self.planned:
            super().write(*change)
        elif self._kept is not None:
            self._kept.setdefault(change.path, []).append(change)

    def remove(self, path: str | Path, size: int) -> None:
        """Delete a file of `size` bytes."""
        self.add(Change(str(path), "removed", size))

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """As OpenFiles.write."""
        self.add(_Written(path, size, at, memoryview(data).cast("B")))

    def hold(self) -> None:
        """Let the changes from here on wait until it is certain that they are right."""
        self._held = []

    def release(self, *, forget: bool = False) -> None:
        """Make the changes that wait, or forget them."""
        held, self._held = self._held or [], None
        for change in () if forget else held:
            self.add(change)

    def read(self, path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """`count` units of a file at most, as they are after the changes."""
        written = () if self._kept is None else self._kept.get(path, ())
        if not written:
            return np.fromfile(path, dtype=dtype, count=count)
        raw = np.zeros(written[0].size, dtype=np.uint8)
        if path.exists() and path not in self._gone:
            stored = np.fromfile(path, dtype=np.uint8, count=len(raw))
            raw[: len(stored)] = stored
        for one in written:
            raw[one.at : one.at + len(one.data)] = one.data
        return raw[: count * dtype.itemsize].view(dtype)
