"""Where a broker keeps queues and configuration in RocksDB databases (storeType=defaultRocksDB).

Queue files may be beside them: a broker with rocksdbCQDoubleWriteEnable=true, or with both kinds in
combineCQLoadingCQTypes, writes both (CombineConsumeQueueStore).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rmq_store.config.rocksdb_config import names_in_databases
from rmq_store.errors import UnsupportedStoreError, from_os_error
from rmq_store.files.rocksdb import has_database
from rmq_store.files.segments import list_segments
from rmq_store.format.byte_layout import CONFIG_DIR, CONSUMEQUEUE_DIR, CONSUMEQUEUE_ROCKSDB_DIR

# The second with useSeparateStorePathForRocksdbCQ.
_FOLDERS = (CONSUMEQUEUE_DIR, CONSUMEQUEUE_ROCKSDB_DIR)


def rocksdb_queues(root: Path) -> Path | None:
    """The folder of the database with this store's queues; None if there is none."""
    return next((root / name for name in _FOLDERS if has_database(root / name)), None)


def refuse_rocksdb(root: Path) -> None:
    """Raise UnsupportedStoreError if the queues are in a database, for writers.

    They would leave the database behind the log and the queue files.
    """
    database = rocksdb_queues(root)
    if database is None:
        return
    raise UnsupportedStoreError(
        database,
        reason="the queues of this store are in a RocksDB database too, which rmqstore does not "
        "change: it would contradict the queue files and the log afterwards",
        advice="Reading and rmqstore verify need no change. To repair, let the broker start on a "
        "copy, or use rmqstore rebuild, which writes a new store without the database",
    )


def refuse_rocksdb_config(root: Path) -> None:
    """Raise UnsupportedStoreError if the broker keeps topics or offsets in a database, for those who write
    JSON files: a broker may not read these."""
    names = names_in_databases(root)
    if names:
        raise UnsupportedStoreError(
            root / CONFIG_DIR,
            reason=f"the broker keeps what {' and '.join(names)} would hold in a RocksDB database, which "
            "rmqstore does not change",
            advice="Change it with the broker's mqadmin, or use rmqstore rebuild, which writes a new store "
            "with JSON files",
        )


def has_queue_files(root: Path) -> bool:
    """Whether some queue has a file."""
    return any(_queue_files(root))


def _queue_files(root: Path) -> Iterator[str]:
    """The folders of queues that have a file."""
    try:
        with os.scandir(root / CONSUMEQUEUE_DIR) as topics:
            for topic in topics:
                if topic.is_dir():
                    with os.scandir(topic.path) as queues:
                        yield from (queue.path for queue in queues if list_segments([queue.path]))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise from_os_error(root / CONSUMEQUEUE_DIR, error, "listing queues") from error
