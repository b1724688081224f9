"""What listings alone show to be missing of the files of queues. Reads no queue, and no record."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from rmq_store.config.consumer_offsets import read_consumer_offsets, read_delay_offsets
from rmq_store.config.topics_json import declared_topics, queue_count
from rmq_store.consumequeue.queue_folders import is_queue_id
from rmq_store.errors import CorruptConfigError, StoreError, shown_path
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_DIR
from rmq_store.format.queues import QueueId

_NAMED = 10


def missing_queue_files(
    root: Path, log_start: int, in_database: Collection[QueueId] | None, *, is_listed: bool
) -> Iterator[str]:
    """Sentences on queues without files, and on holes between files; some of many.

    `in_database`: the queues in a database, None if that is not read. `is_listed`: a broker has listed the
    records of the log, and there are some; after a crash it lists the last ones again.
    """
    filled: set[QueueId] = set(in_database or ())
    holes: list[str] = []
    for kind in (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR):
        for topic in _entries(f"{root}/{kind}"):
            for number in _entries(topic.path):
                files = list(_entries(number.path)) if is_queue_id(number.name) else []
                if files:
                    filled.add(QueueId(topic.name, int(number.name)))
                if len(files) > 1 and _may_have_hole(files):
                    holes += _holes_in(number.path)
    yield from _some(sorted(holes))
    if is_listed and in_database is not None:
        yield from _some(_without_files(root, log_start, filled))


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _NAMED
    return [*lines[:_NAMED], *([f"{more} more such places"] if more > 0 else [])]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []  # who reads the queue reports it


def _may_have_hole(files: list[os.DirEntry[str]]) -> bool:
    """Whether files are not all of one size and next to each other, by a look that costs little."""
    try:
        size, *others = {file.stat().st_size for file in files}
        places = [int(file.name) for file in files]
    except (OSError, ValueError):
        return True
    return bool(others) or max(places) - min(places) != size * (len(files) - 1)


def _holes_in(folder: str) -> Iterator[str]:
    try:
        holes = SegmentChain([folder]).holes
    except StoreError as error:
        yield str(error)
        return
    for start, stop in holes:
        yield f"byte {start} to {stop} of the queue in {shown_path(folder)} is in no file"


def _without_files(root: Path, log_start: int, filled: Collection[QueueId]) -> list[str]:
    """Queues that a consumer has read and that have no files, in the topics of topics.json.

    All messages of a queue may have expired, and its files with them: then its topic keeps a folder.
    """
    if not filled:
        return ["the log has records, and no queue has a file"]
    try:
        groups = [*read_consumer_offsets(root).values(), read_delay_offsets(root)]
    except CorruptConfigError:
        return []  # proves nothing
    lost: dict[QueueId, int] = {}
    declared = declared_topics(root)
    for topic, offsets in ((topic, of) for topics in groups for topic, of in topics.items()):
        is_proof = log_start == 0 or not (root / CONSUMEQUEUE_DIR / topic).is_dir()
        for number, offset in offsets.items() if is_proof else ():
            queue = QueueId(topic, number)
            if offset > 0 and queue not in filled and number < queue_count(declared.get(topic)):
                lost[queue] = max(offset, lost.get(queue, 0))
    return [
        f"queue {queue.name} has no files, although a consumer is at queue offset {offset}"
        for queue, offset in sorted(lost.items())
    ]
