"""What a table about a store is: named columns with meanings, made out of an open store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_store.arrow.schema import TIMESTAMP as TIMESTAMP
from rmq_store.errors import shown_path
from rmq_store.format.queues import QueueSlice
from rmq_store.store import MessageStore

TEXT, INT, LONG, FLAG = pa.string(), pa.int32(), pa.int64(), pa.bool_()
DOUBLE, DAY, TEXTS = pa.float64(), pa.date32(), pa.list_(pa.string())

_PATHS = ("path", "file", "configFile")
Row = Mapping[str, Any]
RowsOf = Callable[[MessageStore, Sequence[QueueSlice] | None], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its name, its Arrow type and what it means. All but brokerName can be null."""

    name: str
    type: pa.DataType
    meaning: str


BROKER = TableColumn("brokerName", TEXT, "the broker's name")


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its name, what it is about, its columns, and what makes its rows of a store."""

    name: str
    about: str
    columns: tuple[TableColumn, ...]
    rows_of: RowsOf | None = None  # None: made where queries are planned

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema; timestamps in ms, UTC."""
        return pa.schema([pa.field(c.name, c.type, c is not BROKER) for c in self.columns])

    def of(self, store: MessageStore, ranges: Sequence[QueueSlice] | None = None) -> pa.Table:
        """The table of a store; of `ranges` alone where it is about messages.

        Raises the errors of reading what it is about.
        """
        assert self.rows_of is not None
        return self.of_rows(store.broker_name, self.rows_of(store, ranges))

    def of_rows(self, broker_name: str, rows: Iterable[Row]) -> pa.Table:
        """Rows (column -> value, null where left out) as the table."""
        found = [{"brokerName": broker_name, **_shown(row)} for row in rows]
        return pa.Table.from_pylist(found, schema=self.schema)


def _shown(row: Row) -> Row:
    """The row with paths as users know them."""
    return {
        name: shown_path(value) if name in _PATHS and value is not None else value
        for name, value in row.items()
    }


def all_ranges(store: MessageStore) -> list[QueueSlice]:
    """Every message of every queue."""
    return [
        QueueSlice(queue, store.min_offset(*queue), store.max_offset(*queue))
        for queue in store.queues()
    ]
