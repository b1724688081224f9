"""Properties that hold a queueOffset, set by the store on append (BatchConsumeQueue, LmqDispatch).

INNER_BASE of an inner batch is its queueOffset. INNER_MULTI_QUEUE_OFFSET holds the offsets in the
light message queues (LMQ) that also list a record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from rmq_store.arrow.encoding.batch_to_records import columns_of
from rmq_store.arrow.encoding.properties import PROPERTY_WORDS, given_strings, rows_with_item
from rmq_store.arrow.string_slices import buffers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.byte_layout import (
    MULTI_DISPATCH_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    Property,
)
from rmq_store.format.enters_queue import enters_queue
from rmq_store.format.properties import decode_properties
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.sys_flag import SysFlag
from rmq_store.format.topics import LMQ_PREFIX

_FORMS = ("properties", "rawProperties", *PROPERTY_WORDS)
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


def with_places(batch: pa.RecordBatch, places: Places, dialect: Dialect) -> pa.RecordBatch:
    """`batch` with these properties set in `rawProperties`; the batch itself if it has none of them.

    Processes rows one by one only in batches that have such properties.
    """
    flags = np.zeros(len(batch), dtype=np.int64)
    if "sysFlag" in batch.schema.names:
        flags = batch.column("sysFlag").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not (flags & SysFlag.INNER_BATCH).any() and not _names_queues(batch):
        return batch
    columns = columns_of(batch)
    stored = given_strings(columns, dialect).to_pylist()
    ends_last = "rawProperties" in columns or not dialect.has("no_last_separator")
    queues = map(QueueId, columns["topic"].to_pylist(), columns["queueId"].to_pylist())
    for row, (flag, queue) in enumerate(zip(flags.tolist(), queues, strict=True)):
        if places.concern(stored[row], flag):
            raw = places.set(stored[row], flag, queue, enters_queue(flag))
            stored[row] = raw if ends_last else raw.removesuffix(_ITEM_END)
        elif enters_queue(flag):
            places.set(b"", 0, queue, True)
    batch = batch.drop_columns([name for name in _FORMS if name in batch.schema.names])
    return batch.append_column("rawProperties", pa.array(stored, pa.binary()))


def _names_queues(batch: pa.RecordBatch) -> bool:
    """Whether properties name light message queues."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    stored, given = columns.get("rawProperties"), columns.get("properties")
    if stored is not None and len(stored):
        known = stored.cast(pa.binary())
        known = known.drop_null() if known.null_count else known
        if rows_with_item(known, (Property.INNER_MULTI_DISPATCH,)).any():
            return True
    if given is not None and pa.types.is_map(given.type) and len(given):
        first, last = (given.offsets[row].as_py() for row in (0, -1))
        # A slice of a table has the keys of all of it.
        ends, data = buffers(given.keys[first:last].cast(pa.binary()))
        return Property.INNER_MULTI_DISPATCH.encode() in data[ends[0] : ends[-1]].tobytes()
    return False


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
