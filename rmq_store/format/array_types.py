"""Types of the numpy arrays that pass between modules, and columns of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

Name = TypeVar("Name")
Some = TypeVar("Some", bound="Columns")


class Columns:
    """n rows: a dataclass whose fields are arrays of n, and others that hold for all rows."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def take(self: Some, rows: Any) -> Some:
        """Some of the rows: a mask, an index array or a slice."""
        values = (getattr(self, name) for name in self.__match_args__)
        return type(self)(*(one[rows] if isinstance(one, np.ndarray) else one for one in values))


def concatenated(parts: Sequence[Any], names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Some columns of all parts, at least one, behind each other."""
    return [np.concatenate([getattr(part, name) for part in parts]) for name in names]


def renumbered(parts: Sequence[tuple[Sequence[Name], Ints]]) -> tuple[list[Name], Ints]:
    """The distinct names of all parts, and the place among them of each row's name.

    A part is names, and the place of each row's name.
    """
    number: dict[Name, int] = {}
    codes = []
    for names, code in parts:
        places = [number.setdefault(name, len(number)) for name in names]
        codes.append(np.array(places, dtype=np.int64)[code])
    return list(number), np.concatenate(codes)
