"""Store folders as a broker will see them: copied, and with their topics declared."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rmq_store.store import MessageStore

Conf = Mapping[str, str | int | bool]  # settings of a broker
TopicFields = Mapping[str, Any]  # some fields of a TopicConfig, as in config/topics.json

# Another process's lock means nothing in a copy. The wheel (38 MB) and the empty database that 5.4
# and later keep beside the files are created again; golden stores have only a part of the latter.
NOT_COPIED = shutil.ignore_patterns("lock", "timerwheel", "rocksdbstore")
# Only the attribute shows a broker which of the two folders holds a topic's queues; when they
# disagree it does not start.
QUEUE_FOLDERS: dict[str, TopicFields] = {
    "consumequeue": {},
    "batchconsumequeue": {"attributes": {"queue.type": "BatchCQ"}},
}
SIZES = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
# Settings that shape files, or what is in them, by the beginnings of their names.
SHAPING = (
    "mapped",
    "maped",
    "mapper",
    "maxHash",
    "maxIndex",
    "maxMessageSize",
    "messageDelayLevel",
    "enable",
    "transientStorePoolEnable",
    "writeWithoutMmap",
)


def golden_conf(broker_conf: Path) -> dict[str, str | int | bool]:
    """Those settings of a golden store's broker.conf that another broker must repeat."""
    pairs = (line.split("=", 1) for line in broker_conf.read_text().splitlines() if "=" in line)
    return {name: value for name, value in pairs if name.startswith(SHAPING)}


def sizes_of(store: Path) -> dict[str, str | int | bool]:
    """The file sizes of a store, as settings: a broker refuses or misreads files of other sizes."""
    with MessageStore.open(store) as opened:
        found = opened.geometry()
    sizes = {name: getattr(found, name) for name in SIZES}
    return {name: size for name, size in sizes.items() if size}


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store; holes stay holes, so that files of 1 GiB cost what was written to them."""
    shutil.copytree(store, copy, ignore=NOT_COPIED, copy_function=_copy_sparse)
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # the original may be read-only


def _copy_sparse(source: str, target: str) -> str:
    with Path(source).open("rb") as old, Path(target).open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        for start, stop in _extents(old, size):
            old.seek(start)
            new.seek(start)
            while (left := stop - old.tell()) > 0:
                new.write(old.read(min(left, 1 << 20)))
    shutil.copystat(source, target)  # 4.x brokers look at the age of queue files
    return target


def _extents(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: half-open ranges."""
    stop = 0
    while stop < size:
        try:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        yield start, stop


def topics_on_disk(store: Path) -> dict[str, TopicFields]:
    """Topics that have queues in a store, as `declare_topics` takes them."""
    topics: dict[str, TopicFields] = {}
    for kind, extra in QUEUE_FOLDERS.items():
        for topic in sorted((store / kind).glob("*")):
            queues = [int(queue.name) for queue in topic.glob("*") if queue.name.isdecimal()]
            if queues:
                count = max(queues) + 1
                topics[topic.name] = {"readQueueNums": count, "writeQueueNums": count, **extra}
    return topics


def declare_topics(store: Path, topics: Mapping[str, TopicFields]) -> None:
    """Put topics into config/topics.json, which a broker reads when it starts; all readable."""
    path = store / "config/topics.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    stored.setdefault("dataVersion", {"counter": 1, "timestamp": 1})
    table = stored.setdefault("topicConfigTable", {})
    for name, fields in topics.items():
        fresh = {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4}
        table[name] = {**fresh, **table.get(name, {}), **fields, "perm": 6}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored))
