"""Work that waits for an object store, done side by side by a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

IN_FLIGHT = 8
"""Requests for bytes under way at once: so many times the largest request is what they hold."""

LOOKS_IN_FLIGHT = 32
"""Of requests for some kilobytes, where only the way there takes time."""

T = TypeVar("T")


def side_by_side(work: Callable[[T], object], items: Sequence[T], at_once: int = 0) -> None:
    """Do `work` on every item, `at_once` of them (by default IN_FLIGHT) at a time.

    No thread is left when it returns. An error is raised once the work under way is done; what
    was not begun by then is not done.
    """
    threads = min(at_once or IN_FLIGHT, len(items))
    if threads <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="rmqstore-fetch") as pool:
        try:
            futures = [pool.submit(work, item) for item in items]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
