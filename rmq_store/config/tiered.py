"""Tiered storage (messageStorePlugIn=...TieredMessageStore): what shows it, and what it holds.

The broker's own store stays as it is; the plugin copies messages to a backend, by default for longer than
the log has them. `config/tieredStoreMetadata.json` lists the files there (DefaultMetadataStore, from 5.0 on
TieredMetadataManager). In a file system they are
tieredStoreFilePath/HASH_CLUSTER/BROKER/TOPIC/QUEUE/{COMMIT_LOG,CONSUME_QUEUE,INDEX}/ (PosixFileSegment).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rmq_store.config.json_files import read_config, whole_number
from rmq_store.config.topics_json import is_queue_number
from rmq_store.errors import AccessError, StoreError
from rmq_store.format.layout import CONFIG_DIR, QUEUE_ENTRY
from rmq_store.format.queues import QueueId

METADATA = "tieredStoreMetadata.json"
_QUEUE_FILES, _DELETED = "consumeQueueFileSegmentTable", 2
_KINDS = frozenset(("COMMIT_LOG", "CONSUME_QUEUE", "INDEX"))
_DEPTH, _LOOKED_AT = 5, 20  # folders below that path down to those of a kind; of each, so many
_READS = (
    "rmqstore reads what is on the broker's disk. A consumer of the broker gets the older messages"
)


class TieredQueues:
    """The queues that have messages in tiered storage: the first and the last queue offset there, half-open.

    None if the list of files cannot be read.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        """Raises AccessError."""
        self.path = Path(store) / CONFIG_DIR / METADATA
        self.problem: StoreError | None = None
        self.ranges: dict[QueueId, tuple[int, int]] | None = None
        try:
            found = read_config(store, METADATA, lambda _, content: _ranges_in(content))
        except AccessError:
            raise
        except StoreError as error:
            self.problem, self.is_there = error, True
            return
        self.is_there = found is not None
        self.ranges = {} if found is None else found.decoded

    def __str__(self) -> str:
        return f"{self._what()} ({self.path}), which are not read"

    def _what(self) -> str:
        if self.ranges is None:
            return "the broker has copied messages to tiered storage"
        queues, topics = len(self.ranges), len({queue.topic for queue in self.ranges})
        return f"{queues} queues of {topics} topics have messages in tiered storage"
