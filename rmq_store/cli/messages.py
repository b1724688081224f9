"""Print messages: what `cat`, `find` and `tail` share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.printing import say, write
from rmq_store.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.store import MessageStore

TEXT_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"
_MOST_PLACES = 3


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --columns."""
    return click.option(
        "--columns",
        help=f"Columns to print, separated by commas. Default: {TEXT_COLUMNS}; with --json all "
        "default columns.",
    )(command)


def raw_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --raw."""
    return click.option(
        "--raw",
        is_flag=True,
        help="Print the record of an inner batch as stored, not its messages.",
    )(command)


def chosen_columns(columns: str | None, as_json: bool) -> tuple[str, ...] | None:
    """The columns to print; None means all default columns. Raises for an unknown column."""
    if columns is None:
        return None if as_json else tuple(TEXT_COLUMNS.split(","))
    from rmq_store.arrow.message_columns import column_names

    return tuple(column_names([name.strip() for name in columns.split(",")]))


def print_batches(
    batches: Iterable[pa.RecordBatch], as_json: bool, limit: int | None = None
) -> int:
    """Print at most `limit` messages. Returns how many were printed."""
    from rmq_store.text.lines import json_lines, text_lines

    lines_of = json_lines if as_json else text_lines
    count = 0
    for batch in batches:
        part = batch if limit is None else batch.slice(0, min(limit - count, batch.num_rows))
        write(lines_of(part))
        count += part.num_rows
        if limit is not None and count >= limit:
            break
    return count


class Damage:
    """Counts the entries that are left out because of damage, and reports the first error."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: StoreError) -> None:
        """Count one error; print the first."""
        if not self.count:
            say(f"rmqstore: left out: {error}", err=True)
        self.count += 1

    def conclude(self) -> None:
        """Print how many entries were left out, if more than one."""
        if self.count > 1:
            say(f"rmqstore: {self.count} entries were left out; see `verify`", err=True)


def where_it_was(store: MessageStore, key: str, topics: Collection[str] = ()) -> str:
    """What the index still lists for a key that no message has; empty if nothing."""
    from rmq_store.search.key_plan import gone_key

    start, end = store.log_range()
    gone = gone_key(store, key, topics)
    text = ""
    if gone.expired:
        text += f"; the index lists it at {_offsets(gone.expired)}, before the log's start"
        text += f" ({start}): it has expired, or log files are missing"
    if gone.lost:
        text += f"; the index lists it at {_offsets(gone.lost)}, after the log's end ({end}): it "
        text += "was lost with the end of the log (see rmqstore verify), or a broker just wrote it"
    return text


def _offsets(places: Sequence[int]) -> str:
    first = ", ".join(map(str, places[:_MOST_PLACES]))
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return f"log offset {first}{more}"
