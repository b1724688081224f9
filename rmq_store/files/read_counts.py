"""How much a reader read so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_store.errors import shown_path


@dataclass(slots=True)
class ReadCounts:
    """What was read: opened files, each once, and requested bytes."""

    files: dict[str, None] = field(default_factory=dict)
    bytes: int = 0


class StoreReads(NamedTuple):
    """The files opened and bytes read in a store. Bodies that no column needs do not count."""

    log: ReadCounts
    queues: ReadCounts
    requests: int = 0  # to an object store
    fetched: int = 0  # bytes that the requests returned

    def __str__(self) -> str:
        return (
            f"read {self.log.bytes} bytes of {len(self.log.files)} files of the log and "
            f"{self.queues.bytes} bytes of {len(self.queues.files)} files of queues: "
            + ", ".join(map(shown_path, (*self.log.files, *self.queues.files)))
        )
