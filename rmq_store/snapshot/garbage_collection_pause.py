"""A pause of Python's collector of cyclic garbage, while the objects of many queues are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection inside the block, which creates many objects that all stay alive.

    A collection looks at every object there is, and the more are created, the more often it comes:
    a fifth of the time in which a store with 100,000 queues is opened, and it finds nothing.
    """
    if not gc.isenabled():  # also if another thread has paused it, which then ends the pause
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
