"""Rows as tables of a page: printable cells, and links to the pages about what they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.browse.page import address
from rmq_store.report.section import Cell, Grid, moment
from rmq_store.text.bodies import shown
from rmq_store.text.lines import plain_text, printable_columns

LONGEST = 300  # characters of a cell
_CUT = "…"
# Column -> the page about its value, and the word there.
_PAGES = {
    **dict.fromkeys(("topic", "originTopic", "heldIn"), ("topic", "name")),
    "consumerGroup": ("group", "name"),
    **dict.fromkeys(("uniqKey", "msgId", "originMsgId", "transactionId", "key"), ("trace", "key")),
    **dict.fromkeys(
        ("commitLogOffset", "originCommitLogOffset", "halfCommitLogOffset"), ("message", "at")
    ),
}
_TIMES = ("storeTimestamp", "timestamp", "written", "invisibleUntil")


def linked(column: str, text: str, value: Any, kind: str = "text", **words: Any) -> Cell:
    """A cell, cut, that leads to the page about its value, if there is one."""
    leads_to = None
    if column in _PAGES and value not in (None, ""):
        page, word = _PAGES[column]
        leads_to = address(page, **{word: value}, **(words if page == "message" else {}))
    cut = text if len(text) <= LONGEST else text[:LONGEST] + _CUT
    return Cell(cut, None, kind, leads_to)


def grid_of(rows: pa.Table, anchor: str, title: str, more: str | None = None) -> Grid:
    """Rows of Arrow as a table. Columns that are empty in all of them are left out, and `more` names them."""
    whole = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    batch = printable_columns(whole[0])
    names = [
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if not len(column) or column.null_count < len(column)
    ]
    empty = [name for name in batch.schema.names if name not in names]
    said = [more or "", f"Empty, and not shown: {', '.join(empty)}." if empty else ""]
    offsets = [None] * len(batch)
    if "queueOffset" in names:
        offsets = batch.column("queueOffset").to_pylist()
    cells = [_cells(name, batch.column(name), offsets) for name in names]
    return Grid(
        anchor, title, names, list(zip(*cells, strict=True)), " ".join(filter(None, said)) or None
    )


def _cells(name: str, column: pa.Array, offsets: Sequence[int | None]) -> list[Cell]:
    kind = "text"
    if pa.types.is_integer(column.type):
        kind = "number"
    elif pa.types.is_timestamp(column.type):
        kind = "time"
    elif pa.types.is_binary(column.type):
        column = shown(column)
    if pa.types.is_string(column.type):  # before control characters are escaped: it may be large
        column = pc.utf8_slice_codeunits(column, 0, LONGEST + 1)
    values = column.to_pylist() if name in _PAGES else [None] * len(column)
    return [
        linked(name, text, value, kind, offset=offset)
        for text, value, offset in zip(plain_text(column).to_pylist(), values, offsets, strict=True)
    ]


def grid_of_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], anchor: str, title: str
) -> Grid:
    """Some columns of rows as a table; times are in ms."""
    listed = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    return Grid(anchor, title, columns, listed)


def _cell(column: str, value: Any) -> Cell:
    if column in _TIMES:
        return moment(value)
    kind = "number" if isinstance(value, int) else "text"
    return linked(column, "" if value is None else str(value), value, kind)
