"""Follows the chains of many keys in many index files at once, for files in an object store.

There each item of a chain costs a round trip. So all chains advance in rounds, and one round
fetches the next items of all chains in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rmq_store.errors import CorruptIndexError
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Ranges, Sources, fetch_all
from rmq_store.index.index_file_reader import Hit, IndexFile

Broken = list[tuple[IndexFile, CorruptIndexError]]


def walk_chains(
    files: Sequence[IndexFile], hashes: Sequence[int]
) -> tuple[dict[int, list[Hit]], Broken]:
    """The items of each hash, and the files that cannot be trusted, each once."""
    found: dict[int, list[Hit]] = {key_hash: [] for key_hash in hashes}
    broken: dict[int, tuple[IndexFile, CorruptIndexError]] = {}
    walks = [
        (number, file.walk(key_hash, found[key_hash]))
        for number, file in enumerate(files)
        for key_hash in hashes
    ]
    if all(file.cost.looks_at_once == 1 for file in files):
        for number, walk in walks:
            for _ in _steps(files, number, walk, broken):
                pass
        return found, list(broken.values())
    going = [(number, _steps(files, number, walk, broken)) for number, walk in walks]
    while going:
        next_looks = [(chain, next(chain[1], None)) for chain in going]
        going = [chain for chain, look in next_looks if look is not None]
        _fetch_looks(files, [(chain[0], look) for chain, look in next_looks if look is not None])
    return found, list(broken.values())


def _steps(
    files: Sequence[IndexFile],
    number: int,
    walk: Iterator[tuple[int, int]],
    broken: dict[int, tuple[IndexFile, CorruptIndexError]],
) -> Iterator[tuple[int, int]]:
    try:
        yield from walk
    except CorruptIndexError as error:
        broken.setdefault(number, (files[number], error))


def _fetch_looks(files: Sequence[IndexFile], looks: Iterable[tuple[int, tuple[int, int]]]) -> None:
    by_file: dict[int, list[tuple[int, int]]] = {}
    for number, look in looks:
        by_file.setdefault(number, []).append(look)
    fetch_all(
        files[number].ranges(*np.array(places, dtype=np.int64).T)
        for number, places in by_file.items()
    )


def fetch(sources: Sources, segments: Sequence[SegmentFile], start: int, stop: int) -> None:
    """Fetch bytes [start, stop) of each file that has them, where they have to be fetched."""
    if not segments or sources.get(segments[0]).is_there:
        return
    first, last = np.array([start]), np.array([stop])
    files = (sources.get(segment) for segment in segments if stop <= segment.size)
    fetch_all(Ranges(file, first, last) for file in files)
