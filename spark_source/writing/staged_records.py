"""The form in which rows are staged: as bytes of records, or as columns if bytes follow from places.

Column `queueId` is null where the commit gives rows their queue in turn.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmq_store.arrow.encoding.batch_to_records import Prepared
from rmq_store.arrow.string_slices import buffers
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.releases import Dialect
from rmq_store.writing.encoded_records import EncodedRecords, encode
from rmq_store.writing.store_writer import StoreWriter

_RECORDS = "records"


def staged_records(
    prepared: Prepared, rows: slice, queue_id: pa.Array, dialect: Dialect
) -> pa.RecordBatch:
    """The records `rows` as a batch to be staged, with the queues of `queue_id`, which may be null."""
    records = encode(prepared, rows, dialect)
    topics = pa.DictionaryArray.from_arrays(
        pa.array(records.topic_code, pa.int32()), pa.array(records.topics, pa.string())
    )
    columns = {
        _RECORDS: _strings(records.data, records.total),
        "topic": topics,
        "queueId": queue_id[rows],
        "sysFlag": pa.array(records.sys_flag),
        "storeTimestamp": pa.array(records.store_timestamp),
        "tagsCode": pa.array(records.tags_code),
        "keyHashes": pa.ListArray.from_arrays(_ends(records.item_counts), pa.array(records.hashes)),
    }
    return pa.RecordBatch.from_pydict(columns)


def _ends(lengths: Ints) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.array(ends)


def _strings(data: Bytes, lengths: Ints) -> pa.Array:
    buffers = [None, _ends(lengths).buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def append_staged(store: StoreWriter, batch: pa.RecordBatch) -> None:
    """Append a staged batch, whose rows all have a queue by now."""
    if _RECORDS in batch.schema.names:
        store.append_records(_records_of(batch))
    else:
        store.append_batch(batch, copied=True)  # the tasks checked what is new


def _records_of(batch: pa.RecordBatch) -> EncodedRecords:
    ends, data = buffers(batch.column(_RECORDS))
    topic, items = batch.column("topic"), batch.column("keyHashes")
    return EncodedRecords(
        topic.dictionary.to_pylist(),
        topic.indices.to_numpy().astype(np.int64),
        batch.column("queueId").to_numpy(),
        batch.column("sysFlag").to_numpy(),
        np.diff(ends).astype(np.int64),
        batch.column("storeTimestamp").to_numpy(),
        batch.column("tagsCode").to_numpy(),
        np.diff(items.offsets.to_numpy()).astype(np.int64),
        items.values.to_numpy(),
        data[int(ends[0]) : int(ends[-1])],
    )
