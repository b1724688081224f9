"""The options of the source: what each is called, how its text is read, and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_store.tables import TABLES
from spark_source.options import value_parsers as values

DEFAULT_PARTITION_BYTES = 128 << 20

FAILFAST, PERMISSIVE, DROPMALFORMED = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
CONSUMEQUEUE, COMMITLOG = "consumequeue", "commitlog"
BY_LOG, BY_QUEUE = "log", "queue"


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
        values.parse_time,
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
        values.parse_time,
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
        values.parse_size,
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
        values.parse_size,
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
