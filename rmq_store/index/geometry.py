"""The geometry of an index file, and its header (IndexHeader)."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_store.format.layout import index_file_size


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of slots (maxHashSlotNum) and item places (maxIndexNum) of an index file."""

    slots: int
    items: int

    @property
    def file_size(self) -> int:
        """Bytes of a file of this geometry."""
        return index_file_size(self.slots, self.items)


@dataclass(frozen=True, slots=True)
class Header:
    """The 40 bytes at the start of the file; timestamps in ms."""

    begin_timestamp: int
    end_timestamp: int
    begin_log_offset: int
    end_log_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def items(self) -> int:
        """The number of items in the file; index_count is the number of the next one."""
        return max(self.index_count, 1) - 1
