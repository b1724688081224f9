"""Convert Arrow batches to lines of JSON or tab-separated text, without a Python loop per
message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.string_slices import buffers
from rmq_store.escaping import CONTROLS, json_text, printable
from rmq_store.text.binary_values import UTF8, as_base64, as_text
from rmq_store.text.bodies import marked
from rmq_store.text.times import LATEST_MS

_EMPTY = pa.scalar("", pa.string())
_QUOTE = pa.scalar('"', pa.string())
_NULL = pa.scalar("null", pa.string())
_BLANK = 0x20  # lower codes are control characters
_QUOTE_BYTE, _BACKSLASH = 0x22, 0x5C
_WIDE = CONTROLS.removeprefix("\x00-\x1f")
_WIDE_STARTS = (0x7F, 0xC2, 0xD8, 0xE2, 0xEF)  # their first bytes
# JSON's short escapes. Other control characters are written by number.
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MILLIS = pa.array([f"{ms:03d}Z" for ms in range(1000)])
BODY = "body"
BASE64_SUFFIX = "Base64"  # added to a column's name if a value is not UTF-8


def json_lines(batch: pa.RecordBatch, charset: str = UTF8) -> bytes:
    """One JSON object per row, with the column names as keys.

    Timestamps are ISO 8601 in UTC. A binary value is written as text. If it is not UTF-8, it is
    null, and a second key of its line, the name plus `Base64`, has it as base64. `charset`: that of
    bodies, as `charset_named` has it.
    """
    if not batch.num_rows:
        return b""
    pieces: list[pa.Array | pa.Scalar] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces += [
            _key(name, first=not pieces),
            *_json_of(name, column, charset if name == BODY else UTF8),
        ]
    return _joined([*pieces, pa.scalar("}\n", pa.string())])


def _json_of(name: str, column: pa.Array, charset: str) -> list[pa.Array]:
    """The values, and the second keys of those that are not UTF-8."""
    if not pa.types.is_binary(column.type):
        return [_json_values(column)]
    text, encoded = as_text(column, charset)
    if encoded is None:
        return [_json_values(text)]
    second = pc.binary_join_element_wise(_key(name + BASE64_SUFFIX), _quoted(encoded), _EMPTY)
    return [_json_values(text), second.fill_null(_EMPTY)]


def _key(name: str, *, first: bool = False) -> pa.Scalar:
    quoted = json_text(name)
    return pa.scalar(f"{'{' if first else ','}{quoted}:", pa.string())


def _joined(pieces: Sequence[pa.Array | pa.Scalar]) -> bytes:
    """The pieces joined row by row, and the rows concatenated."""
    ends, raw = buffers(pc.binary_join_element_wise(*pieces, _EMPTY))
    return raw[int(ends[0]) : int(ends[-1])].tobytes()


def _json_values(column: pa.Array) -> pa.Array:
    """Each value as JSON."""
    kind = column.type
    if pa.types.is_string(kind):
        values = _quoted(column)
    elif pa.types.is_timestamp(kind):
        values = pc.binary_join_element_wise(_QUOTE, iso_times(column), _QUOTE, _EMPTY)
    elif pa.types.is_map(kind):
        values = _objects(column)
    else:
        values = pc.cast(column, pa.string())
    return values.fill_null(_NULL)


def _quoted(strings: pa.Array) -> pa.Array:
    escaped = _with_escapes(strings, (_QUOTE_BYTE, _BACKSLASH))
    return pc.binary_join_element_wise(_QUOTE, escaped, _QUOTE, _EMPTY)


def _escape(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _objects(column: pa.Array) -> pa.Array:
    """Maps as JSON objects."""
    keys, items = column.keys, column.items
    colon = pa.scalar(":", pa.string())
    entries = pc.binary_join_element_wise(_quoted(keys), colon, _json_values(items), _EMPTY)
    lists = pa.ListArray.from_arrays(column.offsets, entries)
    inner = pc.binary_join(lists, ",")
    objects = pc.binary_join_element_wise(
        pa.scalar("{", pa.string()), inner, pa.scalar("}", pa.string()), _EMPTY
    )
    return pc.if_else(column.is_valid(), objects, pa.scalar(None, pa.string()))


def iso_times(column: pa.Array) -> pa.Array:
    """Timestamps as `2024-05-01T12:00:00.123Z`. Each distinct second is formatted once.

    A time that is centuries away stays a number, as `4611686018427387904 ms`.
    """
    ms = column.cast(pa.int64())
    numbers = ms.fill_null(0).to_numpy()
    far = (numbers > LATEST_MS) | (numbers < -LATEST_MS)
    if far.any():
        near = pc.if_else(pa.array(far), pa.scalar(None, pa.int64()), ms)
        as_number = pc.binary_join_element_wise(ms.cast(pa.string()), pa.scalar("ms"), " ")
        return pc.if_else(pa.array(far), as_number, iso_times(near))
    seconds, millis = np.divmod(numbers, 1000)
    distinct = pa.array(seconds).dictionary_encode()
    whole = pc.cast(distinct.dictionary, pa.timestamp("s"))
    texts = pc.strftime(whole, format="%Y-%m-%dT%H:%M:%S").take(distinct.indices)
    iso = pc.binary_join_element_wise(
        texts, pa.scalar(".", pa.string()), _MILLIS.take(pa.array(millis)), _EMPTY
    )
    return pc.if_else(column.is_valid(), iso, pa.scalar(None, pa.string()))


def text_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in types that CSV has. Null stays null.

    Binary values are base64, whatever their bytes are. Timestamps and maps are as in JSON lines.
    """
    return pa.RecordBatch.from_arrays(
        [_for_csv(column) for column in batch.columns], names=batch.schema.names
    )


def _for_csv(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind):
        return as_base64(column)
    if pa.types.is_timestamp(kind):
        return iso_times(column)
    return _objects(column) if pa.types.is_map(kind) else column


def text_lines(batch: pa.RecordBatch) -> bytes:
    """One line per row, values separated by tabs. Control characters in a value are escaped as in
    JSON.

    Null is empty. A binary value that is not UTF-8 is written as `base64:...`.
    """
    if not batch.num_rows:
        return b""
    pieces: list[pa.Array | pa.Scalar] = []
    for column in batch.columns:
        pieces += [plain_text(column), pa.scalar("\t", pa.string())]
    return _joined([*pieces[:-1], pa.scalar("\n", pa.string())])


def plain_text(column: pa.Array) -> pa.Array:
    """The values as `text_lines` writes them."""
    return _plain(column).fill_null(_EMPTY)


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return iso_times(column)
    if pa.types.is_map(kind):
        return _objects(column)
    if pa.types.is_binary(kind):
        return _without_breaks(marked(column))
    return _without_breaks(column) if pa.types.is_string(kind) else pc.cast(column, pa.string())


def _without_breaks(strings: pa.Array) -> pa.Array:
    return _with_escapes(strings, ())


def _with_escapes(strings: pa.Array, others: Sequence[int]) -> pa.Array:
    """The strings with control characters, and some other bytes, escaped as in JSON."""
    ends, raw = buffers(strings)
    used = raw[int(ends[0]) : int(ends[-1])]
    seen = set(np.unique(used[used < _BLANK]).tolist())
    seen |= {byte for byte in others if (used == byte).any()}
    # The backslash first, because the other escapes add backslashes.
    for byte in sorted(seen, reverse=True):
        strings = pc.replace_substring(strings, chr(byte), _escape(chr(byte)))
    return _each_printable(strings, used)


def _each_printable(strings: pa.Array, used: np.ndarray) -> pa.Array:
    """The strings with DEL, C1 controls and marks that reorder a line escaped, as in JSON too.

    `used`: their bytes. Few texts have one of the bytes that these characters begin with, and only
    strings with such a character are looked at one by one.
    """
    if not any((used == first).any() for first in _WIDE_STARTS):
        return strings
    hits = pc.match_substring_regex(strings, f"[{_WIDE}]").fill_null(False)
    if not pc.any(hits).as_py():
        return strings
    escaped = pa.array([printable(text) for text in strings.filter(hits).to_pylist()], pa.string())
    return pc.replace_with_mask(strings, hits, escaped)
