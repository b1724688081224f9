"""Asks Arrow's own planner what a filter excludes, and which columns and values it names.

No filter is taken apart here. Arrow simplifies a filter by what is guaranteed of a file; a dataset of
files that nobody opens, each with what is guaranteed of one part of a store, so says which parts can
have a row. What the text of a filter shows is only a hint, or more than what is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_MOST_VALUES = 64


def possible(schema: pa.Schema, wanted: Any, guarantees: Sequence[Any]) -> list[int]:
    """Which of some parts can have a row that matches the filter `wanted`, by what is true of all rows
    of each: expressions over the columns of `schema`. Ascending numbers.

    Raises what Arrow raises for a filter that does not fit the schema.
    """
    parts = ds.FileSystemDataset.from_paths(
        [str(number) for number in range(len(guarantees))],
        schema=schema,
        format=ds.IpcFileFormat(),
        filesystem=fs.LocalFileSystem(),
        partitions=list(guarantees),
    )
    return sorted(int(part.path) for part in parts.get_fragments(filter=wanted))


def named_columns(expressions: Iterable[Any], names: Iterable[str]) -> frozenset[str]:
    """The columns of `names` that the expressions may refer to: all that their texts have as a word."""
    text = " ".join(map(str, expressions))
    if "FieldRef" in text or "FieldPath" in text:  # by number, or nested
        return frozenset(names)
    words = set(re.findall(r"\w+", text))
    return frozenset(name for name in names if name in words)


def named_texts(wanted: Any) -> frozenset[str]:
    """Texts between quotes in the filter; of a long list only the ends."""
    return frozenset(re.sub(r"\\(.)", r"\1", found) for found in _QUOTED.findall(str(wanted)))


def implied_values(schema: pa.Schema, wanted: Any, column: str) -> frozenset[str] | None:
    """Values of a column of text of which every row that matches the filter has one; None if unknown.

    It is proven: no other value, and no null, can match.
    """
    values = sorted(named_texts(wanted))
    if not values or len(values) > _MOST_VALUES:
        return None
    field = pc.field(column)
    between = [(field > low) & (field < high) for low, high in pairwise(values)]
    others = [field < values[0], *between, field > values[-1], field.is_null()]
    if possible(schema, wanted, others):
        return None
    left = possible(schema, wanted, [field == value for value in values])
    return frozenset(values[number] for number in left)
