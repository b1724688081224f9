"""A store whose log grows byte by byte, as a reader sees it beside a broker."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.golden import GoldenStore

_NOT_COPIED = ("*consumequeue", "index", "checkpoint", "consumerOffset*")


class Growing:
    """A store of a real broker whose log becomes visible byte by byte.

    Its queues are not there, nor what would prove that its log was longer.
    """

    def __init__(self, whole: GoldenStore, folder: Path) -> None:
        self.path = folder / "store"
        shutil.copytree(whole.path, self.path, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        self.files = {int(f.name): f for f in sorted((self.path / "commitlog").iterdir())}
        self.bytes = {base: file.read_bytes() for base, file in self.files.items()}
        self.show(0)

    @property
    def size(self) -> int:
        """Where the whole log ends."""
        return max(base + len(raw) for base, raw in self.bytes.items())

    def show_no_file(self) -> None:
        """Make the store that of a broker without a message: the folder of its log is empty."""
        for file in self.files.values():
            file.unlink(missing_ok=True)

    def show(self, stop: int) -> None:
        """Make the log end at a byte, with zeros after it, as in a mapped file."""
        for base, file in self.files.items():
            seen = max(0, min(stop - base, len(self.bytes[base])))
            if seen or base == 0:
                raw = self.bytes[base]
                file.write_bytes(raw[:seen] + bytes(len(raw) - seen))
            else:
                file.unlink(missing_ok=True)
