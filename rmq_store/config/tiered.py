"""Tiered storage (messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore): what shows it.

The broker's own store stays as it is; the plugin copies messages to a backend, which keeps them longer than
the log does. `config/tieredStoreMetadata.json` of the store lists the files there (DefaultMetadataStore,
TieredMetadataManager before 5.2). In a file system they are
tieredStoreFilePath/HASH_CLUSTER/BROKER/TOPIC/QUEUE/{COMMIT_LOG,CONSUME_QUEUE,INDEX}/ (PosixFileSegment).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_store.config.json_files import read_config, whole_number
from rmq_store.errors import AccessError, StoreError, shown_path
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.queues import QUEUE_ENTRY, QueueId

_METADATA = "tieredStoreMetadata.json"
_QUEUE_FILES, _DELETED = "consumeQueueFileSegmentTable", 2
_KINDS = frozenset(("COMMIT_LOG", "CONSUME_QUEUE"))
_FOLDERS_ABOVE = 4  # cluster, broker, topic and queue, below tieredStoreFilePath
_LOOKED_AT = 20  # folders in each of these


@dataclass(frozen=True, slots=True)
class TieredQueues:
    """What a broker has copied to tiered storage. `first`: queue -> its first queue offset there; None if
    the list of files at `path` cannot be read."""

    path: str
    first: Mapping[QueueId, int] | None

    def __str__(self) -> str:
        count = None if self.first is None else len(self.first)
        queues = "" if count is None else f" of {count} queue{'s' if count != 1 else ''}"
        return (
            f"the broker copies messages{queues} to tiered storage ({shown_path(self.path)}), which is not "
            "read: rmqstore reads those on the broker's disk"
        )

    def with_older(self, begins: Mapping[QueueId, int]) -> list[QueueId]:
        """The queues with messages there that are older than the first one here, sorted.

        `begins`: queue -> the first queue offset here; the end of a queue without messages.
        """
        first_offsets = {} if self.first is None else self.first
        return sorted(q for q, first in first_offsets.items() if q in begins and first < begins[q])


def tiered_queues(store: str | os.PathLike[str]) -> TieredQueues | None:
    """What the broker of a store has copied to tiered storage; None if it has no such plugin.

    Raises AccessError.
    """
    path = os.fspath(Path(store) / CONFIG_DIR / _METADATA)
    try:
        file = read_config(store, _METADATA, lambda _, content: _first_offsets(content))
    except AccessError:
        raise
    except StoreError:
        return TieredQueues(path, None)
    return None if file is None else TieredQueues(os.fspath(file.path), file.value)


def _first_offsets(content: Mapping[str, Any]) -> dict[QueueId, int]:
    first_offsets: dict[QueueId, int] = {}
    for segment in _segments(content.get(_QUEUE_FILES)):
        queue, base = _queue_of(segment), whole_number(segment.get("baseOffset"), 63)
        if queue is None or base is None or base < 0 or segment.get("status") == _DELETED:
            continue
        first = base // QUEUE_ENTRY.itemsize
        first_offsets[queue] = min(first, first_offsets.get(queue, first))
    return first_offsets


def _segments(table: Any) -> Iterator[Mapping[str, Any]]:
    """The files of a table: path -> offset -> what is known of the file."""
    for by_offset in table.values() if isinstance(table, dict) else ():
        for segment in by_offset.values() if isinstance(by_offset, dict) else ():
            if isinstance(segment, dict):
                yield segment


def _queue_of(segment: Mapping[str, Any]) -> QueueId | None:
    """The queue of a file, by its path: BROKER/TOPIC/QUEUE."""
    parts = str(segment.get("path")).split("/")
    number = parts[-1]
    if len(parts) < 3 or not (number.isascii() and number.isdigit()):
        return None
    return QueueId(parts[-2], int(number))


def is_tiered_folder(folder: Path) -> bool:
    """Whether a folder is tieredStoreFilePath, or one below it. Looks at a few folders in each."""
    if folder.name in _KINDS:
        return True
    below = [folder]
    for _ in range(_FOLDERS_ABOVE + 1):
        below = [child for above in below[:_LOOKED_AT] for child in folders_in(above, _LOOKED_AT)]
        if any(child.name in _KINDS for child in below):
            return True
    return False


def folders_in(folder: Path, most: int) -> list[Path]:
    """The first folders by name; none of a folder that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
    except OSError:
        return []
    return [Path(path) for path in folders[:most]]
