"""Table `diff`: what two stores of one broker group, such as master and slave, do not have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import WITHIN_THE_LOG, RecordOrGap, walk
from rmq_store.format.byte_layout import Bytes, Ints
from rmq_store.format.queues import Entries, QueueId
from rmq_store.format.record import Gap
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import queue_offset_steps
from rmq_store.tables.files import config_rows
from rmq_store.tables.groups import OFFSETS
from rmq_store.tables.table import LONG, TEXT, Row, Table, table_columns
from rmq_store.text.sizes import counted, size

_STEP = 4 << 20  # bytes of the log that are held at once
_BLOCK = 256 << 10  # bytes that are compared at once, in the processor's cache
_ENTRIES_AT_ONCE = 1 << 16
# A file's version, which differs wherever the file does; and offsets, which have rows of their own.
_LEFT_OUT = ("dataVersion.", "offsetTable.")
_UNLIKE = (
    "only one of the stores has an entry",
    "the entries lead to different messages, by their size",
    "the entries have another tagsCode: of delayed messages the time when they are due",
    "the messages have other places in the log, as after a replay",
)
OnBytes = Callable[[int], None]

DIFF = Table(
    "diff",
    "what two stores of one broker group do not have in common; the command diff prints it",
    table_columns(
        ("what", TEXT, "log, queue, offset or config"),
        ("name", TEXT, "queue, group and queue, or file and value"),
        ("first", LONG, "first log offset or queue offset concerned"),
        ("count", LONG, "bytes of the log or messages of the queue"),
        ("one", TEXT, "what the first store has; null for nothing"),
        ("other", TEXT, "what the second store has"),
        ("meaning", TEXT, "the difference in a sentence"),
    ),
)
_Values = Mapping[tuple[str, ...], Hashable]


def compared_bytes(one: StoreReader, other: StoreReader) -> int:
    """The bytes of the logs that both stores may have: the total that `progress` receives."""
    first, stop = _common(one, other)
    return max(0, stop - first)


def rows_of_differences(
    one: StoreReader, other: StoreReader, progress: OnBytes = lambda count: None
) -> Iterator[Row]:
    """The rows of the table; none if the stores have the same messages, offsets and configuration.

    The bytes of both logs are compared as they are, up to the first record that differs; what brokers
    leave in fillers, and ghosts, are no difference. Queues are compared entry by entry. Raises the
    errors of the reads that it needs.
    """
    yield from _of_logs(one, other, progress)
    for queue in sorted({*one.queues(), *other.queues()}):
        yield from _of_queue(one, other, queue)
    yield from _of_values("offset", _offsets(one), _offsets(other))
    yield from _of_config(one, other)


def _common(one: StoreReader, other: StoreReader) -> tuple[int, int]:
    starts, stops = zip(one.log_range(), other.log_range(), strict=True)
    return max(starts), min(stops)


def _of_logs(one: StoreReader, other: StoreReader, progress: OnBytes) -> Iterator[Row]:
    (start, end), (other_start, other_end) = ranges = one.log_range(), other.log_range()
    row = {"what": "log", "one": _range(*ranges[0]), "other": _range(*ranges[1])}
    first, stop = _common(one, other)
    if first >= stop and ranges[0] != ranges[1]:
        yield row | {"first": first, "meaning": "the logs have no offset in common"}
        return
    if start != other_start:
        who, bytes_ = _longer(start < other_start), abs(start - other_start)
        meaning = f"the log of the {who} store begins {size(bytes_)} earlier"
        yield row | {"first": min(start, other_start), "count": bytes_, "meaning": meaning}
    place = _first_difference(one.log, other.log, first, stop, progress)
    if place is not None:
        pieces = [_piece_over(store.log, place) for store in (one, other)]
        first_ = min(piece.start for piece in pieces)
        meaning = "the logs differ from here on, and were not compared further"
        shown = {"one": str(pieces[0]), "other": str(pieces[1])}
        yield row | shown | {"first": first_, "count": stop - first_, "meaning": meaning}
    if end != other_end:
        who, bytes_ = _longer(end > other_end), abs(end - other_end)
        meaning = f"the log of the {who} store goes on for {size(bytes_)}"
        yield row | {"first": stop, "count": bytes_, "meaning": meaning}


def _range(start: int, end: int) -> str:
    return f"{start} to {end}"


def _longer(is_first: bool) -> str:
    return "first" if is_first else "second"


def _first_difference(
    one: CommitLog, other: CommitLog, start: int, stop: int, progress: OnBytes
) -> int | None:
    """The log offset of the first byte that differs in [start, stop); None without one."""
    at = start
    while at < stop:
        files = [log.chain.segment_at(at) for log in (one, other)]
        if files[0] is None or files[1] is None:
            if files[0] is not files[1]:
                return at
            later = (part.base for log in (one, other) for part in log.chain.segments_from(at))
            end = min(stop, *later)  # of a range that neither log has in a file
        else:
            ends = (one.chain.segment_end(files[0]), other.chain.segment_end(files[1]))
            end = min(stop, at + _STEP, *ends)
            with one.chain.window(at, end) as mine, other.chain.window(at, end) as its:
                unequal = _first_unequal(mine.bytes, its.bytes)
            if unequal is not None:
                pieces = [_piece_over(log, at + unequal) for log in (one, other)]
                if not all(piece.means_nothing for piece in pieces) or pieces[0] != pieces[1]:
                    return at + unequal
                end = pieces[0].stop
        progress(end - at)
        at = end
    return None


def _first_unequal(one: Bytes, other: Bytes) -> int | None:
    for start in range(0, len(one), _BLOCK):
        mine, its = one[start : start + _BLOCK], other[start : start + _BLOCK]
        if not np.array_equal(mine, its):
            return start + int((mine != its).argmax())
    return None


@dataclass(frozen=True, slots=True)
class _Piece:
    """What stands at a place of a log: a record, or a gap."""

    start: int
    stop: int
    what: str
    means_nothing: bool = False  # bytes that no reader of messages looks at

    def __str__(self) -> str:
        return f"{self.what} at {self.start}, {counted(self.stop - self.start, 'byte')}"


def _piece_over(log: CommitLog, place: int) -> _Piece:
    """The record or gap that has the byte at log offset `place`."""
    segment = log.chain.segment_at(place)
    if segment is None:
        return _Piece(place, place, Gap.MISSING.value)
    for piece in walk(log, max(segment.base, log.start), place + 1):
        if isinstance(piece, RecordOrGap):
            if piece.stop > place:
                nothing = piece.gap in WITHIN_THE_LOG
                return _Piece(piece.start, piece.stop, str(piece.gap and piece.gap.value), nothing)
        elif piece.stop > place:
            ends = piece.headers.at + piece.headers.total
            row = int(np.searchsorted(ends, place - segment.base, "right"))
            record = log.record_at(segment.base + int(piece.headers.at[row]))
            topic = record.topic.decode("utf-8", "replace")
            what = f"{topic}/{record.queue_id}@{record.queue_offset}"
            return _Piece(record.physical_offset, record.physical_offset + record.total_size, what)
    return _Piece(place, place, Gap.UNWRITTEN.value)


def _of_queue(one: StoreReader, other: StoreReader, queue: QueueId) -> Iterator[Row]:
    states = [store.view.snapshot.queues.get(queue) for store in (one, other)]
    ranges = [None if its is None else (its.min_offset, its.max_offset) for its in states]
    shown = [None if its is None else _range(*its) for its in ranges]
    row = {"what": "queue", "name": queue.name, "one": shown[0], "other": shown[1]}
    for number, (mine, its) in enumerate(((ranges[0], ranges[1]), (ranges[1], ranges[0]))):
        who = _longer(number == 0)
        if mine is None:
            continue
        if its is None:
            meaning = f"only the {who} store has this queue"
            yield {**row, "first": mine[0], "count": mine[1] - mine[0], "meaning": meaning}
            continue
        for first, stop in ((mine[0], min(mine[1], its[0])), (max(mine[0], its[1]), mine[1])):
            if first < stop:
                meaning = f"only the {who} store has these messages"
                yield {**row, "first": first, "count": stop - first, "meaning": meaning}
    if ranges[0] is not None and ranges[1] is not None:
        first, stop = max(ranges[0][0], ranges[1][0]), min(ranges[0][1], ranges[1][1])
        yield from _of_entries(one, other, queue, first, stop, row)


def _of_entries(
    one: StoreReader, other: StoreReader, queue: QueueId, first: int, stop: int, row: Row
) -> Iterator[Row]:
    """What the entries for the same queue offsets do not have in common."""
    counts, at = [0] * len(_UNLIKE), [0] * len(_UNLIKE)
    steps = queue_offset_steps(one, first, stop, _ENTRIES_AT_ONCE)
    for start in steps:
        end = min(start + steps.step, stop)
        mine, its = (_listed(store, queue, start, end) for store in (one, other))
        _, in_one, in_other = np.intersect1d(
            mine.offset, its.offset, assume_unique=True, return_indices=True
        )
        both, its_both = mine.take(in_one), its.take(in_other)
        lone = Entries.concat([_without(mine, in_one), _without(its, in_other)])
        size = both.size != its_both.size
        tag = ~size & (both.tags_code != its_both.tags_code)
        place = ~size & ~tag & (both.log_offset != its_both.log_offset)
        for number, unlike in enumerate((lone, both.take(size), both.take(tag), both.take(place))):
            if len(unlike) and not counts[number]:
                at[number] = int(unlike.offset.min())
            counts[number] += int(unlike.count.sum())
    for first_unlike, count, meaning in zip(at, counts, _UNLIKE, strict=True):
        if count:
            yield {**row, "first": first_unlike, "count": count, "meaning": meaning}


def _listed(store: StoreReader, queue: QueueId, start: int, stop: int) -> Entries:
    """The entries of a range that lead to a record."""
    entries = store.view.entries_starting_in(queue, start, stop)
    return entries.take(entries.points_to_record)


def _without(entries: Entries, rows: Ints) -> Entries:
    return entries.take(np.delete(np.arange(len(entries)), rows))


def _of_values(what: str, one: _Values, other: _Values) -> Iterator[Row]:
    for key in sorted({*one, *other}):
        mine, its = one.get(key), other.get(key)
        if mine != its:
            yield {
                "what": what,
                "name": " ".join(key),
                "one": None if mine is None else str(mine),
                "other": None if its is None else str(its),
                "meaning": f"{mine} in the first store, {its} in the second"
                if key in one and key in other
                else f"only the {_longer(key in one)} store has it",
            }


def _offsets(store: StoreReader) -> _Values:
    values: dict[tuple[str, ...], Hashable] = {}
    for row in OFFSETS.rows(store):
        queue = f"{row['topic']}/{row['queueId']}"
        values[row["kind"], row.get("consumerGroup") or "", queue] = row["offset"]
    return values


def _of_config(one: StoreReader, other: StoreReader) -> Iterator[Row]:
    """The values that differ; one row for a file that cannot be read, which is not compared."""
    (mine, problem), (its, other_problem) = _config(one), _config(other)
    unread = {*problem, *other_problem}
    for name in sorted(unread):
        both = name in problem and name in other_problem
        stores = "both stores" if both else f"the {_longer(name in problem)} store"
        yield {
            "what": "config",
            "name": name,
            "one": problem.get(name),
            "other": other_problem.get(name),
            "meaning": f"the file cannot be read in {stores}, and was not compared",
        }
    compared = [{key: its[key] for key in its if key[0] not in unread} for its in (mine, its)]
    yield from _of_values("config", *compared)


def _config(store: StoreReader) -> tuple[_Values, dict[str, str]]:
    """The values by file and name, and why files cannot be read."""
    values: dict[tuple[str, ...], Hashable] = {}
    problems: dict[str, str] = {}
    for file, row, pairs in config_rows(store):
        if not pairs:
            problems[file] = row["problem"]
        for name, value in pairs:
            if not name.startswith(_LEFT_OUT):
                values[file, name] = value
    return values, problems
