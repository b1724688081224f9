"""Work done in parallel by a few threads: what waits for a disk or network, or lets go of the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar, cast

IN_FLIGHT = 8
"""Parallel requests for bytes; their memory is this number times the largest request."""

LOOKS_IN_FLIGHT = 32
"""Parallel requests for a few kilobytes, where only the latency costs time."""

_NAME = "rmqstore-fetch"
_NONE_LEFT = object()

T = TypeVar("T")
Place = TypeVar("Place", bound=Hashable)
Value = TypeVar("Value")


def in_parallel(work: Callable[[T], object], items: Sequence[T], at_once: int = 0) -> None:
    """Do `work` on every item, at most `at_once` (default: IN_FLIGHT) in parallel.

    Joins all threads before it returns. If a call fails, running calls finish, no further call
    starts, and the error is raised. A nested `in_parallel` runs its items one after the other, so
    that the limit holds.
    """
    threads = min(at_once or IN_FLIGHT, len(items))
    if threads <= 1 or threading.current_thread().name.startswith(_NAME):
        for item in items:
            work(item)
        return
    waiting, lock = iter(items), threading.Lock()
    failed: list[BaseException] = []

    def take_turns() -> None:
        while not failed:
            with lock:
                item = next(waiting, _NONE_LEFT)
            if item is _NONE_LEFT:
                return
            try:
                work(cast("T", item))
            except BaseException as error:  # raised in the calling thread
                failed.append(error)

    with ThreadPoolExecutor(threads, thread_name_prefix=_NAME) as pool:
        try:
            wait([pool.submit(take_turns) for _ in range(threads)])
        except BaseException as error:  # the task is being cancelled
            failed.append(error)
            raise
    if failed:
        raise failed[0]


def looked_up_in_parallel(
    look: Callable[[Place], Value], places: Sequence[Place], at_once: int
) -> dict[Place, Value]:
    """What `look` finds at each of some places, asked `in_parallel`."""
    values: dict[Place, Value] = {}

    def note(place: Place) -> None:
        values[place] = look(place)

    in_parallel(note, places, at_once)
    return values


def made_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The items, each made by another thread while the caller works on the one before.

    Only that thread runs the iterator. An error is raised in place of its item. Closed, it waits for
    the thread.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
