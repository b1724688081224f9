"""Messages as rows of a table on a terminal, printed as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from rmq_store.cli.messages import TEXT_COLUMNS
from rmq_store.cli.printing import say_left_out
from rmq_store.cli.table_layout import Column, Kind, Layout
from rmq_store.escaping import printable
from rmq_store.text.binary_values import UTF8
from rmq_store.text.bodies import bodies_as, shown
from rmq_store.text.lines import BODY, plain_text

_LOOKED_AT = 4  # characters that are looked at for one cell: some take no cell
# What a narrow terminal shows.
_KEPT = ("topic", "queueId", "queueOffset", "storeTimestamp", "keys", "body")
# The least and the most cells of a column where there is room. Wider values are cut.
_LIMITS: Mapping[str, tuple[int, int]] = {
    "topic": (10, 30),
    "tags": (8, 16),
    "keys": (8, 24),
    "uniqKey": (32, 32),
    "msgId": (32, 56),
}
_OTHERS = (8, 40)
_LEAST_NUMBER = 11  # of an offset, which grows while rows are printed


class MessageTable:
    """A table whose header is printed with the first row, and whose widths then stay.

    Bodies, properties and errors share the width that the other columns leave. Numbers are never
    cut, and times lose at most their milliseconds. `full`: nothing is cut. `body`: one of
    bodies.FORMS; `charset`: that of bodies.
    """

    def __init__(self, *, full: bool, body: str | None, charset: str = UTF8) -> None:
        self._full, self._body, self._charset = full, body, charset
        self._console = Console(highlight=False)
        self._layout: Layout | None = None

    def print(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch."""
        if not batch.num_rows:
            return
        pairs = zip(batch.schema.names, batch.columns, strict=True)
        texts = [self._texts(column, name) for name, column in pairs]
        cells = [text.to_pylist() for text in texts]
        if self._layout is None:
            self._layout = self._layout_for(batch.schema, cells)
            say_left_out(self._layout.left_out)
            header = "\n".join(self._layout.header())
            if header:
                self._console.print(Text(header, style="bold"), soft_wrap=True)
        rows = zip(*cells, strict=True)
        click.echo("\n".join(line for row in rows for line in self._layout.lines(row)))

    def _texts(self, column: pa.Array, name: str) -> pa.Array:
        """The values as printable text, of a length that fits several rows of the terminal."""
        if pa.types.is_binary(column.type):
            form, charset = self._body, self._charset if name == BODY else UTF8
            column = shown(column, charset) if form is None else bodies_as(form, column, charset)
            if not self._full:
                # Before control characters are escaped: a body can have many MiB.
                column = pc.utf8_slice_codeunits(column, 0, self._console.width * _LOOKED_AT)
        return plain_text(column)

    def _layout_for(self, schema: pa.Schema, cells: Sequence[Sequence[str]]) -> Layout:
        columns = [_column(field, texts) for field, texts in zip(schema, cells, strict=True)]
        # Columns that were asked for by name are not left out.
        kept = _KEPT if set(schema.names) <= set(TEXT_COLUMNS.split(",")) else ()
        return Layout(columns, self._console.width, kept, cuts=not self._full)


def _column(field: pa.Field, cells: Sequence[str]) -> Column:
    name = printable(field.name)
    if _is_wide(field):
        return Column(name, Kind.BODY, cells)
    if pa.types.is_integer(field.type):
        least = _LEAST_NUMBER if field.type == pa.int64() else 0
        return Column(name, Kind.NUMBER, cells, (least, least))
    if pa.types.is_timestamp(field.type):
        return Column(name, Kind.TIME, cells)
    return Column(name, Kind.TEXT, cells, _LIMITS.get(field.name, _OTHERS))


def _is_wide(field: pa.Field) -> bool:
    wide = pa.types.is_binary(field.type) or pa.types.is_map(field.type)
    return bool(wide) or field.name == "corruptRecord"
