"""What the index gets of each message, and its writer, which appends as the broker does, including its
anomalies (IndexService, IndexFile#putKey)."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_values import DecodedRecords, KeyPositions
from rmq_store.errors import OsErrorsOf
from rmq_store.files.durable_files import unshare_file
from rmq_store.format.byte_layout import (
    INDEX_DIR,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_NAME_DIGITS,
    INDEX_TAG_TYPE,
    KEY_SEPARATOR,
    Bytes,
    Ints,
    Mask,
    Numbers,
    Property,
    index_item_at,
)
from rmq_store.format.compression import enters_index
from rmq_store.format.hashes import index_key, java_string_hash
from rmq_store.format.record import Record, decode_properties, decode_utf8
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import Geometry, Header
from rmq_store.loops import hashes as loops
from rmq_store.loops.index_items import put_items

_ITEMS_OF_A_RECORD = 4  # about
_NO_HEADER = Header(0, 0, 0, 0, 0, 1)
_NO_FILE: Bytes = np.zeros(0, dtype=np.uint8)
_ROOM_AHEAD = 1 << 20  # bytes of items to allocate on the disk at once


@dataclass(frozen=True, slots=True)
class Items:
    """The index items of n records in the order of the file: how many each record has, and the key
    hash of each."""

    counts: Ints
    hashes: Numbers

    @property
    def row(self) -> Ints:
        """The record number of each item."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def index_items(records: DecodedRecords, *, of_tags: bool) -> Items:
    """The items of the records: UNIQ_KEY, each word of KEYS, and `of_tags` TAGS, as from 5.4.0 on."""
    flags = records.headers.sys_flag
    return items_of(records.keys, records.topics, records.topic_code, flags, of_tags=of_tags)


def tag_items(records: DecodedRecords) -> Items:
    """Those items of TAGS alone, of all records."""
    flags = np.zeros(len(records.headers), dtype=np.int32)
    return items_of(records.keys, records.topics, records.topic_code, flags, of_keys=False)


def items_of(
    keys: KeyPositions,
    names: Sequence[str],
    code: Ints,
    sys_flag: Numbers,
    *,
    of_keys: bool = True,
    of_tags: bool = True,
) -> Items:
    """The same of messages by their columns. `code`: the place of each topic in `names`."""
    counts = -(~enters_index(sys_flag)).astype(np.int64)
    fronts, tag_fronts = (
        np.array([java_string_hash(index_key(name, kind)) for name in names], dtype=np.int32)
        for kind in ("", INDEX_TAG_TYPE + "#")
    )
    hashes = np.empty(_ITEMS_OF_A_RECORD * len(keys), dtype=np.int32)
    row = count = 0
    while True:
        row, count = loops.index_items(
            *(keys.data.data, keys.values.data, code.data, fronts.data, tag_fronts.data),
            *(of_keys, of_tags, row, count, counts.data, hashes.data),
        )
        if row == len(counts):
            return Items(counts, hashes[:count])
        hashes = np.concatenate([hashes, np.empty(len(hashes) + 1, dtype=np.int32)])


def rows_with_key(keys: pa.Array, uniq_keys: pa.Array, wanted: Collection[str]) -> Mask:
    """Mask of the rows with one of the `wanted` keys: one word of KEYS, all of it, or the UNIQ_KEY.

    `keys` and `uniq_keys` are the columns of those names. Only whole words match.
    """
    values = pa.array(sorted(wanted), pa.string())
    hits: Mask = pc.is_in(uniq_keys, values).to_numpy(zero_copy_only=False)
    # Most messages have no KEYS or one word; only values with a separator are split.
    hits |= pc.is_in(keys, values).to_numpy(zero_copy_only=False)
    several = pc.match_substring(keys, KEY_SEPARATOR).fill_null(False)
    rows = np.flatnonzero(several.to_numpy(zero_copy_only=False) & ~hits)
    if len(rows):
        words = pc.split_pattern(keys.take(pa.array(rows)), KEY_SEPARATOR)
        matches = pc.is_in(words.flatten(), values).to_numpy(zero_copy_only=False)
        parents = pc.list_parent_indices(words).to_numpy()
        hits[rows[parents[matches]]] = True
    return hits


def indexed_word(key: str) -> str:
    """The word by which the index has the messages with a key: of all of KEYS the first word; "" for none."""
    return next(filter(None, key.split(KEY_SEPARATOR)), "")


def has_key(record: Record, topic: str, key: str) -> bool:
    """Whether the broker indexes this record under topic and key (IndexService#buildIndex)."""
    if not enters_index(record.sys_flag) or decode_utf8(record.topic) != topic:
        return False
    properties = decode_properties(record.properties)
    words = properties.get(Property.KEYS, "").split(KEY_SEPARATOR)
    return key == properties.get(Property.UNIQ_KEY) or key in words


class IndexWriter:
    """The index files of one store; the last one is being filled."""

    def __init__(
        self,
        root: Path,
        geometry: Geometry,
        dialect: Dialect,
        last: Path | None,
        header: Header | None,
        *,
        only_counts: bool = False,
    ) -> None:
        """`last` and `header`: the newest existing file, to continue with.

        `only_counts`: change no file; `items_written` says what it would write.
        """
        self._only_counts = only_counts
        self._folder = root / INDEX_DIR
        self._geometry = geometry
        self._dialect = dialect
        self._file: Bytes | None = None
        self._header = header or _NO_HEADER
        self.full_until = 0  # end timestamp of the last full file (indexMsgTimestamp)
        self.items_written = 0
        self._made: list[Path] = []
        self._resumed: tuple[int, int] | None = None
        self._last_name = "" if last is None else last.name
        if last is not None:
            self._map(last)

    @property
    def end_log_offset(self) -> int:
        """Log offset of the last indexed record."""
        return self._header.end_log_offset

    def resume(self) -> None:
        """Prepare to skip records that the last file already has.

        Its last record is processed again, because its keys may be split over two files.
        """
        count = self._header.index_count - 1
        if self._file is None or count < 1:
            return
        last, done = self._header.end_log_offset, 0
        while done < count and self._log_offset_of(count - done) == last:
            done += 1
        self._resumed = (last, done)

    def _log_offset_of(self, number: int) -> int:
        assert self._file is not None
        at = index_item_at(self._geometry.slots, number)
        return int(self._file[at : at + INDEX_ITEM.itemsize].view(INDEX_ITEM)[0]["log_offset"])

    def add_records(self, records: DecodedRecords) -> None:
        """Index records: UNIQ_KEY, each word of KEYS, and TAGS from 5.4.0 on."""
        headers = records.headers
        if len(headers):
            offsets = headers.at + headers.base
            items = index_items(records, of_tags=self._dialect.has("tag_items"))
            self.add_items(offsets, headers.store_timestamp, items)

    def add_items(self, offsets: Ints, stamps: Ints, items: Items) -> None:
        """Index n records, at least one, by their log offsets, store times (ms) and items."""
        row, hashes = items.row, items.hashes
        if self._resumed is not None:
            row, hashes = self._without_indexed(offsets, row, hashes)
            if not len(row):
                return
        at = 0
        while at < len(row):
            if self._file is None or self._is_full():
                self._roll()
            part = slice(at, at + self._geometry.items - self._header.index_count)
            self._put(hashes[part], row[part], offsets, stamps)
            at = min(part.stop, len(row))
        # The broker looks for a file with room at every record, with or without keys. So the file
        # after a full one, or for the very first record, exists even if it stays empty.
        last_record = int(row[-1]) if len(row) else 0
        if self._file is None or (self._is_full() and last_record < len(offsets) - 1):
            self._roll()

    def _without_indexed(self, offsets: Ints, row: Ints, hashes: Numbers) -> tuple[Ints, Numbers]:
        assert self._resumed is not None
        last, done = self._resumed
        again = np.flatnonzero(offsets[row] == last)[done:]
        rows = np.concatenate([again, np.flatnonzero(offsets[row] > last)])
        if len(offsets) and int(offsets[-1]) > last:
            self._resumed = None
        return row[rows], hashes[rows]

    # --- the file being filled ---------------------------------------------------------------------

    def _is_full(self) -> bool:
        return self._header.index_count >= self._geometry.items

    def _roll(self) -> None:
        """Start a new file; its header begins with the end of the previous file."""
        header = _NO_HEADER
        if self._file is not None:
            self.close()
            stamp, place = self._header.end_timestamp, self._header.end_log_offset
            self.full_until = stamp
            header = Header(stamp, stamp, place, place, 0, 1)
        path = None
        if not self._only_counts:
            path = self._folder / self._next_name()
            with OsErrorsOf(path, "creating an index file"):
                self._folder.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.truncate(self._geometry.file_size)
            self._made.append(path)
        self._map(path)
        self._header = header

    def _map(self, path: Path | None) -> None:
        if path is None or self._only_counts:
            self._file = _NO_FILE if path is None else np.memmap(path, dtype=np.uint8, mode="r")
            return
        self._file = None  # `close` must not touch a file whose slots are not allocated
        self._path = path
        self._room_to = 0
        unshare_file(path)
        self._make_room(index_item_at(self._geometry.slots, 0))
        self._file = np.memmap(path, dtype=np.uint8, mode="r+", shape=(self._geometry.file_size,))

    def _make_room(self, upto: int) -> None:
        """Allocate the bytes up to `upto` on the disk before they are written in memory.

        On a full disk, a write to unallocated mapped memory kills the process (SIGBUS).
        """
        if upto <= self._room_to:
            return
        stop = min(upto + _ROOM_AHEAD, self._geometry.file_size)
        with (
            OsErrorsOf(self._path, "allocating space for the index"),
            self._path.open("r+b") as file,
        ):
            os.posix_fallocate(file.fileno(), self._room_to, stop - self._room_to)
        self._room_to = stop

    def _next_name(self) -> str:
        """The local time now in ms (yyyyMMddHHmmssSSS), or the name after the previous one if that is later.

        Files are in the order of their names, and another clock or time zone may have given those before.
        Nobody reads a time in a name.
        """
        now = time.time_ns() // 1_000_000
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1000)) + f"{now % 1000:03d}"
        while name <= self._last_name or (self._folder / name).exists():
            name = f"{int(max(name, self._last_name)) + 1:0{INDEX_NAME_DIGITS}d}"
        self._last_name = name
        return name

    def _put(self, hashes: Numbers, row: Ints, offsets: Ints, stamps: Ints) -> None:
        """Write items, at least one, to the file, which has room for them."""
        assert self._file is not None
        header, slots = self._header, self._geometry.slots
        alone = 0
        if not self._only_counts:
            self._make_room(index_item_at(slots, header.index_count + len(hashes)))
            alone = put_items(
                *(self._file.data, self._file.data, slots, header.index_count),
                *(header.begin_timestamp, hashes.data, row.data, offsets.data, stamps.data),
            )
        begins = header.index_count <= 1
        every = self._dialect.has("slot_count_is_item_count")
        first, last = int(row[0]), int(row[-1])
        self._header = Header(
            int(stamps[first]) if begins else header.begin_timestamp,
            int(stamps[last]),
            int(offsets[first]) if begins else header.begin_log_offset,
            int(offsets[last]),
            header.hash_slot_count + (len(hashes) if every else alone),
            header.index_count + len(hashes),
        )
        self._write_header()
        self.items_written += len(hashes)

    def _write_header(self) -> None:
        assert self._file is not None
        if self._only_counts:
            return
        raw = np.array([astuple(self._header)], dtype=INDEX_HEADER)
        self._file[: INDEX_HEADER.itemsize] = raw.view(np.uint8)

    def flush(self) -> None:
        """Flush everything to the disk."""
        if isinstance(self._file, np.memmap) and not self._only_counts:
            self._file.flush()

    def close(self) -> None:
        """Write the header and flush."""
        if self._file is not None:
            self._write_header()
            self.flush()
            self._file = None

    def discard(self) -> None:
        """Delete the files that this writer has made."""
        self._file = None
        for path in self._made:
            path.unlink(missing_ok=True)
