"""The rows of queue ranges in the form that the target of a replay needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from jobs.replaying.spec import ReplaySpec, times_of
from jobs.running.store_frames import assign_json, offsets_json, range_options
from rmq_store.format.layout import CRC_PROPERTY, Property
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from spark_source.message_reader import ReadPlan
from spark_source.spark_types import spark_schema

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
# Properties from earlier retries. A message that is sent again must not have them.
OF_RETRIES = (
    "RETRY_TOPIC",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_ID",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "DELAY",
    "REAL_TOPIC",
    "REAL_QID",
)
READ = "read"
REFUSED_BY_STORE = "refused by the target"
REFUSED_BY_BROKER = "refused by the broker or its client"
OTHER_TIME = "stored at another time"
OTHER_TAG = "other tags"
OTHER_KEY = "other keys"
OTHER_TAG_OR_KEY = "other tags or keys"
_READ = (
    "brokerName",
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "keys",
    "uniqKey",
    "storeTimestamp",
    "reconsumeTimes",
    "properties",
)
READ_FOR_STORE = (*_READ, "flag", "sysFlag", "bornTimestamp", "bornHost", "rawBody")
READ_TO_SEND = (*_READ, "body")


def source_options(spec: ReplaySpec, ranges: Sequence[QueueSlice] = ()) -> dict[str, str]:
    """The options of the Spark source that select what the spec selects.

    With `ranges`, exactly these: the ranges that the spec was resolved to before.
    """
    options: dict[str, str | None] = {
        "path": spec.source,
        "tags": " || ".join(spec.tags),
        "brokerName": spec.broker_name,
        "brokerConf": spec.broker_conf,
    }
    if ranges:
        return {**_given(options), **range_options(ranges)}
    queues = tuple(dict.fromkeys((*spec.queues, *spec.offsets)))
    options |= {
        "topic": ",".join(spec.topics),
        "assign": assign_json(queues) if queues else None,
        "startingTimestamp": spec.since,
        "endingTimestamp": spec.until,
        "includeSystemTopics": "true" if spec.include_system_topics else None,
    }
    if spec.offsets:
        options["startingOffsets"] = offsets_json({q: s[0] for q, s in spec.offsets.items()})
        options["endingOffsets"] = offsets_json({q: s[1] for q, s in spec.offsets.items()})
    return _given(options)


def left_unread(spec: ReplaySpec) -> str | None:
    """The reason why the source may leave out selected messages: other tags or other keys."""
    if spec.by_index:
        return OTHER_TAG_OR_KEY if spec.tags else OTHER_KEY
    return OTHER_TAG if spec.tags else None


def looked_up(spec: ReplaySpec) -> tuple[str, ...]:
    """The keys to look up in the index."""
    return spec.keys if spec.by_index else ()


def _given(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


class Rows:
    """The rows of queue ranges for the target: matched, remapped, with origin properties."""

    def __init__(self, spark: SparkSession, spec: ReplaySpec, plan: ReadPlan) -> None:
        self.spark = spark
        self.spec = spec
        self.plan = plan
        self.since, self.until = times_of(spec)

    def frame(
        self,
        ranges: Sequence[QueueSlice],
        columns: Sequence[str],
        partition_bytes: int,
        *,
        unwrap: bool = False,
    ) -> tuple[DataFrame, Observation | None]:
        """The matching rows, and counters that are complete after the rows are read.

        Rows are in log order. With `unwrap`, each member of an inner batch is a row.
        """
        if not ranges:
            return self.spark.createDataFrame([], spark_schema(columns)), None
        options = {
            **range_options(ranges),
            "columns": ",".join(columns),
            "brokerName": self.plan.store.broker_name,
            "maxBytesPerPartition": str(partition_bytes),
            # If the target takes records, a record is copied as stored.
            "unwrapBatches": "true" if unwrap else "false",
        }
        if self.plan.store.broker_conf is not None:
            options["brokerConf"] = self.plan.store.broker_conf
        if self.plan.tags is not None:
            options["tags"] = " || ".join(self.plan.tags)
        if self.spec.by_index:
            options["keys"] = " || ".join(self.spec.keys)
        rows = self.spark.read.format("rmqstore").options(**options).load(self.plan.store.path)
        counted = Observation()
        in_time, has_key = self._in_time(), self._has_key()
        rows = rows.observe(
            counted,
            F.count(F.lit(1)).alias(READ),
            F.count_if(~in_time).alias(OTHER_TIME),
            F.count_if(in_time & ~has_key).alias(OTHER_KEY),
        )
        return self._remapped(rows.where(in_time & has_key)), counted

    def _in_time(self) -> Column:
        """The condition on store times. It is needed because the broker's clock may have gone
        back."""
        stored = F.unix_millis("storeTimestamp")
        wanted = F.lit(True)
        if self.since is not None:
            wanted = wanted & (stored >= self.since)
        if self.until is not None:
            wanted = wanted & (stored < self.until)
        return wanted

    def _has_key(self) -> Column:
        if not self.spec.keys:
            return F.lit(True)
        words = F.split(F.coalesce("keys", F.lit("")), " ")
        asked = F.array(*(F.lit(key) for key in self.spec.keys))
        unique = F.coalesce(F.col("uniqKey").isin(*self.spec.keys), F.lit(False))
        return F.arrays_overlap(words, asked) | unique

    def _remapped(self, rows: DataFrame) -> DataFrame:
        dead = self.spec.dead_to_origin
        changed = {
            "properties": _with_origin(OF_RETRIES if dead else ()),
            "topic": self._new_topic(),
            "queueId": self._new_queue(),
        }
        if dead:
            changed["reconsumeTimes"] = F.lit(0)
        return rows.withColumns(changed)

    def _new_topic(self) -> Column:
        if self.spec.dead_to_origin:
            return F.coalesce(_origin_topic_of_dead(), "topic")
        return _cases([(F.col("topic") == a, b) for a, b in self.spec.topic_map.items()], "topic")

    def _new_queue(self) -> Column:
        # A rule for one topic takes precedence over a rule for all topics.
        ordered = sorted(self.spec.queue_map.items(), key=lambda item: item[0][0] is None)
        cases = [
            ((F.col("queueId") == old) & (F.lit(topic is None) | (F.col("topic") == topic)), new)
            for (topic, old), new in ordered
        ]
        return _cases(cases, "queueId")


def _origin_topic_of_dead() -> Column:
    """The topic that a dead letter was first sent to; null if unknown."""
    # AbstractSendMessageProcessor#consumerSendMsgBack writes RETRY_TOPIC; 5.x brokers also write
    # DLQ_ORIGIN_TOPIC.
    properties = F.col("properties")
    return F.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties["RETRY_TOPIC"])


def _cases(cases: Iterable[tuple[Column, Any]], otherwise: str) -> Column:
    """The value of the first true condition, else the column `otherwise`."""
    chosen: Column | None = None
    for condition, value in cases:
        literal = F.lit(value)
        chosen = F.when(condition, literal) if chosen is None else chosen.when(condition, literal)
    return F.col(otherwise) if chosen is None else chosen.otherwise(F.col(otherwise))


def _with_origin(without: Sequence[str] = ()) -> Column:
    """The properties plus the message's origin, which replaces an older origin.

    Without the CRC of the record, because the target's writer computes its own. Messages read from
    a light queue lose the names of light queues, because they would arrive twice.
    """
    stale = (*ORIGIN, CRC_PROPERTY, *without)
    light = F.col("topic").startswith(LMQ_PREFIX)
    kept = F.map_filter(
        "properties",
        lambda name, _: ~name.isin(*stale) & ~(light & name.isin(*_LIGHT_QUEUES)),
    )
    values = {
        name: F.unix_millis(column) if column == "storeTimestamp" else F.col(column)
        for name, column in ORIGIN.items()
    }
    pairs = [part for name, value in values.items() for part in (F.lit(name), value.cast("string"))]
    return F.map_concat(kept, F.create_map(*pairs))
