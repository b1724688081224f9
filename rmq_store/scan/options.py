"""The options of the source: name, parser, meaning and default of each."""

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
    """An option: its name, how it is parsed, its meaning and its default."""

    name: str
    parse: Callable[[str], Any]
    meaning: str
    default: str = "none"
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
        "the store's folder or address (`s3://bucket/store`); `*`, `?` and `[...]` match several; "
        "`load(path)` or `load([a, b])` sets it",
        "",
        fills="paths",
    ),
    Option(
        "stores",
        values.texts_by_name,
        'stores by broker name, as JSON: `{"broker-a": "/data/a/store"}`; instead of a path',
    ),
    Option(
        "unavailableStores",
        values.parser_of_words("fail", "skip"),
        "a store that cannot be opened: `fail` fails the query, `skip` leaves it out with a warning",
        "fail",
    ),
    Option("topic", values.words, "short for `subscribe`", "all user topics", fills="topics"),
    Option(
        "subscribe",
        values.words,
        "topics, separated by commas; system topics too",
        "all user topics",
        fills="topics",
    ),
    Option(
        "subscribePattern",
        values.pattern,
        "topics whose whole name matches a regular expression; system topics with "
        "includeSystemTopics only",
        fills="topic_pattern",
    ),
    Option(
        "assign",
        values.assignment,
        'queues by topic, as JSON: `{"orders": [0, 1]}`, or for one broker: '
        '`{"orders": {"broker-a": [0]}}`; instead of `subscribe`',
        "all queues",
    ),
    Option("includeSystemTopics", values.flag, "include system topics", "false"),
    Option(
        "columns",
        values.columns,
        "columns to read, separated by commas",
        "all but those on request",
    ),
    Option("tags", values.alternatives, "messages whose tag is one of these: `a || b`", "*"),
    Option(
        "keys",
        values.keys,
        "messages with one of these words in KEYS, as all of KEYS, or as UNIQ_KEY: `a || b`",
    ),
    Option(
        "startingOffsets",
        values.offsets("earliest"),
        'first queue offset, as JSON: `{"orders": {"0": 23}}`, or for one broker: '
        '`{"orders": {"broker-a": {"0": 23}}}`; -2 is earliest, -1 latest; other queues '
        "start at earliest. Or a word: `earliest`, or for streams `latest`, their default",
        "earliest",
    ),
    Option(
        "startingOffsetsByTimestamp",
        values.timestamps,
        "the same with times in ms: start at the first message stored then or later; overrides "
        "startingOffsets",
        fills="starting_timestamps",
    ),
    Option(
        "startingTimestamp",
        parse_time,
        f"start every queue at the first message stored at this time or later: {TIME_FORMS}; overrides "
        "both",
        fills="since",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        values.parser_of_words("latest", "error"),
        "a queue without a message since that time: `latest` skips it, `error` (Kafka's default) "
        "fails the query",
        "latest",
        fills="timestamp_strategy",
    ),
    Option(
        "endingOffsets",
        values.offsets("latest"),
        "stop before this queue offset, in the form of startingOffsets",
        "latest",
    ),
    Option(
        "endingOffsetsByTimestamp",
        values.timestamps,
        "the same with times in ms: stop before the first message stored then or later; overrides "
        "endingOffsets",
        fills="ending_timestamps",
    ),
    Option(
        "endingTimestamp",
        parse_time,
        "stop every queue before the first message stored at this time or later; overrides both",
        fills="until",
    ),
    Option(
        "failOnDataLoss",
        values.flag,
        "fail if requested messages have expired; if false, read the others and log a warning",
        "true",
    ),
    Option(
        "brokerName",
        values.text,
        "value of column brokerName; only if there is one store",
        "the one in brokerConf, else the folder's name",
    ),
    Option(
        "brokerConf",
        values.text,
        "the broker's configuration file; for several stores, JSON by broker name: "
        '`{"broker-a": "/data/a/broker.conf"}`',
    ),
    Option(
        "source",
        values.parser_of_words(CONSUMEQUEUE, COMMITLOG),
        "`commitlog` reads the log itself, for stores whose queues are missing or damaged",
        CONSUMEQUEUE,
    ),
    Option(
        "compacted",
        values.flag,
        "a topic with `cleanup.policy=COMPACTION` gives the last message of each key; `false`: all "
        "messages of its queues",
        "true",
    ),
    Option(
        "includeUnqueued",
        values.flag,
        "with `source=commitlog`: include records that no queue lists (prepared, rolled back); "
        "their queueOffset is null",
        "false",
    ),
    Option(
        "splitBy",
        values.parser_of_words(BY_LOG, BY_QUEUE),
        "`log`: partitions are slices of the log, which is read once; `queue`: each queue stays "
        "in one partition, in order",
        BY_LOG,
    ),
    Option(
        "minPartitions",
        values.count,
        "fewest partitions, if there are as many messages (with `splitBy=queue`: queues)",
        "1",
    ),
    Option(
        "maxRecordsPerPartition",
        values.count,
        "most queue entries in a partition; not with `source=commitlog`",
    ),
    Option(
        "maxBytesPerPartition",
        values.parse_partition_size,
        "about how many selected bytes a partition has; bytes, or with k, m, g",
        "128m",
    ),
    Option(
        "verifyQueue",
        values.flag,
        "hold every queue entry against its record, and the whole log against the queues, as "
        "`rmqstore verify` does",
        "false",
    ),
    Option(
        "mode",
        values.parser_of_words(FAILFAST, PERMISSIVE, DROPMALFORMED),
        "on damage: FAILFAST fails the query, PERMISSIVE returns a row with `corruptRecord`, "
        "DROPMALFORMED leaves the message out and logs the count",
        FAILFAST,
    ),
    Option(
        "maxBodyBytes",
        values.parse_size,
        "a body that decompresses to more than this is damage",
        "256m",
    ),
    Option(
        "unwrapBatches",
        values.flag,
        "a row for each message of an inner batch; if false, one for the stored record",
        "true",
    ),
    Option(
        "storageOptions",
        parse_storage_options,
        "for a path such as `s3://bucket/store`: arguments for its class in pyarrow.fs, as "
        'JSON: `{"region": "eu-central-1"}`; never shown',
        "the environment",
        secret=True,
    ),
    Option(
        "table",
        values.parser_of_words(*TABLES),
        "read a table about the store, such as `queues`",
        "none: messages",
    ),
    Option(
        "checkpointLocation",
        values.text,
        "for `table=stream`: the checkpoint folder of a query, on a local or mounted disk",
        fills="checkpoint",
    ),
)

# What a write takes, of a batch or a stream.
WRITE_OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        values.text,
        "the store's folder, which driver and executors share; `save(path)` or `start(path)` sets it",
        "",
    ),
    Option("topic", values.text, "the topic of all rows", "column `topic`"),
    Option(
        "queues",
        values.count,
        "queues for rows without queueId: by the hash of `keys`, else in turn",
        "4",
    ),
    Option(
        "release",
        values.text,
        "release of the broker that will start on it, such as 4.9.7",
        NEWEST_RELEASE,
    ),
    Option(
        "brokerConf",
        values.text,
        "the broker's configuration file, for file sizes, limits and flushDiskType",
    ),
    Option(
        "keepTimestamps",
        values.flag,
        "keep column storeTimestamp, instead of the time of the write",
        "false",
    ),
    Option(
        "flush",
        values.flag,
        "everything is on the disk when the write returns; if false, a power failure can cost the "
        "last writes",
        "true",
    ),
    Option(
        "ifExists",
        values.parser_of_words("append", "error", "ignore"),
        "if the store exists: append, error (the write fails), or ignore (it writes nothing)",
        "append",
    ),
)

# What a stream has besides the options of a batch. A batch refuses them.
STREAM_OPTIONS: tuple[Option, ...] = (
    Option(
        "maxOffsetsPerTrigger",
        values.count,
        "most selected messages in a micro-batch, in equal parts for each store; an inner batch is not cut",
        fills="max_rows",
    ),
    Option(
        "maxBytesPerTrigger",
        values.parse_size,
        "most bytes of each store's log in a micro-batch; bytes, or with k, m, g",
        fills="max_bytes",
    ),
    Option(
        "minOffsetsPerTrigger",
        values.count,
        "wait until there are as many messages, but at most maxTriggerDelay",
        fills="min_rows",
    ),
    Option(
        "maxTriggerDelay",
        values.seconds_of,
        "how long minOffsetsPerTrigger may wait: a number with ms, s, m or h",
        "15m",
        fills="max_delay_s",
    ),
)
