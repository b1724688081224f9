"""Records with their topics, tags and keys found once: what queues and index are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmq_store.arrow.column_values import numbered_topics
from rmq_store.arrow.property_columns import look
from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Bytes, Ints, Mask
from rmq_store.loops.hashes import tags_codes

_OTHER_QUEUES_END = 7  # of PLACES


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Where the values of TAGS, KEYS and UNIQ_KEY of n records lie in `data`.

    `values`: n * PLACES int64 (loops/property_items.py). `other_queues` marks the records with offsets
    in queues besides their own.
    """

    data: Bytes
    values: Ints
    other_queues: Mask

    @classmethod
    def of(cls, data: Bytes, starts: Ints, lengths: Ints) -> KeyValues:
        """Those of n property strings in `data`."""
        values, _ = look(data, starts, lengths)
        return cls(data, values.reshape(-1), values[:, _OTHER_QUEUES_END] > 0)

    def __len__(self) -> int:
        return len(self.other_queues)

    def tags_codes(self) -> Ints:
        """tagsCode of every record: the Java hash of TAGS, 0 without them."""
        found = np.empty(len(self), dtype=np.int64)
        tags_codes(self.data.data, self.values.data, found.data)
        return found


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """n valid records. `topic_code`: the place of each record's topic in `topics`."""

    headers: Headers
    topics: list[str]
    topic_code: Ints
    keys: KeyValues

    @classmethod
    def of(cls, headers: Headers) -> DecodedRecords:
        """Decode the records of a window of the log."""
        keys = KeyValues.of(headers.window, headers.properties_at, headers.properties_length)
        return cls(headers, *numbered_topics(headers), keys)
