"""Several stores: the folders that a pattern matches, and the names of their brokers."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from rmq_store.errors import InvalidArgumentError
from rmq_store.files.remote.glob import has_pattern, matching
from rmq_store.files.remote.uri_filesystem import absolute, is_uri, local_path, real_path


def expanded(path: str, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The folders that match a pattern; the path itself if it is no pattern or exists.

    Raises InvalidArgumentError for a pattern that matches none.
    """
    local = local_path(path)
    if not has_pattern(path):
        return [path]
    if is_uri(local):
        found = matching(path, storage_options)
    else:
        found = [local] if os.path.isdir(local) else sorted(glob.glob(local))
    if not found:
        raise InvalidArgumentError(
            path, reason="the pattern matches no folder", advice="Try it with ls on the driver"
        )
    return found


def without_repeats(paths: Sequence[str]) -> list[str]:
    """The paths, of those that lead to the same folder the first one."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(real_path(path), path)
    return list(found.values())


def names_of(paths: Sequence[str]) -> list[str]:
    """Broker names for several stores: their folders' names.

    Stores with the same folder name get the first part of the path that differs: `a` and
    `b` of /data/a/store and /data/b/store. If one part is not enough, those after it are added.
    """
    parts = [_parts(path) for path in paths]
    own = [part[-1] if part else path for part, path in zip(parts, paths, strict=True)]
    for same in [name for name, count in Counter(own).items() if count > 1]:
        rows = [row for row, name in enumerate(own) if name == same]
        for row, name in zip(rows, _distinct([parts[row] for row in rows]), strict=True):
            own[row] = name
    return own


def name_in_pattern(pattern: str, path: str) -> str | None:
    """The parts of a path at the places of a pattern's wildcards: broker-a for /data/*/store.

    None if the path is not one of the pattern's.
    """
    wanted, found = _parts(pattern), _parts(path)
    if not has_pattern(pattern) or len(wanted) != len(found):
        return None
    pairs = list(zip(wanted, found, strict=True))
    if not all(fnmatch.fnmatchcase(part, want) for want, part in pairs):
        return None
    return "-".join(part for want, part in pairs if has_pattern(want))


def _parts(path: str) -> list[str]:
    return [part for part in absolute(path).split("/") if part]


def _distinct(parts: Sequence[Sequence[str]]) -> list[str]:
    """For each path its parts from the first that differs on, as few as make all differ."""
    longest = max(map(len, parts))
    first = next((n for n in range(longest) if len({tuple(p[n : n + 1]) for p in parts}) > 1), 0)
    for stop in range(first + 1, longest + 1):
        names = ["-".join(part[first:stop]) for part in parts]
        if all(names) and len(set(names)) == len(names):
            return names
    return [part[-1] if part else "" for part in parts]  # refused later, because they are the same
