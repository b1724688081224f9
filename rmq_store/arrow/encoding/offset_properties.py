"""Properties that hold a queueOffset, set by the store on append (BatchConsumeQueue, LmqDispatch).

INNER_BASE of an inner batch is its queueOffset. INNER_MULTI_QUEUE_OFFSET holds the offsets in the
light message queues (LMQ) that also list a record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.string_slices import buffers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import (
    MULTI_DISPATCH_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    Property,
    SysFlag,
)
from rmq_store.format.properties import decode_properties
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import LMQ_PREFIX

_NAME_END, _ITEM_END = bytes([NAME_VALUE_SEPARATOR]), bytes([PROPERTY_SEPARATOR])


class Places:
    """Assigns queueOffsets while records are built; `lmq` holds the new ends of LMQ queues.

    The assignment is provisional until the records are written: then the caller adds `lmq` to its
    counters.
    """

    def __init__(self, config: StoreConfig, max_offset: Callable[[QueueId], int]) -> None:
        self._assigns = bool(config.enableLmq)
        self._max_offset = max_offset
        self._ends: dict[QueueId, int] = {}
        self.lmq: dict[QueueId, int] = {}

    def _take(self, queue: QueueId, count: int) -> int:
        at = self._ends.get(queue, self._max_offset(queue))
        self._ends[queue] = at + count
        return at

    def concern(self, raw: bytes, sys_flag: int) -> bool:
        """Whether a record with these properties holds a queueOffset in them."""
        if sys_flag & SysFlag.INNER_BATCH:
            return True
        name = Property.INNER_MULTI_DISPATCH if self._assigns else Property.INNER_MULTI_QUEUE_OFFSET
        return name.encode() in raw

    def set(self, raw: bytes, sys_flag: int, queue: QueueId, listed: bool) -> bytes:
        """The stored properties of the next record, with its assigned offsets."""
        properties = decode_properties(raw)
        inner = bool(sys_flag & SysFlag.INNER_BATCH)
        number = properties.get(Property.INNER_NUM, "") if inner else "1"
        base = self._take(queue, int(number) if number.isdigit() else 1) if listed else 0
        if inner and Property.INNER_NUM in properties:
            raw = _with(raw, Property.INNER_BASE, str(base))
        if Property.INNER_MULTI_DISPATCH not in properties:
            return raw
        if self._assigns or Property.INNER_MULTI_QUEUE_OFFSET in properties:
            names = properties[Property.INNER_MULTI_DISPATCH].split(MULTI_DISPATCH_SEPARATOR)
            offsets = [self._lmq_offset(name) for name in names]
            raw = _with(
                raw, Property.INNER_MULTI_QUEUE_OFFSET, MULTI_DISPATCH_SEPARATOR.join(offsets)
            )
        return raw

    def _lmq_offset(self, name: str) -> str:
        if not name.startswith(LMQ_PREFIX):
            return ""
        queue = QueueId(name, 0)
        at = self._take(queue, 1)
        self.lmq[queue] = at + 1
        return str(at)


def with_places(batch: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    """`batch` with these properties set; the batch itself if none of its rows has one.

    Processes rows one by one only in batches that have such properties.
    """
    names = set(batch.schema.names)
    flags = None
    if "sysFlag" in names:
        flags = batch.column("sysFlag").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    inner = flags is not None and bool((flags & SysFlag.INNER_BATCH).any())
    at = batch.schema.get_field_index("properties")
    if at < 0:
        return _with_raw_places(batch, places, flags, inner)
    column = batch.column(at)
    if not inner and not _names_one(column):
        return batch
    rows = []
    queues = (_filled(batch, name).to_pylist() for name in ("topic", "queueId"))
    all_flags = [0] * batch.num_rows if flags is None else flags.tolist()
    for flag, topic, queue_id, pairs in zip(all_flags, *queues, column.to_pylist(), strict=True):
        raw = _encoded(pairs or [])
        if places.concern(raw, flag):
            raw = places.set(raw, flag, QueueId(topic, queue_id), _listed(flag))
            pairs = list(decode_properties(raw).items())
        elif _listed(flag):
            places.set(b"", 0, QueueId(topic, queue_id), True)
        rows.append(pairs)
    return batch.set_column(at, batch.schema.field(at), pa.array(rows, column.type))


def _with_raw_places(
    batch: pa.RecordBatch, places: Places, flags: Ints | None, inner: bool
) -> pa.RecordBatch:
    at = batch.schema.get_field_index("rawProperties")
    if at < 0:
        return batch
    column = batch.column(at).cast(pa.binary())
    ends, data = buffers(column)
    named = Property.INNER_MULTI_DISPATCH.encode() in data[ends[0] : ends[-1]].tobytes()
    if not inner and not named:
        return batch
    rows = []
    queues = (_filled(batch, name).to_pylist() for name in ("topic", "queueId"))
    all_flags = [0] * batch.num_rows if flags is None else flags.tolist()
    for flag, topic, queue_id, raw in zip(all_flags, *queues, column.to_pylist(), strict=True):
        queue, raw = QueueId(topic, queue_id), raw or b""
        if places.concern(raw, flag):
            raw = places.set(raw, flag, queue, _listed(flag))
        elif _listed(flag):
            places.set(b"", 0, queue, True)
        rows.append(raw)
    return batch.set_column(at, "rawProperties", pa.array(rows, column.type))


def _filled(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    return column.fill_null(0) if pa.types.is_integer(column.type) else column


def _names_one(column: pa.Array) -> bool:
    if not pa.types.is_map(column.type):
        return False
    keys = column.keys
    return bool(pc.any(pc.equal(keys, Property.INNER_MULTI_DISPATCH)).as_py())


def _listed(flag: int) -> bool:
    return flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT)


def _encoded(pairs: list[tuple[str, str]]) -> bytes:
    try:
        return b"".join(
            name.encode() + _NAME_END + value.encode() + _ITEM_END for name, value in pairs
        )
    except (AttributeError, UnicodeError) as error:
        raise InvalidMessageError(
            None,
            reason=f"properties are not valid text: {error}",
            advice="Nothing of the batch was written",
        ) from error


def _with(raw: bytes, name: str, value: str) -> bytes:
    """Stored properties with one property set; an existing one keeps its position, if repeated too."""
    item = name.encode() + _NAME_END + value.encode()
    items = raw.split(_ITEM_END)
    there = [
        number for number, one in enumerate(items) if one.startswith(name.encode() + _NAME_END)
    ]
    for number in there:
        items[number] = item
    if there:
        return _ITEM_END.join(items)
    if raw and not raw.endswith(_ITEM_END):
        raw += _ITEM_END
    return raw + item + _ITEM_END
