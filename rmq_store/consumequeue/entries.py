"""Queue entries as columns: what a range of a ConsumeQueue or BatchConsumeQueue says."""

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
    """n queue entries in the machine's byte order, each an int64 array of n.

    `offset` is the queue offset of the (first) message, `count` how many messages the record holds.
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
        """Which entries point anywhere at all: filler and zeros do not."""
        points: npt.NDArray[np.bool_] = (self.size > 0) & (self.size != FILLER_SIZE)
        return points & (self.log_offset >= 0)


def no_entries() -> Entries:
    """No entries."""
    return Entries(*(np.zeros(0, dtype=np.int64) for _ in range(5)))


def hole_at(at: int) -> Entries:
    """The entry that stands for units from `at` on which no file holds."""
    nothing = np.zeros(1, dtype=np.int64)
    return Entries(nothing + at, nothing, nothing, nothing, nothing + 1)


def concat_entries(parts: Sequence[Entries]) -> Entries:
    """The entries of `parts` one behind the other."""
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
