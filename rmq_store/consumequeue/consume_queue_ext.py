"""ConsumeQueueExt: extra data for queue entries whose tagsCode is an address."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import EXT_ADDRESS_BASE, EXT_HEAD, EXT_MAX_ADDRESS


class ExtUnit(NamedTuple):
    """The extension data of one entry (ConsumeQueueExt.CqExtUnit)."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes


class QueueExt:
    """ConsumeQueueExt: the units that a queue entry's tagsCode points to if it is an address."""

    def __init__(self, folder: str, *, file_size: int | None = None) -> None:
        self.chain = SegmentChain([folder], file_size=file_size)

    def unit(self, tags_code: int) -> ExtUnit | None:
        """The unit at the address `tags_code`; None if it is missing, as in the broker."""
        at = tags_code - EXT_ADDRESS_BASE
        segment = self.chain.segment_at(at)
        if segment is None or at + EXT_HEAD.itemsize > self.chain.segment_end(segment):
            return None
        head = self.chain.window(at, at + EXT_HEAD.itemsize).view(EXT_HEAD)[0]
        size, bitmap = int(head["size"]), int(head["bitmap_length"])
        behind = at + EXT_HEAD.itemsize + bitmap
        if (
            size != EXT_HEAD.itemsize + bitmap
            or bitmap < 0
            or behind > self.chain.segment_end(segment)
        ):
            return None
        bits = self.chain.window(at + EXT_HEAD.itemsize, behind).tobytes()
        return ExtUnit(int(head["tags_code"]), int(head["store_timestamp"]), bits)

    def tags_codes(self, codes: Ints) -> Ints:
        """`codes` with each address replaced by the tagsCode of its unit, if that exists."""
        rows = np.flatnonzero(codes <= EXT_MAX_ADDRESS)
        if not len(rows):
            return codes
        found: Ints = codes.copy()
        for row in rows.tolist():
            unit = self.unit(int(codes[row]))
            if unit is not None:
                found[row] = unit.tags_code
        return found
