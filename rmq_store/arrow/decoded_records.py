"""Records with their topics and properties decoded once: what queues and index are made of."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from rmq_store.arrow.column_values import stored_topics
from rmq_store.arrow.property_columns import PropertyColumns, decode_property_columns
from rmq_store.arrow.string_slices import slices
from rmq_store.commitlog.headers import Headers


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """n valid records, and columns of n: topics, property strings as stored, tags and keys."""

    headers: Headers
    topics: pa.Array
    stored: pa.Array
    properties: PropertyColumns

    @classmethod
    def of(cls, headers: Headers) -> DecodedRecords:
        """Decode the records of a window of the log."""
        stored = slices(
            headers.window, headers.properties_at, headers.properties_length, pa.binary()
        )
        properties = decode_property_columns(stored, with_map=False)
        return cls(headers, stored_topics(headers), stored, properties)
