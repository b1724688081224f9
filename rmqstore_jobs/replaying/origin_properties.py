"""The properties that a replay adds to a message: where it came from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.format.layout import CRC_PROPERTY, Property
from rmq_store.format.topics import LMQ_PREFIX

ORIGIN_PREFIX = "REPLAY_ORIGIN_"
ORIGIN: Mapping[str, str] = {  # property -> column of the source
    ORIGIN_PREFIX + "BROKER": "brokerName",
    ORIGIN_PREFIX + "TOPIC": "topic",
    ORIGIN_PREFIX + "QUEUE_ID": "queueId",
    ORIGIN_PREFIX + "QUEUE_OFFSET": "queueOffset",
    ORIGIN_PREFIX + "LOG_OFFSET": "commitLogOffset",
    ORIGIN_PREFIX + "STORE_TIMESTAMP": "storeTimestamp",  # milliseconds
}
_LIGHT_QUEUES = (Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET)

Mask = npt.NDArray[np.bool_]


def with_origin(batch: pa.RecordBatch, without: tuple[str, ...]) -> pa.MapArray:
    """The properties plus the message's origin, which replaces an older origin.

    Without the CRC of the record, because the target's writer computes its own. Messages read from
    a light queue lose the names of light queues, because they would arrive twice.
    """
    properties, rows = batch["properties"], batch.num_rows
    ends = properties.offsets.to_numpy()
    row = np.repeat(np.arange(rows), np.diff(ends))
    names = properties.keys.slice(ends[0], ends[-1] - ends[0])
    values = properties.items.slice(ends[0], ends[-1] - ends[0])
    dropped = _is_one_of(names, (*ORIGIN, CRC_PROPERTY, *without))
    light = pc.starts_with(batch["topic"], LMQ_PREFIX).to_numpy(zero_copy_only=False)
    if light.any():
        dropped |= light[row] & _is_one_of(names, _LIGHT_QUEUES)
    kept = np.flatnonzero(~dropped)
    row = row[kept]

    kept_of_row = np.bincount(row, minlength=rows)
    offsets = np.concatenate(([0], np.cumsum(kept_of_row + len(ORIGIN))))
    first_of_row = np.concatenate(([0], np.cumsum(kept_of_row)))[:-1]
    source = np.empty(offsets[-1], np.int64)  # of each new pair: its index among all pairs
    source[offsets[row] + np.arange(len(kept)) - first_of_row[row]] = kept
    name_of = source.copy()
    for i in range(len(ORIGIN)):
        at = offsets[1:] - len(ORIGIN) + i
        source[at] = len(values) + i * rows + np.arange(rows)
        name_of[at] = len(names) + i
    return pa.MapArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.concat_arrays([names, pa.array(list(ORIGIN))]).take(pa.array(name_of)),
        pa.concat_arrays([values, *(_as_text(batch[c]) for c in ORIGIN.values())]).take(
            pa.array(source)
        ),
        type=PROPERTIES,
    )


def _is_one_of(names: pa.Array, wanted: tuple[str, ...]) -> Mask:
    mask: Mask = pc.is_in(names, pa.array(wanted)).to_numpy(zero_copy_only=False)
    return mask


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.string())
