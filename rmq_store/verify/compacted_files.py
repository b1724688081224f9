"""The files for compaction compared with each other, and with the queues that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rmq_store.arrow import compute as pc
from rmq_store.consumequeue.compacted_queue import ADVICE, CompactedQueue
from rmq_store.consumequeue.queue_files import queue_folder
from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import COMPACTION_QUEUE_DIR, Ints
from rmq_store.format.hashes import tags_code
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, QueueId, QueueSlice
from rmq_store.reading.store_reader import StoreReader
from rmq_store.text.sizes import counted
from rmq_store.verify.findings import BEING_WRITTEN, Finding, a_note, a_warning, an_error

_UNUSED = (
    "Nothing is read by these fields: a broker hands out the messages whatever their tags. Other bytes near "
    "them may be damaged too"
)
_LOST = (
    "A pair of files of compactionLog and compactionCq may be gone, or the topic had another cleanup.policy "
    "for a while. source=commitlog and compacted=False have the messages"
)


def compaction_findings(store: StoreReader) -> Iterator[Finding]:
    """Findings about the queues that a broker answers from `compaction/`.

    Every entry is held against its record, every record against its CRC, and the messages that are there
    against the last ones of their keys in the queue.
    """
    for queue in store.served.compacted_queues():
        files = store.served.compacted_or_error(queue)
        if isinstance(files, CompactedQueue):
            findings = list(_findings_of(store, queue, files))
            lost = files.replaced()
            if lost is None:
                yield from findings
            else:
                yield a_note(
                    "compaction-replaced",
                    str(lost.path),
                    f"the broker compacted queue {queue.name} while the store was examined: its files "
                    "for compaction were not",
                    BEING_WRITTEN,
                )
        elif files is not None:
            yield _damaged(files)
        else:
            yield from _without_messages(store, queue)


def _without_messages(store: StoreReader, queue: QueueId) -> Iterator[Finding]:
    """The finding for a queue that has a folder here, which a broker makes with a message, and none in it.

    A broker that writes the store, or was killed, may not have copied the first message yet.
    """
    snapshot = store.snapshot()
    state = snapshot.queues.get(queue)
    count = 0 if state is None else state.max_offset - state.min_offset
    if count > (0 if snapshot.closed else 1):
        yield a_warning(
            "compaction-lost",
            queue_folder(store.path, COMPACTION_QUEUE_DIR, queue),
            f"all {counted(count, 'message')} of queue {queue.name} missing in the "
            "compaction log, which has none: no consumer gets them",
            "The files of compactionLog and compactionCq may be gone. Reads have the messages, as if the "
            "topic had no compaction",
            count=count,
        )


def _damaged(error: StoreError) -> Finding:
    found = f" (expected {error.expected}, found {error.actual})" if error.expected else ""
    meaning = f"{error.reason}{found}. The queue cannot be read from its files for compaction"
    return an_error("compaction-damaged", str(error.path), meaning, ADVICE, error.offset)


def _findings_of(store: StoreReader, queue: QueueId, files: CompactedQueue) -> Iterator[Finding]:
    try:
        units = np.concatenate([*files.units(), np.zeros(0, dtype=BATCH_QUEUE_ENTRY)])
        yield from _unlisted(queue, files)
    except StoreError as error:
        yield _damaged(error)
        return
    damage: list[StoreError] = []
    wrong = np.zeros(len(units), dtype=bool)
    for batch in store.read_slices(
        [QueueSlice(queue, *store.served.limits(queue))],
        columns=("queueOffset", "tags", "storeTimestamp", "body"),
        on_damage=damage.append,
        check_ends=False,
    ):
        rows = np.searchsorted(units["base_offset"], batch.column("queueOffset").to_numpy())
        wrong[rows] = _differ(units[rows], batch)
    if damage:
        yield an_error(
            "compaction-dangling-entry",
            files.folder,
            f"{counted(len(damage), 'entry')} of queue {queue.name} leading to no sound "
            f"record in its compaction log; the first: {damage[0]}",
            ADVICE,
            count=len(damage),
        )
    if wrong.any():
        first = int(units["base_offset"][wrong.argmax()])
        path, place = files.place_of(first)
        yield a_warning(
            "compaction-entry-differs",
            path,
            f"{counted(int(wrong.sum()), 'entry')} of queue {queue.name}, the first of "
            f"queue offset {first}, having another tagsCode or storeTimestamp than the record",
            _UNUSED,
            place,
            place + BATCH_QUEUE_ENTRY.itemsize,
            int(wrong.sum()),
        )
    yield from _lost(store, queue, files, units["base_offset"].astype(np.int64))


def _differ(units: Any, batch: Any) -> Any:
    """Which entries have another hash of tags, or another time, than the message."""
    hashes = [0 if tags is None else tags_code(tags) for tags in batch.column("tags").to_pylist()]
    times = batch.column("storeTimestamp").cast("int64").to_numpy()
    other_tags = units["tags_code"] != np.array(hashes, dtype=np.int64)
    return other_tags | (units["store_timestamp"] != times)


def _unlisted(queue: QueueId, files: CompactedQueue) -> Iterator[Finding]:
    """Findings for records between those of two entries, and before that of the first of a file."""
    for base, entries in files.by_file():
        ends: Ints = np.concatenate(([base], (entries.log_offset + entries.size)[:-1]))
        for row in np.flatnonzero(entries.log_offset > ends).tolist():
            start, stop = int(ends[row]), int(entries.log_offset[row])
            yield a_warning(
                "compaction-unlisted",
                files.log.path_at(start),
                f"{stop - start} bytes of the compaction log of queue {queue.name} that no "
                f"entry lists, before the message of queue offset {int(entries.offset[row])}",
                ADVICE,
                start - base,
                stop - base,
            )


def _lost(
    store: StoreReader, queue: QueueId, files: CompactedQueue, offsets: Ints
) -> Iterator[Finding]:
    """The finding for messages that are the last of their keys, and are not there.

    A compaction keeps them, but for those without a body (CompactionLog#shouldRetainMsg). Before the first
    message that is there, the topic may have had no compaction. Behind the last one, a broker that writes the
    store, or starts after a crash, may be about to copy the messages.
    """
    if queue not in store.snapshot().queues:
        return
    low, high = store.view.limits(queue)
    high = min(high, files.max_offset) if files.grows else high
    last: dict[str, tuple[int, bool]] = {}
    for batch in store.read_slices(
        [QueueSlice(queue, max(low, files.min_offset), high)],
        columns=("queueOffset", "keys", "bodyCrc"),
        compacted=False,
        check_crc=False,
        check_ends=False,
        on_damage=lambda _: None,
    ):
        kept = batch.filter(pc.is_valid(batch.column("keys")))
        columns = (kept.column(name).to_pylist() for name in ("queueOffset", "keys", "bodyCrc"))
        for offset, keys, crc in zip(*columns, strict=True):
            if keys.strip():
                last[keys] = max(last.get(keys, (-1, False)), (offset, crc != 0))
    wanted = [offset for offset, has_body in last.values() if has_body]
    lost = np.setdiff1d(np.array(wanted, dtype=np.int64), offsets)
    if len(lost):
        yield a_warning(
            "compaction-lost",
            files.folder,
            f"{counted(len(lost), 'message')} of queue {queue.name}, the last of their keys, missing in the "
            f"compaction log, the first of queue offset {int(lost[0])}: no consumer gets them",
            _LOST,
            count=len(lost),
        )
