"""The items that the index gets of each message: their keys and hashes (IndexService#buildIndex)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.decoded_records import DecodedRecords, KeyValues
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import INDEX_TAG_TYPE, SysFlag
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
    return items_of(
        records.keys, records.topics, records.topic_code, records.headers.sys_flag, dialect
    )


def tag_items(records: DecodedRecords) -> Items:
    """Those items of TAGS alone, of all records."""
    flags = np.zeros(len(records.headers), dtype=np.int32)
    return _items(records.keys, records.topics, records.topic_code, flags, of_keys=False)


def items_of(
    keys: KeyValues,
    names: Sequence[str],
    code: Ints,
    sys_flag: npt.NDArray[np.int32],
    dialect: Dialect,
) -> Items:
    """The same of messages by their columns. `code`: the place of each topic in `names`."""
    return _items(keys, names, code, sys_flag, of_tags=dialect.has("tag_items"))


def _items(
    keys: KeyValues,
    names: Sequence[str],
    code: Ints,
    sys_flag: npt.NDArray[np.int32],
    *,
    of_keys: bool = True,
    of_tags: bool = True,
) -> Items:
    rolled_back = (sys_flag & SysFlag.TRANSACTION_MASK) == SysFlag.TRANSACTION_ROLLBACK
    counts = -rolled_back.astype(np.int64)
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
