"""What `cat`, `find` and `tail` share: how messages are printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.printing import write
from rmq_store.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.store import MessageStore

TEXT_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"
_PLACES_TOLD = 3


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
    from rmq_store.arrow.schema import column_names

    return tuple(column_names([name.strip() for name in columns.split(",")]))


def print_batches(
    batches: Iterable[pa.RecordBatch], as_json: bool, limit: int | None = None
) -> int:
    """Print messages, at most `limit`; how many there were."""
    from rmq_store.text.lines import json_lines, text_lines

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


def where_it_was(store: MessageStore, key: str, topics: Collection[str] = ()) -> str:
    """What the index still knows of a key that no message has; nothing where it knows nothing."""
    from rmq_store.query.key_plan import gone_key

    start, end = store.log_range()
    gone = gone_key(store, key, topics)
    told = ""
    if gone.expired:
        told += f"; the index has it at {_offsets(gone.expired)}, before the log begins ({start}): "
        told += "it has expired, or files of the log are missing"
    if gone.lost:
        told += f"; the index has it at {_offsets(gone.lost)}, behind the end of the log ({end}): "
        told += "it was lost with that end (see rmqstore verify), or written since a moment ago"
    return told


def _offsets(places: Sequence[int]) -> str:
    first = ", ".join(map(str, places[:_PLACES_TOLD]))
    more = f" and {len(places) - _PLACES_TOLD} more" if len(places) > _PLACES_TOLD else ""
    return f"log offset {first}{more}"
