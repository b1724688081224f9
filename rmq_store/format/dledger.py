"""The entries of a DLedger log: each record is the body of one; no I/O.

The log of a broker in DLedger mode. A record's physicalOffset is its own place, behind the header of its
entry, and queues lead to that place (DLedgerCommitLog, DLedgerEntryCoder).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

# DLedgerEntryType. Only a normal entry has a body; the others are of the members alone.
NORMAL: Final = 1
NO_OPERATION: Final = 2
CONFIG_CHANGE: Final = 3
BLANK: Final = -1
"""In place of the magic: nothing, up to the end of the file or to the log's first entry (MmapFileList)."""

ENTRY_HEAD: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),  # whole entry, bytes, this head included
        ("index", ">i8"),  # one more than that of the entry before
        ("term", ">i8"),  # of the leader that wrote it; never descends
        ("pos", ">i8"),  # the entry's own place in the log
        ("channel", ">i4"),  # 0: no release uses these three
        ("chain_crc", ">i4"),
        ("body_crc", ">i4"),
        ("body_length", ">i4"),
    ]
)
ENTRY_HEAD_SIZE: Final = ENTRY_HEAD.itemsize
BLANK_ENTRY_SIZE: Final = 8  # magic and size

INDEX_UNIT: Final = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
"""One entry in the index of a DLedger log, at 32 bytes times its index."""


@dataclass(frozen=True, slots=True)
class EntryHead:
    """The head of an entry, as stored."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    body_length: int

    @classmethod
    def of(cls, raw: bytes) -> EntryHead:
        """The head in the first bytes of `raw`; what is missing counts as zeros."""
        head = np.frombuffer(raw[:ENTRY_HEAD_SIZE].ljust(ENTRY_HEAD_SIZE, b"\0"), ENTRY_HEAD)[0]
        return cls(*(int(head[name]) for name in cls.__slots__))

    def is_blank(self, room: int) -> bool:
        """Whether it is a blank of a possible size; `room`: the bytes up to the end of the file."""
        return self.magic == BLANK and BLANK_ENTRY_SIZE <= self.size <= room

    def fault_at(self, place: int) -> tuple[str, object, object] | None:
        """The first field that is not right for an entry at a log offset: its name, what was expected
        and found; None if all are."""
        if self.magic not in (NORMAL, NO_OPERATION, CONFIG_CHANGE):
            return "magic", "1, 2 or 3", self.magic
        if self.pos != place:
            return "pos", place, self.pos
        if self.body_length < 0 or self.size != ENTRY_HEAD_SIZE + self.body_length:
            return "size", ENTRY_HEAD_SIZE + self.body_length, self.size
        return None
