"""rmqstore tail."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from rmq_store.cli.messages import chosen_columns, columns_option, print_batches
from rmq_store.cli.options import json_option, open_store, store_command

if TYPE_CHECKING:
    from rmq_store.format.queues import QueueId, QueueSlice
    from rmq_store.store import MessageStore


@click.command()
@store_command
@click.option("--topic", "topics", multiple=True, help="Of this topic; by default all user topics.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="The newest so many of each queue.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what a broker writes meanwhile.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the store.",
)
@click.option("--tag", "tags", help="With one of these tags: 'a || b'.")
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
    columns: str | None,
    as_json: bool,
) -> None:
    """The newest messages of each queue; with -f, those that come later too, until ctrl-C.

    The store is looked at anew each time: with -f a topic that is made meanwhile is followed from
    its first message on.
    """
    names = chosen_columns(columns, as_json)
    interrupted = _noted_interrupts()
    told: dict[QueueId, int] = {}
    first = True
    while True:
        with open_store(store, broker_conf, broker_name) as opened:
            slices = _untold(opened, topics, told, lines if first else None)
            print_batches(opened.read_slices(slices, columns=names, tags=tags), as_json)
        told.update({part.queue: part.stop for part in slices})
        sys.stdout.flush()
        if not follow:
            return
        first = False
        if interrupted.is_set():
            raise KeyboardInterrupt
        time.sleep(interval)


def _noted_interrupts() -> threading.Event:
    """Set by ctrl-C from now on, which is raised as well.

    Python ignores what is raised while it frees an object, and who looks at files over and over is
    often there: without the note one ctrl-C in many would be lost.
    """
    noted = threading.Event()

    def note(*_: object) -> None:
        noted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    return noted


def _untold(
    store: MessageStore, topics: tuple[str, ...], told: dict[QueueId, int], lines: int | None
) -> list[QueueSlice]:
    """What is behind what was told of each queue; `lines`: of the newest messages alone."""
    from rmq_store.format.queues import QueueSlice
    from rmq_store.query.selection import Search, selected_slices

    there = set(store.topics())
    wanted = [topic for topic in topics if lines is not None or topic in there]
    found = []
    for part in selected_slices(store, Search(wanted or None if topics else None)):
        start = max(part.start, told.get(part.queue, part.start))
        if lines is not None:
            start = max(part.start, part.stop - lines)
            told.setdefault(part.queue, part.stop)
        if start < part.stop:
            found.append(QueueSlice(part.queue, start, part.stop))
    return found
