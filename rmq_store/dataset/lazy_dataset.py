"""A `pyarrow.dataset.Dataset` of rows that are made when they are asked for.

Arrow's class stands for files that C++ reads. Query engines ask its methods only, so these are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rmq_store.dataset.arrow_planner import named_columns
from rmq_store.errors import InvalidArgumentError

_BATCHES_AHEAD = 1


class Scans:
    """What datasets and fragments share: scans of some columns and rows, in many forms."""

    _columns: pa.Schema

    def _counted_by(self) -> pa.Field:
        """The column that is read where only the number of rows matters."""
        return self._columns.field(0)

    def _batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        """At least the rows that match the filter `wanted`; the filter is applied to them again."""
        raise NotImplementedError

    def _wanted(self, wanted: Any) -> Any:
        """The filter together with the one that stands already; None without any."""
        return wanted

    def _scanner(
        self,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filter: Any = None,
        batch_size: int | None = None,
        use_threads: bool = True,
        memory_pool: Any = None,
        **_: Any,
    ) -> Any:
        wanted = self._wanted(filter)
        names = self._columns.names
        if columns is None:
            needed = frozenset(names)
        else:
            given = columns.values() if isinstance(columns, Mapping) else columns
            needed = named_columns(given, names)
        if wanted is not None:
            needed |= named_columns([wanted], names)
        read = [field for field in self._columns if field.name in needed] or [self._counted_by()]
        more = {} if batch_size is None else {"batch_size": batch_size}
        return ds.Scanner.from_batches(
            self._batches([field.name for field in read], wanted),
            schema=pa.schema(read),
            columns=names if columns is None else columns,
            filter=wanted,
            batch_readahead=_BATCHES_AHEAD,
            use_threads=use_threads,
            memory_pool=memory_pool,
            **more,
        )

    def scanner(self, *args: Any, **how: Any) -> Any:
        """A `pyarrow.dataset.Scanner` of some columns and rows, to be used once.

        `columns`: names, or new names and expressions; `filter`: an expression; `batch_size`: rows.
        """
        return self._scanner(*args, **how)

    def to_table(self, *args: Any, **how: Any) -> pa.Table:
        """All rows as a table; the arguments are those of `scanner`. Raises the errors of the store."""
        return self.scanner(*args, **how).to_table()

    def to_batches(self, *args: Any, **how: Any) -> Iterator[pa.RecordBatch]:
        """All rows in batches; the arguments are those of `scanner`. Raises the errors of the store."""
        yield from self.scanner(*args, **how).to_batches()

    def head(self, num_rows: int, *args: Any, **how: Any) -> pa.Table:
        """The first rows as a table; the other arguments are those of `scanner`."""
        return self.scanner(*args, **how).head(num_rows)

    def take(self, indices: Any, *args: Any, **how: Any) -> pa.Table:
        """The rows of these numbers as a table; the other arguments are those of `scanner`."""
        return self.to_table(*args, **how).take(indices)

    def count_rows(self, filter: Any = None, **how: Any) -> int:
        """The number of rows; the other arguments are those of `scanner`."""
        batches = self._scanner(columns=[], filter=filter, **how).to_batches()
        return sum(batch.num_rows for batch in batches)


class LazyDataset(Scans, ds.Dataset):  # type: ignore[misc]
    """A dataset whose rows are made by `_batches`. Not picklable; not to be joined or sorted by Arrow."""

    def __init__(self, schema: pa.Schema) -> None:
        """Arrow's own constructor is for files only."""
        self._columns = schema

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} is not picklable: send the store's path and snapshot()"
        )

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._columns

    @property
    def partition_expression(self) -> Any:
        """What is true of all rows: nothing in particular."""
        return pc.scalar(True)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        """The parts of the dataset that have rows which match, each to be scanned by itself."""
        yield Fragment(self)

    def filter(self, expression: Any) -> Any:
        """The dataset with only the rows that match."""
        raise self._not_here("filter", "Give the filter to to_table() or scanner()")

    def replace_schema(self, schema: pa.Schema) -> Any:
        """Refused: the columns are what they are."""
        raise self._not_here("replace_schema", "Name the columns in the query")

    def sort_by(self, sorting: Any, **how: Any) -> Any:
        """Refused: it would hold all rows in memory."""
        raise self._not_here("sort_by", "Sort in the query, or to_table().sort_by(...)")

    def join(self, *args: Any, **how: Any) -> Any:
        """Refused: Arrow's join takes files of its own only."""
        raise self._not_here("join", "Join in the query, or to_table().join(...)")

    def join_asof(self, *args: Any, **how: Any) -> Any:
        """Refused: Arrow's join takes files of its own only."""
        raise self._not_here("join_asof", "Join in the query, or to_table().join_asof(...)")

    def _not_here(self, what: str, advice: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            None, reason=f"a {type(self).__name__} has no {what}", advice=advice
        )


class Fragment(Scans):
    """A part of a dataset, which DataFusion scans beside the others; by default all of it."""

    def __init__(self, dataset: LazyDataset) -> None:
        """Use `LazyDataset.get_fragments`."""
        self._dataset, self._columns = dataset, dataset.schema

    @property
    def physical_schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._columns

    @property
    def partition_expression(self) -> Any:
        """What is true of all rows: nothing in particular."""
        return pc.scalar(True)

    def scanner(self, schema: pa.Schema | None = None, *args: Any, **how: Any) -> Any:
        """As `LazyDataset.scanner`; `schema` can only be that of the dataset."""
        return self._scanner(*args, **how)

    def _counted_by(self) -> pa.Field:
        return self._dataset._counted_by()

    def _wanted(self, wanted: Any) -> Any:
        return self._dataset._wanted(wanted)

    def _batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        return self._dataset._batches(columns, wanted)
