"""What queues and index of a store list, read byte by byte without the product, and what its records ask."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rmq_store import QueueId
from tests.support.counted_store import java_hash
from tests.support.golden import Truth, in_a_queue, keys_of

Listed = dict[QueueId, list[tuple[int, int, int]]]
_DELAYED = "SCHEDULE_TOPIC_XXXX"  # whose entries have a time in place of a tag's hash


def queue_entries(root: str | Path) -> Listed:
    """Log offset, size and tag's hash of all entries of all queues, of which the first file is there."""
    listed: Listed = {}
    for folder in sorted(Path(root).glob("consumequeue/*/*")):
        topic, queue = folder.parent.name, QueueId(folder.parent.name, int(folder.name))
        raw = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
        entries = [struct.unpack_from(">qiq", raw, at) for at in range(0, len(raw), 20)]
        while entries and not entries[-1][1]:
            entries.pop()
        listed[queue] = [
            (place, size, tag if topic != _DELAYED else 0) for place, size, tag in entries
        ]
    return listed


def wanted_entries(truth: Iterable[Truth]) -> Listed:
    """The same as the records ask for."""
    listed: Listed = {}
    for record in filter(in_a_queue, truth):
        tag = java_hash(record["tags"] or "") if record["topic"] != _DELAYED else 0
        entry = (record["commitLogOffset"], record["storeSize"], tag)
        listed.setdefault(QueueId(record["topic"], record["queueId"]), []).append(entry)
    return listed


def index_items(root: str | Path) -> Counter[tuple[int, int]]:
    """Key hash and log offset of the items of all index files."""
    items: Counter[tuple[int, int]] = Counter()
    for file in sorted(Path(root, "index").iterdir()):
        raw = file.read_bytes()
        if len(raw) < 40:
            continue
        count = struct.unpack_from(">i", raw, 36)[0]
        room = {8840: 200, 4440: 100}[len(raw)]  # slots of the stores over hours
        at = 40 + 4 * room
        for number in range(1, count):
            items[struct.unpack_from(">iq", raw, at + 20 * number)] += 1
    return items


def wanted_items(truth: Iterable[Truth], *, of_tags: bool) -> Counter[tuple[int, int]]:
    """The same as the records ask for. `of_tags`: as releases from 5.4 on, which list tags too."""
    items: Counter[tuple[int, int]] = Counter()
    for record in truth:
        keys = [f"{record['topic']}#{key}" for key in keys_of(record)]
        keys += [f"{record['topic']}#T#{record['tags']}"] if of_tags and record["tags"] else []
        for key in keys:
            items[abs(java_hash(key)), record["commitLogOffset"]] += 1
    return items


def index_bytes(slots: int, hashes: Sequence[int], places: Sequence[int]) -> bytes:
    """A full index file whose items lead to log offsets, as a broker writes it."""
    heads, items = [0] * slots, [bytes(20)]
    for number, (key_hash, place) in enumerate(zip(hashes, places, strict=True), 1):
        items.append(struct.pack(">iqii", key_hash, place, 0, heads[key_hash % slots]))
        heads[key_hash % slots] = number
    used, count = sum(map(bool, heads)), len(items)
    head = struct.pack(">qqqqii", 1, 1, places[0], places[-1], used, count)
    return head + struct.pack(f">{slots}i", *heads) + b"".join(items) + bytes(20)
