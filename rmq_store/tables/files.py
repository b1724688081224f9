"""Tables `files`, `index`, `checkpoint` and `config`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmq_store.config.json_files import (
    config_names,
    last_write_ms,
    last_write_with_backup_ms,
    read_config,
    undecoded,
)
from rmq_store.consumequeue.queue_folders import is_queue_id
from rmq_store.errors import CorruptConfigError
from rmq_store.files.segments import folder_entries
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    SEGMENT_NAME_DIGITS,
)
from rmq_store.format.queues import QueueSlice
from rmq_store.index.index_file_reader import IndexFile
from rmq_store.markers import Checkpoint, was_closed
from rmq_store.reading.store_reader import StoreReader
from rmq_store.tables.table import (
    DOUBLE,
    FLAG,
    INT,
    LONG,
    TEXT,
    TIMESTAMP,
    Row,
    Table,
    table_columns,
)
from rmq_store.text.json_keys import as_json_object

_QUEUE_PARTS = (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR)
_ITEMS_AT_ONCE = 1 << 20
_MOST_A_SLOT = 16  # items on average; a full file of a broker has 4
_LONG_CHAIN = 10_000


def _files(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
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
    for entry in sorted(folder_entries(folder, "listing files"), key=lambda entry: entry.name):
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
    table_columns(
        ("part", TEXT, "commitlog, consumequeue, index, config, ...; store for the root"),
        ("path", TEXT, "its path"),
        ("topic", TEXT, "topic of a queue file"),
        ("queueId", INT, "queue of a queue file"),
        ("baseOffset", LONG, "stream offset of a segment file's first byte"),
        ("size", LONG, "bytes"),
        ("allocated", LONG, "bytes on the disk; less than size if sparse"),
        ("modified", TIMESTAMP, "when last written"),
    ),
    _files,
)


def _index(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    index = store.key_index()
    for file in index.files:
        yield {**_index_row(file), "problem": index.why_beyond_log(file)}
    for error in index.unreadable:
        yield {"path": error.path, "problem": str(error)}
    for start, stop in index.gaps_with_keys():
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
    table_columns(
        ("path", TEXT, "the index file; null for a gap"),
        ("slots", INT, "hash slots"),
        ("maxItems", INT, "places for items; the first stays empty"),
        ("items", INT, "items in use"),
        ("usedSlots", INT, "slots with items"),
        ("load", DOUBLE, "items / (maxItems - 1)"),
        ("longestChain", INT, "items in the fullest slot"),
        ("note", TEXT, "why chains are long"),
        ("beginTimestamp", TIMESTAMP, "store time of the first message"),
        ("endTimestamp", TIMESTAMP, "store time of the last message"),
        ("beginLogOffset", LONG, "log offset of the first message, or of a gap"),
        ("endLogOffset", LONG, "log offset of the last message; a gap's end"),
        ("gapBytes", LONG, "bytes of a gap"),
        ("problem", TEXT, "why a file is unusable; what a gap is"),
    ),
    _index,
)


_SECRET = re.compile(r"(?i)(password|passwd|secret|access_?key|token|credential)")
HIDDEN = "(hidden)"


def _checkpoint(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    checkpoint = Checkpoint.read(Path(store.path) / CHECKPOINT_FILE)
    start, end = store.log_range()
    closed = was_closed(store.path)
    flushed = {} if checkpoint is None else as_json_object(checkpoint)
    yield {"logStart": start, "logEnd": end, "cleanShutdown": closed, **flushed}


CHECKPOINT_TABLE = Table(
    "checkpoint",
    "how far the broker says it flushed, and how far the files go",
    table_columns(
        ("physicMsgTimestamp", TIMESTAMP, "store time of the last record flushed"),
        ("logicsMsgTimestamp", TIMESTAMP, "the same for queues"),
        ("indexMsgTimestamp", TIMESTAMP, "end time of the last full index file"),
        ("masterFlushedOffset", LONG, "log offset that the master flushed to"),
        ("confirmPhyOffset", LONG, "log offset that the replicas confirmed"),
        ("logicsPhysicalOffset", LONG, "log offset of the last record whose entries were flushed"),
        ("logStart", LONG, "log offset of the first file"),
        ("logEnd", LONG, "log offset after the last record"),
        ("cleanShutdown", FLAG, "no file abort: it stopped cleanly"),
    ),
    _checkpoint,
)


class Value(NamedTuple):
    """A value of a configuration file. As a text it is hidden if it is a secret."""

    text: str
    is_secret: bool

    def __str__(self) -> str:
        return HIDDEN if self.is_secret else self.text


def config_rows(store: StoreReader) -> Iterator[tuple[str, Row, list[tuple[str, Value]]]]:
    """Of each file of config/: its name, also where its .bak or a database was read, the columns that all
    its rows have, and its values by their path of names. Only `problem` says that it cannot be read, and
    then it has no values."""
    folder = Path(store.path) / CONFIG_DIR
    for name in config_names(store.path):
        path = folder / name
        try:
            file = read_config(store.path, name, undecoded)
        except CorruptConfigError as error:
            written = last_write_with_backup_ms(path)
            yield name, {"file": str(path), "modified": written, "problem": str(error)}, []
            continue
        if file is None:
            continue
        row: dict[str, Any] = {"file": str(file.path), "modified": last_write_ms(file.path)}
        row["problem"] = "; ".join(file.warnings()) or None
        yield name, row, list(_leaves(file.content))


def _config(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for _, row, values in config_rows(store):
        if not values:
            yield row
        for key, value in values:
            yield {**row, "name": key, "value": str(value)}


def _leaves(value: Any, name: str = "", secret: bool = False) -> Iterator[tuple[str, Value]]:
    """Every value that is not an object, with its path of names joined by dots."""
    secret = secret or _SECRET.search(name.rpartition(".")[2]) is not None
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from _leaves(inside, f"{name}.{key}" if name else str(key), secret)
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield name, Value(text, secret)


CONFIG = Table(
    "config",
    "the JSON files under config/, and databases in their place, value by value; secrets are hidden",
    table_columns(
        ("file", TEXT, "the file, or its .bak if read instead"),
        ("modified", TIMESTAMP, "when last written"),
        ("name", TEXT, "path to the value, joined by dots"),
        ("value", TEXT, "the value; JSON unless a text"),
        ("problem", TEXT, "why the file was not read"),
    ),
    _config,
)
