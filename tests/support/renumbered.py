"""Golden stores whose records of one queue get other queue offsets, as faults of brokers give them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.golden import GoldenStore

UNIT = 20  # bytes of a queue entry
QUEUE_OFFSET_AT = 20  # in a record


def units_of(store: GoldenStore, topic: str, queue_id: int) -> list[bytes]:
    """The entries of a queue as its files have them, up to the first unit of zeros."""
    raw = b"".join(path.read_bytes() for path in _files(store, topic, queue_id))
    units = [raw[at : at + UNIT] for at in range(0, len(raw), UNIT)]
    return units[: next((n for n, unit in enumerate(units) if not any(unit)), len(units))]


def write_units(store: GoldenStore, topic: str, queue_id: int, units: Sequence[bytes]) -> None:
    """Write the entries of a queue into its existing files, and zeros after them."""
    raw, at = b"".join(units), 0
    for path in _files(store, topic, queue_id):
        size = path.stat().st_size
        path.write_bytes(raw[at : at + size].ljust(size, b"\0"))
        at += size


def renumber(
    store: GoldenStore, topic: str, queue_id: int, offset_of: Callable[[int], int]
) -> list[int]:
    """Give the record of entry n of a queue the queue offset `offset_of(n)`. Returns their log offsets.

    The queue keeps its entries. The CRC of a record does not cover the field.
    """
    places = [struct.unpack_from(">q", unit)[0] for unit in units_of(store, topic, queue_id)]
    logs = {int(path.name): path for path in (Path(store.path) / "commitlog").iterdir()}
    size = next(iter(logs.values())).stat().st_size
    for number, place in enumerate(places):
        with logs[place // size * size].open("r+b") as log:
            log.seek(place % size + QUEUE_OFFSET_AT)
            log.write(struct.pack(">q", offset_of(number)))
    return places


def _files(store: GoldenStore, topic: str, queue_id: int) -> list[Path]:
    return sorted((Path(store.path) / "consumequeue" / topic / str(queue_id)).iterdir())
