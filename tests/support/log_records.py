"""The records of a log, read and changed byte by byte without the product."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.golden import GoldenStore

BLANK, V2 = 0xCBD43194, 0xDAA320AB
INNER_BASE = re.compile(rb"INNER_BASE\x01\d+")
Parts = tuple[bytes, bytes, bytes, bytes]  # fixed fields without places, body, topic, properties


def records(root: str | Path) -> Iterator[tuple[Path, int, bytes]]:
    """Every record of a whole log: file, place in it, bytes. Read here, and not by the product."""
    for file in sorted((Path(root) / "commitlog").iterdir()):
        at = 0
        with file.open("rb") as log:  # of a gigabyte in a new store, nearly all of it a hole
            while len(head := log.read(8)) == 8:
                size, magic = struct.unpack(">iI", head)
                if size == 0 or magic == BLANK:
                    break
                yield file, at, head + log.read(size - 8)
                at += size


def parts(raw: bytes) -> Parts:
    """What a copy keeps of a record: all but its queueOffset, physicalOffset and size.

    INNER_BASE is a queueOffset too.
    """
    wide = bin(struct.unpack_from(">i", raw, 36)[0] & 0x30).count("1") * 12
    (body_length,) = struct.unpack_from(">i", raw, 84 + wide)
    body_at = 88 + wide
    topic_at, form = body_at + body_length, ">h" if raw[4:8] == V2.to_bytes(4, "big") else ">b"
    (topic_length,) = struct.unpack_from(form, raw, topic_at)
    topic_at += struct.calcsize(form)
    rest = topic_at + topic_length
    fixed = raw[8:20] + raw[36 : 84 + wide]
    return (
        fixed,
        raw[body_at : body_at + body_length],
        raw[topic_at:rest],
        INNER_BASE.sub(b"", raw[rest + 2 :]),
    )


class Fields(NamedTuple):
    """A record as its bytes say."""

    log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    half_offset: int  # preparedTransactionOffset
    body: bytes
    properties: dict[str, str]

    @property
    def keys(self) -> str:
        """KEYS; empty without them."""
        return self.properties.get("KEYS", "")


def fields(root: str | Path) -> list[Fields]:
    """The records of a whole log, in their order."""
    found = []
    for file, at, raw in records(root):
        wide = bin(struct.unpack_from(">i", raw, 36)[0] & 0x30).count("1") * 12
        (queue_id,), (offset,) = (
            struct.unpack_from(">i", raw, 12),
            struct.unpack_from(">q", raw, 20),
        )
        (half,) = struct.unpack_from(">q", raw, 76 + wide)
        _, body, topic, properties = parts(raw)
        items = (item.partition(b"\x01") for item in properties.split(b"\x02") if item)
        named = {name.decode(): value.decode() for name, _, value in items}
        place = int(file.name) + at
        found.append(Fields(place, topic.decode(), queue_id, offset, half, body, named))
    return found


def contents(root: str | Path) -> list[Parts]:
    return [parts(raw) for _, _, raw in records(root)]


def rename(store: GoldenStore, old: bytes, new: bytes) -> int:
    """Give the records of a topic another one of the same length, which no CRC covers."""
    assert len(old) == len(new)
    changed = 0
    for file, at, raw in list(records(store.path)):
        if parts(raw)[2] == old:
            place = at + raw.rindex(old, 0, len(raw) - 2 - len(parts(raw)[3]))
            with file.open("r+b") as log:
                log.seek(place)
                log.write(new)
            changed += 1
    assert changed
    return changed
