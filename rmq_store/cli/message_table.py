"""Messages as rows of a table on a terminal, printed as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from rmq_store.escaping import printable
from rmq_store.text.binary_values import UTF8
from rmq_store.text.bodies import bodies_as, shown
from rmq_store.text.lines import BODY, plain_text

_GAP = "  "
_CUT = "…"
_LEAST_WIDE = 16  # cells of a body on a narrow terminal
_LOOKED_AT = 4  # characters that are looked at for one cell: some take no cell
# The least and the most cells of a column. Wider values are cut.
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

    Bodies, properties and errors share the width that the other columns leave. Numbers and times
    are never cut. `full`: nothing is. `body`: one of bodies.FORMS;
    `charset`: that of bodies.
    """

    def __init__(self, *, full: bool, body: str | None, charset: str = UTF8) -> None:
        self._full, self._body, self._charset = full, body, charset
        self._console = Console(highlight=False)
        self._widths: list[int] | None = None

    def print(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch."""
        if not batch.num_rows:
            return
        pairs = zip(batch.schema.names, batch.columns, strict=True)
        texts = [self._texts(column, name) for name, column in pairs]
        if self._widths is None:
            self._widths = self._widths_for(batch.schema, texts)
            names = zip(
                map(printable, batch.schema.names), batch.schema.types, self._widths, strict=True
            )
            header = [_filled(name, width, _is_number(kind)) for name, kind, width in names]
            self._console.print(Text(_GAP.join(header), style="bold"), soft_wrap=True)
        last = len(texts) - 1
        columns = [
            self._cells(text, self._widths[at], batch.schema.types[at], is_last=at == last)
            for at, text in enumerate(texts)
        ]
        click.echo("\n".join(map(_GAP.join, zip(*columns, strict=True))))

    def _texts(self, column: pa.Array, name: str) -> pa.Array:
        """The values as printable text, of a length that fits several rows of the terminal."""
        if pa.types.is_binary(column.type):
            form, charset = self._body, self._charset if name == BODY else UTF8
            column = shown(column, charset) if form is None else bodies_as(form, column, charset)
            if not self._full:
                # Before control characters are escaped: a body can have many MiB.
                column = pc.utf8_slice_codeunits(column, 0, self._console.width * _LOOKED_AT)
        return plain_text(column)

    def _cells(self, texts: pa.Array, width: int, kind: pa.DataType, *, is_last: bool) -> list[str]:
        cells: list[str] = texts.to_pylist()
        if not (self._full or _is_number(kind) or pa.types.is_timestamp(kind)):
            cells = [_cut(cell, width) for cell in cells]
        if is_last and not _is_number(kind):
            return cells  # the end of a line is not filled with blanks
        return [_filled(cell, width, _is_number(kind)) for cell in cells]

    def _widths_for(self, schema: pa.Schema, texts: Sequence[pa.Array]) -> list[int]:
        widths = [
            0 if _is_wide(field) else self._width_of(field, text)
            for field, text in zip(schema, texts, strict=True)
        ]
        wide = [at for at, field in enumerate(schema) if _is_wide(field)]
        left = self._console.width - sum(widths) - len(_GAP) * (len(widths) - 1)
        for at in wide:
            widths[at] = max(_LEAST_WIDE, left // len(wide))
        if not self._full:
            self._narrow(schema, widths)
        return widths

    def _narrow(self, schema: pa.Schema, widths: list[int]) -> None:
        """Take from the widest texts what is too wide for the terminal, as far as they can be cut."""
        least = {
            at: max(len(printable(field.name)), _LIMITS.get(field.name, _OTHERS)[0])
            for at, field in enumerate(schema)
            if not (_is_wide(field) or _is_number(field.type) or pa.types.is_timestamp(field.type))
        }
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - self._console.width
        for _ in range(over):
            at = max(least, key=lambda at: widths[at] - least[at], default=None)
            if at is None or widths[at] <= least[at]:
                return
            widths[at] -= 1

    def _width_of(self, field: pa.Field, texts: pa.Array) -> int:
        longest = max(len(printable(field.name)), *map(cell_len, pc.unique(texts).to_pylist()))
        if _is_number(field.type):
            return max(longest, _LEAST_NUMBER) if field.type == pa.int64() else longest
        if pa.types.is_timestamp(field.type):
            return longest
        least, most = _LIMITS.get(field.name, _OTHERS)
        return max(len(printable(field.name)), least, longest if self._full else min(longest, most))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_wide(field: pa.Field) -> bool:
    wide = pa.types.is_binary(field.type) or pa.types.is_map(field.type)
    return bool(wide) or field.name == "corruptRecord"


def _filled(text: str, width: int, right: bool = False) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _cut(text: str, width: int) -> str:
    """The text in at most `width` cells."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + _CUT
