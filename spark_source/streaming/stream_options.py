"""The options of a stream: those of a batch that have a meaning in a stream, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_store.errors import InvalidArgumentError
from rmq_store.scan.options import STREAM_OPTIONS
from rmq_store.scan.parse_options import ScanOptions, parse_option, parse_options

LATEST, EARLIEST, GIVEN = "latest", "earliest", "given"
_OWN = {option.name.casefold(): option for option in STREAM_OPTIONS}
_STARTS = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")

# Options of a batch -> why a stream has none of them, and what to use.
_NOT_OF_A_STREAM: Mapping[str, str] = {
    **dict.fromkeys(
        ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
        "A stream has no end: read a batch with spark.read, or stop at what is there now with "
        ".trigger(availableNow=True)",
    ),
    "source": "A stream always reads the log; leave it out",
    "compacted": "A stream returns every message; a batch gives the last one of each key",
    "includeUnqueued": "A stream returns what queues will list; read a batch with "
    "source=commitlog for the rest",
    "splitBy": "A stream cuts the log; repartition by topic and queueId if order per queue matters",
    "verifyQueue": "A stream reads the records themselves; leave it out",
    "maxRecordsPerPartition": "Give maxBytesPerPartition",
    "startingOffsetsByTimestampStrategy": "A queue without such a message starts at its end",
    "table": "Tables are read as a batch, with spark.read",
    "unavailableStores": "A stream fails while a store cannot be opened, and continues there after a "
    "restart; leave it out",
    "checkpointLocation": "It is an option of writeStream",
}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream has besides a batch. `start`: latest, earliest, or given in the other options.

    `max_delay_s`: seconds that a micro-batch waits for `min_rows`.
    """

    start: str = LATEST
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay_s: float = 900.0


def as_batch(raw: Mapping[str, str]) -> dict[str, str]:
    """The options without those that only a stream has."""
    return {
        name: value
        for name, value in raw.items()
        if name.casefold() not in _OWN and not _is_latest(name, value)
    }


def parse_stream_options(raw: Mapping[str, str]) -> tuple[ScanOptions, StreamOptions]:
    """The options of a stream as typed values.

    Raises InvalidArgumentError as `parse_options`, and for an option that a stream cannot have.
    """
    given = {name.casefold(): value for name, value in raw.items()}
    for name, advice in _NOT_OF_A_STREAM.items():
        if name.casefold() in given:
            raise InvalidArgumentError(
                reason=f"option {name!r} has no meaning in a stream", advice=advice
            )
    options = parse_options(as_batch(raw))
    own = {name: option for name, option in _OWN.items() if name in given}
    fields = {option.field: parse_option(option, given[name]) for name, option in own.items()}
    return options, StreamOptions(_start(given), **fields)


def _start(given: Mapping[str, str]) -> str:
    word = given.get(_STARTS[0], LATEST).strip().lower()
    others = any(name in given for name in _STARTS[1:])
    return GIVEN if others or word not in (LATEST, EARLIEST) else word


def _is_latest(name: str, value: str) -> bool:
    return name.casefold() == _STARTS[0] and value.strip().lower() == LATEST
