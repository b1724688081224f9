"""Which messages have a key: one word of KEYS, or the UNIQ_KEY (IndexService#buildIndex)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.format.layout import INDEX_TAG_TYPE, KEY_SEPARATOR, Property, SysFlag
from rmq_store.format.properties import decode_properties, decode_utf8
from rmq_store.format.record import Record
from rmq_store.format.tag_key_hashes import index_key, index_key_hash


def rows_with_key(
    keys: pa.Array, uniq_keys: pa.Array, wanted: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Mask of the rows with one of the `wanted` keys, each of which is one word.

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


def hashes_of(record: Record) -> set[int]:
    """The hashes of all items that a broker of any release makes of a record."""
    topic, properties = decode_utf8(record.topic), decode_properties(record.properties)
    words = properties.get(Property.KEYS, "").split(KEY_SEPARATOR)
    keys = [index_key(topic, word) for word in (properties.get(Property.UNIQ_KEY, ""), *words)]
    tags = properties.get(Property.TAGS, "")
    return {index_key_hash(key) for key in (*keys, index_key(topic, f"{INDEX_TAG_TYPE}#{tags}"))}


def has_key(record: Record, topic: str, key: str) -> bool:
    """Whether the broker indexes this record under topic and key (IndexService#buildIndex)."""
    if record.transaction == SysFlag.TRANSACTION_ROLLBACK or decode_utf8(record.topic) != topic:
        return False
    properties = decode_properties(record.properties)
    words = properties.get(Property.KEYS, "").split(KEY_SEPARATOR)
    return key == properties.get(Property.UNIQ_KEY) or key in words
