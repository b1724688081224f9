"""Types of the numpy arrays that pass between modules, and columns of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

Some = TypeVar("Some", bound="Columns")


def in_portions(sizes: Ints, most: int) -> Iterator[slice]:
    """Slices of rows of these sizes, of at most so many bytes each; a larger row is one by itself."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


class Columns:
    """n rows: a dataclass whose fields are arrays of n, and names that arrays number."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    numbered: ClassVar[tuple[str, str] | None] = None
    """The field that holds names, and the array with the place of each row's name among them."""

    def columns(self) -> list[Any]:
        """The values of the fields, in their order."""
        return [getattr(self, name) for name in self.__match_args__]

    def take(self: Some, rows: Any) -> Some:
        """Some of the rows: a mask, an index array or a slice."""
        values = self.columns()
        return type(self)(*[one[rows] if isinstance(one, np.ndarray) else one for one in values])

    def extended(self, kind: type[Some], **more: Any) -> Some:
        """The same rows with more fields, as a `kind` that has them after these."""
        return kind(*self.columns(), **more)

    @classmethod
    def of(cls: type[Some], wider: Any) -> Some:
        """The rows of something that has these fields too."""
        return cls(*(getattr(wider, name) for name in cls.__match_args__))

    @classmethod
    def concat(cls: type[Some], parts: Sequence[Any]) -> Some:
        """The rows of parts that have these fields, at least one part, behind each other."""
        if len(parts) == 1 and type(parts[0]) is cls:
            only: Some = parts[0]
            return only
        names, numbers = cls.numbered or ("", "")
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in cls.__match_args__
            if name not in (names, numbers)
        }
        if cls.numbered:
            given = [(getattr(part, names), getattr(part, numbers)) for part in parts]
            found, joined[numbers] = _renumbered(given)
            joined[names] = type(given[0][0])(found)
        return cls(**joined)


def _renumbered(parts: Sequence[tuple[Sequence[Any], Ints]]) -> tuple[list[Any], Ints]:
    """The distinct names of all parts, and the place among them of each row's name."""
    number: dict[Any, int] = {}
    codes = []
    for names, code in parts:
        places = [number.setdefault(name, len(number)) for name in names]
        codes.append(np.array(places, dtype=np.int64)[code])
    return list(number), np.concatenate(codes)
