"""The rows that each table of a store has to have, made of what `CountedStore` counts."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.support.counted_store import Counted, CountedStore, Queue

Row = dict[str, Any]
Rule = Callable[[CountedStore], Iterable[Row]]

HALF, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LEVELS, TIMERS = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
# TopicValidator, and BrokerController for the heartbeats. Others are named after cluster and broker.
SYSTEM = (
    *("TBW102", LEVELS, "BenchmarkTest", HALF, "RMQ_SYS_TRACE_TOPIC", OPS, TIMERS),
    *("TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
    *("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
    "DefaultHeartBeatSyncerTopic",
)

NOT_COUNTED = {
    ("groups", "configAgeMs"): "it depends on the time of the read",
    ("groups", "deletedFrom"): "it is compared with a plan of retention",
}
"""Columns that no count can give, and why."""


def topics(store: CountedStore) -> Iterator[Row]:
    declared = _declared(store)
    for topic in {queue[0] for queue in store.by_queue} | declared.keys():
        queues = [records for queue, records in store.by_queue.items() if queue[0] == topic]
        said = declared.get(topic, {})
        yield {
            "topic": topic,
            "system": _is_system(store, topic),
            "queues": len(queues),
            "batch": any(one.messages > 1 for records in queues for one in records),
            "messages": sum(one.messages for records in queues for one in records),
            "declared": topic in declared,
            **{name: said.get(name) for name in ("readQueueNums", "writeQueueNums", "perm")},
            "problem": None,
        }


def queues(store: CountedStore) -> Iterator[Row]:
    for (topic, queue_id), records in store.by_queue.items():
        first, last = records[0], records[-1]
        listed = store.entries.get((topic, queue_id), {})
        lag = [one for one in records if one.offset not in listed]
        yield {
            "topic": topic,
            "queueId": queue_id,
            "batch": any(one.messages > 1 for one in records),
            "minOffset": first.offset,
            "maxOffset": last.offset + last.messages,
            "messages": sum(one.messages for one in records),
            "dispatchLag": sum(one.messages for one in lag),
            "dispatchLagBytes": sum(one.size for one in lag),
            "firstCommitLogOffset": first.place,
            "lastCommitLogOffset": last.place,
            "firstStoreTimestamp": first.stored,
            "lastStoreTimestamp": last.stored,
        }


def files(store: CountedStore) -> Iterator[Row]:
    for folder, _, names in os.walk(store.root):
        for path in (Path(folder, name) for name in names):
            inside, stat = path.relative_to(store.root).parts, path.stat()
            queue: list[Any] = [None, None]
            if inside[0] in ("consumequeue", "batchconsumequeue") and len(inside) == 4:
                queue = [inside[1], int(inside[2])]
            part = "commitlog" if path.parent == store.log_folder else inside[0]
            is_segment = path.name.isdigit() and len(path.name) == 20
            yield {
                "part": part if len(inside) > 1 else "store",
                "path": str(path),
                "topic": queue[0],
                "queueId": queue[1],
                "baseOffset": int(path.name) if is_segment else None,
                "size": stat.st_size,
                "allocated": 512 * stat.st_blocks,
                "modified": stat.st_mtime_ns // 1_000_000,
            }


def index(store: CountedStore) -> Iterator[Row]:
    """No row is a gap: the files list every key of the log, which `CountedStore.index` asserts."""
    for file in store.index:
        yield {
            "path": str(file.path),
            "slots": file.slots,
            "maxItems": file.most,
            "items": len(file.items),
            "usedSlots": file.used_slots,
            "load": len(file.items) / (file.most - 1),
            "longestChain": max(file.chains),
            "note": None,
            "beginTimestamp": file.begin_ms,
            "endTimestamp": file.end_ms,
            "beginLogOffset": file.begin,
            "endLogOffset": file.end,
            "gapBytes": None,
            "problem": None,
        }


def checkpoint(store: CountedStore) -> Iterator[Row]:
    names = (
        *("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"),
        *("masterFlushedOffset", "confirmPhyOffset", "logicsPhysicalOffset"),
    )
    values = struct.unpack_from(">6q", (store.root / "checkpoint").read_bytes())
    yield {
        **dict(zip(names, values, strict=True)),
        "logStart": int(min(os.listdir(store.log_folder))),
        "logEnd": store.records[-1].end,
        "cleanShutdown": not (store.root / "abort").exists(),
    }


def groups(store: CountedStore) -> Iterator[Row]:
    """All groups of these stores are within their queues, and each queue has messages."""
    for group, (topic, queue_id), offset in _offsets(store, "offsetTable"):
        path, _ = store.config["consumerOffset.json"]
        records = store.by_queue[topic, queue_id]
        low, high = records[0].offset, records[-1].offset + records[-1].messages
        assert low <= offset <= high
        assert {one.messages for one in records} == {1}
        left = [one for one in records if one.offset >= offset]
        is_read = queue_id < _declared(store).get(topic, {}).get("readQueueNums", 1 << 31)
        yield {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "consumerOffset": offset,
            "minOffset": low,
            "maxOffset": high,
            "lag": len(left),
            "lagBytes": sum(one.size for one in left),
            "notAcknowledged": len(pop(store)),
            "lagMs": left[-1].stored - left[0].stored if left else 0,
            "firstUnconsumedTimestamp": left[0].stored if left else None,
            "status": "OK" if is_read or not left else "NOT_READ",
            "configFile": str(path),
            "configModified": _written(path),
        }


def offsets(store: CountedStore) -> Iterator[Row]:
    path, _ = store.config["consumerOffset.json"]
    for kind, table in (("consumer", "offsetTable"), ("pull", "pullOffsetTable")):
        for group, (topic, queue_id), offset in _offsets(store, table):
            yield {
                "kind": kind,
                "file": str(path),
                "consumerGroup": group,
                "topic": topic,
                "queueId": queue_id,
                "offset": offset,
            }
    path, _ = store.config["delayOffset.json"]
    for level, offset in _delay_levels(store).items():
        yield {
            "kind": "delay",
            "file": str(path),
            "consumerGroup": None,
            "topic": LEVELS,
            "queueId": level - 1,
            "offset": offset,
        }
    assert store.config["consumerOrderInfo.json"][1]["table"] == {}, "nothing was popped in order"


def config(store: CountedStore) -> Iterator[Row]:
    for path, content in store.config.values():
        for name, value in _values(content, ""):
            yield {
                "file": str(path),
                "modified": _written(path),
                "name": name,
                "value": value,
                "problem": None,
            }


def usage(store: CountedStore) -> Iterator[Row]:
    for (topic, queue_id), records in store.by_queue.items():
        for day in {_day(one) for one in records}:
            of_day = [one for one in records if _day(one) == day]
            yield {
                "topic": topic,
                "queueId": queue_id,
                "day": day,
                "messages": sum(one.messages for one in of_day),
                "bytes": sum(one.size for one in of_day),
                "shared": topic.startswith("%LMQ%"),
                "firstOffset": of_day[0].offset,
                "stopOffset": of_day[-1].offset + of_day[-1].messages,
            }


def damage(store: CountedStore) -> list[Row]:
    """None: to decode all records, and to follow all entries to them, has found none."""
    assert sum(one.is_listed for one in store.records) == sum(map(len, store.by_queue.values()))
    for queue, entries in store.entries.items():
        assert entries.keys() <= {one.offset for one in store.by_queue[queue]}
    return []


def scheduled(store: CountedStore) -> Iterator[Row]:
    """What delayOffset.json does not count as delivered, and the timers without a copy in the log."""
    levels = _delay_levels(store)
    for held in store.of_topic(LEVELS):
        level = held.queue_id + 1
        if held.offset >= levels.get(level, 0):
            due = held.stored + _delay_ms(store.conf["messageDelayLevel"], level)
            yield _scheduled(store, held, "level", due) | {"delayLevel": level}
    timers = [one for one in store.of_topic(TIMERS) if store.later_copy(one) is None]
    for held in timers:
        yield _scheduled(store, held, "timer", int(held.properties["TIMER_OUT_MS"]))
    if store.of_topic(TIMERS):
        assert _metric(store, "timermetrics", "timingCount") == len(timers)


def _scheduled(store: CountedStore, held: Counted, kind: str, due: int) -> Row:
    copy, late = store.later_copy(held), due <= store.newest_ms
    assert late or copy is None
    return {
        "kind": kind,
        "state": "delivered" if copy else "overdue" if late else "waiting",
        "topic": held.properties["REAL_TOPIC"],
        "queueId": int(held.properties["REAL_QID"]),
        "dueTimestamp": due,
        "overdueMs": store.newest_ms - due if late and not copy else None,
        "delayLevel": None,
        "bornTimestamp": held.born,
        "storeTimestamp": held.stored,
        **_words(held),
        "msgId": held.msg_id,
        "reconsumeTimes": held.reconsumed,
        "storeSize": held.size,
        "heldIn": held.topic,
        "heldQueueId": held.queue_id,
        "heldQueueOffset": held.offset,
        "commitLogOffset": held.place,
        "deliveredTimestamp": copy.stored if copy else None,
        "deliveredQueueOffset": copy.offset if copy else None,
    }


def transactions(store: CountedStore) -> Iterator[Row]:
    """No half message of these stores was stored again for a check."""
    halves = store.of_topic(HALF)
    ops = (one.body.decode() for one in store.of_topic(OPS))
    ended = {int(word) for body in ops for word in body.split(",") if word}
    committed = {one.prepared: one for one in store.records if one.flags & 0xC == 8}
    if halves:
        still_open = len(halves) - len(ended)
        assert _metric(store, "transactionMetrics", "transactionCount") == still_open
    for half in halves:
        assert "TRANSACTION_CHECK_TIMES" not in half.properties
        message = committed.get(half.place)
        assert message is None or half.offset in ended
        state = "rolledBack" if half.offset in ended else "open"
        yield {
            "transactionId": half.properties.get("__transactionId__", half.properties["UNIQ_KEY"]),
            "state": "committed" if message else state,
            "producerGroup": half.properties["PGROUP"],
            "topic": half.properties["REAL_TOPIC"],
            "queueId": int(half.properties["REAL_QID"]),
            "sinceTimestamp": half.stored,
            "openMs": store.newest_ms - half.stored if state == "open" else None,
            "checks": 0,
            "lastCheckTimestamp": None,
            "halfMessages": 1,
            "bornTimestamp": half.born,
            **_words(half),
            "msgId": half.msg_id,
            "halfQueueOffset": half.offset,
            "halfCommitLogOffset": half.place,
            "committedTimestamp": message.stored if message else None,
            "committedQueueId": message.queue_id if message else None,
            "committedQueueOffset": message.offset if message else None,
        }


def dead_letters(store: CountedStore) -> Iterator[Row]:
    for one in store.records:
        if one.topic.startswith("%DLQ%"):
            yield {
                **_sent_back(store, one, "%DLQ%"),
                "reconsumeTimes": one.reconsumed,
                "maxAttempts": _number(one.properties.get("MAX_RECONSUME_TIMES")),
                "firstTimestamp": one.born,
                "lastTimestamp": one.stored,
            }


def retries(store: CountedStore) -> Iterator[Row]:
    given_up = {
        (one.topic.removeprefix("%DLQ%"), _first_id(one)): one.stored
        for one in store.records
        if one.topic.startswith("%DLQ%")
    }
    sent_back: dict[tuple[str, str], list[Counted]] = {}
    for one in store.records:
        if one.topic.startswith("%RETRY%"):
            key = one.topic.removeprefix("%RETRY%"), _first_id(one)
            sent_back.setdefault(key, []).append(one)
    for key, records in sent_back.items():
        last = records[-1]
        yield {
            **_sent_back(store, last, "%RETRY%"),
            "retries": len(records),
            "reconsumeTimes": last.reconsumed,
            "firstTimestamp": records[0].stored,
            "lastTimestamp": last.stored,
            "deadLetterTimestamp": given_up.get(key),
        }


def _sent_back(store: CountedStore, one: Counted, prefix: str) -> Row:
    """Push consumers sent these back, so that all of the topic behind the prefix is the group.

    The id of the message that was sent back leads nowhere in a log that was written again elsewhere.
    """
    origin = store.by_id.get(_first_id(one))
    if origin is not None:
        assert one.properties["RETRY_TOPIC"] == origin.topic
        assert one.properties["UNIQ_KEY"] == origin.properties["UNIQ_KEY"]
    return {
        "consumerGroup": one.topic.removeprefix(prefix),
        "originTopic": one.properties["RETRY_TOPIC"],
        "originQueueId": origin.queue_id if origin else None,
        "originQueueOffset": origin.offset if origin else None,
        "originCommitLogOffset": origin.place if origin else None,
        "originMsgId": _first_id(one),
        **_words(one),
        "msgId": one.msg_id,
        "storeSize": one.size,
        "queueId": one.queue_id,
        "queueOffset": one.offset,
        "commitLogOffset": one.place,
    }


def _first_id(one: Counted) -> str:
    return one.properties["ORIGIN_MESSAGE_ID"]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def traces(store: CountedStore) -> list[Row]:
    """None: the log has no record of the trace topic."""
    assert not store.of_topic("RMQ_SYS_TRACE_TOPIC")
    return []


def pop(store: CountedStore) -> list[Row]:
    """None: nothing in the log is of pop, and nothing was popped in order."""
    revive = "rmq_sys_REVIVE_LOG_"
    names = {queue[0] for queue in store.by_queue}
    real = (record.properties.get("REAL_TOPIC", "") for record in store.of_topic(TIMERS))
    assert not any(name.startswith(revive) for name in (*names, *real))
    return []


RULES: Mapping[str, Rule] = {
    "topics": topics,
    "queues": queues,
    "files": files,
    "index": index,
    "checkpoint": checkpoint,
    "groups": groups,
    "offsets": offsets,
    "config": config,
    "usage": usage,
    "damage": damage,
    "scheduled": scheduled,
    "transactions": transactions,
    "deadLetters": dead_letters,
    "retries": retries,
    "pop": pop,
    "traces": traces,
}
"""How the rows of each table are counted; times in ms, days as in ISO 8601."""


def _is_system(store: CountedStore, topic: str) -> bool:
    names = [store.conf.get(name) for name in ("brokerClusterName", "brokerName")]
    # A broker says them in topics whose prefix no user may use.
    said = re.findall(
        r"rmq_sys_(?:REVIVE_LOG|SYNC_BROKER_MEMBER)_(\S+)", "\n".join(_declared(store))
    )
    own = {name + end for name in (*names, *said) if name for end in ("", "_REPLY_TOPIC")}
    return topic in own.union(SYSTEM) or topic.startswith(("%RETRY%", "%DLQ%", "rmq_sys_"))


def _declared(store: CountedStore) -> dict[str, Row]:
    found: dict[str, Row] = store.config["topics.json"][1]["topicConfigTable"]
    return found


def _offsets(store: CountedStore, table: str) -> Iterator[tuple[str, Queue, int]]:
    for key, of_queues in store.config["consumerOffset.json"][1].get(table, {}).items():
        topic, group = key.split("@")
        for queue_id, offset in of_queues.items():
            yield group, (topic, int(queue_id)), offset


def _delay_levels(store: CountedStore) -> dict[int, int]:
    table = store.config["delayOffset.json"][1]["offsetTable"]
    return {int(level): offset for level, offset in table.items()}


def _delay_ms(levels: str, level: int) -> int:
    word = levels.split(" ")[level - 1]
    return int(word[:-1]) * {"s": 1000, "m": 60_000, "h": 3_600_000}[word[-1]]


def _metric(store: CountedStore, file: str, table: str) -> int:
    """The broker's own count of messages that wait, of all topics."""
    counts = json.loads((store.root / "config" / file).read_text("utf-8"))[table]
    return sum(one["count"] for one in counts.values())


def _words(record: Counted) -> Row:
    names = {"tags": "TAGS", "keys": "KEYS", "uniqKey": "UNIQ_KEY"}
    return {column: record.properties.get(name) for column, name in names.items()}


def _day(record: Counted) -> str:
    return datetime.fromtimestamp(record.stored / 1000, timezone.utc).date().isoformat()


def _written(path: Path) -> int:
    """When a file was written, or a database: its folder or a file of it."""
    every = [path, *path.iterdir()] if path.is_dir() else [path]
    return max(one.stat().st_mtime_ns for one in every) // 1_000_000


def _values(content: Any, name: str) -> Iterator[tuple[str, str]]:
    """Every value with its path of names; an empty table is a value."""
    if isinstance(content, dict) and content:
        for key, inside in content.items():
            yield from _values(inside, f"{name}.{key}" if name else key)
    else:
        yield name, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
