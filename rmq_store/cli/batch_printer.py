"""Print batches of messages, or of the rows of a query: as a table, tab-separated text, JSON lines or CSV."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.cli.messages import TEXT_COLUMNS, MessageForm
from rmq_store.cli.output import TerminalTable, note, remove_progress_bar, write_stdout
from rmq_store.errors import printable
from rmq_store.text import lines
from rmq_store.text.bodies import UTF8, bodies_as, readable_bodies
from rmq_store.text.lines import BODY, plain_text
from rmq_store.text.progress import Progress

if TYPE_CHECKING:
    from rmq_store.cli.table_layout import Column

_LOOKED_AT = 4  # characters that are looked at for one cell: some take no cell
# What a narrow terminal shows.
_KEPT = ("brokerName", "topic", "queueId", "queueOffset", "storeTimestamp", "keys", "body")
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


class BatchPrinter:
    """Prints batches of the same columns in one form.

    On a terminal they are a table: bodies, properties and errors share the width that the other columns
    leave, numbers are never cut, and times lose at most their milliseconds. `progress` leaves the terminal
    to what is printed. `whole`: the columns of ids that were asked for: they are not cut; nor are texts of
    columns that were asked for by name.
    """

    def __init__(
        self, form: MessageForm, progress: Progress | None = None, *, whole: Collection[str] = ()
    ) -> None:
        self._form, self._progress, self._whole = form, progress, whole
        self._charset = form.charset or UTF8
        self._names = form.names() if form.header else None
        self._table: TerminalTable | None = None

    @property
    def _is_table(self) -> bool:
        return not self._form.as_json and sys.stdout.isatty()

    def print(self, batches: Iterable[pa.RecordBatch], limit: int | None = None) -> int:
        """Print at most `limit` rows. Returns how many were printed."""
        if self._names is not None:
            self.print_names(self._names)
            self._names = None
        count = 0
        for batch in batches:
            rows = batch if limit is None else batch.slice(0, min(limit - count, batch.num_rows))
            if rows.num_rows:
                remove_progress_bar(self._progress)
                self._print(rows)
            count += rows.num_rows
            if limit is not None and count >= limit:
                break
        return count

    def print_query(self, rows: pa.RecordBatchReader) -> int:
        """Print all rows of a query; in a pipe and as CSV also the names above them. Returns their number."""
        if not self._form.as_csv:
            self.print_names(rows.schema.names)
            count = self.print(rows)
            if not count and self._is_table:
                note("no rows")
            return count
        from pyarrow import csv

        count = 0
        empty = _for_csv(pa.RecordBatch.from_pylist([], schema=rows.schema))
        with csv.CSVWriter(sys.stdout.buffer, empty.schema) as target:
            for batch in rows:
                remove_progress_bar(self._progress)
                target.write_batch(_for_csv(batch))
                count += batch.num_rows
        return count

    def print_names(self, names: Sequence[str]) -> None:
        """Print the names of the columns, unless each row has them or a table shows them."""
        if not self._form.as_json and not self._is_table:
            click.echo("\t".join(map(printable, names)))

    def _print(self, batch: pa.RecordBatch) -> None:
        body, charset = self._form.body, self._charset
        is_plain = body is None and charset == UTF8
        if self._form.as_json:
            write_stdout(lines.json_lines(batch, charset))
            return
        batch = lines.printable_columns(batch, in_zones=self._is_table)
        if self._is_table:
            self._print_table(batch)
        else:
            write_stdout(
                lines.text_lines(batch if is_plain else _with_bodies(batch, body, charset))
            )

    def _print_table(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        # Columns that were asked for by name are neither left out nor cut.
        kept = _KEPT if {*names} <= {"brokerName", *TEXT_COLUMNS.split(",")} else ()
        whole = self._whole if kept else names
        if self._table is None:
            form = self._form
            self._table = TerminalTable(kept, cuts=not form.full, is_listed=form.is_listed)
        columns = [
            _column(field, self._texts(values, field.name).to_pylist(), field.name in whole)
            for field, values in zip(batch.schema, batch.columns, strict=True)
        ]
        self._table.print(columns)

    def _texts(self, column: pa.Array, name: str) -> pa.Array:
        """The values as printable text, of a length that fits several rows of the terminal."""
        if pa.types.is_binary(column.type):
            form, charset = self._form.body, self._charset if name == BODY else UTF8
            column = (
                readable_bodies(column, charset)
                if form is None
                else bodies_as(form, column, charset)
            )
            if not self._form.full:
                # Before control characters are escaped: a body can have many MiB.
                most = get_terminal_size().columns * _LOOKED_AT
                column = pc.utf8_slice_codeunits(column, 0, most)
        return plain_text(column)


def _column(field: pa.Field, cells: Sequence[str], is_whole: bool) -> Column:
    from rmq_store.cli.table_layout import Column, ColumnKind

    name = printable(field.name)
    is_wide = pa.types.is_binary(field.type) or pa.types.is_map(field.type)
    if is_wide or field.name == "corruptRecord":
        return Column(name, ColumnKind.BODY, cells)
    if pa.types.is_integer(field.type):
        least = _LEAST_NUMBER if field.type == pa.int64() else 0
        return Column(name, ColumnKind.NUMBER, cells, (least, least))
    if pa.types.is_timestamp(field.type):
        return Column(name, ColumnKind.TIME, cells)
    return Column(name, ColumnKind.TEXT, cells, _LIMITS.get(field.name, _OTHERS), is_whole)


def _with_bodies(batch: pa.RecordBatch, form: str | None, charset: str) -> pa.RecordBatch:
    """The batch with its binary columns as text in one of BODY_FORMS, by default text or base64."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_binary(column.type):
            column = bodies_as(form, column, charset if name == BODY else UTF8)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _for_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as CSV has them; for a terminal with what it would act on escaped."""
    plain = lines.csv_columns(lines.printable_columns(batch))
    if not sys.stdout.isatty():
        return plain
    columns = [
        pc.if_else(values.is_valid(), plain_text(values), values)
        if pa.types.is_string(values.type)
        else values
        for values in plain.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(map(printable, plain.schema.names)))
