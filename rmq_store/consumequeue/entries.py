"""Queue entries as columns: the content of a range of a ConsumeQueue or BatchConsumeQueue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Ints
from rmq_store.format.layout import FILLER_SIZE


@dataclass(slots=True)
class Entries:
    """n queue entries as int64 arrays of n in native byte order.

    `offset` is the queueOffset of the (first) message. `count` is the number of messages in the
    record.
    """

    offset: Ints
    log_offset: Ints
    size: Ints
    tags_code: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Any) -> Entries:
        """Some of the entries: a mask, an index array or a slice."""
        return Entries(
            self.offset[rows],
            self.log_offset[rows],
            self.size[rows],
            self.tags_code[rows],
            self.count[rows],
        )

    @property
    def points_to_record(self) -> npt.NDArray[np.bool_]:
        """Mask of the entries that point to a record; filler and zeros do not."""
        points: npt.NDArray[np.bool_] = (self.size > 0) & (self.size != FILLER_SIZE)
        return points & (self.log_offset >= 0)


def no_entries() -> Entries:
    """Entries of length 0."""
    return Entries(*(np.zeros(0, dtype=np.int64) for _ in range(5)))


def hole_at(at: int) -> Entries:
    """The entry that stands for the missing units from `at` on, which no file holds."""
    nothing = np.zeros(1, dtype=np.int64)
    return Entries(nothing + at, nothing, nothing, nothing, nothing + 1)


def concat_entries(parts: Sequence[Entries]) -> Entries:
    """The entries of `parts` in one object, in order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_entries()
    return Entries(
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.log_offset for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.tags_code for part in parts]),
        np.concatenate([part.count for part in parts]),
    )
