"""Paths built from foreign names: of a record, a JSON file, a bucket, or a manifest."""

from __future__ import annotations

import os

from rmq_store.errors import UnsafeNameError

_LONGEST_NAME = 255  # bytes, of one file name on common file systems


def is_plain_name(name: str) -> bool:
    """Whether `name` is a single file or folder name, without a path."""
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and os.sep not in name
        and "\0" not in name
        and len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
    )


def path_inside(folder: str | os.PathLike[str], *names: str) -> str:
    """The path of `names`, one file or folder name each, below `folder`.

    All paths with foreign names are built here. Raises UnsafeNameError for a name that leaves
    `folder` or is not a file name: "..", a separator, NUL, or more than 255 bytes.
    """
    for name in names:
        if not is_plain_name(name):
            raise UnsafeNameError(
                folder,
                reason=f"{name[:80]!r} is not a file name; a path made of it could leave this folder",
                advice="Nothing is written for it. Find out who wrote that name",
            )
    return os.path.join(os.fspath(folder), *names)


def refuse_links(folder: str | os.PathLike[str], *names: str) -> None:
    """Raise UnsafeNameError if `names`, one below the other in `folder`, have a link among them.

    Something written or deleted through the link would be outside the folder. Names that do not
    exist are no links.
    """
    path = os.fspath(folder)
    for name in names:
        path = path_inside(path, name)
        refuse_link(path)


def refuse_irregular_file(path: str | os.PathLike[str]) -> None:
    """Raise UnsafeNameError unless `path` is a regular file or does not exist.

    A link leads elsewhere, and opening a FIFO or a device to write may wait for ever or do harm.
    """
    refuse_link(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnsafeNameError(
            path,
            reason="this is a folder, FIFO, device or socket, in the place of a file to write",
            advice="Move it away",
        )


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Raise UnsafeNameError if `path` is a link: what is written there would be somewhere else."""
    if os.path.islink(path):
        raise UnsafeNameError(
            path,
            reason=f"this is a link, to {os.readlink(path)}, where nothing may be changed",
            advice="Put the file or folder itself in its place, or remove the link",
        )
