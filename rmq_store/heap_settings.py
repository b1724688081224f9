"""What a process that only reads or writes stores does with memory: it keeps what the next batch needs."""

from __future__ import annotations

import ctypes
import gc
from functools import cache

KEPT_BYTES = 64 << 20
LARGEST_KEPT = 32 << 20  # upper limit in glibc (DEFAULT_MMAP_THRESHOLD_MAX)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)


@cache
def keep_freed_memory() -> bool:
    """Make this process's heap keep up to 64 MiB of freed memory. Returns whether that succeeded.

    Columns of a batch are arrays of about a megabyte. By default glibc returns them to the system
    as soon as they are freed, so every batch pays for new pages: 5 to 20 % of the time of a read.
    The setting applies to the whole process. Only this project's own programs call it; library
    users decide for themselves.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library, without mallopt
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_KEPT))


@cache
def settle_worker() -> None:
    """Keep freed memory, and leave what the process has loaded so far out of garbage collections.

    Spark's daemon collects all garbage after each task, and visits the objects of all modules for it:
    20 to 40 ms of processor time. For a process of Spark that begins its first task of ours.
    """
    keep_freed_memory()
    gc.freeze()
