"""The C library's heap: freed memory of batches is kept for the next ones, within a limit."""

from __future__ import annotations

import ctypes
from functools import cache

KEPT_BYTES = 64 << 20
LARGEST_KEPT = 32 << 20  # the most that glibc takes for the threshold (DEFAULT_MMAP_THRESHOLD_MAX)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)


@cache
def keep_freed_memory() -> bool:
    """Have the heap of this process keep up to 64 MiB of what was freed. Returns whether it does.

    Columns of a batch are arrays of around a megabyte, which glibc gives back to the system as soon
    as they are freed, so that every batch pays for its pages anew: 5 to 20 % of the time of a read.
    The setting is the whole process's; so it is for programs of our own, and a library's user says.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library, which has habits of its own
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_KEPT))
