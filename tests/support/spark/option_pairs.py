"""Pairs of options that interact: why, and options of a golden store that show it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.support.expected import expected
from tests.support.golden import GoldenStore, in_a_queue, keys_of, user_topic
from tests.support.spark.reads import rows_of

NAME = "clean-5.5.0"
EXPIRED = "expired-5.5.0"
ROLLED_BACK = "direct-5.5.0"
PLACE = "brokerName,topic,queueId,queueOffset,commitLogOffset,tags,keys,uniqKey"


class Pair(NamedTuple):
    """Options that change what another of them means, and why they do."""

    options: str  # the pair, for a reader
    why: str
    given: Callable[[GoldenStore], dict[str, str]]
    store: str = NAME
    queues_only: bool = False  # source=commitlog refuses it


def orders(store: GoldenStore) -> list[dict[str, Any]]:
    """The messages of topic orders, in the order of the log."""
    return [r for r in store.truth if r["topic"] == "orders" and in_a_queue(r)]


def time_of(store: GoldenStore, number: int) -> str:
    """When message `number` of topic orders was stored: in the middle of every queue of it."""
    return str(orders(store)[number]["storeTimestamp"])


def lost_at(store: GoldenStore, number: int) -> str:
    """When record `number` of those of users' topics that no queue lists was stored."""
    lost = [r for r in store.truth if not in_a_queue(r) and user_topic({**r, "sysFlag": 0})]
    return str(lost[number]["storeTimestamp"])


def a_key(store: GoldenStore, topic: str, number: int) -> str:
    """A word that messages of several topics have, where there is one."""
    mine = [r for r in store.truth if r["topic"] == topic and in_a_queue(r) and r["keys"]]
    return str(mine[number % len(mine)]["keys"]).split(" ")[0]


def a_tag(store: GoldenStore) -> str:
    """The tag that most messages have."""
    found = Counter(r["tags"] for r in orders(store) if r["tags"])
    return str(found.most_common(1)[0][0])


def members_key(store: GoldenStore) -> str:
    """A word of a message inside an inner batch."""
    inside = expected({"b": store}, {"subscribe": "inner"})
    return str(next(one for one in inside[5:] if one.uniq_key).uniq_key)


OFFSETS = '{"orders": {"0": 3, "1": 17}}'
BATCH_TOPIC = "inner"

PAIRS: tuple[Pair, ...] = (
    Pair(
        "subscribe x startingOffsets",
        "a queue that the JSON does not name starts at its earliest, in the other topic too",
        lambda s: {"subscribe": "orders, payments", "startingOffsets": OFFSETS},
    ),
    Pair(
        "subscribe x startingOffsets x endingOffsets",
        "a range of a queue is empty where it ends as it starts",
        lambda s: {
            "subscribe": "orders",
            "startingOffsets": '{"orders": {"0": 9, "1": 9}}',
            "endingOffsets": '{"orders": {"0": 9, "1": 11, "3": -2}}',
        },
    ),
    Pair(
        "subscribe x includeSystemTopics",
        "a topic of the broker's own needs no further option where it is named",
        lambda s: {"subscribe": "SCHEDULE_TOPIC_XXXX, orders", "includeSystemTopics": "false"},
    ),
    Pair(
        "subscribePattern x includeSystemTopics=false",
        "a pattern that would match a system topic does not bring it",
        lambda s: {"subscribePattern": ".*"},
    ),
    Pair(
        "subscribePattern x includeSystemTopics=true",
        "with both it does",
        lambda s: {"subscribePattern": ".*(RETRY|SCHEDULE).*", "includeSystemTopics": "true"},
    ),
    Pair(
        "subscribePattern x startingOffsets",
        "the JSON names queues of a topic that the pattern chose",
        lambda s: {"subscribePattern": "ord.*", "startingOffsets": OFFSETS},
    ),
    Pair(
        "assign x endingOffsets",
        "the JSON of one is about queues that the other has to name",
        lambda s: {"assign": '{"orders": [0, 2]}', "endingOffsets": '{"orders": {"2": 11}}'},
    ),
    Pair(
        "assign x startingOffsets x endingTimestamp",
        "one end by offset and the other by time",
        lambda s: {
            "assign": '{"orders": [0, 1], "payments": [1]}',
            "startingOffsets": '{"orders": {"0": 5}, "payments": {"1": -2}}',
            "endingTimestamp": time_of(s, -200),
        },
    ),
    Pair(
        "assign x tags",
        "a tag is looked for in the queues that were assigned",
        lambda s: {"assign": '{"orders": [3]}', "tags": a_tag(s)},
    ),
    Pair(
        "startingTimestamp x startingOffsets",
        "the time for all counts before any offset",
        lambda s: {
            "subscribe": "orders",
            "startingTimestamp": time_of(s, 300),
            "startingOffsets": OFFSETS,
        },
    ),
    Pair(
        "startingTimestamp x startingOffsetsByTimestamp",
        "the time for all counts before that for one queue",
        lambda s: {
            "subscribe": "orders",
            "startingTimestamp": time_of(s, 300),
            "startingOffsetsByTimestamp": json.dumps({"orders": {"0": int(time_of(s, 10))}}),
        },
    ),
    Pair(
        "startingOffsetsByTimestamp x startingOffsets",
        "a time for a queue counts before an offset for it, and for no other queue",
        lambda s: {
            "subscribe": "orders",
            "startingOffsetsByTimestamp": json.dumps({"orders": {"0": int(time_of(s, 400))}}),
            "startingOffsets": OFFSETS,
        },
    ),
    Pair(
        "endingTimestamp x endingOffsets",
        "as at the start",
        lambda s: {
            "subscribe": "orders",
            "endingTimestamp": time_of(s, 500),
            "endingOffsets": OFFSETS,
        },
    ),
    Pair(
        "endingOffsetsByTimestamp x endingOffsets",
        "as at the start",
        lambda s: {
            "subscribe": "orders",
            "endingOffsetsByTimestamp": json.dumps({"orders": {"1": int(time_of(s, 500))}}),
            "endingOffsets": OFFSETS,
        },
    ),
    Pair(
        "startingTimestamp x endingTimestamp",
        "a range of times for all queues",
        lambda s: {"startingTimestamp": time_of(s, 100), "endingTimestamp": time_of(s, 500)},
    ),
    Pair(
        "startingOffsetsByTimestamp x strategy=latest",
        "a queue without a message then or later gives nothing, the others all they have",
        lambda s: {
            "subscribe": "orders",
            "startingOffsetsByTimestamp": '{"orders": {"0": 9999999999999}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ),
    Pair(
        "tags x keys",
        "both have to hold of one message",
        lambda s: {"tags": a_tag(s), "keys": " || ".join(a_key(s, "orders", n) for n in range(40))},
    ),
    Pair(
        "keys x startingTimestamp x endingTimestamp",
        "the index knows keys of all times, and the range is the query's",
        lambda s: {
            "keys": " || ".join(a_key(s, "orders", n) for n in range(0, 900, 30)),
            "startingTimestamp": time_of(s, 200),
            "endingTimestamp": time_of(s, 700),
        },
    ),
    Pair(
        "keys x startingOffsets",
        "a hit of the index outside a queue's range is none",
        lambda s: {
            "subscribe": "orders",
            "keys": " || ".join(a_key(s, "orders", n) for n in range(60)),
            "startingOffsets": OFFSETS,
        },
    ),
    Pair(
        "keys x subscribe",
        "an index item is of topic#key: the word is looked up for each topic",
        lambda s: {"keys": a_key(s, "payments", 3), "subscribe": "payments, orders"},
    ),
    Pair(
        "keys x maxRecordsPerPartition",
        "hits are cut into shares by number",
        lambda s: {
            "keys": " || ".join(a_key(s, "orders", n) for n in range(30)),
            "maxRecordsPerPartition": "4",
        },
        queues_only=True,
    ),
    Pair(
        "keys x splitBy=queue",
        "what the index lacks is split as all else",
        lambda s: {"keys": a_key(s, "orders", 960), "splitBy": "queue"},
        queues_only=True,
    ),
    Pair(
        "splitBy=queue x maxRecordsPerPartition x minPartitions",
        "queues stay whole: the first bounds what is put together, the second is the least",
        lambda s: {"splitBy": "queue", "maxRecordsPerPartition": "100", "minPartitions": "7"},
        queues_only=True,
    ),
    Pair(
        "maxRecordsPerPartition x minPartitions x maxBytesPerPartition",
        "the one that asks for most partitions counts",
        lambda s: {
            "maxRecordsPerPartition": "90",
            "minPartitions": "3",
            "maxBytesPerPartition": "50k",
        },
        queues_only=True,
    ),
    Pair(
        "maxRecordsPerPartition x tags",
        "entries are counted before tags, and rows are what is left",
        lambda s: {"maxRecordsPerPartition": "60", "tags": a_tag(s), "subscribe": "orders"},
        queues_only=True,
    ),
    Pair(
        "minPartitions x startingOffsets x endingOffsets",
        "more partitions than messages",
        lambda s: {
            "assign": '{"orders": [0]}',
            "startingOffsets": '{"orders": {"0": 3}}',
            "endingOffsets": '{"orders": {"0": 6}}',
            "minPartitions": "10",
        },
    ),
    Pair(
        "verifyQueue x tags",
        "each makes the log be read, and the rows are the same",
        lambda s: {"verifyQueue": "true", "tags": a_tag(s)},
        queues_only=True,
    ),
    Pair(
        "unwrapBatches x maxRecordsPerPartition",
        "a batch is one record and many entries: it is given once, wherever partitions are cut",
        lambda s: {"subscribe": f"{BATCH_TOPIC},retrying", "maxRecordsPerPartition": "4"},
        queues_only=True,
    ),
    Pair(
        "unwrapBatches=false x startingOffsets",
        "an offset inside a batch: the record begins before it",
        lambda s: {
            "subscribe": BATCH_TOPIC,
            "unwrapBatches": "false",
            "startingOffsets": json.dumps({BATCH_TOPIC: {"0": 9}}),
        },
    ),
    Pair(
        "unwrapBatches x startingOffsets x endingOffsets",
        "a range that begins and ends inside batches",
        lambda s: {
            "subscribe": BATCH_TOPIC,
            "startingOffsets": json.dumps({BATCH_TOPIC: {"0": 2}}),
            "endingOffsets": json.dumps({BATCH_TOPIC: {"0": 12}}),
        },
    ),
    Pair(
        "unwrapBatches x tags",
        "messages in a batch have tags of their own",
        lambda s: {"subscribePattern": "inner|orders", "tags": f"{a_tag(s)} || TagA || t1"},
    ),
    Pair(
        "unwrapBatches x keys",
        "messages in a batch have keys of their own, which no index lists",
        lambda s: {"keys": f"{members_key(s)} || {a_key(s, 'orders', 7)}"},
    ),
    Pair(
        "unwrapBatches=false x keys",
        "of the record as it is stored its own keys count",
        lambda s: {
            "unwrapBatches": "false",
            "keys": " || ".join(
                [members_key(s), *(w for r in s.truth if r["topic"] == "inner" for w in keys_of(r))]
            ),
        },
    ),
    Pair(
        "unwrapBatches x startingTimestamp",
        "a batch is stored at one time, all of it",
        lambda s: {"subscribe": BATCH_TOPIC, "startingTimestamp": time_of(s, 500)},
    ),
    Pair(
        "failOnDataLoss=false x startingOffsets",
        "an offset that expired: what is left is read",
        lambda s: {
            "subscribe": "orders",
            "failOnDataLoss": "false",
            "startingOffsets": '{"orders": {"0": 0, "1": 0}}',
        },
        store=EXPIRED,
    ),
    Pair(
        "failOnDataLoss=false x endingOffsets",
        "an offset behind the queue's end is its end",
        lambda s: {
            "subscribe": "orders",
            "failOnDataLoss": "false",
            "endingOffsets": '{"orders": {"0": 99999}}',
        },
        store=EXPIRED,
    ),
    Pair(
        "keys on an expired store",
        "index items outlive the messages that they lead to",
        lambda s: {"keys": " || ".join(a_key(s, "orders", n) for n in range(25))},
        store=EXPIRED,
    ),
    Pair(
        "tags x keys where some are rolled back",
        "a record that no queue lists has no row, whatever the index says",
        lambda s: {
            "tags": " || ".join({str(r["tags"]) for r in s.truth if r["tags"]}),
            "keys": " || ".join(
                word
                for r in s.truth
                if user_topic({**r, "sysFlag": 0})
                for word in (r["keys"] or "").split(" ")
                if word.isascii() and word.strip()
            ),
        },
        store=ROLLED_BACK,
    ),
)

UNQUEUED: tuple[Pair, ...] = (
    Pair(
        "includeUnqueued x subscribe",
        "a record without a queue has a topic still",
        lambda s: {"subscribe": "orders"},
        store=ROLLED_BACK,
    ),
    Pair(
        "includeUnqueued x subscribePattern x includeSystemTopics",
        "system topics hold such records, too",
        lambda s: {"subscribePattern": "(RMQ|SCHEDULE|ord).*", "includeSystemTopics": "true"},
        store=ROLLED_BACK,
    ),
    Pair(
        "includeUnqueued x startingTimestamp x endingTimestamp",
        "and a time",
        lambda s: {"startingTimestamp": lost_at(s, 3), "endingTimestamp": lost_at(s, -3)},
        store=ROLLED_BACK,
    ),
    Pair(
        "includeUnqueued x tags",
        "and tags",
        lambda s: {"tags": " || ".join({str(r["tags"]) for r in s.truth if r["tags"]} - {"paid"})},
        store=ROLLED_BACK,
    ),
    Pair(
        "includeUnqueued x startingOffsets",
        "but no offset: offsets leave it in, and the time of one queue counts for it",
        lambda s: {
            "subscribe": "orders",
            "startingOffsets": '{"orders": {"0": 5}}',
            "startingOffsetsByTimestamp": json.dumps({"orders": {"1": int(time_of(s, 90))}}),
        },
        store=ROLLED_BACK,
    ),
)


def spark_options(given: Mapping[str, str]) -> dict[str, str]:
    """Options as Spark hands them over."""
    return {name.lower(): value for name, value in given.items()}


def read(
    store: GoldenStore, given: Mapping[str, str], columns: str = PLACE
) -> list[dict[str, Any]]:
    """The rows that the source gives, with broker name b."""
    own = {"path": store.path, "brokerName": "b", "columns": columns}
    return rows_of(spark_options({**own, **given}))


def rows(found: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows, to be compared."""
    return Counter(tuple(row.values()) for row in found)
