"""RocksDB databases with queues, as RocksDBConsumeQueueTable and ...OffsetTable write them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict

from rmq_store import MessageStore, QueueId

Place = tuple[int, int, int]  # log offset, size, tagsCode


def key_of(queue: QueueId, offset: int) -> bytes:
    """The key of an entry."""
    name = queue.topic.encode()
    return struct.pack(f">iB{len(name)}sBiBq", len(name), 1, name, 1, queue.queue_id, 1, offset)


def max_key_of(queue: QueueId) -> bytes:
    """The key of a queue's last offset."""
    name = queue.topic.encode()
    return struct.pack(f">iB{len(name)}s5si", len(name), 1, name, b"\1max\1", queue.queue_id)


def places_in(store: MessageStore, queue: QueueId) -> dict[int, Place]:
    """What a store lists of a queue, by queue offset."""
    found = store.entries(queue, 0, store.max_offset(*queue))
    columns = (found.offset, found.log_offset, found.size, found.tags_code)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {offset: (place, size, tags) for offset, place, size, tags in rows}


def write_queue_database(
    folder: Path,
    queues: Mapping[QueueId, Mapping[int, Place]],
    *,
    last: Mapping[QueueId, int] | None = None,
) -> None:
    """A database in `folder` with entries by queue offset. `last`: the last offset of a queue, by default
    that of its last entry; entries beyond are left from before."""
    rows: dict[bytes, bytes] = {}
    offsets: dict[bytes, bytes] = {}
    for queue, entries in queues.items():
        for offset, (place, size, tags) in entries.items():
            rows[key_of(queue, offset)] = struct.pack(">qiqq", place, size, tags, 0)
        final = (last or {}).get(queue, max(entries, default=-1))
        if final >= 0:
            place = entries[final][0] if final in entries else 0
            offsets[max_key_of(queue)] = struct.pack(">qq", place, final)
    offsets[max_key_of(QueueId("CHECKPOINT_TOPIC", 0))] = struct.pack(">q", 0)
    write_database(folder, {"default": rows, "offset": offsets})


def write_database(folder: Path, families: Mapping[str, Mapping[bytes, bytes]]) -> None:
    """A database in `folder` with these families, all of it in tables."""
    database: Any = Rdict(str(folder), options=Options(raw_mode=True))
    for name, rows in families.items():
        family = database
        if name != "default":
            family = database.create_column_family(name, Options(raw_mode=True))
        for key, value in rows.items():
            family[key] = value
        family.flush()
    database.close()
    (folder / "rocksdict-config.json").unlink()


def read_database(folder: Path, copy: Path) -> dict[str, dict[bytes, bytes]]:
    """What a database holds by family, read by the library alone; in a copy, which is made."""
    shutil.copytree(folder, copy)
    options = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(copy))}
    database = Rdict(str(copy), Options(raw_mode=True), options, AccessType.read_only())
    found: dict[str, Any] = {
        name: dict(database.get_column_family(name).items()) for name in options
    }
    database.close()
    return found
