"""Checks of messages that are to be written, and of the columns of a batch of them.

`copied` says that it is the record of a store. The rules that a broker has for new messages (names
of topics, the default of maxMessageSize) do not hold for it: its broker accepted it under others, or
wrote it itself. What the files of the target cannot hold is refused all the same, and a larger body
than a maxMessageSize that was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.arrow.property_columns import buffers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.byte_layout import (
    BLANK_SIZE,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    Ints,
)
from rmq_store.format.record import encode_utf8
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import DLQ_PREFIX, RETRY_PREFIX, forbidden_character

_BATCH = "the batch"
_NONE: Ints = np.zeros(0, dtype=np.int64)


def topic_fault(
    name: str, dialect: Dialect, config: StoreConfig, *, copied: bool = False
) -> str | None:
    """Why a store of this release does not get a message of this topic; None if it does."""
    if not name:
        return "the topic is empty"
    wrong = None if copied else forbidden_character(name)
    if wrong is not None:
        return f"topic {name!r} has the forbidden character {wrong!r}"
    size = len(encode_utf8(name))
    if size > MAX_TOPIC_LENGTH:
        return f"topic {name[:40]!r}... has {size} bytes, at most {MAX_TOPIC_LENGTH} are stored"
    if not is_plain_name(name):
        return f"topic {name!r} cannot name the folder of its queues"
    if not needs_record_version_2(name):
        return None
    if not dialect.has("v2_magic") or (config.autoMessageVersionOnTopicLen is False and not copied):
        return (
            f"topic {name[:40]!r}... has {size} characters; release {dialect} stores at most "
            f"{MAX_TOPIC_LENGTH_V1} (5.1.0 and later store more)"
        )
    if not copied and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return f"topic {name[:40]!r}... has {size} characters, over {MAX_TOPIC_LENGTH_V1}"
    return None


def check_sizes(
    sizes: Mapping[str, Ints], config: StoreConfig, dialect: Dialect, *, copied: bool
) -> None:
    """Raise InvalidMessageError, with the row, for what is larger than its limit.

    `sizes`: bytes of some of body, properties, record and room. maxMessageSize holds for a new message, and
    for a copied one where it is given.
    """
    limits = [("properties", "the properties", MAX_PROPERTIES_LENGTH)]
    if not copied or config.maxMessageSize is not None:
        limited = "body" if dialect.has("size_limit_on_body") else "record"
        limits.append((limited, f"the {limited} (maxMessageSize)", config.max_message_size))
    room = config.commitlog_file_size - BLANK_SIZE
    for name, what, limit in (*limits, ("room", "the record in a file of the log", room)):
        wrong = sizes.get(name, _NONE) > limit
        if wrong.any():
            row = int(np.argmax(wrong))
            bounds = {"expected": f"at most {limit} bytes", "actual": f"{int(sizes[name][row])}"}
            raise invalid_message(row, f"{what} is too large", **bounds)


def needs_record_version_2(topic: str) -> bool:
    """Whether the length of `topic` needs the two bytes of record version 2."""
    return len(encode_utf8(topic)) > MAX_TOPIC_LENGTH_V1


def lengths(strings: pa.Array) -> Ints:
    """Bytes of every value."""
    return np.diff(buffers(strings)[0]).astype(np.int64)


def invalid_message(row: int, reason: str, **sides: Any) -> InvalidMessageError:
    """An InvalidMessageError for message `row` of a batch."""
    sides.setdefault("advice", f"Nothing of {_BATCH} was written")
    error = InvalidMessageError(reason=f"message {row} of {_BATCH}: {reason}", **sides)
    error.row, error.fault = row, reason
    return error


def as_error_of_one_message(error: InvalidMessageError) -> InvalidMessageError:
    """The error of the batch that was made of one message, as one of that message."""
    said = error.advice and error.advice.replace(_BATCH, "it")
    sides = {"expected": error.expected, "actual": error.actual}
    return InvalidMessageError(error.path, reason=error.fault or error.reason, advice=said, **sides)


def cast_column(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The column cast to another type.

    Raises InvalidMessageError for an unrelated type, and for a value that does not fit, with its
    row and Arrow's message.
    """
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise InvalidMessageError(
            reason=f"column {name} has the wrong type", expected=kind, actual=array.type
        ) from error
    except pa.ArrowInvalid as of_column:
        row, why = _first_unfit(array, kind), of_column
        try:
            # Arrow's message for a whole column is not always about its first wrong value.
            array.slice(row, 1).cast(kind)
        except pa.ArrowInvalid as of_row:
            why = of_row
        raise invalid_message(
            row, f"column {name} does not fit: {why}", expected=kind, actual=array.type
        ) from why


def _first_unfit(array: pa.Array, kind: pa.DataType) -> int:
    """The first row whose value cannot be cast; the caller knows that there is one."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            array.slice(start, middle - start).cast(kind)
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start
