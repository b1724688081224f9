"""The properties that a replay adds to a message: where it came from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.encoding.properties import map_strings, rows_with_item, with_items_behind
from rmq_store.arrow.property_columns import decode_property_columns
from rmq_store.errors import InvalidMessageError
from rmq_store.format.byte_layout import CRC_PROPERTY, Property
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
PROPERTY_FORMS = ("properties", "rawProperties")  # a batch of a replay has one of them

_LIGHT_QUEUES = (Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET)
_TEXTS = (ORIGIN_PREFIX + "BROKER", ORIGIN_PREFIX + "TOPIC")  # the others are numbers

Mask = npt.NDArray[np.bool_]


def with_origin(batch: pa.RecordBatch, without: tuple[str, ...]) -> tuple[str, pa.Array]:
    """The properties plus the message's origin, which replaces an older origin: column and values.

    Without the CRC of the record, because the target's writer computes its own. Messages read from
    a light queue lose the names of light queues, because they would arrive twice. Each string of
    `rawProperties` from which nothing must go gets the origin at its end, and stays what it is; the
    others are decoded and encoded again.
    """
    if without or "rawProperties" not in batch.schema.names:
        return "properties", _in_the_map(batch, without)
    # Rows whose stored string may have a property that `_in_the_map` drops.
    changed = rows_with_item(batch["rawProperties"], (*ORIGIN, CRC_PROPERTY)) | _is_light(batch)
    if not changed.any():
        return "rawProperties", _at_the_end(batch)
    kept, other = np.flatnonzero(~changed), np.flatnonzero(changed)
    strings = [
        _at_the_end(batch.take(pa.array(kept))),
        map_strings(_in_the_map(batch.take(pa.array(other)), without)),
    ]
    order = np.argsort(np.concatenate([kept, other]))
    return "rawProperties", pa.concat_arrays(strings).take(pa.array(order))


def property_map(batch: pa.RecordBatch) -> pa.MapArray:
    """The properties of a batch with the column `properties` or `rawProperties`."""
    if "properties" in batch.schema.names:
        return batch["properties"]
    return decode_property_columns(batch["rawProperties"], with_map=True).properties


def _is_light(batch: pa.RecordBatch) -> Mask:
    light: Mask = pc.starts_with(batch["topic"], LMQ_PREFIX).to_numpy(zero_copy_only=False)
    return light


def _at_the_end(batch: pa.RecordBatch) -> pa.Array:
    columns = {name: batch[column] for name, column in ORIGIN.items()}
    if any(column.null_count for column in (batch["rawProperties"], *columns.values())):
        raise InvalidMessageError(
            reason="a message to replay has no queueOffset or another null in its origin"
        )
    return with_items_behind(
        batch["rawProperties"],
        {name: columns.pop(name).cast(pa.string()) for name in _TEXTS},
        {name: column.cast(pa.int64()).to_numpy() for name, column in columns.items()},
    )


def _in_the_map(batch: pa.RecordBatch, without: tuple[str, ...]) -> pa.MapArray:
    properties, rows = property_map(batch), batch.num_rows
    ends = properties.offsets.to_numpy()
    row = np.repeat(np.arange(rows), np.diff(ends))
    names = properties.keys.slice(ends[0], ends[-1] - ends[0])
    values = properties.items.slice(ends[0], ends[-1] - ends[0])
    dropped = _is_one_of(names, (*ORIGIN, CRC_PROPERTY, *without))
    light = _is_light(batch)
    if light.any():
        dropped |= light[row] & _is_one_of(names, _LIGHT_QUEUES)
    kept, count = np.flatnonzero(~dropped), len(ORIGIN)
    ends = np.cumsum(np.bincount(row[kept], minlength=rows))  # of the pairs that a row keeps
    at, origin = np.repeat(ends, count), np.arange(count * rows).reshape(count, rows).T.ravel()
    name_of = np.insert(
        kept, at, len(names) + origin // rows
    )  # indexes among the old, then the new
    value_of = np.insert(kept, at, len(values) + origin)
    offsets = np.append(0, ends + count * np.arange(1, rows + 1))
    return pa.MapArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.concat_arrays([names, pa.array(list(ORIGIN))]).take(pa.array(name_of)),
        pa.concat_arrays([values, *(_as_text(batch[c]) for c in ORIGIN.values())]).take(
            pa.array(value_of)
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
