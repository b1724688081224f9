"""Where tests keep what they make: in memory if it has room, because thousands of stores are written.

Tests of real brokers stay on the disk, as brokers do, unless it is nearly full: a broker refuses
messages then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from rmq_store.admin.retention import disk_used_percent

MEMORY = "/dev/shm"
NEEDED = 6 << 30  # bytes; a run of the live tests took 2 GB at most
FULL_PERCENT = 80  # a broker's own limit is 90, and others fill the disk meanwhile


def use_roomy_folder(*, brokers: bool) -> None:
    """Set the folder for temporary files of this process, of those that it starts, and of Spark."""
    if brokers and disk_used_percent(tempfile.gettempdir()) < FULL_PERCENT:
        return
    if folder := _folder_in_memory():
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = folder
        tempfile.tempdir = folder


def _folder_in_memory() -> str | None:
    """The same folder in each run: pytest keeps in it what failed tests made, for three runs."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < NEEDED:
        return None
    folder = Path(MEMORY, f"rmqstore-tests-of-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder) if folder.stat().st_uid == os.getuid() else None
