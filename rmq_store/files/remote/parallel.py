"""Work that waits for an object store, done side by side by a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar, cast

IN_FLIGHT = 8
"""Requests for bytes under way at once: so many times the largest request is what they hold."""

LOOKS_IN_FLIGHT = 32
"""Of requests for some kilobytes, where only the way there takes time."""

_NAME = "rmqstore-fetch"
_NONE_LEFT = object()

T = TypeVar("T")


def side_by_side(work: Callable[[T], object], items: Sequence[T], at_once: int = 0) -> None:
    """Do `work` on every item, `at_once` of them (by default IN_FLIGHT) at a time.

    No thread is left when it returns. An error is raised once the work under way is done; what
    was not begun by then is not done. Work that is done so itself does its own one by one, so that
    no more are under way than was said.
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
                work(cast(T, item))
            except BaseException as error:  # raised where the work was asked for
                failed.append(error)

    with ThreadPoolExecutor(threads, thread_name_prefix=_NAME) as pool:
        try:
            wait([pool.submit(take_turns) for _ in range(threads)])
        except BaseException as error:  # the task was told to stop
            failed.append(error)
            raise
    if failed:
        raise failed[0]
