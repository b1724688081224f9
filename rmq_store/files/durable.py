"""Small files read and written whole, and synced folders."""

from __future__ import annotations

import os
from pathlib import Path

from rmq_store.errors import from_os_error
from rmq_store.files.remote.remote_store import shadow_of


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The content of a small file. Raises MissingFileError or AccessError."""
    shadow = shadow_of(os.fspath(path))
    if shadow is not None:
        return shadow.read_whole(os.fspath(path))
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise from_os_error(path, error, "reading") from error


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content and flush it. After a crash the file is the old one or the new one."""
    aside = path.with_name(path.name + ".tmp")
    aside.unlink(missing_ok=True)  # of an interrupted write, or a link to a file elsewhere
    with aside.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of files, and its parent's, to the disk."""
    for directory in (folder, folder.parent):
        sync_one_folder(directory)


def sync_one_folder(folder: Path) -> None:
    """Sync a folder's list of files to the disk."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(folder, error, "flushing") from error
