"""Follow a log while a broker writes it: places, how far it is whole, and whether it is the same.

A place is an offset of the log with digests of bytes before it. So a follower that comes back later
notices a log that was cut behind it, and another store at the same path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.resync import next_start
from rmq_store.errors import DataLossError, LogCutError, OtherStoreError
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_view import QueueView

_MARK_BYTES = 4096
_ZEROS_LOOKED_AT = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """The digest of the bytes [start, stop) of a log."""

    start: int
    stop: int
    digest: str

    @classmethod
    def of(cls, log: CommitLog, start: int, stop: int) -> Mark | None:
        """The mark of a range within one file; None if the log does not have all of it."""
        segment = log.chain.segment_at(start)
        if segment is None or not start < stop <= log.chain.segment_end(segment):
            return None
        raw = log.chain.window(start, stop).tobytes()
        log.chain.check_reads()
        return cls(start, stop, hashlib.blake2b(raw, digest_size=8).hexdigest())


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log offset up to which a follower has read. Small, however large the store is.

    `before`: bytes right before the offset. `first`: the first bytes of the log at that time.
    """

    offset: int
    before: Mark | None = None
    first: Mark | None = None

    @classmethod
    def at(cls, log: CommitLog, offset: int) -> LogPlace:
        """The place at an offset where a record ends, or a file."""
        start = log.start
        file_start = (offset - 1) // log.chain.file_size * log.chain.file_size
        before = Mark.of(log, max(start, file_start, offset - _MARK_BYTES), offset)
        first_end = min(offset, start + _MARK_BYTES, start + log.chain.file_size)
        return cls(offset, before, Mark.of(log, start, first_end))


def check_place(log: CommitLog, place: LogPlace, path: str) -> None:
    """Check that a log still continues at a place.

    Raises OtherStoreError if the log began with other bytes, LogCutError if the bytes before the
    place are gone or others, DataLossError if the place has expired.
    """
    if place.first is not None:
        now = Mark.of(log, place.first.start, place.first.stop)
        if now is not None and now != place.first:
            raise OtherStoreError(
                path,
                offset=place.first.start,
                reason="another store is at this path: its log begins with other bytes",
                expected=place.first.digest,
                actual=now.digest,
                advice="Start a new query with another checkpoint, or put the store back",
            )
    if place.offset < log.start:
        raise DataLossError(
            path,
            offset=place.offset,
            reason="files of the log expired before the stream read them",
            expected=f"the log from {place.offset} on",
            actual=f"the log from {log.start} on",
            advice="Set failOnDataLoss=false to continue with what is left, and read more often "
            "than files expire",
        )
    if place.before is not None and place.before.start >= log.start:
        now = Mark.of(log, place.before.start, place.before.stop)
        if now != place.before:
            raise LogCutError(
                path,
                offset=place.offset,
                reason="the log was cut behind what the stream has already returned: a broker "
                "lost what it had not flushed",
                expected=f"the bytes that ended at {place.offset}",
                actual="other bytes"
                if now is not None
                else f"a log that ends before {place.offset}",
                advice="Rows after the cut may be in the result although the broker lost them; "
                "failOnDataLoss=false continues at the end of the log",
            )


def whole_end(log: CommitLog, start: int, listed_end: Callable[[], int]) -> int:
    """The end of the last record that is whole, at or after `start`.

    A torn end is not included: a broker may be writing it. Damage is, if a later file or an entry
    of a queue proves that the log continues after it. `listed_end` gives the end of the last record
    that a queue lists, and is called only if the bytes do not decide.
    """
    last = log.last_record_file()
    if last is None:
        return max(start, log.start)
    end, doubtful = _run_end(log, max(start, last.base))
    file_end = log.chain.segment_end(last)
    while end < file_end:
        window = log.chain.window(end, min(end + _ZEROS_LOOKED_AT, file_end))
        zeros = not window.any()
        log.chain.check_reads()
        if end > start and zeros:
            return end
        proven = listed_end()
        if end < doubtful <= proven:
            end = doubtful
            continue
        following = log.next_record(last, end + 1, file_end) if proven > end else None
        if following is None or following >= proven:
            return end
        stop, doubtful = _run_end(log, following)
        end = max(stop, following)
    return end


def dispatched_end(view: QueueView, queues: Iterable[QueueId]) -> int:
    """The end of the last record that a queue's files list; 0 without any."""
    ends = [0]
    for queue in queues:
        state = view.state(queue)
        last = state.max_offset if state.batch else state.file_stop
        listed = last > state.min_offset and (state.tail is None or not state.batch)
        entry = view.entry_at(queue, last - 1) if listed else None
        if entry is not None:
            ends.append(int(entry.log_offset + entry.size))
    return max(ends)


def _run_end(log: CommitLog, start: int) -> tuple[int, int]:
    """The end of the run of records at `start` without a doubtful last one, and with it.

    A broker copies a record from front to back, and its body's CRC does not cover what follows the
    body. So a last record that ends with a zero may be half there.
    """
    end = start
    for segment, window, positions in log.runs_from(start):
        at = int(positions[-1])
        stop = at + int.from_bytes(window[at : at + 4].tobytes(), "big")
        end = segment.base + stop
        last = segment.base + at if not window[stop - 1] else end
    return (start, start) if end == start else (last, end)


def end_by_bytes(log: CommitLog, start: int, end: int, most: int) -> int:
    """The end of the record that contains offset `start + most`, or `end` if that is earlier."""
    cut = start + most
    segment = log.chain.segment_at(cut) if cut < end else None
    return end if segment is None else min(end, next_start(log, segment, cut)[0])


def end_by_rows(batches: Iterator[pa.RecordBatch], end: int, most: int) -> int:
    """The end of the record with the last of at most `most` rows, but of at least one record.

    `batches`: rows from the start on in log order, with commitLogOffset and storeSize. Returns
    `end` if there are no more rows.
    """
    count = 0
    last: tuple[int, int] | None = None  # the record that a further row must not be in
    for batch in batches:
        offsets, sizes = (batch[n].to_pylist() for n in ("commitLogOffset", "storeSize"))
        if count + batch.num_rows <= most and batch.num_rows:
            count += batch.num_rows
            last = offsets[-1], sizes[-1]
            continue
        for offset, size in zip(offsets, sizes, strict=True):
            if count >= most and last is not None and offset != last[0]:
                return last[0] + last[1]
            count += 1
            last = offset, size
    return end
