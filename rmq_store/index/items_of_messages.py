"""The items that the index gets of each message: their keys and hashes (IndexService#buildIndex)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.arrow.property_columns import PropertyColumns
from rmq_store.arrow.string_slices import buffers
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import INDEX_TAG_TYPE, KEY_SEPARATOR, SysFlag
from rmq_store.format.releases import Dialect
from rmq_store.format.tag_key_hashes import index_key_hashes, java_string_hash, java_string_hashes

_Items = tuple[Ints, npt.NDArray[np.int32]]  # record number and key hash of index items


def index_items(records: DecodedRecords, dialect: Dialect) -> _Items:
    """Record number and key hash of every index item of the records, in the order of the file.

    The items are UNIQ_KEY, each word of KEYS, and TAGS from 5.4.0 on (IndexService#buildIndex).
    """
    codes = records.topics.dictionary_encode()
    names = codes.dictionary.to_pylist()
    code = codes.indices.to_numpy().astype(np.int64)
    return items_of(records.properties, names, code, records.headers.sys_flag, dialect)


def tag_items(records: DecodedRecords) -> _Items:
    """Those items of TAGS alone, of all records."""
    codes = records.topics.dictionary_encode()
    code = codes.indices.to_numpy().astype(np.int64)
    names = codes.dictionary.to_pylist()
    return _hashed(records.properties.tags, None, names, code, INDEX_TAG_TYPE + "#")


def items_of(
    properties: PropertyColumns,
    names: list[str],
    code: Ints,
    sys_flag: npt.NDArray[np.int32],
    dialect: Dialect,
) -> _Items:
    """The same of messages by their columns. `code`: the place of each topic in `names`."""
    indexed = (sys_flag & SysFlag.TRANSACTION_MASK) != SysFlag.TRANSACTION_ROLLBACK
    parts = [
        _hashed(properties.uniq_key, None, names, code, ""),
        _hashed(*_words(properties.keys), names, code, ""),
    ]
    if dialect.has("tag_items"):
        parts.append(_hashed(properties.tags, None, names, code, INDEX_TAG_TYPE + "#"))
    rows, hashes = _in_record_order(parts, len(code))
    if not indexed.all():
        wanted = indexed[rows]
        return rows[wanted], hashes[wanted]
    return rows, hashes


def _in_record_order(parts: Sequence[_Items], records: int) -> _Items:
    """The items of all parts by record, and those of one record by part; each part ascends."""
    counts = [np.bincount(row, minlength=records) for row, _ in parts]
    every = np.sum(counts, axis=0)
    before = np.cumsum(every) - every  # items of earlier records
    rows = np.empty(sum(len(row) for row, _ in parts), dtype=np.int64)
    hashes = np.empty(len(rows), dtype=np.int32)
    for (row, key_hashes), count in zip(parts, counts, strict=True):
        # The number of an item in its part, less those of its part in earlier records.
        at = np.arange(len(row)) + (before - (np.cumsum(count) - count))[row]
        rows[at], hashes[at] = row, key_hashes
        before = before + count
    return rows, hashes


def _words(keys: pa.Array) -> tuple[pa.Array, Ints]:
    """The nonempty words of KEYS, and the row of each."""
    split = pc.split_pattern(keys, KEY_SEPARATOR)
    rows = pc.list_parent_indices(split).to_numpy().astype(np.int64)
    words = pc.list_flatten(split)
    filled = np.flatnonzero(np.diff(buffers(words)[0]))
    return words.take(pa.array(filled)), rows[filled]


def _hashed(keys: pa.Array, rows: Ints | None, names: list[str], code: Ints, kind: str) -> _Items:
    """Row and index key hash of `topic#` + `kind` + key, for each row with a key.

    The hash of a concatenation follows from the hashes of its parts, so each topic is hashed once.
    """
    if rows is None and keys.null_count:
        rows = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        keys = keys.take(pa.array(rows))
    elif rows is None:
        rows = np.arange(len(keys))
    ends, raw = buffers(keys)
    hashes = java_string_hashes(raw, ends).view(np.uint32)
    fronts = np.array([java_string_hash(f"{name}#{kind}") for name in names] or [0], dtype=np.int32)
    mixed = fronts.view(np.uint32)[code[rows]] * _powers_of_31(_utf16_lengths(keys))
    mixed += hashes
    return rows, index_key_hashes(mixed.view(np.int32))


def _utf16_lengths(keys: pa.Array) -> Ints:
    """UTF-16 code units of every string."""
    ends, raw = buffers(keys)
    used = raw[int(ends[0]) : int(ends[-1])]
    if not len(used) or int(used.max()) < 0x80:
        return np.diff(ends).astype(np.int64)
    per_byte = ((used & 0xC0) != 0x80).astype(np.int64) + (used >= 0xF0)
    before = np.concatenate(([0], np.cumsum(per_byte)))
    return np.diff(before[ends - int(ends[0])])


def _powers_of_31(exponents: Ints) -> npt.NDArray[np.uint32]:
    """Modulo 2**32."""
    longest = int(exponents.max()) if len(exponents) else 0
    table = np.ones(longest + 1, dtype=np.uint32)
    table[1:] = 31
    np.multiply.accumulate(table, out=table)
    powers: npt.NDArray[np.uint32] = table[exponents]
    return powers
