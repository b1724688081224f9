"""rmqstore usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.options import StoreArgs, option
from rmq_store.cli.output import OUTPUT, Output, note
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import shown_minute, shown_time

if TYPE_CHECKING:
    from rmq_store.format.queues import QueueSlice
    from rmq_store.questions.usage import UsageAnswer
    from rmq_store.store import MessageStore
    from rmq_store.text.times import Time

_SHARED = " (shared)"
_LARGEST = 20  # messages that are listed without --top
_DAY, _HOUR, _MESSAGE = "day", "hour", "message"
_KEPT_OF_MESSAGES = ("topic", "queueId", "queueOffset", "storeSize")
_OF_MESSAGES = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize")
_BY = {
    "topic": ("topic",),
    "queue": ("topic", "queueId"),
    _DAY: ("day",),
    _HOUR: ("hour",),
    "topic,day": ("topic", "day"),
}


@command
def usage(
    at: StoreArgs = options.STORE,
    by: str = option(
        "--by",
        type=click.Choice([*_BY, _MESSAGE]),
        default="topic",
        help="Group by; message: list the largest ones.",
    ),
    topics: tuple[str, ...] = options.TOPICS,
    begin: Time | None = options.SINCE,
    end: Time | None = options.UNTIL,
    top: int | None = options.TOP.but(help="Only the N largest (default: all; of messages 20)."),
    zone_of_days: tzinfo = options.ZONE,
    out: Output = OUTPUT,
) -> bool:
    """Show which topic, queue, day or hour fills the disk: messages and bytes, largest first.

    Days and hours are in their order, each day with the change from the one before. The last row counts
    bytes that no queue lists: prepared messages, filler, preallocated space. Rows marked as shared are
    light queues (LMQ): their records also count in other rows. Exit code 1 if messages are lost, as far
    as opening the store sees that.
    """
    from rmq_store.questions.usage import usage_of
    from rmq_store.tables.table import all_ranges

    with at.open() as opened, Progress("usage", unit="messages") as progress:
        ranges = _asked_ranges(opened, topics, begin, end)
        progress.expect(sum(map(len, all_ranges(opened) if ranges is None else ranges)))
        most = (top or _LARGEST) if by == _MESSAGE else 0
        found = usage_of(
            opened, ranges, most, zone=zone_of_days, hours=by == _HOUR, progress=progress
        )
        lacks_some = opened.opening.has_losses
    if by == _MESSAGE:
        out.rows(found.largest, _OF_MESSAGES, texts=["topic"], kept=_KEPT_OF_MESSAGES)
        return lacks_some
    groups = _groups(found, by, top)
    changes = ["change"] if by == _DAY else []
    cells = _cells(found, groups, by, zone_of_days, whole=top is None and ranges is None)
    out.rows(
        ({**row, _HOUR: shown_time(row[_HOUR])} if row.get(_HOUR) else row for row in groups),
        [*_BY[by], "messages", "bytes", "of the log", *changes],
        cells,
    )
    growth = found.growth() if by == _DAY and not out.as_json else None
    if growth is not None:
        days, mean = growth
        note(f"{size(mean)} a day, mean of {counted(days, 'day')} before the last")
    return lacks_some


def _asked_ranges(
    store: MessageStore, topics: Sequence[str], begin: Time | None, end: Time | None
) -> tuple[QueueSlice, ...] | None:
    """The queue ranges to count; None for all. Raises InvalidArgumentError for an unknown topic."""
    from rmq_store.search.queue_selection import Search, selected_slices

    first, stop = options.time_range([store], begin, end)
    if not topics and first is None and stop is None:
        return None
    wanted = Search(topics or None, begin=first, end=stop, include_system_topics=True)
    return tuple(selected_slices(store, wanted))


def _groups(found: UsageAnswer, by: str, top: int | None) -> list[dict[str, Any]]:
    """The rows of --json; days and hours in their order, days with the change in bytes from the last."""
    names, changes = _BY[by], found.changes() if by == _DAY else {}
    groups = found.by(*names)[:top]
    if by in (_DAY, _HOUR):
        groups.sort(key=lambda group: (group[by] is not None, group[by]))
    return [
        {
            **{name: group[name] for name in names},
            "messages": group["messages"],
            "bytes": group["bytes"],
            **({"change": changes.get(group["day"])} if by == _DAY else {}),
            "shared": group["shared"],
            "share": group["share of the log"],
        }
        for group in groups
    ]


def _cells(
    found: UsageAnswer, groups: Sequence[Mapping[str, Any]], by: str, zone: tzinfo, *, whole: bool
) -> Iterator[list[str]]:
    """The groups as rows of a table; with `whole`, the bytes that no queue lists as its last row."""

    def share(count: int) -> str:
        return f"{count / found.log_bytes:.1%}" if found.log_bytes else ""

    names = _BY[by]
    for group in groups:
        line = ["(not known)" if group[name] is None else str(group[name]) for name in names]
        if group.get(_HOUR) is not None:
            line = [shown_minute(group[_HOUR], zone)]
        line += [str(group["messages"]), size(group["bytes"])]
        line.append(share(group["bytes"]) + (_SHARED if group["shared"] else ""))
        if by == _DAY:
            line.append(_signed_size(group["change"]))
        yield line
    rest = found.log_bytes - found.listed_bytes
    if whole and rest > 0:
        nothing = [""] * (len(names) - 1)
        last = ["(in no queue)", *nothing, "", size(rest), share(rest)]
        yield [*last, ""] if by == _DAY else last


def _signed_size(change: int | None) -> str:
    return "" if change is None else f"{'-' if change < 0 else '+'}{size(abs(change))}"
