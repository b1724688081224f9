"""Patterns in addresses of object stores: `s3://bucket/*/store`, as glob has them for local paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from rmq_store.errors import InvalidArgumentError
from rmq_store.files.remote.filesystem import file_system, from_remote

_SETTINGS = re.compile(r"\?.*=")
_MAGIC = re.compile(r"[*?\[]")


def has_pattern(address: str) -> bool:
    """Whether a path or address has one of the signs of a pattern: `*`, `?`, `[`."""
    return _MAGIC.search(address) is not None


def matching(uri: str, options: Mapping[str, str] | None = None) -> list[str]:
    """The addresses of the folders that a pattern finds, sorted; itself where it is there as it is.

    `options` as of `MessageStore.open`. `*` and `?` stand for no slash, nor for a dot in front.
    Raises InvalidArgumentError for a pattern in the bucket's name or credentials in the address,
    AccessError.
    """
    # Not urlsplit: it takes what follows a question mark for a query.
    scheme, _, rest = uri.partition("://")
    place, _, path = rest.partition("/")
    if "@" in place or _SETTINGS.search(rest):
        file_system(uri, options)  # raises, without showing them
    if has_pattern(place):
        raise InvalidArgumentError(
            f"{scheme}://{place}",
            reason="a pattern in the name of a bucket",
            advice="Patterns are for folders in it; give several addresses with load([a, b])",
        )
    parts = path.rstrip("/").split("/")
    literal = next(number for number, part in enumerate(parts) if has_pattern(part))
    front = "/".join([f"{scheme}://{place}", *parts[:literal]])
    fs, base = file_system(front, options)
    try:
        if _is_folder(fs, "/".join([base, *parts[literal:]])):
            return [uri]
        found = [""]
        for part in parts[literal:]:
            found = [f"{one}/{name}" for one in found for name in _names(fs, base + one, part)]
    except (OSError, ValueError) as error:
        raise from_remote(uri, error, "listing") from None
    return [front + one for one in sorted(found)]


def _names(fs: Any, folder: str, part: str) -> list[str]:
    """The folders in `folder` whose names fit one part of a pattern."""
    from pyarrow import fs as pafs  # not before a store is remote: it loads every file system

    if not has_pattern(part):
        return [part] if _is_folder(fs, f"{folder}/{part}") else []
    infos = fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return [
        one.base_name
        for one in infos
        if one.type == pafs.FileType.Directory
        and fnmatchcase(one.base_name, part)
        and (part.startswith(".") or not one.base_name.startswith("."))
    ]


def _is_folder(fs: Any, path: str) -> bool:
    from pyarrow import fs as pafs  # not before a store is remote: it loads every file system

    return bool(fs.get_file_info(path).type == pafs.FileType.Directory)
