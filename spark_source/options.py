"""Options of `spark.read.format("rmqstore")`: strings to typed values, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.bodies import DEFAULT_MAX_BODY_BYTES
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.remote import StorageOptions
from rmq_store.tables import TABLES
from spark_source import values
from spark_source.liveclient import why_only_a_client
from spark_source.values import EARLIEST as EARLIEST
from spark_source.values import LATEST as LATEST
from spark_source.values import Assignment, ByQueue, Refused
from spark_source.values import parse_size as parse_size
from spark_source.values import parse_time as parse_time

DEFAULT_PARTITION_BYTES = 128 << 20

FAILFAST, PERMISSIVE, DROPMALFORMED = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
CONSUMEQUEUE, COMMITLOG = "consumequeue", "commitlog"
BY_LOG, BY_QUEUE = "log", "queue"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What was asked for, typed. None is "not said" throughout.

    Offsets are queue offsets, with EARLIEST and LATEST as Kafka's source writes them; times are
    milliseconds since the epoch.
    """

    paths: tuple[str, ...] = ()
    stores: Mapping[str, str] | None = None
    unavailable_stores: str = "fail"
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assign: Assignment | None = None
    include_system_topics: bool = False
    columns: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    broker_name: str | None = None
    broker_conf: str | None = None
    starting_offsets: ByQueue = field(default_factory=ByQueue)
    ending_offsets: ByQueue = field(default_factory=ByQueue)
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_timestamps: ByQueue = field(default_factory=ByQueue)
    ending_timestamps: ByQueue = field(default_factory=ByQueue)
    timestamp_strategy: str = "latest"
    fail_on_data_loss: bool = True
    source: str = CONSUMEQUEUE
    include_unqueued: bool = False
    split_by: str = BY_LOG
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = DEFAULT_PARTITION_BYTES
    verify_queue: bool = False
    mode: str = FAILFAST
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    unwrap_batches: bool = True
    table: str | None = None
    storage_options: StorageOptions | None = None

    @property
    def path(self) -> str:
        """The first path, for messages."""
        return self.paths[0] if self.paths else ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, the field it fills, how it is parsed, its default and its meaning."""

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        "paths",
        lambda value: (values.text(value),),
        "",
        "the store's folder or address (`s3://bucket/store`), with `*`, `?` and `[...]` those of "
        "several; `load(path)` sets it, and `load([a, b])` several",
    ),
    Option(
        "stores",
        "stores",
        values.names_to_text,
        "none",
        'stores by broker name, as JSON: `{"broker-a": "/data/a/store"}`; instead of a path',
    ),
    Option(
        "unavailableStores",
        "unavailable_stores",
        values.one_of("fail", "skip"),
        "fail",
        "what becomes of a store that cannot be opened: `fail` the query, or `skip` it with a "
        "warning and a row in `table=plan`",
    ),
    Option("topic", "topics", values.words, "all user topics", "short for `subscribe`"),
    Option(
        "subscribe",
        "topics",
        values.words,
        "all user topics",
        "one topic, or several parted by commas; the system's own too where they are named",
    ),
    Option(
        "subscribePattern",
        "topic_pattern",
        values.pattern,
        "none",
        "topics whose whole name a regular expression matches; of the system's own only with "
        "includeSystemTopics",
    ),
    Option(
        "assign",
        "assign",
        values.assignment,
        "all queues",
        'queues by topic, as JSON: `{"orders": [0, 1]}`, or of one broker: '
        '`{"orders": {"broker-a": [0]}}`; instead of `subscribe`',
    ),
    Option(
        "includeSystemTopics",
        "include_system_topics",
        values.flag,
        "false",
        "also the topics of the broker's own: delay, retry, dead letters, transactions, trace, ...",
    ),
    Option(
        "columns",
        "columns",
        values.columns,
        "all but those on request",
        "columns to read, parted by commas; what is not asked for is not read",
    ),
    Option("tags", "tags", values.any_of, "*", "messages with exactly one of these tags: `a || b`"),
    Option(
        "keys",
        "keys",
        values.keys,
        "none",
        "messages that have one of these words in KEYS, or as UNIQ_KEY: `a || b`; found by the "
        "index, and what it lacks is made good from the log",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        values.offsets("earliest"),
        "earliest",
        'first queue offset, as JSON: `{"orders": {"0": 23}}`, or of one broker: '
        '`{"orders": {"broker-a": {"0": 23}}}`; -2 is earliest, -1 latest; a queue not named '
        "starts at its earliest",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "starting_timestamps",
        values.timestamps,
        "none",
        "milliseconds by queue, as JSON in the same form: the first message stored then or later; "
        "counts before startingOffsets",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        parse_time,
        "none",
        "the first message stored then or later, for every queue; milliseconds, or ISO 8601 with "
        "a zone; counts before startingOffsetsByTimestamp and startingOffsets",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "timestamp_strategy",
        values.one_of("latest", "error"),
        "latest",
        "of a queue without a message stored then or later: `latest` reads nothing of it, `error` "
        "fails the query (Kafka's default, but a queue that is quiet is no error in a store)",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        values.offsets("latest"),
        "latest",
        "queue offset to stop before, in the form of startingOffsets",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "ending_timestamps",
        values.timestamps,
        "none",
        "stop before the first message stored then or later, by queue; counts before endingOffsets",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        parse_time,
        "none",
        "stop before the first message stored then or later, in every queue; counts before the "
        "other two",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        values.flag,
        "true",
        "whether the query fails where what it asks for has expired, before or while it runs; "
        "else it reads what is left and logs a warning",
    ),
    Option(
        "brokerName",
        "broker_name",
        values.text,
        "that of brokerConf, else the folder's name",
        "value of column brokerName; only for one store",
    ),
    Option(
        "brokerConf",
        "broker_conf",
        values.text,
        "none",
        "the broker's configuration file: its brokerName, file sizes and cluster are used; for "
        'several stores, JSON by broker name: `{"broker-a": "/data/a/broker.conf"}`',
    ),
    Option(
        "source",
        "source",
        values.one_of(CONSUMEQUEUE, COMMITLOG),
        CONSUMEQUEUE,
        "`commitlog` reads the log itself, for stores whose queues are missing, damaged or in "
        "RocksDB",
    ),
    Option(
        "includeUnqueued",
        "include_unqueued",
        values.flag,
        "false",
        "with `source=commitlog`: also the records that no queue lists (prepared, rolled back), "
        "queueOffset null",
    ),
    Option(
        "splitBy",
        "split_by",
        values.one_of(BY_LOG, BY_QUEUE),
        BY_LOG,
        "`log`: partitions are slices of the log, which is read once; `queue`: a queue is in one "
        "partition whole and in its order",
    ),
    Option(
        "minPartitions",
        "min_partitions",
        values.count,
        "1",
        "at least so many partitions, as far as there are messages (with `splitBy=queue`, queues)",
    ),
    Option(
        "maxRecordsPerPartition",
        "max_records_per_partition",
        values.count,
        "none",
        "at most so many queue entries in a partition; not with `source=commitlog`",
    ),
    Option(
        "maxBytesPerPartition",
        "max_bytes_per_partition",
        parse_size,
        "128m",
        "about how many selected bytes a partition holds; bytes, or with k, m, g",
    ),
    Option(
        "verifyQueue",
        "verify_queue",
        values.flag,
        "false",
        "hold every queue entry against its record also where the columns do not need the log",
    ),
    Option(
        "mode",
        "mode",
        values.one_of(FAILFAST, PERMISSIVE, DROPMALFORMED),
        FAILFAST,
        "of damage: FAILFAST fails the query, PERMISSIVE gives a row with `corruptRecord`, "
        "DROPMALFORMED leaves it out, counts it in the log, and `table=damage` lists it",
    ),
    Option(
        "maxBodyBytes",
        "max_body_bytes",
        parse_size,
        "256m",
        "a body that grows over this when it is decompressed is damage",
    ),
    Option(
        "unwrapBatches",
        "unwrap_batches",
        values.flag,
        "true",
        "a row for each message of an inner batch; else one for the record as it is stored",
    ),
    Option(
        "storageOptions",
        "storage_options",
        values.storage_options,
        "the environment",
        "for a path such as `s3://bucket/store`: what its class in pyarrow.fs is opened with, as "
        'JSON: `{"region": "eu-central-1"}`; it is shown nowhere',
    ),
    Option(
        "table",
        "table",
        values.one_of(*TABLES),
        "messages",
        "another table than the messages: " + ", ".join(TABLES),
    ),
)
_BY_FOLDED_NAME = {option.name.casefold(): option for option in OPTIONS}

_EXCLUDE_EACH_OTHER = (
    ("topic", "subscribe", "subscribePattern", "assign"),
    ("path", "stores"),
    ("stores", "brokerName"),
)


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """The options of a read, typed.

    Names are compared without case, since Spark hands them over in lower case. Raises
    InvalidArgumentError for an unknown name (with the nearest known one), one that only a client of
    a live broker has (with the reason), a value that cannot be, no path, and options that exclude
    each other.
    """
    fields: dict[str, Any] = {}
    given: set[str] = set()
    for name, value in raw.items():
        if name.casefold() == "paths":  # how Spark hands over load([a, b])
            fields["paths"] = _paths(value)
            given.add("path")
            continue
        option = _known(name)
        fields[option.field] = _parsed(option, value)
        given.add(option.name)
    for group in _EXCLUDE_EACH_OTHER:
        both = [name for name in group if name in given]
        if len(both) > 1:
            raise _invalid(
                f"options {both[0]!r} and {both[1]!r} exclude each other", "Give one of them"
            )
    if not given & {"path", "stores"}:
        raise _invalid(
            "no path",
            "Give the store's folder: load('/path/to/store'), or in SQL CREATE TEMPORARY VIEW … "
            "USING rmqstore OPTIONS (path '/path/to/store')",
        )
    asked = SourceOptions(**fields)
    _check_together(asked, given)
    return asked


def _check_together(asked: SourceOptions, given: set[str]) -> None:
    if asked.source == COMMITLOG:
        for name in ("maxRecordsPerPartition", "splitBy", "verifyQueue"):
            if name in given:
                raise _invalid(
                    f"option {name!r} is about queues, which source=commitlog does not read",
                    "Leave it out; maxBytesPerPartition and minPartitions split the log",
                )
    elif asked.include_unqueued:
        raise _invalid(
            "includeUnqueued asks for records that no queue lists, and the queues are the source",
            "Give source=commitlog too",
        )
    if asked.table is not None and asked.columns is not None and asked.table != "plan":
        raise _invalid(
            f"option 'columns' chooses columns of messages, not of table {asked.table!r}",
            "Use select(...)",
        )


def _known(name: str) -> Option:
    if name.casefold() == "location":  # how Spark hands over the path of a table of its catalog
        raise _invalid(
            "CREATE TABLE is not supported: Spark keeps its path and loses the other options",
            "Use CREATE TEMPORARY VIEW … USING rmqstore OPTIONS (path '…')",
        )
    option = _BY_FOLDED_NAME.get(name.casefold())
    if option is not None:
        return option
    why = why_only_a_client(name)
    if why is not None:
        raise _invalid(f"option {name!r} is of a client of a live broker", why[0].upper() + why[1:])
    raise _invalid(f"unknown option {name!r}", nearest(name, [known.name for known in OPTIONS]))


def _paths(value: str) -> tuple[str, ...]:
    shape = '["/data/a/store", "/data/b/store"]'
    try:
        found = values.json_list(value, shape)
    except Refused as refused:
        raise _invalid(f"option 'paths' {refused}", "Give them as load([a, b])") from None
    return tuple(os.fspath(path) for path in found)


def _invalid(reason: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(None, reason=reason, advice=advice)


def _parsed(option: Option, value: str) -> Any:
    try:
        return option.parse(value)
    except Refused as refused:
        raise InvalidArgumentError(
            None,
            reason=f"option {option.name!r} {refused}",
            actual=None if option.name == "storageOptions" else repr(value),
            advice=f"It means: {option.meaning}",
        ) from None
