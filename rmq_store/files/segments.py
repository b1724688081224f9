"""The files of a chain, by name: each name is the offset of its first byte (MappedFileQueue).

A broker may delete them while somebody opens its store.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from rmq_store.errors import (
    InvalidArgumentError,
    MissingFileError,
    UnrecoverableStoreError,
    from_os_error,
    printable,
    shown_path,
    warn_once,
)
from rmq_store.files.parallel import LOOKS_IN_FLIGHT
from rmq_store.format.byte_layout import is_segment_name

LARGEST_FILE = 2**31 - 1
"""Bytes of the largest file that a broker can write: the setting is a Java int."""

_LAST_BASE = 2**63 - 1 - LARGEST_FILE
_SIZE_ADVICE = "Omit the size to infer it from the files, or take it from broker.conf"
_TIMES = 5
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file of a chain: `base` is the stream offset of its first byte, `size` its current size.

    `empty_from`: the base of the first of the files before it that are all empty.
    """

    path: str
    base: int
    size: int
    empty_from: int | None = field(default=None, compare=False, repr=False)


def list_segments(
    folders: Sequence[str | os.PathLike[str]], *, unique: bool = False
) -> list[SegmentFile]:
    """The segment files in `folders`, in stream order; skips empty files and other names.

    A missing folder counts as empty. With `unique`, raises UnrecoverableStoreError for two files of one
    name in several folders: a broker reads the one whose folder comes first in a HashSet
    (MultiPathMappedFileQueue#load).
    """
    listed: list[SegmentFile] = []
    by_base = sorted(_files_by_base(folders).items())
    for base, files in by_base:
        file = files[0]
        if unique and len(files) > 1:
            other = files[1]
            raise UnrecoverableStoreError(
                file.path,
                reason=f"another folder of the log has a file of this name, {shown_path(other.path)}",
                expected="one file of a name",
                actual=f"{file.size} and {other.size} bytes",
                advice="Find out which of the two is right, and move the other one away: a broker may read "
                "either",
            )
        if file.size and not listed and base > by_base[0][0]:
            file = replace(file, empty_from=by_base[0][0])
        if file.size:
            listed.append(file)
    return listed


def _files_by_base(folders: Sequence[str | os.PathLike[str]]) -> dict[int, list[SegmentFile]]:
    """All segment files by the offset in their names, empty ones too; each file once."""
    segments: dict[int, list[SegmentFile]] = {}
    for folder in folders:
        for entry in folder_entries(folder, "listing segment files"):
            name = entry.name
            # No broker reaches a larger offset, and it exceeds 64 bits.
            if not is_segment_name(name) or int(name) > _LAST_BASE:
                continue
            size = size_of_file(entry)
            if size is None:
                continue
            files = segments.setdefault(int(name), [])
            if not any(_is_same(entry.path, other.path) for other in files):
                files.append(SegmentFile(entry.path, int(name), size))
    return segments


def folder_entries(
    folder: str | os.PathLike[str], doing: str, *others: type[OSError]
) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it does not exist, or for one of the `others`. Raises AccessError."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, *others)):
            return []
        raise from_os_error(folder, error, doing) from error


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:  # the broker deleted one of them
        return False
    except OSError as error:
        raise from_os_error(path, error, "looking at") from error


def size_of_file(entry: os.DirEntry[str]) -> int | None:
    """Bytes of a regular file; None for other things, which are passed over.

    Links to files count as files. A file that the broker has deleted since the listing is gone.
    """
    try:
        if entry.is_file():
            return entry.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        warn_once("passed over %s: %s", printable(entry.path), error.strerror)
        return None
    if not entry.is_dir():
        warn_once("passed over %s, which is not a regular file", printable(entry.path))
    return None


def infer_file_size(segments: Sequence[SegmentFile]) -> int:
    """The full file size of a chain, as most names say; 0 for an empty chain.

    Names are multiples of the size, and no file reaches the next one. The last file may be cut (a
    copied snapshot), and in a damaged store so may others. So the largest size is the full one if
    it fits most names, and else the greatest common divisor of the names, if no file is larger.
    Where neither holds, a file has an odd size or name: then the size that fits most names.
    """
    if len(segments) < 2:
        return segments[0].size if segments else 0
    bases = [segment.base for segment in segments]
    sizes = sorted(segment.size for segment in segments)
    largest, by_names = sizes[-1], math.gcd(*bases)
    if 2 * _names_that_fit(bases, largest) > len(bases):
        return largest
    if largest <= by_names <= LARGEST_FILE:
        return by_names
    distances = Counter(after - before for before, after in pairwise(bases))
    usual = max(distances, key=lambda distance: (distances[distance], -distance))
    middle = sizes[(len(sizes) - 1) // 2]  # half of the files are no larger
    possible = [size for size in (*sizes, usual, by_names) if middle <= size <= LARGEST_FILE]
    best = max(possible, key=lambda size: (_names_that_fit(bases, size), size), default=largest)
    return best if 2 * _names_that_fit(bases, best) > len(bases) else min(largest, LARGEST_FILE)


def _names_that_fit(bases: Sequence[int], size: int) -> int:
    """How many names are multiples of `size` and leave room for a file of it."""
    return sum(
        base % size == 0 and following - base >= size
        for base, following in zip(bases, (*bases[1:], bases[-1] + size), strict=True)
    )


def refuse_larger_files(segments: Sequence[SegmentFile], size: int) -> None:
    """Raise UnrecoverableStoreError for a file larger than the size that most names say."""
    for segment in segments:
        if segment.size > size:
            raise UnrecoverableStoreError(
                segment.path,
                reason="the file is larger than the names of the files beside it allow",
                expected=f"at most {size} bytes",
                actual=f"{segment.size} bytes",
                advice="Its bytes from there on belong to no offset. Restore it from a copy, or cut it "
                "to that size in a copy of the store",
            )


def refuse_wrong_sizes(
    segments: Sequence[SegmentFile], expected_size: int | None, setting: str
) -> None:
    """Raise InvalidArgumentError if the file sizes contradict `expected_size` or are impossible."""
    most, of = (expected_size, setting) if expected_size else (LARGEST_FILE, "a broker can write")
    for segment in segments:
        if segment.size > most:
            raise InvalidArgumentError(
                segment.path,
                reason=f"the file is larger than {of}",
                expected=f"at most {most} bytes",
                actual=segment.size,
                advice=_SIZE_ADVICE,
            )
    for before, after in pairwise(segments):
        if expected_size and after.base < before.base + expected_size:
            raise InvalidArgumentError(
                after.path,
                reason=f"the files are smaller than {setting}",
                expected=f"{expected_size} bytes from each file to the next",
                actual=after.base - before.base,
                advice=_SIZE_ADVICE,
            )


def without_overlaps(segments: Sequence[SegmentFile], file_size: int) -> list[SegmentFile]:
    """The files without overlaps: of two overlapping files, keeps the one with the plausible name.

    Valid names are multiples of the file size. If both names are multiples, or neither is, the
    later file is wrong.
    """
    kept: list[SegmentFile] = []
    for segment in segments:
        if not kept or segment.base >= kept[-1].base + file_size:
            kept.append(segment)
        elif kept[-1].base % file_size and not segment.base % file_size:
            kept[-1] = segment
    return kept


def again_if_expired(look: Callable[[], _T]) -> _T:
    """`look()`, done again if a file that it listed was deleted before it could open it.

    A broker deletes its oldest files one after the other, at any time. Raises what `look` raises, the
    MissingFileError too if that happens again and again.
    """
    for _ in range(_TIMES):
        try:
            return look()
        except MissingFileError as error:
            path = str(error.path)
            if not is_segment_name(os.path.basename(path)) or os.path.exists(path):
                raise
    return look()


class AccessCost(NamedTuple):
    """What looks at the bytes of a store cost, for those who can choose how to find something.

    `looks_at_once`: looks that are worth making side by side. `step`: bytes of a file that a pass
    over it takes at a time. `spare`: bytes that may be read beyond the few that a search needs, to
    save looks or to be sure. `grows`: whether the files may grow, or others appear, after the listing.
    """

    looks_at_once: int
    step: int
    spare: int
    grows: bool


LOCAL = AccessCost(looks_at_once=1, step=128 << 20, spare=2**62, grows=True)
REMOTE = AccessCost(looks_at_once=LOOKS_IN_FLIGHT, step=32 << 20, spare=64 << 10, grows=False)
