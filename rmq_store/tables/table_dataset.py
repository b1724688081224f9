"""Tables about stores as datasets of Arrow: rows are made when a query asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from rmq_store.dataset.lazy_dataset import LazyDataset
from rmq_store.reading.query import OnDamage
from rmq_store.store import MessageStore
from rmq_store.tables.table import Table


class TableDataset(LazyDataset):
    """A table of several stores, one after the other. Each scan makes the rows again.

    `on_damage`: gets the errors of messages that a table about them leaves out; without it they are
    raised.
    """

    def __init__(
        self, table: Table, stores: Sequence[MessageStore], on_damage: OnDamage | None = None
    ) -> None:
        super().__init__(table.schema)
        self._table, self._stores, self._on_damage = table, tuple(stores), on_damage

    def __repr__(self) -> str:
        stores = ", ".join(repr(store.broker_name) for store in self._stores)
        return f"TableDataset({self._table.name!r}, {stores})"

    def _batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        for opened in self._stores:
            with opened.again() as store, store.of_one_store():
                for piece in self._pieces(store, columns):
                    yield from piece.select(list(columns)).to_batches()

    def _pieces(self, store: MessageStore, columns: Sequence[str]) -> Iterator[pa.Table]:
        past = self._table.rows_past_damage
        if past is None or self._on_damage is None:
            return self._table.pieces(store, wanted=columns)
        return self._table.pieces_of_rows(store.broker_name, past(store, self._on_damage))
