"""Settings of the C library's heap: it keeps freed memory for the next batches, within a limit."""

from __future__ import annotations

import ctypes
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
