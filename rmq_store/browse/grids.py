"""Rows as tables of a page: printable cells, and links to the pages about what they name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.browse.page import address
from rmq_store.report.section import Cell, Grid, moment
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
_TIMES = ("storeTimestamp", "timestamp", "written", "invisibleUntil")


def _leads_to(column: str, row: Mapping[str, Any]) -> str | None:
    """The page about a value of a row. A message is found by its queue, even if its record is damaged."""
    if row.get(column) in (None, "") or column not in _PAGES:
        return None
    if column == _PLACE and not any(row.get(name) is None for name in _OF_QUEUE):
        return address("message", **{word: row[name] for name, word in _OF_QUEUE.items()})
    page, word = _PAGES[column]
    return address(page, **{word: row[column]})


def linked(column: str, value: str) -> Cell:
    """A cell of a column that leads to the page about its value."""
    return Cell(value, leads_to=_leads_to(column, {column: value}))


def grid_of(
    rows: pa.Table, anchor: str, more: str | None = None, hidden: Collection[str] = ()
) -> Grid:
    """Rows of Arrow as a table, without `hidden` columns, and without empty ones, which it names."""
    whole = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    batch = printable_columns(whole[0])
    empty = [
        f.name for f, one in zip(batch.schema, batch, strict=True) if one.null_count == len(one)
    ]
    names = [name for name in batch.schema.names if name not in (*empty, *hidden)]
    said = [more or "", f"Empty, and not shown: {', '.join(empty)}." if empty else ""]
    values = _values(batch)
    columns = [_cells(name, batch.column(name), values) for name in names]
    return Grid(anchor, "", names, list(zip(*columns, strict=True)), " ".join(said).strip() or None)


def _values(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """What links are made of: the rows, with their texts and whole numbers alone."""
    kinds = (pa.types.is_string, pa.types.is_integer)
    names = [field.name for field in batch.schema if any(is_one(field.type) for is_one in kinds)]
    found: list[dict[str, Any]] = batch.select(
        [name for name in names if name in {*_PAGES, *_OF_QUEUE}]
    ).to_pylist()
    return found or [{}] * len(batch)


def _cells(name: str, column: pa.Array, rows: Sequence[Mapping[str, Any]]) -> list[Cell]:
    kind = "text"
    if pa.types.is_integer(column.type):
        kind = "number"
    elif pa.types.is_timestamp(column.type):
        kind = "time"
    elif pa.types.is_binary(column.type):
        column = shown(column)
    if pa.types.is_string(column.type):  # before control characters are escaped: it may be large
        column = pc.utf8_slice_codeunits(column, 0, LONGEST + 1)
    return [
        Cell(_cut(text), None, kind, _leads_to(name, row))
        for text, row in zip(plain_text(column).to_pylist(), rows, strict=True)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def grid_of_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], anchor: str, title: str
) -> Grid:
    """Some columns of rows as a table; times are in ms."""
    return Grid(anchor, title, columns, [[_cell(name, row) for name in columns] for row in rows])


def _cell(column: str, row: Mapping[str, Any]) -> Cell:
    value = row.get(column)
    if column in _TIMES:
        return moment(value)
    kind = "number" if isinstance(value, int) else "text"
    return Cell(_cut("" if value is None else str(value)), None, kind, _leads_to(column, row))
