"""Tables `files` and `index`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.consumequeue.queue_folders import is_queue_id
from rmq_store.files.segments import entries_of
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    COMMITLOG_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    SEGMENT_NAME_DIGITS,
)
from rmq_store.format.queues import QueueSlice
from rmq_store.index.index_file_reader import IndexFile
from rmq_store.store import MessageStore
from rmq_store.tables.table import DOUBLE, INT, LONG, TEXT, TIMESTAMP, Row, Table, columns

_QUEUE_PARTS = (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR)
_ITEMS_AT_ONCE = 1 << 20
_MOST_A_SLOT = 16  # items on average; a full file of a broker has 4
_LONG_CHAIN = 10_000


def _files(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    root = Path(store.path)
    logs = {os.path.realpath(folder) for folder in store.log.chain.folders}
    seen: set[tuple[str, str]] = set()
    for folder in (root, *map(Path, store.log.chain.folders)):
        for path in _walk(str(folder)):
            above, name = os.path.split(path)
            place = os.path.realpath(above), name  # folders have several names: relative, links
            if place not in seen:
                seen.add(place)
                yield from _file(root, path, place[0] in logs)


def _walk(folder: str) -> Iterator[str]:
    for entry in sorted(entries_of(folder, "listing files"), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError:  # a link to nothing, or to itself
        return os.lstat(path)


def _file(root: Path, path: str, of_the_log: bool) -> Iterator[Row]:
    try:
        stat = _status(path)
    except FileNotFoundError:  # the broker deleted it after the listing
        return
    inside = os.path.relpath(path, root).split(os.sep)
    part = COMMITLOG_DIR if of_the_log else (inside[0] if len(inside) > 1 else "store")
    name = inside[-1]
    row: dict[str, Any] = {
        "part": part,
        "path": path,
        "size": stat.st_size,
        "allocated": stat.st_blocks * 512,
        "modified": stat.st_mtime_ns // 1_000_000,
    }
    if part in _QUEUE_PARTS and len(inside) == 4 and is_queue_id(inside[2]):
        row |= {"topic": inside[1], "queueId": int(inside[2])}
    if len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit():
        row["baseOffset"] = min(int(name), 2**63 - 1)
    yield row


FILES = Table(
    "files",
    "every file in the store's folder, and in the log's folder if that is elsewhere",
    columns(
        ("part", TEXT, "commitlog, consumequeue, index, config, ...; store for the root"),
        ("path", TEXT, "path of the file"),
        ("topic", TEXT, "topic, for a queue file"),
        ("queueId", INT, "queue, for a queue file"),
        ("baseOffset", LONG, "stream offset of the first byte, for a segment file"),
        ("size", LONG, "size in bytes"),
        ("allocated", LONG, "bytes on the disk; less than size if the file is sparse"),
        ("modified", TIMESTAMP, "when it was last written"),
    ),
    _files,
)


def _index(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    index = store.key_index()
    for file in index.files:
        yield {**_index_row(file), "problem": index.beyond_log(file)}
    for error in index.unreadable:
        yield {"path": error.path, "problem": str(error)}
    for start, stop in index.unlisted():
        yield {
            "beginLogOffset": start,
            "endLogOffset": stop,
            "gapBytes": stop - start,
            "problem": "no index file covers this range; keys in it are read from the log",
        }


def _index_row(file: IndexFile) -> Row:
    header, geometry = file.header, file.geometry
    chains = cache(lambda: _chains(file))
    return {
        "path": file.path,
        "slots": geometry.slots,
        "maxItems": geometry.items,
        "items": header.items,
        "usedSlots": lambda: chains()[0],
        "load": header.items / max(1, geometry.items - 1),
        "longestChain": lambda: chains()[1],
        "note": lambda: _note(file, chains()[1]),
        "beginTimestamp": header.begin_timestamp if header.items else None,
        "endTimestamp": header.end_timestamp if header.items else None,
        "beginLogOffset": header.begin_log_offset if header.items else None,
        "endLogOffset": header.end_log_offset if header.items else None,
    }


def _chains(file: IndexFile) -> tuple[int, int]:
    """How many slots have items, and how many items the fullest slot has."""
    counts = np.zeros(file.geometry.slots, dtype=np.int32)
    for start in range(0, file.header.items, _ITEMS_AT_ONCE):
        hashes = file.key_hashes(start, min(start + _ITEMS_AT_ONCE, file.header.items))
        counts += np.bincount(hashes % len(counts), minlength=len(counts)).astype(np.int32)
    return int(np.count_nonzero(counts)), int(counts.max(initial=0))


def _note(file: IndexFile, longest: int) -> str | None:
    """Why the chains of a file are long; None if they are not."""
    items, slots = file.header.items, file.geometry.slots
    if items > _MOST_A_SLOT * slots:
        return f"{slots} slots are too few for {items} items: each look-up reads {items // slots} items"
    if longest > _LONG_CHAIN:  # slots that are enough bring no such number together
        return f"{longest} items share a slot: they are of a key or a tag that many messages have"
    return None


INDEX = Table(
    "index",
    "the index files, how full they are, and the ranges of the log that no file covers",
    columns(
        ("path", TEXT, "the index file; null for a gap"),
        ("slots", INT, "hash slots"),
        ("maxItems", INT, "places for items; the first one stays empty"),
        ("items", INT, "items in use"),
        ("usedSlots", INT, "slots that have an item"),
        ("load", DOUBLE, "items divided by those that fit, maxItems - 1"),
        ("longestChain", INT, "items in the fullest slot, which the slowest look-up reads"),
        ("note", TEXT, "why chains are long: too few slots, or a key that very many messages have"),
        ("beginTimestamp", TIMESTAMP, "store time of the first message indexed"),
        ("endTimestamp", TIMESTAMP, "store time of the last message indexed"),
        ("beginLogOffset", LONG, "log offset of the first message; for a gap, its start"),
        ("endLogOffset", LONG, "log offset of the last message; for a gap, its end"),
        ("gapBytes", LONG, "for a gap: bytes of the log without an index"),
        ("problem", TEXT, "why a file cannot be used, or what a gap is"),
    ),
    _index,
)
