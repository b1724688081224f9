"""Paths built from foreign names: of a record, a JSON file, a bucket, or a manifest."""

from __future__ import annotations

import os

from rmq_store.errors import UnsafeNameError

_LONGEST_NAME = 255  # bytes, of one file name on common file systems


def is_plain_name(name: str) -> bool:
    """Whether `name` is a single file or folder name, without a path."""
    return (
        name not in ("", ".", "..")
        and not any(character in name for character in ("/", os.sep, "\0"))
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
