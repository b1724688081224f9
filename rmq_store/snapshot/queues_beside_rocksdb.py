"""Whether queue files and the RocksDB database beside them list all records of the log.

Files that end before the log are no loss: the later records are listed as a broker's dispatch does
(`undispatched_records`). Files that begin late are one: a broker that starts to write them later
does not write the entries of earlier records.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.record_or_gap import SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.config.rocksdb import has_queue_files, rocksdb_queues
from rmq_store.errors import LogOffset, UnsupportedStoreError
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_view import QueueView

_LOOKED_AT = 16 << 20  # bytes of the log; the largest record has about four


class _Listing(NamedTuple):
    """A record at the start of the log, and the queue that it belongs to."""

    queue: QueueId
    offset: int
    log_offset: int


def refuse_late_files(view: QueueView) -> None:
    """Raise UnsupportedStoreError if records at the start of the log are in no queue file beside a database.

    They are in the database alone, if it was not read, or in no queue at all.

    Reads the first records of the log, until one is in a queue file. One whose queue offset was used
    again, or whose topic is not declared any more, proves nothing: its topic was deleted.
    """
    database = rocksdb_queues(view.root)
    if database is None or not has_queue_files(view.root):
        return
    first: _Listing | None = None
    for record in _first_records(view):
        first = first or record
        listed = _is_listed(view, record)
        if listed:
            return
        if listed is False:
            break
    unread = view.unread_database
    how = "" if unread is None or unread.advice is None else f"{unread.advice}. "
    if first is not None:
        raise UnsupportedStoreError(
            database,
            offset=LogOffset(first.log_offset),
            reason="the queue files of this store do not list the first records of the log: "
            + ("nor does" if unread is None else "those entries are in")
            + " the RocksDB database"
            + ("" if unread is None else f" alone, which was not read ({unread.reason})")
            + f". The first such record is number {first.offset} of queue {first.queue.topic}/"
            f"{first.queue.queue_id}",
            advice=f"{how}Read the log itself (Spark: source=commitlog), or let "
            "rmqstore rebuild write queue files in a new store",
        )


def _first_records(view: QueueView) -> list[_Listing]:
    start = view.log.start
    stop = min(view.snapshot.log_end, start + _LOOKED_AT)
    for piece in walk(view.log, start, stop):
        if not isinstance(piece, SoundRun):
            continue
        found = view.requests_of(DecodedRecords.of(piece.headers), lmq=False)
        if len(found):
            return [
                _Listing(found.queues[queue], offset, place)
                for queue, offset, place in zip(
                    found.queue.tolist(),
                    found.offset.tolist(),
                    found.log_offset.tolist(),
                    strict=True,
                )
            ]
    return []


def _is_listed(view: QueueView, record: _Listing) -> bool | None:
    """Whether an entry leads to the record; None if its topic was deleted since."""
    state = view.snapshot.queues.get(record.queue)
    if state is None:
        deleted = bool(view.topics.declared) and record.queue.topic not in view.topics.declared
        return None if deleted else False
    if record.offset < state.min_offset:
        return False
    entries = view.entries(record.queue, record.offset, record.offset + 1)
    if record.log_offset in entries.log_offset.tolist():
        return True
    later = len(entries) > 0 and int(entries.log_offset.max()) > record.log_offset
    return None if later else False
