"""How the commands print: tables, rows, JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from rmq_store.escaping import json_text, printable
from rmq_store.text.progress import Progress
from rmq_store.text.times import LATEST_MS, in_utc

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.store import MessageStore


_LAID_OUT = 1000  # rows by which the columns of a table get their widths
_WRONG_STATES = ("overdue", "lost")


def write(raw: bytes) -> None:
    """Write bytes to stdout. Raises BrokenPipeError if the reader closed it."""
    sys.stdout.buffer.write(raw)


def say(text: str, *, err: bool = False, wrong: bool = False) -> None:
    """Print one line, with what is not printable escaped; on a terminal in red if it says what is wrong."""
    line = printable(text)
    click.echo(_styled(line, fg="red") if wrong else line, err=err)


def print_table(
    table: pa.Table,
    as_json: bool,
    *,
    columns: Sequence[str] | None = None,
    kept: Collection[str] = (),
) -> None:
    """Print a table: JSON lines, aligned columns on a terminal, or tab-separated with a header line.

    `columns`: those that are printed as text, by default all. `kept`: see `print_rows`.
    """
    print_pieces([table], as_json, columns=columns or table.column_names, kept=kept)


def print_pieces(
    pieces: Iterable[pa.Table],
    as_json: bool,
    *,
    columns: Sequence[str],
    kept: Collection[str] = (),
    progress: Progress | None = None,
) -> None:
    """Print the pieces of one table, at least one, as `print_table`; each as it comes.

    `kept`: see `print_rows`. `progress`: of the reading, which leaves the terminal to what is printed.
    """
    if as_json:
        for piece in pieces:
            for row in _with_plain_times(piece).to_pylist():
                make_room(progress)
                print_json(row)
        return
    import pyarrow as pa

    left = iter(pieces)
    first = next(left)
    texts = [name for name in columns if pa.types.is_string(first.schema.field(name).type)]
    shown = (_with_plain_times(piece.select(list(columns))) for piece in chain([first], left))
    rows = (row for piece in shown for row in piece.to_pylist())
    cells = ([cell(value) for value in row.values()] for row in rows)
    print_rows(columns, cells, progress, texts=texts, kept=kept)


def _with_plain_times(table: pa.Table) -> pa.Table:
    """The table with numbers (ms) instead of times in columns with a time beyond the year 9999."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            numbers = table.column(at).cast(pa.int64())
            ends = pc.min_max(numbers).as_py()
            if (ends["min"] or 0) < -LATEST_MS or (ends["max"] or 0) > LATEST_MS:
                table = table.set_column(at, field.name, numbers)
    return table


def make_room(progress: Progress | None) -> None:
    """Remove a progress bar before lines are printed, if stdout is a terminal too."""
    if progress is not None and progress.active and sys.stdout.isatty():
        progress.pause()


def print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    progress: Progress | None = None,
    *,
    texts: Collection[str] = (),
    kept: Collection[str] = (),
) -> None:
    """Print rows of text under a header: on a terminal in columns that fit it, by the first rows.

    `texts`: the columns whose values are no numbers, even if they look like some. `kept`: those that
    a narrow terminal has to show, if others may be left out there.
    """
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(map(printable, row)))
        return
    from rich.console import Console

    from rmq_store.cli.table_layout import Column, Layout

    shown = ([printable(cell) for cell in row] for row in rows)
    first = list(islice(shown, _LAID_OUT))
    columns = [
        Column.of(name, [row[at] for row in first], is_text=name in texts)
        for at, name in enumerate(names)
    ]
    if not first:
        return
    layout = Layout(columns, Console().width, kept)
    make_room(progress)
    for line in layout.header():
        click.echo(_styled(line, bold=True))
    for row in chain(first, shown):
        make_room(progress)
        wrong = any(_is_wrong(name, cell) for name, cell in zip(names, row, strict=True))
        for line in layout.lines(row):
            click.echo(_styled(line, fg="red") if wrong else line)
    say_left_out(layout.left_out)


def say_left_out(columns: Sequence[str]) -> None:
    """Name the columns for which a terminal is too narrow."""
    if columns:
        say(f"a wider terminal, a pipe and --json show more: {', '.join(columns)}", err=True)


def _is_wrong(column: str, value: str) -> bool:
    """Whether a value of a table is a reason to look closer."""
    if column == "status":
        return value not in ("OK", "")
    return column == "state" and value in _WRONG_STATES


def _styled(text: str, **how: Any) -> str:
    """The text in a style, unless NO_COLOR is set (no-color.org)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **how)


def reading(what: str, store: MessageStore) -> Progress:
    """Progress by the bytes that are read of a store from now on, of a number that is not known."""

    def read() -> int:
        reads = store.reads()
        return reads.log.bytes + reads.queues.bytes - before

    before = 0
    before = read()
    return Progress(what, measure=read)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on a line; times as ISO 8601."""
    click.echo(json_text(value, default=cell))


def cell(value: Any) -> str:
    """A value as the text of a table; empty for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
