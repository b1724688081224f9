"""A `pyarrow.dataset.Dataset` of rows that are made when they are asked for.

Arrow's class stands for files that C++ reads. Query engines ask its methods only, so these are enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

from rmq_store.arrow import compute as pc
from rmq_store.errors import InvalidArgumentError
from rmq_store.reading.query import positive_number
from rmq_store.search.condition import columns_in_expressions

Batches = Generator[pa.RecordBatch, None, None]
"""A generator: it closes what it reads from when the reading ends, not when garbage is collected."""
Read = Callable[[Sequence[str], Any], Batches]
"""Gives at least the rows that match a filter, with some columns."""


class Projection:
    """The columns and rows of a batch that a query asks for.

    Arrow's own scanner reads ahead, in threads that may outlive the query that it was made for, and
    Python with it. Batches are made in Python, so that whoever asks for one has to wait for it.
    """

    def __init__(
        self, read: pa.Schema, columns: Sequence[str] | Mapping[str, Any], wanted: Any
    ) -> None:
        """`read`: the columns of the batches; `columns`: names, or new names and expressions.

        Raises what Arrow raises for expressions that do not fit the columns.
        """
        self._wanted, self._named = wanted, columns if isinstance(columns, Mapping) else None
        self._names = [] if isinstance(columns, Mapping) else list(columns)
        self.schema = self.of(pa.RecordBatch.from_pylist([], schema=read)).schema

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that match, and the columns asked for."""
        chosen = self._projected(batch, self._named) if self._named else self._selected(batch)
        if self._wanted is None:
            return chosen
        return chosen.filter(self._projected(batch, {"kept": self._wanted}).column(0))

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.select(self._names)
        except KeyError as error:
            raise pa.ArrowInvalid(f"there is no such column: {error.args[0]}") from None

    def _projected(self, batch: pa.RecordBatch, named: Mapping[str, Any]) -> pa.RecordBatch:
        values = [
            column if isinstance(column, pc.Expression) else pc.field(column)
            for column in named.values()
        ]
        source = TableSourceNodeOptions(pa.Table.from_batches([batch]))
        project = Declaration("project", ProjectNodeOptions(values, list(named)))
        plan = Declaration.from_sequence([Declaration("table_source", source), project])
        table = plan.to_table(use_threads=False).combine_chunks()
        return (table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)])[0]


class LazyScanner:
    """The rows of one scan, which can be read once. Its methods are those of Arrow's Scanner."""

    def __init__(
        self,
        dataset_schema: pa.Schema,
        projection: Projection,
        batches: Batches,
        most_rows: int | None,
    ) -> None:
        self.dataset_schema, self.projected_schema = dataset_schema, projection.schema
        self._projection, self._batches, self._most_rows = projection, batches, most_rows
        self._begun = False

    def to_batches(self) -> Batches:
        """The rows in batches, each read when it is asked for.

        Raises InvalidArgumentError the second time.
        """
        if self._begun:
            raise InvalidArgumentError(
                reason="these rows were read already", advice="Make another scanner"
            )
        self._begun = True
        return self._read()

    def _read(self) -> Batches:
        with closing(self._batches):
            for batch in self._batches:
                projected = self._projection.of(batch)
                step = self._most_rows or max(1, projected.num_rows)
                for start in range(0, projected.num_rows, step):
                    yield projected.slice(start, step)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(list(self.to_batches()), schema=self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        read, count = [], 0
        with closing(self.to_batches()) as batches:
            while count < num_rows and (batch := next(batches, None)) is not None:
                read.append(batch.slice(0, num_rows - count))
                count += read[-1].num_rows
        return pa.Table.from_batches(read, schema=self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows of these numbers."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.to_batches())


class Scannable(ABC):
    """What datasets and fragments share: scans of some columns and rows, in many forms."""

    @property
    def partition_expression(self) -> Any:
        """What is true of all rows: nothing in particular."""
        return pc.scalar(True)

    @abstractmethod
    def scanner(self, *args: Any, **how: Any) -> Any:
        """Some columns and rows, to be read once."""

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
        return self.scanner(*args, **how).take(indices)

    def count_rows(self, filter: Any = None, **how: Any) -> int:
        """The number of rows; the other arguments are those of `scanner`."""
        return int(self.scanner(columns=[], filter=filter, **how).count_rows())


class LazyDataset(Scannable, ds.Dataset):  # type: ignore[misc]
    """A dataset whose rows are made by `_batches`. Not picklable; not to be joined or sorted by Arrow."""

    def __init__(self, schema: pa.Schema, readable: pa.Schema | None = None) -> None:
        """Arrow's own constructor is for files only. `readable`: the schema, and columns behind it."""
        self._columns, self._readable = schema, schema if readable is None else readable

    def _counted_by(self) -> pa.Field:
        """The column that is read where only the number of rows matters."""
        return self._columns.field(0)

    @abstractmethod
    def _batches(self, columns: Sequence[str], wanted: Any) -> Batches:
        """At least the rows that match the filter `wanted`; the filter is applied to them again."""

    def _wanted(self, wanted: Any) -> Any:
        """The filter together with the one that stands already; None without any."""
        return wanted

    def scanner(self, *args: Any, **how: Any) -> Any:
        """Some columns and rows, to be read once, as by a `pyarrow.dataset.Scanner`.

        `columns`: names, or new names and expressions; `filter`: an expression; `batch_size`: the most
        rows of a batch. Others of Arrow's arguments, about its threads and files, change nothing.
        Raises InvalidArgumentError for a `batch_size` below 1.
        """
        return self.scanner_of(self._batches, *args, **how)

    def scanner_of(
        self,
        batches: Read,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filter: Any = None,
        batch_size: int | None = None,
        **_: Any,
    ) -> LazyScanner:
        """The scanner of what `batches` reads, such as of a part of the dataset."""
        wanted = self._wanted(filter)
        names = self._columns.names
        if batch_size is not None:
            positive_number("batch_size", batch_size)
        if columns is None:
            columns = names
        given = columns.values() if isinstance(columns, Mapping) else columns
        needed = columns_in_expressions(given, names)
        if wanted is not None:
            needed |= columns_in_expressions([wanted], self._readable.names)
        read = [field for field in self._readable if field.name in needed] or [self._counted_by()]
        projection = Projection(pa.schema(read), columns, wanted)
        made = batches([field.name for field in read], wanted)
        return LazyScanner(self._columns, projection, made, batch_size)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} is not picklable: send the store's path and snapshot()"
        )

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._columns

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        """The parts of the dataset that have rows which match, each to be scanned by itself."""
        yield Fragment(self, self._batches)

    def filter(self, expression: Any) -> Any:
        """The dataset with only the rows that match."""
        raise self._not_here("filter", "Give the filter to to_table() or scanner()")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Refused: the columns are what they are."""
        raise self._not_here("replace_schema", "Name the columns in the query")

    def sort_by(self, sorting: Any, **how: Any) -> NoReturn:
        """Refused: it would hold all rows in memory."""
        raise self._not_here("sort_by", "Sort in the query, or to_table().sort_by(...)")

    def join(self, *args: Any, **how: Any) -> NoReturn:
        """Refused: Arrow's join takes files of its own only."""
        raise self._not_here("join", "Join in the query, or to_table().join(...)")

    def join_asof(self, *args: Any, **how: Any) -> NoReturn:
        """Refused: Arrow's join takes files of its own only."""
        raise self._not_here("join_asof", "Join in the query, or to_table().join_asof(...)")

    def _not_here(self, what: str, advice: str) -> InvalidArgumentError:
        return InvalidArgumentError(reason=f"a {type(self).__name__} has no {what}", advice=advice)


class Fragment(Scannable):
    """A part of a dataset, which DataFusion scans beside the others; by default all of it."""

    def __init__(self, dataset: LazyDataset, batches: Read) -> None:
        """Use `LazyDataset.get_fragments`."""
        self._dataset, self._batches = dataset, batches

    @property
    def physical_schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._dataset.schema

    def scanner(self, schema: pa.Schema | None = None, *args: Any, **how: Any) -> Any:
        """As `LazyDataset.scanner`; `schema` can only be that of the dataset."""
        return self._dataset.scanner_of(self._batches, *args, **how)
