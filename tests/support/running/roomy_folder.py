"""Where tests of real brokers keep their stores: a broker refuses messages on a disk that is full."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from rmq_store.files.disk_usage import disk_used_percent

MEMORY = "/dev/shm"
NEEDED = 6 << 30  # bytes; a run of the live tests took 2 GB at most
FULL_PERCENT = 80  # a broker's own limit is 90, and others fill the disk meanwhile


def roomy_folder(usual: str) -> str | None:
    """A folder in memory if the disk of `usual` is nearly full and memory has room; else None."""
    if disk_used_percent(usual) < FULL_PERCENT:
        return None
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < NEEDED:
        return None
    folder = tempfile.mkdtemp(prefix="rmqstore-tests-", dir=MEMORY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
