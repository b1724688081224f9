"""What `cat`, `find` and `tail` share: how messages are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.common import write
from rmq_store.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--columns."""
    return click.option(
        "--columns",
        help=f"Columns of the source, separated by commas. As text: {TEXT_COLUMNS}; with --json "
        "all but rawBody and the like.",
    )(command)


def chosen_columns(columns: str | None, as_json: bool) -> tuple[str, ...] | None:
    """The columns asked for; None for all default ones. An unknown one is refused by name."""
    if columns is None:
        return None if as_json else tuple(TEXT_COLUMNS.split(","))
    from rmq_store.schema import column_names

    return tuple(column_names([name.strip() for name in columns.split(",")]))


def print_batches(
    batches: Iterable[pa.RecordBatch], as_json: bool, limit: int | None = None
) -> int:
    """Print messages, at most `limit`; how many there were."""
    from rmq_store.jsontext import json_lines, text_lines

    told = json_lines if as_json else text_lines
    count = 0
    for batch in batches:
        part = batch if limit is None else batch.slice(0, limit - count)
        write(told(part))
        count += part.num_rows
        if limit is not None and count >= limit:
            break
    return count


class Damage:
    """Takes the errors of what is left out; tells the first, and how many there were."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: StoreError) -> None:
        """Take one."""
        if not self.count:
            click.echo(f"rmqstore: left out: {error}", err=True)
        self.count += 1

    def conclude(self) -> None:
        """Tell how many there were."""
        if self.count > 1:
            click.echo(f"rmqstore: {self.count} entries were left out; see `verify`", err=True)
