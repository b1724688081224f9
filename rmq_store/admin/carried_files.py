"""What a new store gets of another one besides log, queues and index: configuration, state of the broker, and
which of its topics have BatchConsumeQueues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    DELAY_FILE,
    consumer_file,
    decode_consumer_offsets,
    offset_by_queue_id,
    offset_tables,
)
from rmq_store.config.json_files import (
    ConfigFile,
    Decode,
    T,
    exists_or_is_link,
    read_config,
    to_fastjson,
    undecoded,
)
from rmq_store.config.rocksdb import GROUPS_FILE, names_in_databases
from rmq_store.config.topics_json import (
    BATCH,
    TOPICS_FILE,
    declared_topics,
    decode_topics,
    is_compacted,
    update_topics,
)
from rmq_store.consumequeue.queue_files import queue_folder
from rmq_store.errors import LOG, CorruptConfigError, from_os_error, printable
from rmq_store.files.durable_files import copy_stored, is_small_file
from rmq_store.files.rocksdb import had_database
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    COMPACTION_DIR,
    CONFIG_DIR,
    ROCKSDB_STORE_DIR,
    TIMER_CHECK,
    TIMER_LOG,
    TIMER_WHEEL,
)
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import is_system_topic
from rmq_store.reading.store_reader import StoreReader

_WITHOUT_OFFSETS = (GROUPS_FILE, "consumerFilter.json", "messageRequestMode.json")
_POP_DATABASE = "kvStore"  # with popConsumerKVServiceEnable: what was given and not acknowledged


# --- as they are, for a store with the same offsets ------------------------------------------------


def copy_config(source: Path, root: Path) -> None:
    """Copy config/ with all its content, if the source has one; write what databases hold as JSON files.

    A warning names a database that cannot be read. Raises AccessError for an unreadable file: without it,
    the target would start with other topics and without the groups' offsets.
    """
    origin = source / CONFIG_DIR
    if not exists_or_is_link(origin):
        return

    def refused(error: OSError) -> None:
        raise from_os_error(error.filename or origin, error, "copying the configuration") from error

    for folder, inside, names in os.walk(origin, onerror=refused):
        inside[:] = [name for name in inside if not had_database(Path(folder) / name)]
        copies = root / CONFIG_DIR / Path(folder).relative_to(origin)
        copies.mkdir(exist_ok=True)
        for name in names:
            path = Path(folder) / name
            if not is_small_file(path):
                LOG.warning("passed over %s: not a file, or too large", printable(str(path)))
                continue
            try:
                shutil.copy2(path, copies / name)
            except PermissionError as error:
                refused(error)
    for name in names_in_databases(source):
        try:
            file = read_config(source, name, undecoded)
            if file is not None:
                write_config(root, name, file.path, dict(file.content))
        except CorruptConfigError as error:
            LOG.warning("the new store is without this part of the configuration: %s", error)


def write_config(root: Path, name: str, source: Path, content: dict[str, Any]) -> None:
    """Write a JSON file of the configuration as a broker does. `source`: the file that it was read from."""
    for table in ("offsetTable", "pullOffsetTable"):  # a broker writes their numbers without quotes
        if table in content:
            rows = content[table].items()
            content[table] = {key: offset_by_queue_id(source, queues) for key, queues in rows}
    (root / CONFIG_DIR / name).write_text(to_fastjson(content), "utf-8")


def copy_state(source: Path, root: Path, *, same_log_offsets: bool) -> tuple[str, ...]:
    """Copy the files of compaction topics, of pop, of the timer, and the database of timers and transactions.
    Returns the names of what is left out.

    What the timer has read it finds by log offset. Without these files it reads all its messages again, if
    its checkpoint is not there either.
    """
    by_log_offset = (ROCKSDB_STORE_DIR,) if same_log_offsets else ()
    for folder in (COMPACTION_DIR, _POP_DATABASE, *by_log_offset):
        for file in _files_in(source / folder):
            _copy(file, root / file.relative_to(source))
    check = Path(CONFIG_DIR, TIMER_CHECK)
    if not (source / check).exists():
        return ()
    wheels = (path for path in sorted(source.glob(f"{TIMER_WHEEL}*")) if path.is_file())
    files = [*_files_in(source / TIMER_LOG), *wheels]
    if not same_log_offsets or not any(file.parent.name == TIMER_LOG for file in files):
        (root / check).unlink(missing_ok=True)
        return (str(check), *((TIMER_LOG,) if not same_log_offsets else ()))
    for file in files:
        _copy(file, root / file.relative_to(source))
    return ()


def _files_in(folder: Path) -> Iterator[Path]:
    """All files under a folder; none if it is not there."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise from_os_error(error.filename or folder, error, "copying") from error

    for inside, _, names in os.walk(folder, onerror=refused):
        for path in (Path(inside) / name for name in sorted(names)):
            if path.is_symlink() or not path.is_file():
                LOG.warning("passed over %s: not a file", printable(str(path)))
            else:
                yield path


def _copy(path: Path, copy: Path) -> None:
    """Copy a file without its holes, again if an earlier run did: it may not have come to its end."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.unlink(missing_ok=True)
    size = path.stat().st_size
    copy_stored(path, copy, size, size)


# --- with other offsets ---------------------------------------------------------------------------


class AdaptedConfig:
    """The configuration of a store as one with other queue offsets gets it.

    `unread` says of each file that cannot be read what it holds and why: damage of the configuration does not
    keep the messages back.
    """

    def __init__(self, source: Path, enable_lmq: bool | None) -> None:
        self._source = source
        self.unread: list[str] = []
        self._topics = self._read(TOPICS_FILE, decode_topics)
        self._name = CONSUMER_FILES[0]
        try:
            self._name = consumer_file(source, enable_lmq)
        except CorruptConfigError as error:
            self.unread.append(str(error))
        self._offsets = self._read(self._name, decode_consumer_offsets)

    def _read(self, name: str, decode: Decode[T]) -> ConfigFile[T] | None:
        try:
            return read_config(self._source, name, decode)
        except CorruptConfigError as error:
            self.unread.append(str(error))
            return None

    @property
    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Each offset that a group committed: group, topic, queueId and offset."""
        for offset in () if self._offsets is None else self._offsets.value:
            if offset.kind in ("consumer", "lmq"):
                yield offset.group, *offset.queue, offset.offset

    def write_files_without_offsets(self, root: Path) -> None:
        """Write the files that name no offset. Compaction topics become plain ones: their last messages were
        in files that the new store does not have."""
        if self._topics is not None:
            content = dict(self._topics.content)
            table = {name: _uncompacted(topic) for name, topic in self._topics.value.items()}
            content["topicConfigTable"] = table
            write_config(root, TOPICS_FILE, self._topics.path, content)
        for name in _WITHOUT_OFFSETS:
            file = self._read(name, undecoded)
            if file is not None:
                write_config(root, name, file.path, dict(file.content))

    def write_offsets(self, root: Path, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Write the groups' offsets: `topic@group` -> queueId -> offset."""
        file = self._offsets
        if file is not None:
            kept = ("dataVersion", "groupTopicMap")
            content = {key: file.content[key] for key in kept if key in file.content}
            # A broker of files reads it, also where this is of a database.
            tables = offset_tables(self._name, offsets)
            write_config(root, self._name, file.path, content | tables)


def _uncompacted(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not is_compacted(settings):
        return dict(settings)
    attributes = {k: v for k, v in settings["attributes"].items() if k != "cleanup.policy"}
    return {**settings, "attributes": attributes}


def write_zero_delay_offsets(root: Path, queue_ids: Iterable[int]) -> None:
    """Write that nothing of these queues of delay levels was delivered."""
    table = {queue_id + 1: 0 for queue_id in queue_ids}
    (root / CONFIG_DIR / DELAY_FILE).write_text(to_fastjson({"offsetTable": table}), "utf-8")


@dataclass(slots=True)
class TopicKinds:
    """What is known of the topics of a store, for the new store that is made of its log.

    What topics.json declares counts. For another topic its folder proves the kind, and so does a
    record with an inner batch.
    """

    declared: frozenset[str]
    plain: frozenset[str]  # others, by their folders in consumequeue/
    batch: dict[str, set[int]]  # others with BatchConsumeQueues, and their queues

    @classmethod
    def of(cls, store: StoreReader) -> TopicKinds:
        """What the files of a store say. Raises AccessError."""
        declared = frozenset(declared_topics(store.path))
        batch: dict[str, set[int]] = {}
        plain = set()
        for queue, is_batch in store.view.folders().items():
            if is_batch and queue.topic not in declared:
                batch.setdefault(queue.topic, set()).add(queue.queue_id)
            elif not is_batch:
                plain.add(queue.topic)
        return cls(declared, frozenset(plain - declared - set(batch)), batch)

    def make_batch_folders(self, root: Path) -> None:
        """Make the folders of the batch queues in a new store, so that its recovery knows them."""
        for topic, numbers in self.batch.items():
            for number in numbers:
                folder = queue_folder(root, BATCH_CONSUMEQUEUE_DIR, QueueId(topic, number))
                Path(folder).mkdir(parents=True, exist_ok=True)

    def add_batch_topics(self, batch_topics: Iterable[str], queues: Iterable[QueueId]) -> bool:
        """Note the topics of inner batches among the `queues` of a recovery.

        Returns whether there is a new one. Its messages without an inner batch belong into batch queues
        too, and the recovery did not know that.
        """
        new = set(batch_topics) - self.declared - set(self.batch)
        for queue in queues:
            if queue.topic in new:
                self.batch.setdefault(queue.topic, set()).add(queue.queue_id)
        return bool(new)

    def declare_batch_topics(self, root: Path, release: Dialect, queues: Iterable[QueueId]) -> None:
        """Declare in a new store the batch topics that are not declared; all if none is."""
        made = [queue for queue in queues if not self.declared or queue.topic in self.batch]
        if made:
            batch = {topic: BATCH for topic in self.batch if any(q.topic == topic for q in made)}
            update_topics(root, release, made, batch)

    def unknown(self, queues: Iterable[QueueId]) -> tuple[str, ...]:
        """Topics with queues whose kind nothing says: they are made as plain ones."""
        known = self.declared | self.plain | set(self.batch)
        topics = {queue.topic for queue in queues}
        return tuple(sorted(name for name in topics - known if not is_system_topic(name)))
