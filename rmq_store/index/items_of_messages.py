"""The items that the index gets of each message: their keys and hashes (IndexService#buildIndex).

A message has a key if it is one word of its KEYS, or its UNIQ_KEY.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.decoded_records import DecodedRecords, KeyValues
from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import INDEX_TAG_TYPE, KEY_SEPARATOR, Property
from rmq_store.format.enters_queue import enters_index
from rmq_store.format.properties import decode_properties, decode_utf8
from rmq_store.format.record import Record
from rmq_store.format.releases import Dialect
from rmq_store.format.tag_key_hashes import index_key, java_string_hash
from rmq_store.loops import hashes as loops

_ITEMS_OF_A_RECORD = 4  # about


@dataclass(frozen=True, slots=True)
class Items:
    """The index items of n records in the order of the file: how many each record has, and the key
    hash of each."""

    counts: Ints
    hashes: npt.NDArray[np.int32]

    @property
    def row(self) -> Ints:
        """The record number of each item."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def index_items(records: DecodedRecords, dialect: Dialect) -> Items:
    """The items of the records: UNIQ_KEY, each word of KEYS, and TAGS from 5.4.0 on."""
    flags = records.headers.sys_flag
    of_tags = dialect.has("tag_items")
    return items_of(records.keys, records.topics, records.topic_code, flags, of_tags=of_tags)


def key_items(records: DecodedRecords) -> Items:
    """Those items of UNIQ_KEY and KEYS alone."""
    flags = records.headers.sys_flag
    return items_of(records.keys, records.topics, records.topic_code, flags, of_tags=False)


def tag_items(records: DecodedRecords) -> Items:
    """Those items of TAGS alone, of all records."""
    flags = np.zeros(len(records.headers), dtype=np.int32)
    return items_of(records.keys, records.topics, records.topic_code, flags, of_keys=False)


def items_of(
    keys: KeyValues,
    names: Sequence[str],
    code: Ints,
    sys_flag: npt.NDArray[np.int32],
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


def rows_with_key(
    keys: pa.Array, uniq_keys: pa.Array, wanted: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Mask of the rows with one of the `wanted` keys: one word of KEYS, all of it, or the UNIQ_KEY.

    `keys` and `uniq_keys` are the columns of those names. Only whole words match.
    """
    values = pa.array(sorted(wanted), pa.string())
    hits = pc.is_in(uniq_keys, values).to_numpy(zero_copy_only=False)
    # Most messages have no KEYS or one word; only values with a separator are split.
    hits |= pc.is_in(keys, values).to_numpy(zero_copy_only=False)
    several = pc.match_substring(keys, KEY_SEPARATOR).fill_null(False)
    rows = np.flatnonzero(several.to_numpy(zero_copy_only=False) & ~hits)
    if len(rows):
        words = pc.split_pattern(keys.take(pa.array(rows)), KEY_SEPARATOR)
        found = pc.is_in(words.flatten(), values).to_numpy(zero_copy_only=False)
        parents = pc.list_parent_indices(words).to_numpy()
        hits[rows[parents[found]]] = True
    result: npt.NDArray[np.bool_] = hits
    return result


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
