"""Tables about a store: columns with names and meanings, and rows from an open store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from rmq_store.arrow.column_definitions import TIMESTAMP as TIMESTAMP
from rmq_store.errors import is_utf8, printable, shown_path
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader

TEXT, INT, LONG, FLAG = pa.string(), pa.int32(), pa.int64(), pa.bool_()
DOUBLE, DAY, TEXTS = pa.float64(), pa.date32(), pa.list_(pa.string())

_PIECE_ROWS = 8192
PATHS = ("path", "file", "configFile")
"""Columns of any table that are paths."""
SENTENCES = ("meaning", "reason", "why")
"""Columns of any table that are sentences."""
Row = Mapping[str, Any]
"""Values by column; what takes long to find is a function, called if its column is wanted."""
RowsOf = Callable[[StoreReader, Sequence[QueueSlice] | None], Iterable[Row]]
RowsPastDamage = Callable[[StoreReader, OnDamage | None], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: name, Arrow type and meaning. All columns but brokerName can be null."""

    name: str
    type: pa.DataType
    meaning: str


BROKER = TableColumn("brokerName", TEXT, "the broker's name")


def table_columns(*others: tuple[str, pa.DataType, str]) -> tuple[TableColumn, ...]:
    """The columns of a table: the broker's name, and others by name, type and meaning."""
    return (BROKER, *(TableColumn(*column) for column in others))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: name, subject, columns, and the function that makes its rows.

    `rows_past_damage`: that of a table of messages in the broker's own topics. With neither function the
    query planner makes the rows.
    """

    name: str
    about: str
    columns: tuple[TableColumn, ...]
    rows_of: RowsOf | None = None
    rows_past_damage: RowsPastDamage | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema; timestamps in ms, UTC."""
        return pa.schema([pa.field(c.name, c.type, c is not BROKER) for c in self.columns])

    def rows(
        self,
        store: StoreReader,
        ranges: Sequence[QueueSlice] | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterable[Row]:
        """The rows of a store. A table about queue ranges is limited to `ranges`; one of messages in the
        broker's own topics leaves out what is damaged, and gives `on_damage` the errors.

        Raises the errors of the reads that it needs.
        """
        if self.rows_past_damage is not None:
            return self.rows_past_damage(store, on_damage)
        assert self.rows_of is not None
        return self.rows_of(store, ranges)

    def of(
        self,
        store: StoreReader,
        ranges: Sequence[QueueSlice] | None = None,
        on_damage: OnDamage | None = None,
    ) -> pa.Table:
        """The table of a store; see `rows`."""
        return self.of_rows(store.broker_name, self.rows(store, ranges, on_damage))

    def pieces(
        self,
        store: StoreReader,
        ranges: Sequence[QueueSlice] | None = None,
        wanted: Collection[str] | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[pa.Table]:
        """The table of a store, in pieces of some thousand rows; at least one. See `rows`."""
        rows = self.rows(store, ranges, on_damage)
        yield from self.pieces_of_rows(store.broker_name, rows, wanted)

    def pieces_of_rows(
        self, broker_name: str, rows: Iterable[Row], wanted: Collection[str] | None = None
    ) -> Iterator[pa.Table]:
        """As `of_rows`, in pieces of some thousand rows; at least one."""
        left = iter(rows)
        some = list(islice(left, _PIECE_ROWS))
        yield self.of_rows(broker_name, some, wanted)
        while some := list(islice(left, _PIECE_ROWS)):
            yield self.of_rows(broker_name, some, wanted)

    def of_rows(
        self, broker_name: str, rows: Iterable[Row], wanted: Collection[str] | None = None
    ) -> pa.Table:
        """The table with these rows (column -> value, null if missing). `wanted`: the columns that the
        caller uses, by default all; others may be null."""
        widths = {c.name: c.type.bit_width for c in self.columns if pa.types.is_integer(c.type)}
        names = self.schema.names if wanted is None else wanted
        shown = [{"brokerName": broker_name, **_shown(row, widths, names)} for row in rows]
        return pa.Table.from_pylist(shown, schema=self.schema)


def _shown(row: Row, widths: Mapping[str, int], names: Collection[str]) -> Row:
    """The row with paths as users know them, such as `s3://`, and names of files as UTF-8.

    A number beyond the type of its column (`widths`: bits) becomes the last one in it: sums of numbers
    that stand in foreign files have no limit.
    """
    shown = {
        name: value() if callable(value) else value for name, value in row.items() if name in names
    }
    for name, value in shown.items():
        if isinstance(value, str):
            text = shown_path(value) if name in PATHS else value
            shown[name] = text if is_utf8(text) else printable(text)
        elif name in widths and value is not None:
            most = (1 << (widths[name] - 1)) - 1
            shown[name] = max(-most - 1, min(value, most))
    return shown


def all_ranges(store: StoreReader) -> list[QueueSlice]:
    """The ranges of all messages in all queues."""
    return store.view.ranges_of(store.topics())
