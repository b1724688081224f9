"""Parse the value of an option: a string to a typed value, or InvalidValue with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rmq_store.arrow.column_definitions import column_names
from rmq_store.format.queues import QueueId
from rmq_store.search.selection import EARLIEST, ByQueue, QueueOfBroker
from rmq_store.text.times import NotATimeError, parse_time

_MOST_BYTES = 2**63 - 1
_LEAST_PARTITION_BYTES = 1 << 10
_SIZE_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class InvalidValue(ValueError):
    """The reason why a value is invalid. As any ValueError of a parser, it becomes an InvalidArgumentError
    that names the option."""


def text(value: str) -> str:
    """A text that is not empty."""
    if not value.strip():
        raise InvalidValue("is empty")
    return value


def flag(value: str) -> bool:
    """true or false."""
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise InvalidValue("is neither true nor false")
    return word == "true"


def parser_of_words(*choices: str) -> Callable[[str], str]:
    """A parser for one of some words, compared without case."""

    def parse(value: str) -> str:
        for word in choices:
            if word.casefold() == value.strip().casefold():
                return word
        raise InvalidValue(f"is none of {', '.join(choices)}")

    return parse


def count(value: str) -> int:
    """A whole number above 0."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or int(value) == 0:
        raise InvalidValue("is not a whole number above 0, of at most 18 digits")
    return int(value)


def words(value: str) -> tuple[str, ...]:
    """Names separated by commas, without repeats."""
    parts = _split(value, ",")
    if not parts:
        raise InvalidValue("names nothing")
    return parts


def _split(value: str, separator: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in value.split(separator) if word.strip()))


def pattern(value: str) -> str:
    """A regular expression for whole names."""
    try:
        re.compile(text(value))
    except re.error as error:
        raise InvalidValue(f"is not a regular expression ({error})") from None
    return value


def columns(value: str) -> tuple[str, ...]:
    """Column names, separated by commas."""
    return column_names(words(value))


def alternatives(value: str) -> tuple[str, ...] | None:
    """The words of `a || b`; None for `*`, which means all."""
    if value.strip() == "*":
        return None
    tags = _split(value, "||")
    if not tags:
        raise InvalidValue("names none; give one, several as 'a || b', or '*' for all")
    return tags


def keys(value: str) -> tuple[str, ...]:
    """The words, or whole values of KEYS, of `a || b`."""
    wanted = alternatives(value)
    if wanted is None:
        raise InvalidValue("cannot be '*': leave it out to read messages with any keys")
    return wanted


def parse_size(value: str) -> int:
    """A number of bytes from digits with an optional k, m, g or t. Raises ValueError with a reason."""
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([bkmgt]?)(?:i?b)?\s*", value.lower())
    size = 0 if match is None else int(match[1]) << _SIZE_UNITS[match[2]]
    if not 0 < size <= _MOST_BYTES:
        raise InvalidValue("is not a number of bytes such as 134217728, 128m or 1g, below 8 EiB")
    return size


def parse_partition_size(value: str) -> int:
    """As parse_size, of what a partition may have: many small ones take the memory of a driver."""
    size = parse_size(value)
    if size < _LEAST_PARTITION_BYTES:
        raise InvalidValue("is below 1k, so that each message gets a partition; 128m is usual")
    return size


# --- JSON by topic, broker and queue --------------------------------------------------------------


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name in values if [key for key, _ in pairs].count(name) > 1)
        raise InvalidValue(f"names {twice!r} twice; give all that it has in one object")
    return values


def _parsed(value: str, shape: str) -> Any:
    try:
        return json.loads(value, object_pairs_hook=_with_each_name_once)
    except InvalidValue:
        raise
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise InvalidValue(f"is not JSON ({error}); it looks like {shape}") from None


def paths(value: str) -> tuple[str, ...]:
    """Texts from a JSON list."""
    shape = '["/data/a/store", "/data/b/store"]'
    values = _parsed(value, shape)
    if not isinstance(values, list) or not all(isinstance(item, str) and item for item in values):
        raise InvalidValue(f"is not a list of paths; it looks like {shape}")
    return tuple(values)


def json_object(value: str, shape: str) -> dict[str, Any]:
    """A JSON object. `shape` is an example for the error text."""
    values = _parsed(value, shape)
    if not isinstance(values, dict):
        raise InvalidValue(f"is not an object; it looks like {shape}")
    return values


def texts_by_name(
    value: str, shape: str = '{"broker-a": "/data/broker-a/store"}'
) -> dict[str, str]:
    """Texts by name, from `{"broker-a": "/path"}`. `shape` is an example for the error text."""
    texts = json_object(value, shape)
    for name, path in texts.items():
        if not isinstance(path, str) or not path.strip() or not name.strip():
            raise InvalidValue(f"has no text for {name!r}; it looks like {shape}")
        if "/" in name and "/" not in path:
            raise InvalidValue(f"has the path {name!r} as a name; it looks like {shape}")
    if not texts:
        raise InvalidValue("names nothing")
    return texts


def _queue_number(value: Any, shape: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", str(value)) or isinstance(value, bool):
        raise InvalidValue(f"has {value!r} as a queue id; it looks like {shape}")
    return int(value)


def assignment(value: str) -> tuple[QueueOfBroker, ...]:
    """Queues from `{"orders": [0, 1]}`, or `{"orders": {"broker-a": [0, 1]}}`."""
    shape = '{"orders": [0, 1]}'
    queues: dict[QueueOfBroker, None] = {}
    for topic, given in json_object(value, shape).items():
        by_broker = given if isinstance(given, dict) else {None: given}
        for broker, ids in by_broker.items():
            if not isinstance(ids, list):
                raise InvalidValue(f"has no list of queue ids for {topic!r}; it looks like {shape}")
            for number in ids:
                queues[broker, QueueId(topic, _queue_number(number, shape))] = None
    if not queues:
        raise InvalidValue("names no queue")
    return tuple(queues)


def by_queue(value: str, shape: str, least: int, what: str) -> ByQueue:
    """Numbers by queue, from `{"orders": {"0": 23}}` or `{"orders": {"broker-a": {"0": 23}}}`; each
    is `least` or more."""
    numbers: dict[QueueOfBroker, int] = {}
    for topic, of_topic in json_object(value, shape).items():
        if not isinstance(of_topic, dict):
            raise InvalidValue(f"has no {what}s by queue id for {topic!r}; it looks like {shape}")
        for name, inside in of_topic.items():
            pairs = inside.items() if isinstance(inside, dict) else [(name, inside)]
            for queue_id, number in pairs:
                if not isinstance(number, int) or isinstance(number, bool) or number < least:
                    raise InvalidValue(
                        f"has the {what} {number!r} for {topic!r}; it looks like {shape}"
                    )
                broker = name if isinstance(inside, dict) else None
                numbers[broker, QueueId(topic, _queue_number(queue_id, shape))] = number
    return ByQueue(numbers)


def offsets(own_end: str) -> Callable[[str], ByQueue]:
    """A parser for queue offsets in the form of Kafka's source; `own_end` is the word for no limit."""

    def parse(value: str) -> ByQueue:
        word = value.strip().lower()
        if word == own_end:
            return ByQueue()
        if word in ("earliest", "latest"):
            raise InvalidValue(f"cannot be {word!r}; give {own_end!r} or JSON of offsets")
        return by_queue(value, '{"orders": {"0": 23, "1": -1}}', EARLIEST, "offset")

    return parse


def timestamps(value: str) -> ByQueue:
    """Timestamps in milliseconds by queue."""
    times = by_queue(value, '{"orders": {"0": 1777629600000}}', 0, "timestamp")
    for number in times.numbers.values():
        try:
            parse_time(str(number))
        except NotATimeError as error:
            raise InvalidValue(f"has {number}, which {error}") from None
    return times


def seconds_of(value: str) -> float:
    """Seconds, from a number with a unit: 500ms, 30s, 15m, 1h."""
    match = re.fullmatch(r"([0-9]+)\s*(ms|s|m|h)", value.strip().lower())
    if match is None:
        raise InvalidValue("is not a time such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]
