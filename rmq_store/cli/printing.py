"""How the commands print: tables, rows, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from rmq_store.escaping import printable, printable_json
from rmq_store.text.progress import Progress
from rmq_store.text.times import LATEST_MS

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.store import MessageStore


def write(raw: bytes) -> None:
    """Write bytes to stdout. Raises BrokenPipeError if the reader closed it."""
    sys.stdout.buffer.write(raw)


def say(text: str, *, err: bool = False) -> None:
    """Print one line, with what is not printable escaped."""
    click.echo(printable(text), err=err)


def print_table(table: pa.Table, as_json: bool, *, columns: Sequence[str] | None = None) -> None:
    """Print a table: JSON lines, aligned columns on a terminal, or tab-separated with a header
    line."""
    print_pieces([table], as_json, columns=columns or table.column_names)


def print_pieces(
    pieces: Iterable[pa.Table],
    as_json: bool,
    *,
    columns: Sequence[str],
    progress: Progress | None = None,
) -> None:
    """Print the pieces of one table, as `print_table`; in a pipe each as it comes.

    `progress`: of the reading, which leaves the terminal to what is printed.
    """
    if as_json:
        for piece in pieces:
            for row in _with_plain_times(piece).to_pylist():
                make_room(progress)
                print_json(row)
        return
    shown = (_with_plain_times(piece.select(list(columns))) for piece in pieces)
    rows = (row for piece in shown for row in piece.to_pylist())
    print_rows(columns, ([_cell(value) for value in row.values()] for row in rows), progress)


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
    names: Sequence[str], rows: Iterable[Sequence[str]], progress: Progress | None = None
) -> None:
    """Print rows of text under a header."""
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(map(printable, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for name in names:
        table.add_column(name)
    for row in rows:
        # Text instead of str, so that brackets in names are not markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    make_room(progress)
    Console().print(table)


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
    click.echo(printable_json(json.dumps(value, default=_cell, ensure_ascii=False)))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        at = value.astimezone(timezone.utc).isoformat(timespec="milliseconds")
        return at.replace("+00:00", "Z")
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
