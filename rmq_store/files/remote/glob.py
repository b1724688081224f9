"""Glob patterns in object store addresses, such as `s3://bucket/*/store`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from rmq_store.errors import InvalidArgumentError
from rmq_store.files.remote.uri_filesystem import file_system, from_remote

_MAGIC = re.compile(r"[*?\[]")


def has_pattern(address: str) -> bool:
    """Whether a path or address contains a glob character: `*`, `?`, `[`."""
    return _MAGIC.search(address) is not None


def matching(uri: str, options: Mapping[str, str] | None = None) -> list[str]:
    """The sorted addresses of the folders that match a pattern.

    An address that exists literally matches itself. `options`: as for `MessageStore.open`. `*` and
    `?` match neither a slash nor a leading dot. Raises InvalidArgumentError for a pattern in the
    bucket's name, AccessError.
    """
    # Not urlsplit: it treats the text after a question mark as a query.
    scheme, _, rest = uri.partition("://")
    place, _, path = rest.partition("/")
    if has_pattern(place):
        raise InvalidArgumentError(
            f"{scheme}://{place}",
            reason="the bucket's name contains a pattern",
            advice="Use patterns for folders in a bucket; for several buckets use load([a, b])",
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
    """The folders in `folder` whose names match one part of a pattern."""
    from pyarrow import fs as pafs  # slow import: loads every file system

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
    from pyarrow import fs as pafs  # slow import: loads every file system

    return bool(fs.get_file_info(path).type == pafs.FileType.Directory)
