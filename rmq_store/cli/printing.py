"""What the commands share: the store they open, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.store import MessageStore

_F = TypeVar("_F", bound=Callable[..., Any])


def store_command(command: _F) -> _F:
    """The argument STORE, and the options that say what its files do not."""
    for decorate in reversed(
        (
            click.argument("store", type=click.Path()),
            click.option("--broker-conf", type=click.Path(), help="The broker.conf it ran with."),
            click.option("--broker-name", help="The broker's name; by default the folder's."),
        )
    ):
        command = decorate(command)
    return command


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, keys as the source's columns."
)


def open_store(store: str, broker_conf: str | None, broker_name: str | None) -> MessageStore:
    """The store, to read. Raises what MessageStore.open raises."""
    from rmq_store.store import MessageStore

    return MessageStore.open(store, broker_conf=broker_conf, broker_name=broker_name)


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


class Progress:
    """How far work has come, for people: on the error output, if that is a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            self._bar = Progress(
                "{task.description}",
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int) -> None:
        """So many bytes more."""
        if self._bar is not None:
            self._bar.advance(self._task, done)


def parse_time(text: str | None) -> int | None:
    """A time as ms since the epoch: digits are ms, else ISO 8601; without a zone it is UTC.

    Raises click.BadParameter for what is neither.
    """
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time: say ms since 1970, or 2024-05-01T12:00:00+02:00"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return round(at.timestamp() * 1000)
