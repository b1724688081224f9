"""The folders of all queues of a store: the existing queues and their files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_files import QueueFiles
from rmq_store.errors import from_os_error
from rmq_store.escaping import is_utf8, printable
from rmq_store.files.safe_paths import path_inside
from rmq_store.files.source import ReadCounts, Sources
from rmq_store.format.layout import BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_DIR
from rmq_store.format.queues import QueueId

LOG = logging.getLogger("rmqstore")
_LAST_ID, _DIGITS = 2**31 - 1, 10  # a Java int
_QUEUE_FILES_KEPT = 16  # open; to open one again costs some microseconds
_REMOTE_BLOCK = 16 << 10  # small, because the search for a queue's end reads a few distant places


def queue_folder(root: str | os.PathLike[str], kind: str, queue: QueueId) -> str:
    """The folder of a queue's files. `kind`: CONSUMEQUEUE_DIR or its like.

    Raises UnsafeNameError for a topic that is no folder name: records of a foreign log may say any.
    """
    return path_inside(os.path.join(root, kind), queue.topic, str(queue.queue_id))


class QueueFolders:
    """The queues of a store on disk, and their files, opened on demand."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.root = root
        self.config = config
        self._sources = Sources(_QUEUE_FILES_KEPT, block=_REMOTE_BLOCK)
        self._open: dict[QueueId, QueueFiles] = {}

    @property
    def counts(self) -> ReadCounts:
        """What was read from all queues."""
        return self._sources.counts

    def listed(self) -> dict[QueueId, bool]:
        """Every queue that has a folder -> whether it is a BatchConsumeQueue. Sorted."""
        found: dict[QueueId, bool] = {}
        for name, batch in ((CONSUMEQUEUE_DIR, False), (BATCH_CONSUMEQUEUE_DIR, True)):
            for queue in _queue_folders(self.root / name):
                found.setdefault(queue, batch)
        return dict(sorted(found.items()))  # a file system has an order of its own

    def files(self, queue: QueueId, *, batch: bool = False) -> QueueFiles:
        """The files of a queue."""
        files = self._open.get(queue)
        if files is None:
            folder = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            size = (
                self.config.mapperFileSizeBatchConsumeQueue
                if batch
                else self.config.mappedFileSizeConsumeQueue and self.config.queue_file_size
            )
            files = self._open[queue] = QueueFiles(
                queue_folder(self.root, folder, queue),
                batch=batch,
                file_size=size,
                sources=self._sources,
            )
        return files

    def release(self) -> None:
        """Close the files of a local store; the next read opens them again."""
        self._sources.release()

    def close(self) -> None:
        """Close all files."""
        self._sources.clear()
        self._open.clear()


def _queue_folders(folder: Path) -> Iterable[QueueId]:
    for topic in _folders_in(folder):
        if not is_utf8(topic.name):  # a broker takes the name from a topic, which is UTF-8
            LOG.warning("passed over %s, whose name is not UTF-8", printable(topic.path))
            continue
        for queue in _folders_in(topic.path):
            if is_queue_id(queue.name):
                yield QueueId(topic.name, int(queue.name))
            elif queue.name.isdigit():
                LOG.warning("passed over %s: no queue has this id", printable(queue.path))


def is_queue_id(name: str) -> bool:
    """Whether a folder's name is a queue id: a Java int, in ASCII digits."""
    return name.isascii() and name.isdigit() and len(name) <= _DIGITS and int(name) <= _LAST_ID


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link that leads to itself
        LOG.warning("passed over %s: %s", printable(entry.path), error.strerror)
        return False


def _folders_in(folder: str | Path) -> list[os.DirEntry[str]]:
    """The folders that exist now; a missing or deleted parent counts as empty."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise from_os_error(folder, error, "listing queues") from error
