"""rmqstore tail."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from rmq_store.cli.messages import chosen_columns, columns_option, print_batches, raw_option
from rmq_store.cli.options import json_option, open_store, seconds, store_command, word

if TYPE_CHECKING:
    from rmq_store.format.queues import QueueId, QueueSlice
    from rmq_store.store import MessageStore


@click.command()
@store_command
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; repeatable (default: all user topics).",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Number of newest messages per queue.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new messages.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=seconds,
    default=1.0,
    show_default=True,
    help="Seconds between two reads of the store.",
)
@click.option("--tag", "tags", type=word, help="Only messages with one of these tags: 'a || b'.")
@raw_option
@columns_option
@json_option
def tail(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    topics: tuple[str, ...],
    lines: int,
    follow: bool,
    interval: float,
    tags: str | None,
    raw: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Print the newest messages of each queue; with -f, also new ones until ctrl-C.

    With -f, a topic that is created later is printed from its first message.
    """
    names = chosen_columns(columns, as_json)
    interrupted = _interrupt_event()
    printed: dict[QueueId, int] = {}
    first = True
    while True:
        with open_store(store, broker_conf, broker_name, warns=first) as opened:
            slices = _not_printed(opened, topics, printed, lines if first else None)
            batches = opened.read_slices(slices, columns=names, tags=tags, unwrap_batches=not raw)
            print_batches(batches, as_json)
        printed.update({part.queue: part.stop for part in slices})
        sys.stdout.flush()
        if not follow:
            return
        first = False
        if interrupted.is_set():
            raise KeyboardInterrupt
        time.sleep(interval)


def _interrupt_event() -> threading.Event:
    """An event that ctrl-C sets from now on; ctrl-C still raises KeyboardInterrupt.

    Python ignores an exception raised while it frees an object, and `tail` frees many objects.
    Without the event, some ctrl-C would have no effect.
    """
    event = threading.Event()

    def note(*_: object) -> None:
        event.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    return event


def _not_printed(
    store: MessageStore, topics: tuple[str, ...], printed: dict[QueueId, int], lines: int | None
) -> list[QueueSlice]:
    """The queue ranges not printed yet; with `lines`, only the newest messages of each queue."""
    from rmq_store.format.queues import QueueSlice
    from rmq_store.search.queue_selection import Search, selected_slices

    there = set(store.topics())
    wanted = [topic for topic in topics if lines is not None or topic in there]
    slices = []
    for part in selected_slices(store, Search(wanted or None if topics else None)):
        start = max(part.start, printed.get(part.queue, part.start))
        if lines is not None:
            start = max(part.start, part.stop - lines)
            printed.setdefault(part.queue, part.stop)
        if start < part.stop:
            slices.append(QueueSlice(part.queue, start, part.stop))
    return slices
