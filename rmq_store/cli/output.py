"""What commands print: a table, a record, a note or a problem, as text or as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, groupby, islice
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.options import JSON, options_as_one
from rmq_store.errors import json_text, printable
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.text.times import LATEST_MS, utc_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cli.table_layout import Column, Layout
    from rmq_store.reading.store_reader import StoreReader

_LAID_OUT = 1000  # rows by which the columns of a table get their widths
_WRONG_STATES = ("overdue", "lost")


@dataclass(frozen=True, slots=True)
class Output:
    """Prints text for a person, or with --json one JSON object a line."""

    as_json: bool

    def record(self, report: Any, lines: Iterable[str], **style: Any) -> None:
        """Print a report: its fields as one JSON object with camelCase keys, or its lines."""
        if self.as_json:
            print_json(as_json_object(report))
            return
        for line in lines:
            print_line(line, **style)

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        names: Sequence[str] | None = None,
        cells: Iterable[Sequence[str]] | None = None,
        *,
        texts: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        """Print rows: JSON objects, or a table of the columns `names`.

        `cells`: the rows as the table has them. `texts`: columns of texts, even if they look like numbers.
        `kept`: columns that a narrow terminal has to show.
        """
        if self.as_json:
            for row in rows:
                print_json(row)
            return
        listed = list(rows)
        columns = list(listed[0] if listed else ()) if names is None else names
        values = ([cell(row[name]) for name in columns] for row in listed)
        if columns:
            _print_rows(columns, values if cells is None else cells, texts=texts, kept=kept)

    def table(
        self,
        pieces: Iterable[pa.Table],
        columns: Sequence[str] = (),
        *,
        kept: Collection[str] = (),
        progress: Progress | None = None,
    ) -> None:
        """Print the pieces of one table, at least one, each as it comes: JSON lines, or the `columns`, by
        default all. `kept`: those that a narrow terminal has to show.

        `progress`: of the reading, which leaves the terminal to what is printed.
        """
        if self.as_json:
            for piece in pieces:
                for row in _with_plain_times(piece).to_pylist():
                    remove_progress_bar(progress)
                    print_json(row)
            return
        import pyarrow as pa

        left = iter(pieces)
        first = next(left)
        names = list(columns or first.column_names)
        texts = [name for name in names if pa.types.is_string(first.schema.field(name).type)]
        shown = (_with_plain_times(piece.select(names)) for piece in chain([first], left))
        rows = (row for piece in shown for row in piece.to_pylist())
        cells = ([cell(value) for value in row.values()] for row in rows)
        _print_rows(names, cells, progress, texts=texts, kept=kept)


OUTPUT = options_as_one(Output, as_json=JSON)


def write_stdout(raw: bytes) -> None:
    """Write bytes to stdout. Raises BrokenPipeError if the reader closed it."""
    sys.stdout.buffer.write(raw)


def print_line(text: str, **style: Any) -> None:
    """Print one line, with what is not printable escaped; `style`: as for `print_styled`."""
    print_styled(printable(text), **style)


def print_styled(text: str, *, err: bool = False, **style: Any) -> None:
    """Print printable text in a style of click's, without one if NO_COLOR is set (no-color.org)."""
    click.echo(text if os.environ.get("NO_COLOR") else click.style(text, **style), err=err)


def note(text: str) -> None:
    """Say on stderr what is beside the answer."""
    click.echo(printable(text), err=True)


def problem(text: str) -> None:
    """Say on stderr what is wrong."""
    note(f"rmqstore: {text}")


def _print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    progress: Progress | None = None,
    *,
    texts: Collection[str] = (),
    kept: Collection[str] = (),
) -> None:
    """Print rows of text under a header: on a terminal in columns that fit it, by the first rows."""
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(map(printable, row)))
        return
    from rmq_store.cli.table_layout import Column

    shown = ([printable(value) for value in row] for row in rows)
    table = TerminalTable(kept, marks=True)
    while some := list(islice(shown, _LAID_OUT)):
        remove_progress_bar(progress)
        columns = zip(names, zip(*some, strict=True), strict=True)
        table.print(
            [Column.of(n, cells, is_text=n in texts, is_whole=not kept) for n, cells in columns]
        )


class TerminalTable:
    """A table on a terminal: the first rows set the widths and come with a header; later ones keep them.
    `how`: as for `Layout`. `marks`: rows with a status that is a reason to look closer are red."""

    def __init__(self, kept: Collection[str] = (), *, marks: bool = False, **how: bool) -> None:
        self._kept, self._marks, self._how = kept, marks, how
        self._layout: Layout | None = None

    def print(self, columns: Sequence[Column]) -> None:
        """Print the rows that the cells of some columns make."""
        if self._layout is None:
            from rmq_store.cli.table_layout import Layout  # it loads rich, for a terminal alone

            self._layout = Layout(columns, get_terminal_size().columns, self._kept, **self._how)
            if left_out := ", ".join(self._layout.left_out):
                note(f"a wider terminal, a pipe and --json show more: {left_out}")
            for line in self._layout.header():
                print_styled(line, bold=True)
        rows = list(zip(*(column.cells for column in columns), strict=True))
        for wrong, some in groupby(rows, partial(self._is_wrong, columns)):
            lines = "\n".join(line for cells in some for line in self._layout.lines(cells))
            print_styled(lines, fg="red" if wrong else None)

    def _is_wrong(self, columns: Sequence[Column], cells: Sequence[str]) -> bool:
        values = {column.name: cell for column, cell in zip(columns, cells, strict=True)}
        wrong = values.get("status", "") not in ("OK", "") or values.get("state") in _WRONG_STATES
        return self._marks and wrong


def _with_plain_times(table: pa.Table) -> pa.Table:
    """The table with numbers (ms) instead of times in columns with a time beyond the year 9999."""
    import pyarrow as pa

    from rmq_store.arrow import compute as pc

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            numbers = table.column(at).cast(pa.int64())
            ends = pc.min_max(numbers).as_py()
            if (ends["min"] or 0) < -LATEST_MS or (ends["max"] or 0) > LATEST_MS:
                table = table.set_column(at, field.name, numbers)
    return table


def remove_progress_bar(progress: Progress | None) -> None:
    """Remove a progress bar before lines are printed, if stdout is a terminal too."""
    if progress is not None and progress.active and sys.stdout.isatty():
        progress.pause()


def progress_of_reads(what: str, store: StoreReader) -> Progress:
    """Progress by the bytes that are read of a store from now on, of a number that is not known."""

    def total() -> int:
        reads = store.reads()
        return reads.log.bytes + reads.queues.bytes

    before = total()
    return Progress(what, measure=lambda: total() - before)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on a line; times as ISO 8601."""
    click.echo(json_text(value, default=cell))


def cell(value: Any) -> str:
    """A value as the text of a table; empty for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return utc_text(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
