"""Rows of a DataFrame as batches to be staged, checked as the store checks them.

Runs on the executors. A row without queueId and with keys gets the queue that the broker's client
chooses for such a key (SelectMessageQueueByHash). A row with neither keeps a null, and gets its
queue in turn when the rows of all partitions are in their order. All that does not depend on a
record's place is done here, because tasks run side by side, and the commit is one process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType, TimestampNTZType

from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.arrow.encoding.batch_to_records import (
    KNOWN_COLUMNS,
    LOOPBACK,
    NUMBER_COLUMNS,
    PreparedMessages,
    prepare,
)
from rmq_store.arrow.encoding.checks import cast_column, invalid_message, lengths, topic_fault
from rmq_store.arrow.encoding.properties import PROPERTY_WORDS
from rmq_store.arrow.property_columns import buffers, decode_property_columns
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.format.byte_layout import Bytes, Ints, Property, in_portions
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.hashes import java_string_hashes
from rmq_store.format.releases import Dialect, dialect
from rmq_store.text.times import LEAST_MS, MOST_MS, why_not_ms
from rmq_store.writing.encoded_records import EncodedRecords, encoded_records_of, is_encodable
from rmq_store.writing.store_writer import StoreWriter
from spark_source.writing.target import WriteOptions

# The form in which rows are staged: as bytes of records, or as columns if bytes follow from places.
#
# Column `queueId` is null where the commit gives rows their queue in turn.


_RECORDS = "records"


def staged_records(
    prepared: PreparedMessages, rows: slice, queue_id: pa.Array, dialect: Dialect
) -> pa.RecordBatch:
    """The records `rows` as a batch to be staged, with the queues of `queue_id`, which may be null."""
    records = encoded_records_of(prepared, rows, dialect)
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


BATCH_BYTES = 32 << 20  # about, of a batch that is staged
_HOSTS = ("bornHost", "storeHost")
_TIMES = frozenset(("bornTimestamp", "storeTimestamp"))

WRITTEN = tuple(name for name in BY_NAME if name in KNOWN_COLUMNS or name == "rawBody")
"""Columns of the source that a write takes."""
ASSIGNED = tuple(name for name in BY_NAME if name not in WRITTEN)
"""Columns of the source that the target store assigns itself: a write leaves them out."""
OF_A_STORE = frozenset((*ASSIGNED, "storeTimestamp", "storeHost", "rawBody", "rawProperties"))
"""Columns of records: rows with one of them are of a store, and keep what a new message may not have."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise InvalidArgumentError for a column that is not one of the source, or is missing, and for a time
    without a time zone: Arrow has it as UTC, and Spark takes it in the time zone of the session."""
    names = schema.fieldNames()
    for name in names:
        if name not in BY_NAME:
            raise InvalidArgumentError(
                reason=f"column {name!r} is not a column of a store",
                advice=f"{nearest(name, BY_NAME)} Put other values into the body or the properties",
            )
        if names.count(name) > 1:
            raise InvalidArgumentError(reason=f"column {name!r} is there twice")
    if "topic" not in names and options.topic is None:
        raise _missing("topic", "Add it, or give the option 'topic' for all rows")
    if "topic" in names and options.topic is not None:
        raise InvalidArgumentError(
            reason="there is a column 'topic', and the option 'topic' for all rows",
            advice="Leave one of them out",
        )
    if "body" not in names and "rawBody" not in names:
        raise _missing("body", "Add it, as text or as bytes")
    if "rawBody" in names and "sysFlag" not in names:
        raise _missing("sysFlag", "It says whether rawBody is compressed")
    for column in schema.fields:
        if isinstance(column.dataType, TimestampNTZType):
            raise InvalidArgumentError(
                reason=f"column {column.name!r} has times without a time zone",
                expected="timestamp",
                actual="timestamp_ntz",
                advice=f"Cast it: {column.name}.cast('timestamp') takes them in the time zone of the "
                "session",
            )


def _missing(name: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(reason=f"there is no column {name!r}", advice=advice)


def staged_batches(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[pa.RecordBatch]:
    """The rows as checked batches of about BATCH_BYTES, in their order and in their staged form.

    Raises InvalidMessageError, with the row, for what the store would refuse.
    """
    columns, prepared = columns_and_records(batch, options)
    encodes = is_encodable(prepared)
    for rows in in_portions(prepared.total, BATCH_BYTES):
        if encodes:
            queue_id = columns.column("queueId")
            yield staged_records(prepared, rows, queue_id, dialect(options.release))
        else:
            yield columns.slice(rows.start, rows.stop - rows.start)


def columns_and_records(
    batch: pa.RecordBatch, options: WriteOptions
) -> tuple[pa.RecordBatch, PreparedMessages]:
    """The rows as columns for `StoreWriter.append_batch`, and the same as `prepare` gives it."""
    columns_of_batch = {name: batch.column(name) for name in batch.schema.names if name in WRITTEN}
    release = dialect(options.release)
    if options.topic is not None and batch.num_rows:
        # No new topic may have such a name, copied rows or not.
        fault = topic_fault(options.topic, release, options.config)
        if fault is not None:
            raise invalid_message(0, fault)
    columns = _as_stored(columns_of_batch, options, batch.num_rows)
    queue_id = columns["queueId"]
    with_queues = {**columns, "queueId": pc.fill_null(queue_id, pa.scalar(0, pa.int32()))}
    copied = not OF_A_STORE.isdisjoint(batch.schema.names)
    prepared = prepare(
        pa.RecordBatch.from_pydict(with_queues), options.config, release, LOOPBACK, copied=copied
    )
    _refuse_whole_batches(columns_of_batch, prepared.properties)
    for name in (*PROPERTY_WORDS, "properties"):  # these are in the stored strings
        columns.pop(name, None)
    columns["rawProperties"] = prepared.properties
    columns["queueId"] = _queues_by_key(queue_id, prepared.properties, options.queues)
    for name in [host for host in _HOSTS if host in columns]:
        columns[name] = cast_column(columns[name], pa.string(), name)
    return pa.RecordBatch.from_pydict(columns), prepared


def _as_stored(
    columns: Mapping[str, pa.Array], options: WriteOptions, count: int
) -> dict[str, pa.Array]:
    """The columns, each made what the store takes. A queue that is not known yet is null."""
    made = {
        "topic": cast_column(columns["topic"], pa.string(), "topic")
        if options.topic is None
        else pa.repeat(pa.scalar(options.topic), count)
    }
    for name in NUMBER_COLUMNS:
        if name in columns and (options.keep_timestamps or name != "storeTimestamp"):
            made[name] = _numbers(columns[name], name)
    if "storeTimestamp" in made:
        negative = pc.less(made["storeTimestamp"], 0)
        if pc.any(negative).as_py():
            raise invalid_message(pc.index(negative, True).as_py(), "storeTimestamp is below 0")
    born = columns.get("bornTimestamp", pa.nulls(count, pa.int64()))
    now = pa.scalar(time.time_ns() // 1_000_000, pa.int64())
    made["bornTimestamp"] = pc.coalesce(_numbers(born, "bornTimestamp", None), now)
    body = "rawBody" if "rawBody" in columns else "body"
    if "sysFlag" in made:
        made["sysFlag"] = _flags_of_bodies(made["sysFlag"].to_numpy(), raw=body == "rawBody")
    made["body"] = cast_column(columns[body], pa.binary(), body)
    for name in (*_HOSTS, *PROPERTY_WORDS, "properties", "rawProperties"):
        if name in columns:
            made[name] = columns[name]
    queue_id = columns.get("queueId", pa.nulls(count, pa.int32()))
    made["queueId"] = cast_column(queue_id, pa.int32(), "queueId")
    return made


def _flags_of_bodies(flags: npt.NDArray[np.int32], *, raw: bool) -> pa.Array:
    """The sysFlags that fit the bodies: one that was decompressed, or taken out of an inner batch, is
    stored as it is."""
    unlisted = ~enters_queue(flags)
    if unlisted.any():
        raise invalid_message(
            int(np.argmax(unlisted)),
            "sysFlag marks a message that no queue lists: prepared or rolled back",
        )
    as_it_was = raw & ((flags & SysFlag.INNER_BATCH) == 0)
    return pa.array(np.where(as_it_was, flags, flags & ~SysFlag.OF_STORED_BODY), pa.int32())


def _refuse_whole_batches(columns: Mapping[str, pa.Array], properties: pa.Array) -> None:
    """Raise InvalidMessageError for a record that is an inner batch. Its members have the same
    sysFlag, but not the property INNER_NUM."""
    if "sysFlag" not in columns:
        return
    flags = _numbers(columns["sysFlag"], "sysFlag").to_numpy()
    members = np.flatnonzero(flags & SysFlag.INNER_BATCH)
    if not len(members):
        return
    if not {"properties", "rawProperties"} & set(columns):
        raise invalid_message(
            int(members[0]),
            "sysFlag marks an inner batch, or a message of one",
            advice="Add the column properties, which shows the difference, or leave out sysFlag",
        )
    own = properties.take(pa.array(members))
    whole = pc.match_substring(own, Property.INNER_NUM + "\x01").to_numpy(zero_copy_only=False)
    if whole.any():
        raise invalid_message(
            int(members[np.argmax(whole)]),
            "the record is an inner batch",
            advice="Read its messages, with unwrapBatches=true",
        )


def _numbers(column: pa.Array, name: str, null: int | None = 0) -> pa.Array:
    """A number for each row; times as milliseconds, rounded down. Null becomes `null`.

    Raises InvalidMessageError for a number that is a time in seconds, or another unit.
    """
    kind = pa.from_numpy_dtype(NUMBER_COLUMNS[name])
    is_time = pa.types.is_timestamp(column.type)
    if is_time:
        # In UTC: a zone's clock shows some hours twice, and Arrow floors no time in them.
        utc = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
        millis = pc.floor_temporal(utc, unit="millisecond").cast(pa.timestamp("ms", tz="UTC"))
        column = millis.view(pa.int64())
    numbers = cast_column(column, kind, name)
    if name in _TIMES and not is_time:
        _refuse_other_units(pc.fill_null(numbers, 0).to_numpy(), name)
    return numbers if null is None else pc.fill_null(numbers, pa.scalar(null, kind))


def _refuse_other_units(values: Ints, name: str) -> None:
    sizes = np.abs(values)
    wrong = (sizes != 0) & ((sizes < LEAST_MS) | (sizes >= MOST_MS))
    if wrong.any():
        row = int(np.argmax(wrong))
        why, *_ = why_not_ms(int(values[row])) or ("is no time",)
        advice = (
            "Give milliseconds, or a timestamp: timestamp_seconds() makes one of seconds, "
            "timestamp_micros() of microseconds"
        )
        raise invalid_message(row, f"{name} {values[row]} {why}", advice=advice)


def _queues_by_key(queue_id: pa.Array, properties: pa.Array, queues: int) -> pa.Array:
    """queueId by the hash of KEYS where it is null and there are keys."""
    if not queue_id.null_count:
        return queue_id
    unknown = queue_id.is_null()
    keys = decode_property_columns(properties.filter(unknown), with_map=False).keys
    filled = keys.fill_null("")
    ends, raw = buffers(filled)
    # SelectMessageQueueByHash: the remainder of Java, made positive.
    hashed = np.abs(np.fmod(java_string_hashes(raw, ends).astype(np.int64), queues))
    by_key = pa.array(hashed, pa.int32(), mask=lengths(filled) == 0)
    return pc.replace_with_mask(queue_id, unknown, by_key)


class QueuesInTurn:
    """Gives rows without queueId their queues, one after the other by topic."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._next: dict[str, int] = {}

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with a queueId in every row."""
        at = batch.schema.get_field_index("queueId")
        column = batch.column(at)
        if not column.null_count:
            return batch
        unknown = column.is_null()
        topics = batch.column("topic").filter(unknown).dictionary_encode()
        in_turn = np.zeros(len(topics), np.int32)
        for code, topic in enumerate(topics.dictionary.to_pylist()):
            own = np.flatnonzero(topics.indices.to_numpy() == code)
            first = self._next.get(topic, 0)
            in_turn[own] = (first + np.arange(len(own))) % self._queues
            self._next[topic] = (first + len(own)) % self._queues
        queue_id = pc.replace_with_mask(column, unknown, pa.array(in_turn))
        return batch.set_column(at, "queueId", queue_id)
