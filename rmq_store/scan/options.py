"""The options of the source: name, parser, default and meaning of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_store.files.remote.uri_filesystem import parse_storage_options
from rmq_store.format.releases import dialect
from rmq_store.reading.query import DROPMALFORMED, FAILFAST, PERMISSIVE
from rmq_store.scan import option_values as values
from rmq_store.tables import TABLES
from rmq_store.text.times import TIME_FORMS, parse_time

DEFAULT_PARTITION_BYTES = 128 << 20
NEWEST_RELEASE = str(dialect())

CONSUMEQUEUE, COMMITLOG = "consumequeue", "commitlog"
BY_LOG, BY_QUEUE = "log", "queue"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, how it is parsed, its default and its meaning."""

    name: str
    parse: Callable[[str], Any]
    default: str
    meaning: str
    fills: str | None = None  # the field, if its name is another
    secret: bool = False  # may hold credentials, so no message or report has its value

    @property
    def field(self) -> str:
        """The field of the typed options that it fills, by default its name in snake case."""
        return self.fills or re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", self.name)


OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        lambda value: (values.text(value),),
        "",
        "the store's folder or address (`s3://bucket/store`), `*`, `?` and `[...]` "
        "match several stores; `load(path)` sets it, and `load([a, b])` sets several",
        fills="paths",
    ),
    Option(
        "stores",
        values.names_to_text,
        "none",
        'stores by broker name, as JSON: `{"broker-a": "/data/a/store"}`; instead of a path',
    ),
    Option(
        "unavailableStores",
        values.one_of("fail", "skip"),
        "fail",
        "a store that cannot be opened: `fail` fails the query, `skip` leaves the store out with "
        "a warning and a row in `table=plan`",
    ),
    Option("topic", values.words, "all user topics", "short for `subscribe`", fills="topics"),
    Option(
        "subscribe",
        values.words,
        "all user topics",
        "one topic, or several separated by commas; named system topics are included",
        fills="topics",
    ),
    Option(
        "subscribePattern",
        values.pattern,
        "none",
        "topics whose whole name matches a regular expression; system topics only with "
        "includeSystemTopics",
        fills="topic_pattern",
    ),
    Option(
        "assign",
        values.assignment,
        "all queues",
        'queues by topic, as JSON: `{"orders": [0, 1]}`, or for one broker: '
        '`{"orders": {"broker-a": [0]}}`; instead of `subscribe`',
    ),
    Option(
        "includeSystemTopics",
        values.flag,
        "false",
        "include system topics: delay, retry, dead letters, transactions, trace, ...",
    ),
    Option(
        "columns",
        values.columns,
        "all but those on request",
        "columns to read, separated by commas; other columns are not read",
    ),
    Option("tags", values.any_of, "*", "messages with exactly one of these tags: `a || b`"),
    Option(
        "keys",
        values.keys,
        "none",
        "messages with one of these words in KEYS, as all of KEYS, or as UNIQ_KEY: `a || b`; the index is "
        "used, and uncovered parts of the log are searched",
    ),
    Option(
        "startingOffsets",
        values.offsets("earliest"),
        "earliest",
        'first queue offset, as JSON: `{"orders": {"0": 23}}`, or for one broker: '
        '`{"orders": {"broker-a": {"0": 23}}}`; -2 is earliest, -1 latest; a queue not named '
        "starts at its earliest",
    ),
    Option(
        "startingOffsetsByTimestamp",
        values.timestamps,
        "none",
        "milliseconds by queue, as JSON in the same form: start at the first message stored at or "
        "after that time; takes precedence over startingOffsets",
        fills="starting_timestamps",
    ),
    Option(
        "startingTimestamp",
        parse_time,
        "none",
        f"start every queue at the first message stored at or after this time: {TIME_FORMS}; takes "
        "precedence over startingOffsetsByTimestamp and startingOffsets",
        fills="since",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        values.one_of("latest", "error"),
        "latest",
        "for a queue with no message at or after that time: `latest` skips it, `error` fails the "
        "query (Kafka's default is `error`, but in a store a quiet queue is normal)",
        fills="timestamp_strategy",
    ),
    Option(
        "endingOffsets",
        values.offsets("latest"),
        "latest",
        "stop before this queue offset, as JSON in the form of startingOffsets",
    ),
    Option(
        "endingOffsetsByTimestamp",
        values.timestamps,
        "none",
        "milliseconds by queue: stop before the first message stored at or after that time; takes "
        "precedence over endingOffsets",
        fills="ending_timestamps",
    ),
    Option(
        "endingTimestamp",
        parse_time,
        "none",
        "stop every queue before the first message stored at or after this time; takes precedence "
        "over endingOffsetsByTimestamp and endingOffsets",
        fills="until",
    ),
    Option(
        "failOnDataLoss",
        values.flag,
        "true",
        "whether the query fails if requested messages have expired, before or while it runs; "
        "if false it reads the remaining messages and logs a warning",
    ),
    Option(
        "brokerName",
        values.text,
        "the one in brokerConf, else the folder's name",
        "value of column brokerName; only if there is one store",
    ),
    Option(
        "brokerConf",
        values.text,
        "none",
        "the broker's configuration file, for brokerName, file sizes and cluster; for several "
        'stores, JSON by broker name: `{"broker-a": "/data/a/broker.conf"}`',
    ),
    Option(
        "source",
        values.one_of(CONSUMEQUEUE, COMMITLOG),
        CONSUMEQUEUE,
        "`commitlog` reads the log itself, for stores whose queues are missing or damaged",
    ),
    Option(
        "compacted",
        values.flag,
        "true",
        "a topic with `cleanup.policy=COMPACTION` gives what consumers are served from "
        "`compaction/`: the last message of each key; `false` gives all messages of its queues",
    ),
    Option(
        "includeUnqueued",
        values.flag,
        "false",
        "with `source=commitlog`: include records that no queue lists (prepared, rolled back); "
        "their queueOffset is null",
    ),
    Option(
        "splitBy",
        values.one_of(BY_LOG, BY_QUEUE),
        BY_LOG,
        "`log`: partitions are slices of the log, which is read once; `queue`: each queue stays "
        "in one partition, in order",
    ),
    Option(
        "minPartitions",
        values.count,
        "1",
        "minimum number of partitions, if there are as many messages (with `splitBy=queue`: "
        "queues)",
    ),
    Option(
        "maxRecordsPerPartition",
        values.count,
        "none",
        "maximum number of queue entries in a partition; not with `source=commitlog`",
    ),
    Option(
        "maxBytesPerPartition",
        values.parse_size,
        "128m",
        "approximate number of selected bytes in a partition; bytes, or with k, m, g",
    ),
    Option(
        "verifyQueue",
        values.flag,
        "false",
        "check every queue entry against its record, even if no column needs the log, and compare the whole "
        "log with the queues in tasks of their own, as `rmqstore verify` does",
    ),
    Option(
        "mode",
        values.one_of(FAILFAST, PERMISSIVE, DROPMALFORMED),
        FAILFAST,
        "on damage: FAILFAST fails the query, PERMISSIVE returns a row with `corruptRecord`, "
        "DROPMALFORMED leaves the message out and logs the count; `table=damage` lists damage",
    ),
    Option(
        "maxBodyBytes",
        values.parse_size,
        "256m",
        "a body that decompresses to more than this is damage",
    ),
    Option(
        "unwrapBatches",
        values.flag,
        "true",
        "return a row for each message of an inner batch; if false, one row for the stored record",
    ),
    Option(
        "storageOptions",
        parse_storage_options,
        "the environment",
        "for a path such as `s3://bucket/store`: arguments for its class in pyarrow.fs, as "
        'JSON: `{"region": "eu-central-1"}`; never shown',
        secret=True,
    ),
    Option(
        "table",
        values.one_of(*TABLES),
        "messages",
        "read this table instead of messages: " + ", ".join(TABLES),
    ),
    Option(
        "checkpointLocation",
        values.text,
        "none",
        "for `table=stream`: the checkpoint folder of a query, on a local or mounted disk",
        fills="checkpoint",
    ),
)

# What a write takes, of a batch or a stream.
WRITE_OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        values.text,
        "",
        "the folder of the store, local or mounted, which driver and executors share; `save(path)` "
        "and `start(path)` set it",
    ),
    Option("topic", values.text, "column `topic`", "the topic of all rows"),
    Option(
        "queues",
        values.count,
        "4",
        "number of queues for rows without queueId: by the hash of `keys`, without keys in turn",
    ),
    Option(
        "release",
        values.text,
        NEWEST_RELEASE,
        "release of the broker whose files to write, such as 4.9.7",
    ),
    Option(
        "brokerConf",
        values.text,
        "none",
        "the broker's configuration file, for file sizes, limits and flushDiskType",
    ),
    Option(
        "keepTimestamps",
        values.flag,
        "false",
        "keep column storeTimestamp; if false, a message is stored at the time of the write",
    ),
    Option(
        "flush",
        values.flag,
        "true",
        "whether everything is on the disk when the write returns; if false, a power failure can "
        "cost the last writes",
    ),
    Option(
        "ifExists",
        values.one_of("append", "error", "ignore"),
        "append",
        'for `mode("append")` to a store that exists: append, error (the write fails), or ignore (it writes '
        "nothing)",
    ),
)

# What a stream has besides the options of a batch. A batch refuses them.
STREAM_OPTIONS: tuple[Option, ...] = (
    Option(
        "maxOffsetsPerTrigger",
        values.count,
        "none",
        "maximum number of messages in a micro-batch; an inner batch is not cut",
        fills="max_rows",
    ),
    Option(
        "maxBytesPerTrigger",
        values.parse_size,
        "none",
        "maximum number of bytes of each store's log in a micro-batch; bytes, or with k, m, g",
        fills="max_bytes",
    ),
    Option(
        "minOffsetsPerTrigger",
        values.count,
        "none",
        "wait until there are as many messages, but at most maxTriggerDelay",
        fills="min_rows",
    ),
    Option(
        "maxTriggerDelay",
        values.duration,
        "15m",
        "how long minOffsetsPerTrigger may wait: a number with ms, s, m or h",
        fills="max_delay_s",
    ),
)
