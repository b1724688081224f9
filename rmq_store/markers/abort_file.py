"""`abort`: the file that marks a store as in use (DefaultMessageStore#createTempFile)."""

from __future__ import annotations

import os
from pathlib import Path

from rmq_store.errors import from_os_error
from rmq_store.files.durable_files import sync_folder
from rmq_store.files.safe_paths import refuse_special
from rmq_store.format.layout import (
    ABORT_BACKUP_FILE,
    ABORT_FILE,
)
from rmq_store.format.releases import Dialect


def write_abort(root: Path, release: Dialect) -> None:
    """Create `abort`. If it is missing, the last stop was clean."""
    pid = str(os.getpid()) if release.has("abort_holds_pid") else ""
    for name in (ABORT_FILE, ABORT_BACKUP_FILE):
        refuse_special(root / name)
    try:
        with (root / ABORT_FILE).open("w") as file:
            file.write(pid)
            file.flush()
            os.fsync(file.fileno())
        if release.has("abort_holds_pid"):
            (root / ABORT_BACKUP_FILE).touch()
        sync_folder(root)  # must survive a power loss
    except OSError as error:
        raise from_os_error(root / ABORT_FILE, error, "writing") from error


def remove_abort(root: Path) -> None:
    """Delete `abort`: the store was closed cleanly."""
    try:
        (root / ABORT_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(root / ABORT_FILE, error, "deleting") from error
