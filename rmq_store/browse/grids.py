"""Rows as tables of a page: printable cells, and links to the pages about what they name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.browse.page import address
from rmq_store.escaping import is_utf8, printable
from rmq_store.report.section import Cell, Grid, Section
from rmq_store.text.bodies import shown
from rmq_store.text.lines import plain_text, printable_columns

LONGEST = 300  # characters of a cell
_PLACE = "commitLogOffset"
# Column -> the page about its value, and the word there.
_PAGES = {
    **dict.fromkeys(("topic", "originTopic", "heldIn"), ("topic", "name")),
    "consumerGroup": ("group", "name"),
    **dict.fromkeys(("uniqKey", "msgId", "originMsgId", "transactionId", "key"), ("trace", "key")),
    **dict.fromkeys((_PLACE, "originCommitLogOffset", "halfCommitLogOffset"), ("message", "at")),
}
_OF_QUEUE = {"topic": "topic", "queueId": "queue", "queueOffset": "offset"}


def _leads_to(column: str, row: Mapping[str, Any]) -> str | None:
    """The page about a value of a row. A message is found by its queue, even if its record is damaged."""
    if column not in _PAGES or row.get(column) in (None, ""):
        return None
    if column == _PLACE and not any(row.get(name) is None for name in _OF_QUEUE):
        return address("message", **{word: row[name] for name, word in _OF_QUEUE.items()})
    page, word = _PAGES[column]
    return address(page, **{word: row[column]})


def linked(column: str, value: str) -> Cell:
    """A cell that leads to the page about its value, as one of a column does."""
    return Cell(value, leads_to=_leads_to(column, {column: value}))


def rows_section(
    anchor: str, title: str, rows: pa.Table, more: str = "", hidden: Collection[str] = ()
) -> Section:
    """A section with rows."""
    if not len(rows):
        return Section(anchor, title, "There are no rows.")
    return Section(anchor, title, grids=[grid_of(rows, anchor, more=more, hidden=hidden)])


def grid_of(
    rows: pa.Table, anchor: str, title: str = "", more: str = "", hidden: Collection[str] = ()
) -> Grid:
    """Some rows as a table, without `hidden` columns, and without empty ones, which it names."""
    batch = printable_columns(rows.combine_chunks().to_batches()[0])
    names = batch.schema.names
    empty = [name for name in names if batch.column(name).null_count == len(batch)]
    names = [name for name in names if name not in (*empty, *hidden)]
    if empty:
        more += f" Empty, and not shown: {', '.join(empty)}."
    named = {*_PAGES, *_OF_QUEUE}
    links = batch.select([f.name for f in batch.schema if f.name in named and _is_linkable(f.type)])
    values = links.to_pylist() or [{}] * len(batch)
    columns = [_cells(name, batch.column(name), values) for name in names]
    return Grid(anchor, title, names, list(zip(*columns, strict=True)), more.strip() or None)


def _is_linkable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))


def _cells(name: str, column: pa.Array, rows: Iterable[Mapping[str, Any]]) -> list[Cell]:
    kind = "number" if pa.types.is_integer(column.type) else "text"
    kind = "time" if pa.types.is_timestamp(column.type) else kind
    if pa.types.is_binary(column.type):
        column = shown(column)
    if pa.types.is_string(column.type):  # before control characters are escaped: it may be large
        column = pc.utf8_slice_codeunits(column, 0, LONGEST + 1)
    return [
        Cell(
            text if len(text) <= LONGEST else f"{text[:LONGEST]}…", None, kind, _leads_to(name, row)
        )
        for text, row in zip(plain_text(column).to_pylist(), rows, strict=True)
    ]


def table_of(rows: Iterable[Mapping[str, Any]], times: Collection[str] = ()) -> pa.Table:
    """Rows as an Arrow table; `times`: columns in ms. Texts of JSON become UTF-8."""
    table = pa.Table.from_pylist([{name: _plain(row[name]) for name in row} for row in rows])
    for name in times if len(table) else ():
        column = table[name].cast(pa.int64()).cast(TIMESTAMP)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _plain(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not is_utf8(value) else value
