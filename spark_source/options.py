"""Options of `spark.read.format("rmqstore")`: strings to typed values, once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from rmq_store.consumequeue import QueueId
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.schema import column_names

DEFAULT_PARTITION_BYTES = 128 << 20

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_SIZE_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}

OffsetMap = Mapping[QueueId, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What was asked for, typed. None is "not said" throughout.

    `starting_offsets` and `ending_offsets` are queue offsets, with EARLIEST and LATEST as Kafka's
    source writes them; times are milliseconds since the epoch.
    """

    path: str
    topics: tuple[str, ...] | None = None
    assign: tuple[QueueId, ...] | None = None
    include_system_topics: bool = False
    columns: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    broker_name: str | None = None
    broker_conf: str | None = None
    starting_offsets: OffsetMap = field(default_factory=dict)
    ending_offsets: OffsetMap = field(default_factory=dict)
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    max_bytes_per_partition: int = DEFAULT_PARTITION_BYTES


class _Refused(ValueError):
    """Why a value cannot be; becomes an InvalidArgumentError that names the option."""


def _text(value: str) -> str:
    if not value.strip():
        raise _Refused("is empty")
    return value


def _flag(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise _Refused("is neither true nor false")
    return known[value.strip().lower()]


def _words(value: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    if not words:
        raise _Refused("names nothing")
    return words


def _columns(value: str) -> tuple[str, ...]:
    return column_names(_words(value))


def _tags(value: str) -> tuple[str, ...] | None:
    if value.strip() == "*":
        return None
    tags = tuple(dict.fromkeys(tag.strip() for tag in value.split("||") if tag.strip()))
    if not tags:
        raise _Refused("names no tag; write one, several as 'a || b', or '*' for all")
    return tags


def parse_size(value: str) -> int:
    """Bytes, of digits with an optional k, m, g or t. Raises ValueError with a reason."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)(?:i?b)?\s*", value.lower())
    if match is None or int(match[1]) == 0:
        raise _Refused("is not a number of bytes such as 134217728, 128m or 1g")
    return int(match[1]) << _SIZE_UNITS[match[2]]


def parse_time(value: str) -> int:
    """Milliseconds since the epoch, of digits or of ISO 8601 with a zone.

    Raises ValueError with a reason; a time without a zone is refused, since the driver's zone is
    rarely the broker's.
    """
    text = value.strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise _Refused("is neither milliseconds nor a time like 2026-05-01T10:00:00Z") from None
    if moment.tzinfo is None:
        raise _Refused("has no time zone; add Z or an offset such as +08:00")
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _json_of_topics(value: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise _Refused(f"is not JSON ({error}); it looks like {shape}") from None
    if not isinstance(found, dict):
        raise _Refused(f"is not an object; it looks like {shape}")
    return found


def _queue_number(value: Any, shape: str) -> int:
    if not re.fullmatch(r"\d+", str(value)) or isinstance(value, bool):
        raise _Refused(f"has {value!r} for a queue id; it looks like {shape}")
    return int(value)


def _assign(value: str) -> tuple[QueueId, ...]:
    shape = '{"orders": [0, 1]}'
    queues: list[QueueId] = []
    for topic, ids in _json_of_topics(value, shape).items():
        if not isinstance(ids, list):
            raise _Refused(f"has no list of queue ids for {topic!r}; it looks like {shape}")
        queues.extend(QueueId(topic, _queue_number(i, shape)) for i in ids)
    if not queues:
        raise _Refused("names no queue")
    return tuple(dict.fromkeys(queues))


def _offsets(value: str, own_end: str) -> OffsetMap:
    word = value.strip().lower()
    if word == own_end:
        return {}
    if word in _WORDS:
        raise _Refused(f"cannot be {word!r}; give {own_end!r} or JSON of offsets")
    shape = '{"orders": {"0": 23, "1": -1}}'
    offsets: dict[QueueId, int] = {}
    for topic, by_queue in _json_of_topics(value, shape).items():
        if not isinstance(by_queue, dict):
            raise _Refused(f"has no offsets by queue id for {topic!r}; it looks like {shape}")
        for queue_id, offset in by_queue.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise _Refused(f"has {offset!r} for an offset of {topic!r}; it looks like {shape}")
            offsets[QueueId(topic, _queue_number(queue_id, shape))] = offset
    return offsets


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, the field it fills, how it is parsed, its default and its meaning."""

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option("path", "path", _text, "", "the store's folder; `load(path)` sets it"),
    Option("topic", "topics", _words, "all user topics", "one topic, or several parted by commas"),
    Option(
        "assign",
        "assign",
        _assign,
        "all queues",
        'queues by topic, as JSON: `{"orders": [0, 1]}`; instead of `topic`',
    ),
    Option(
        "includeSystemTopics",
        "include_system_topics",
        _flag,
        "false",
        "also the topics of the broker's own: delay, retry, dead letters, transactions, trace, ...",
    ),
    Option(
        "columns",
        "columns",
        _columns,
        "all but those on request",
        "columns to read, parted by commas; what is not asked for is not read",
    ),
    Option("tags", "tags", _tags, "*", "messages with exactly one of these tags: `a || b`"),
    Option(
        "startingOffsets",
        "starting_offsets",
        lambda value: _offsets(value, "earliest"),
        "earliest",
        'first queue offset, as JSON: `{"orders": {"0": 23}}`; -2 is earliest, -1 latest; a queue '
        "not named goes by startingTimestamp, else starts at its earliest",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        lambda value: _offsets(value, "latest"),
        "latest",
        "queue offset to stop before, in the same form; a queue not named goes by endingTimestamp, "
        "else ends at its latest",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        parse_time,
        "none",
        "the first message stored then or later; milliseconds, or ISO 8601 with a zone",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        parse_time,
        "none",
        "stop before the first message stored then or later",
    ),
    Option("brokerName", "broker_name", _text, "the folder's name", "value of column brokerName"),
    Option(
        "brokerConf",
        "broker_conf",
        _text,
        "none",
        "the broker's configuration file: its brokerName, file sizes and cluster are used",
    ),
    Option(
        "maxBytesPerPartition",
        "max_bytes_per_partition",
        parse_size,
        "128m",
        "about how many selected bytes a partition holds; bytes, or with k, m, g",
    ),
)
_BY_FOLDED_NAME = {option.name.casefold(): option for option in OPTIONS}


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """The options of a read, typed.

    Names are compared without case, since Spark hands them over in lower case. Raises
    InvalidArgumentError for an unknown name (with the nearest known one), a value that cannot be,
    no path, and options that exclude each other.
    """
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        option = _BY_FOLDED_NAME.get(name.casefold())
        if option is None:
            raise InvalidArgumentError(
                None,
                reason=f"unknown option {name!r}",
                advice=nearest(name, [known.name for known in OPTIONS]),
            )
        fields[option.field] = _parsed(option, value)
    if "path" not in fields:
        raise InvalidArgumentError(
            None, reason="no path", advice="Give the store's folder: load('/path/to/store')"
        )
    if "topics" in fields and "assign" in fields:
        raise InvalidArgumentError(
            None,
            reason="options 'topic' and 'assign' exclude each other",
            advice="Give one of them",
        )
    return SourceOptions(**fields)


def _parsed(option: Option, value: str) -> Any:
    try:
        return option.parse(value)
    except _Refused as refused:
        raise InvalidArgumentError(
            None,
            reason=f"option {option.name!r} {refused}",
            actual=repr(value),
            advice=f"It means: {option.meaning}",
        ) from None
