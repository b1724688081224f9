"""queryMessage: messages by a word of KEYS or by UNIQ_KEY, from the index and uncovered log ranges.

An index item is a hint: every hit is checked against its record. Ranges that no index file covers
(after the last file, a gap after a crash, a store without an index) are read from the log once and
cached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_values import DecodedRecords, stored_properties, stored_topics
from rmq_store.arrow.property_columns import decode_property_columns
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import SoundRun, current_end, error_of_unreadable_record, walk
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import (
    CorruptIndexError,
    CorruptRecordError,
    IndexGeometryError,
    MissingFileError,
    StoreError,
)
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Ranges, ReadCounts, Sources, fetch_all
from rmq_store.format.byte_layout import INDEX_DIR, INDEX_HEADER, index_item_at
from rmq_store.format.hashes import index_key, index_key_hash
from rmq_store.format.record import Gap
from rmq_store.index.index_file_reader import REMOTE_BLOCK, IndexFile, list_index_files
from rmq_store.index.index_writer import index_items

_INDEX_FILES_MAPPED = 16
_DAMAGE = (Gap.TORN, Gap.DAMAGED, Gap.MISSING)
_SHORT_GAPS = 4 << 20  # bytes of the log without an index up to which a lookup reads them


def walk_chains(
    files: Sequence[IndexFile], hashes: Sequence[int]
) -> tuple[dict[int, list[int]], list[tuple[IndexFile, CorruptIndexError]]]:
    """The log offsets of the items of each hash, and the files that cannot be trusted, each once.

    In an object store each item of a chain costs a round trip. So all chains advance in rounds, and one round
    fetches the next items of all chains in parallel.
    """
    hits: dict[int, list[int]] = {key_hash: [] for key_hash in hashes}
    broken: dict[int, CorruptIndexError] = {}  # by the number of the file

    def looks_of(number: int, key_hash: int) -> Iterator[tuple[int, int]]:
        try:
            yield from files[number].walk(key_hash, hits[key_hash])
        except CorruptIndexError as error:
            broken.setdefault(number, error)

    chains = [(number, looks_of(number, each)) for number in range(len(files)) for each in hashes]
    if all(file.cost.looks_at_once == 1 for file in files):
        for _, looks in chains:
            for _ in looks:
                pass
        chains = []
    while chains:
        going, wanted = [], defaultdict(list)
        for number, looks in chains:
            look = next(looks, None)
            if look is not None:
                going.append((number, looks))
                wanted[number].append(look)
        fetch_all(
            files[number].ranges(*np.array(places, dtype=np.int64).T)
            for number, places in wanted.items()
        )
        chains = going
    return hits, [(files[number], error) for number, error in broken.items()]


def fetch(sources: Sources, segments: Sequence[SegmentFile], start: int, stop: int) -> None:
    """Fetch bytes [start, stop) of each file that has them, where they have to be fetched."""
    if not segments or sources.get(segments[0]).is_there:
        return
    first, last = np.array([start]), np.array([stop])
    files = (sources.get(segment) for segment in segments if stop <= segment.size)
    fetch_all(Ranges(file, first, last) for file in files)


@dataclass(slots=True)
class _Uncovered:
    """Records with keys in a range of the log that the index does not cover."""

    log_offsets: np.ndarray
    topics: pa.Array
    keys: pa.Array
    uniq_keys: pa.Array

    def find(self, key: str) -> Iterator[tuple[str, int]]:
        """Topic and log offset of the records that may have the key."""
        word = pc.match_substring(self.keys.fill_null(""), key)
        hits = pc.or_(word, pc.equal(self.uniq_keys.fill_null(""), key))
        offsets: list[int] = self.log_offsets[hits.to_numpy(zero_copy_only=False)].tolist()
        yield from zip(self.topics.filter(hits).to_pylist(), offsets, strict=True)


class KeyIndex:
    """The index of one store, and the log ranges that it does not cover."""

    def __init__(self, root: Path, log: CommitLog, log_end: int, config: StoreConfig) -> None:
        self._log, self._log_end = log, log_end
        self.files: list[IndexFile] = []
        self.unreadable: list[StoreError] = []
        self._sources = Sources(_INDEX_FILES_MAPPED, block=REMOTE_BLOCK)
        for segment in self._fronts_fetched(list_index_files(root / INDEX_DIR)):
            try:
                self.files.append(
                    IndexFile(
                        segment,
                        slots=config.maxHashSlotNum,
                        items=config.maxIndexNum,
                        sources=self._sources,
                        like=self.files[-1].geometry if self.files else None,
                    )
                )
            except IndexGeometryError as error:
                if config.maxHashSlotNum is not None or config.maxIndexNum is not None:
                    raise
                self.unreadable.append(error)  # its range is read from the log
        self._inside: dict[str, list[tuple[int, int]]] = {}
        self._uncovered: list[_Uncovered] | None = None
        self._damage: list[StoreError] = []
        self._hits: dict[int, list[int]] = {}  # of the last look-up, by hash

    @property
    def counts(self) -> ReadCounts:
        """The files that look-ups opened, and the items that they walked."""
        return self._sources.counts

    def _fronts_fetched(self, segments: list[SegmentFile]) -> Iterator[SegmentFile]:
        """The files; for remote files, fetches the bytes that show the geometry in parallel."""
        fetch(self._sources, segments, 0, INDEX_HEADER.itemsize)
        for number, segment in enumerate(segments):
            if number == 1 and self.files:
                slots = self.files[0].geometry.slots
                first, behind = index_item_at(slots, 0), index_item_at(slots, 2)
                fetch(self._sources, segments, first, behind)
            yield segment

    def why_beyond_log(self, file: IndexFile) -> str | None:
        """What shows that a file was made for a longer log than there is; None if nothing does."""
        last, end = file.header.end_log_offset, self._log_end
        if not file.header.items or last < end or current_end(self._log, end) != end:
            return None
        return f"its header has a record at log offset {last}, and the log ends at {end}"

    def candidates(self, topics: Iterable[str], key: str) -> dict[str, list[int]]:
        """Log offsets, ascending, of records that may have the key, by topic. Some may be false hits."""
        wanted = [(topic, key) for topic in topics]
        by_topic = self.indexed(wanted)
        for topic, offsets in self._uncovered_offsets(wanted).items():
            by_topic[topic] |= offsets
        return {topic: sorted(offsets) for topic, offsets in by_topic.items()}

    def indexed(self, wanted: Iterable[tuple[str, str]]) -> dict[str, set[int]]:
        """Log offsets of the index items of topics and keys, by topic. Some may be false hits.

        Does not read the log.
        """
        offsets: dict[str, set[int]] = {}
        hashes: dict[int, set[str]] = {}
        for topic, key in wanted:
            offsets.setdefault(topic, set())
            hashes.setdefault(index_key_hash(index_key(topic, key)), set()).add(topic)
        new = [key_hash for key_hash in hashes if key_hash not in self._hits]
        walked, broken = walk_chains(self.files, new)
        # A search asks for the same keys when it plans, and again for what no queue lists.
        hits = self._hits | walked
        self._hits = {key_hash: hits[key_hash] for key_hash in hashes}
        for key_hash, of_topics in hashes.items():
            for topic in of_topics:
                offsets[topic].update(hits[key_hash])
        for file, error in broken:
            if file in self.files:  # from now on its range is read from the log
                self.files.remove(file)
                self.unreadable.append(error)
                self._uncovered = None
        return offsets

    def look_up_short_gaps(self, wanted: Iterable[tuple[str, str]]) -> dict[str, set[int]] | None:
        """Log offsets that `indexed` misses, by topic, if all uncovered ranges are short.

        None if they are long: `to_read` returns the ranges to read. Call it after `indexed`.
        """
        is_short = sum(stop - start for start, stop in self.to_read()) <= _SHORT_GAPS
        return self._uncovered_offsets(wanted) if is_short else None

    def _uncovered_offsets(self, wanted: Iterable[tuple[str, str]]) -> dict[str, set[int]]:
        topics_of: dict[str, set[str]] = {}
        for topic, key in wanted:
            topics_of.setdefault(key, set()).add(topic)
        offsets: dict[str, set[int]] = {}
        for key, topics in topics_of.items():
            for part in self._read_uncovered():
                for topic, offset in part.find(key):
                    if topic in topics:
                        offsets.setdefault(topic, set()).add(offset)
        return offsets

    def _read_uncovered(self) -> list[_Uncovered]:
        if self._uncovered is None:
            gaps = list(self.to_read())
            self._damage = []
            if sum(stop - start for start, stop in gaps) <= _SHORT_GAPS:
                self._log.chain.fetch(gaps)
            self._uncovered = [
                part for start, stop in gaps for part in self._keys_between(start, stop)
            ]
        return self._uncovered

    def gaps(self) -> list[tuple[int, int]]:
        """Ascending ranges of the log that no index file covers, or whose file has a broken chain.

        Each starts at a record. Call it after `indexed`, which may meet such a chain.
        """
        return sorted(set(self._gaps_of_files()))

    def gaps_with_keys(self) -> Iterator[tuple[int, int]]:
        """The gaps that have a record with a key without an item, from the first such record on.

        A look-up reads the last record of each file again, and records without keys; they are no gap of
        the index. Of a gap that begins without keys only the first 4 MiB are looked at.
        """
        for start, stop in self.gaps():
            first = self._first_unlisted(start, stop)
            if first is not None:
                yield first, stop

    def _first_unlisted(self, start: int, stop: int) -> int | None:
        """The first record of a gap with a key without an item, or damage before it; None if there is none.

        Only the first record of a gap may have items.
        """
        listed = set().union(*(file.hashes_at(start) for file in self.files))
        upto = min(stop, start + _SHORT_GAPS)
        for piece in walk(self._log, start, upto):
            if isinstance(piece, SoundRun):
                for offset, hashes in _hashes_in(piece.headers):
                    if offset > start or not hashes <= listed:
                        return offset
            elif piece.gap in _DAMAGE:
                return piece.start
        return None if upto == stop else start

    def _gaps_of_files(self) -> Iterator[tuple[int, int]]:
        at = self._log.first_record_offset
        for file in sorted(self.files, key=lambda file: file.header.begin_log_offset):
            if not file.header.items:
                continue
            first, last = file.covered()
            if at < first:
                yield at, first
            yield from self._gaps_inside(file, at)
            at = max(at, last)
        # Read the last record of a file again: a missing file may hold the rest of its keys.
        if at < self._log_end:
            yield at, self._log_end

    def _gaps_inside(self, file: IndexFile, start: int) -> Iterator[tuple[int, int]]:
        """Ranges of the log from `start` on, between two items of a file, that have more records."""
        if file.path not in self._inside:
            jumps = [
                (max(first, self._log.start), min(stop, self._log_end))
                for first, stop in file.possible_gaps()
            ]
            self._inside[file.path] = [jump for jump in jumps if self._has_more_records(*jump)]
        for first, stop in self._inside[file.path]:
            if first >= start:
                yield first, stop

    def _has_more_records(self, first: int, stop: int) -> bool:
        """Whether another record follows the one at `first`, before `stop`."""
        segment = self._log.chain.segment_at(first)
        if segment is None or first >= stop:
            return False
        with self._log.chain.window_of(segment) as window:
            upto = min(self._log.entry_start(stop), self._log.chain.segment_end(segment))
            run = self._log.run_in(window, segment, self._log.entry_start(first), upto)
        return len(run.at) != 1

    def to_read(self) -> Iterator[tuple[int, int]]:
        """Ascending log ranges that hold the starts of all records whose keys the index may lack.

        They are the gaps, each with the record after it: a missing file may hold the first keys of
        that record, and the next file only the others.
        """
        start = stop = 0
        for first, behind in self.gaps():
            if stop < first:
                if start < stop:
                    yield start, stop
                start = first
            stop = max(stop, min(behind + 1, self._log_end))
        if start < stop:
            yield start, stop

    def damage_in_gaps(self) -> list[StoreError]:
        """The damage in the ranges that the index does not cover; call it after `candidates`.

        A damaged record may have had any key.
        """
        self._read_uncovered()
        return self._damage

    def _keys_between(self, start: int, stop: int) -> Iterator[_Uncovered]:
        """The keys of the records that start in a range of the log, also after damage in it."""
        for piece in walk(self._log, start, stop):
            if isinstance(piece, SoundRun):
                yield _keys_of(piece.headers)
            elif piece.gap in _DAMAGE:
                at = piece.start + self._log.frame_size_at(piece.start)
                try:
                    self._log.record_at(at)
                except (CorruptRecordError, MissingFileError) as error:
                    self._damage.append(
                        error_of_unreadable_record(self._log, self._log_end, at, error) or error
                    )


def _hashes_in(headers: Headers) -> Iterator[tuple[int, set[int]]]:
    """The log offsets of the records that the index lists for their keys, and the hashes of these."""
    items = index_items(DecodedRecords.of(headers), of_tags=False)
    ends = np.cumsum(items.counts)
    for row in np.flatnonzero(items.counts).tolist():
        hashes = items.hashes[ends[row] - items.counts[row] : ends[row]]
        yield int(headers.at[row]) + headers.base, set(hashes.tolist())


def _keys_of(headers: Headers) -> _Uncovered:
    columns = decode_property_columns(stored_properties(headers), with_map=False)
    some = pc.or_(columns.keys.is_valid(), columns.uniq_key.is_valid())
    rows = np.flatnonzero(some.to_numpy(zero_copy_only=False))
    picked = pa.array(rows)
    return _Uncovered(
        headers.at[rows] + headers.base,
        stored_topics(headers).take(picked),
        columns.keys.take(picked),
        columns.uniq_key.take(picked),
    )
