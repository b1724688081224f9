"""What a read has to give, worked out from the truth of golden stores, and from nothing of ours."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_store.format.compression import SysFlag
from tests.support.golden import GoldenStore, Truth, bodies_of, in_a_queue, messages_in, user_topic

EARLIEST, LATEST = -2, -1
Options = Mapping[str, str]


@dataclass(frozen=True)
class Expected:
    """A message that a broker's store holds; without a queue offset where no queue lists it."""

    broker: str
    record: Truth
    offset: int | None
    tags: str | None
    keys: str | None
    uniq_key: str | None

    @property
    def queue(self) -> tuple[str, int]:
        """Its topic and queue."""
        return self.record["topic"], self.record["queueId"]

    def column(self, name: str) -> Any:
        """What a column of the source has to show of it."""
        own = {
            "brokerName": self.broker,
            "queueOffset": self.offset,
            "tags": self.tags,
            "keys": self.keys,
            "uniqKey": self.uniq_key,
        }
        return own[name] if name in own else self.record[name]


def members(record: Truth) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    """flag, body and properties of the messages in an inner batch, by the book."""
    raw, at = bodies_of(record)[0], 0
    while at < len(raw):
        _, _, _, flag, length = struct.unpack_from(">iiiii", raw, at)
        body = raw[at + 20 : at + 20 + length]
        (size,) = struct.unpack_from(">h", raw, at + 20 + length)
        text = raw[at + 22 + length : at + 22 + length + size].decode()
        yield flag, body, dict(item.split("\x01", 1) for item in text.split("\x02") if item)
        at += 22 + length + size


def expected(stores: Mapping[str, GoldenStore], options: Options) -> list[Expected]:
    """The messages that a read of these stores by broker name, with these options, has to give."""
    found = []
    for broker, store in stores.items():
        limits = _Limits(broker, store.truth, options)
        for message in _messages(broker, store, options):
            if _topic_wanted(message, options) and limits.has(message):
                found.append(message)
    return [one for one in found if _tagged(one, options) and _has_key(one, options)]


def as_rows(messages: list[Expected], columns: str) -> Counter[tuple[Any, ...]]:
    """The same as rows of some columns, separated by commas."""
    names = columns.split(",")
    return Counter(tuple(one.column(name) for name in names) for one in messages)


def _messages(broker: str, store: GoldenStore, options: Options) -> Iterator[Expected]:
    unwrap = options.get("unwrapBatches", "true") == "true"
    for record in store.truth:
        if not in_a_queue(record):
            if options.get("includeUnqueued") == "true":
                yield _whole(broker, record, None)
        elif unwrap and record["sysFlag"] & SysFlag.INNER_BATCH:
            base = int(record["properties"]["INNER_BASE"])
            for number, (_, _, own) in enumerate(members(record)):
                words = own.get("TAGS"), own.get("KEYS"), own.get("UNIQ_KEY")
                yield Expected(broker, record, base + number, *words)
        else:
            yield _whole(broker, record, record["queueOffset"])


def _whole(broker: str, record: Truth, offset: int | None) -> Expected:
    return Expected(broker, record, offset, record["tags"], record["keys"], record["uniqKey"])


def _topic_wanted(message: Expected, options: Options) -> bool:
    topic, queue = message.queue
    named = options.get("subscribe", options.get("topic"))
    if named is not None:
        return topic in [word.strip() for word in named.split(",")]
    if "assign" in options:
        queues = json.loads(options["assign"]).get(topic, [])
        if isinstance(queues, dict):
            queues = queues.get(message.broker, [])
        return queue in queues
    listed = {**message.record, "sysFlag": 0}  # whether it is in a queue is asked elsewhere
    if options.get("includeSystemTopics") != "true" and not user_topic(listed):
        return False
    pattern = options.get("subscribePattern")
    return pattern is None or re.fullmatch(pattern, topic) is not None


def _tagged(message: Expected, options: Options) -> bool:
    wanted = options.get("tags")
    return wanted is None or message.tags in [word.strip() for word in wanted.split("||")]


def _has_key(message: Expected, options: Options) -> bool:
    if "keys" not in options:
        return True
    wanted = {word.strip() for word in options["keys"].split("||")}
    return bool(wanted & {*(message.keys or "").split(" "), message.uniq_key})


@dataclass
class _Limits:
    """From where to where each queue of a broker is read."""

    broker: str
    truth: list[Truth]
    options: Options

    def has(self, message: Expected) -> bool:
        start, start_time = self._bound("starting", message.queue)
        stop, stop_time = self._bound("ending", message.queue)
        if message.offset is None:  # without a place in the queue its time alone counts
            if start == LATEST or stop == EARLIEST:
                return False
            time = message.record["storeTimestamp"]
            return (start_time is None or time >= start_time) and (
                stop_time is None or time < stop_time
            )
        if message.queue not in self._known:
            ends = self._ends(message.queue)
            self._known[message.queue] = (
                self._resolved(message.queue, start, start_time, ends, EARLIEST),
                self._resolved(message.queue, stop, stop_time, ends, LATEST),
            )
        first, last = self._known[message.queue]
        return first <= message.offset < last

    def _bound(self, which: str, queue: tuple[str, int]) -> tuple[int | None, int | None]:
        """The offset or the time that counts for a queue, by Kafka's precedence."""
        for_all = self.options.get(f"{which}Timestamp")
        if for_all is not None:
            return None, int(for_all)
        of_queue = self._of_queue(f"{which}OffsetsByTimestamp", queue)
        if of_queue is not None:
            return None, of_queue
        return self._of_queue(f"{which}Offsets", queue), None

    def _of_queue(self, option: str, queue: tuple[str, int]) -> int | None:
        given = self.options.get(option)
        if given in (None, "earliest", "latest"):
            return {"earliest": EARLIEST, "latest": LATEST}.get(given or "")
        by_topic = json.loads(given or "")
        queues = by_topic.get(queue[0], {})
        if queues and isinstance(next(iter(queues.values())), dict):
            queues = queues.get(self.broker, {})
        found = queues.get(str(queue[1]))
        return None if found is None else int(found)

    def __post_init__(self) -> None:
        self._queues: dict[tuple[str, int], list[Truth]] = defaultdict(list)
        for record in self.truth:
            if in_a_queue(record):
                self._queues[record["topic"], record["queueId"]].append(record)
        self._known: dict[tuple[str, int], tuple[int, int]] = {}

    def _ends(self, queue: tuple[str, int]) -> tuple[int, int]:
        mine = self._queues[queue]
        last = mine[-1]
        return mine[0]["queueOffset"], last["queueOffset"] + messages_in(last)

    def _resolved(
        self,
        queue: tuple[str, int],
        offset: int | None,
        time: int | None,
        ends: tuple[int, int],
        otherwise: int,
    ) -> int:
        if time is not None:
            later = [r["queueOffset"] for r in self._queues[queue] if r["storeTimestamp"] >= time]
            return int(min(later, default=ends[1]))
        offset = otherwise if offset is None else offset
        return {EARLIEST: ends[0], LATEST: ends[1]}.get(offset, offset)
