"""What the commands share: the store they open, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pyarrow as pa


def write(raw: bytes) -> None:
    """Bytes to the output. Raises BrokenPipeError where nobody reads any more."""
    sys.stdout.buffer.write(raw)


def print_table(table: pa.Table, as_json: bool, *, columns: Sequence[str] | None = None) -> None:
    """A table: as JSON lines, for people in columns, in a pipe separated by tabs with a head line."""
    if as_json:
        for row in table.to_pylist():
            print_json(row)
        return
    shown = table.select(list(columns)) if columns else table
    print_rows(shown.column_names, ([_told(v) for v in row.values()] for row in shown.to_pylist()))


def print_rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows of text under their names."""
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on a line; times as ISO 8601."""
    click.echo(json.dumps(value, default=_told, ensure_ascii=False))


def _told(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        at = value.astimezone(timezone.utc).isoformat(timespec="milliseconds")
        return at.replace("+00:00", "Z")
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)
