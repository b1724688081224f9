"""Convert bodies and other binary values to text: of a charset, JSON on one line, base64 or hex."""

from __future__ import annotations

import binascii
import codecs
import json
import re
from encodings.aliases import aliases

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.property_columns import buffers
from rmq_store.errors import InvalidArgumentError, is_utf8, nearest

TEXT, JSON, BASE64, HEX = BODY_FORMS = ("text", "json", "base64", "hex")
MOST_JSON_BYTES = 64 << 10
"""The largest body, in bytes, that `readable_bodies` looks at as JSON. JSON is parsed one body at a time."""
_MARK = "base64:"
_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
# Well-formed byte sequences (table 3-7 of the Unicode Standard). Arrow matches bytes one by one.
_TAIL = r"[\x80-\xbf]"
_UTF8 = (
    r"\A(?:[\x00-\x7f]"
    rf"|[\xc2-\xdf]{_TAIL}"
    rf"|\xe0[\xa0-\xbf]{_TAIL}|[\xe1-\xec\xee\xef]{_TAIL}{{2}}|\xed[\x80-\x9f]{_TAIL}"
    rf"|\xf0[\x90-\xbf]{_TAIL}{{2}}|[\xf1-\xf3]{_TAIL}{{3}}|\xf4[\x80-\x8f]{_TAIL}{{2}}"
    r")*\z"
)
UTF8 = "utf-8"
_PADDING = pa.array([b"", b"\0", b"\0\0"], pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())
_FILL = ord("=")
_COMMON = ("ascii", "big5", "euc_", "gb", "iso8859", "shift_jis", "utf")  # charsets
_LARGEST = (1 << 31) - 1  # offsets of Arrow strings have 32 bits


def charset_named(name: str) -> str:
    """The name of a charset as Python has it, for one that Java or Python knows: GBK, utf-8, Shift_JIS.
    Raises InvalidArgumentError for another one."""
    try:
        codec = codecs.lookup(name)
        "".encode(codec.name)  # a codec that makes bytes of bytes, such as hex, is refused here
    except (LookupError, ValueError):
        raise InvalidArgumentError(
            reason=f"there is no charset {name!r}",
            advice=nearest(
                name, {*aliases, *aliases.values()}, last=lambda one: not one.startswith(_COMMON)
            ),
        ) from None
    return codec.name


def text_in_charset(column: pa.Array, charset: str) -> pa.Array:
    """Binary values as text of a charset, by any of its names; null where the bytes are not of it. Raises
    InvalidArgumentError for an unknown charset."""
    name = charset_named(charset)
    if name == UTF8:
        return text_and_base64(column)[0]
    return pa.array([_decoded(raw, name) for raw in column.to_pylist()], pa.string())


def _decoded(raw: bytes | None, charset: str) -> str | None:
    try:
        text = None if raw is None else raw.decode(charset)
    except UnicodeError:
        return None
    return text if text is None or is_utf8(text) else None


def text_and_base64(column: pa.Array, charset: str = UTF8) -> tuple[pa.Array, pa.Array | None]:
    """Binary values as text of a charset, and as base64. A value that is not of it is null in the first
    array; any other is null in the second array, which is None if all are text.

    `charset`: as `charset_named` has it.
    """
    if charset != UTF8:
        text = text_in_charset(column, charset)
        other = pc.and_(text.is_null(), column.is_valid())
        if not pc.any(other).as_py():
            return text, None
        return text, base64_of(pc.if_else(other, column, pa.scalar(None, pa.binary())))
    try:
        return column.cast(pa.string()), None
    except pa.ArrowInvalid:
        is_text = pc.match_substring_regex(column, _UTF8)
        none = pa.scalar(None, pa.binary())
        text = pc.if_else(is_text, column, none).cast(pa.string())
        return text, base64_of(pc.if_else(is_text, none, column))


def base64_of(column: pa.Array) -> pa.Array:
    """Binary values as base64 (RFC 4648, section 4). Null stays null.

    All values are encoded at once: each is padded to a multiple of three bytes with zeros, whose
    last characters then become the padding of base64. Raises InvalidArgumentError if the base64 of
    the column is 2 GiB or more.
    """
    values = column.fill_null(b"")  # a null may have bytes
    ends, _ = buffers(values)
    _check_size("base64", (int(ends[-1]) - int(ends[0]) + 2 * len(values)) * 4 // 3)
    missing = -(ends[1:] - ends[:-1]) % 3
    padded = pc.binary_join_element_wise(values, _PADDING.take(pa.array(missing)), _EMPTY)
    starts, raw = buffers(padded)
    used = raw[int(starts[0]) : int(starts[-1])].data
    encoded = bytearray(binascii.b2a_base64(used, newline=False))
    characters = np.frombuffer(encoded, dtype=np.uint8)
    offsets = (starts - starts[0]) // 3 * 4
    characters[offsets[1:][missing >= 1] - 1] = _FILL
    characters[offsets[1:][missing == 2] - 2] = _FILL
    return _strings(column, offsets, encoded)


def hex_of(column: pa.Array) -> pa.Array:
    """Binary values as hex, two digits a byte, all at once. Null stays null. Raises InvalidArgumentError if
    the hex of the column is 2 GiB or more."""
    values = column.fill_null(b"")  # a null may have bytes
    ends, raw = buffers(values)
    used = raw[int(ends[0]) : int(ends[-1])]
    _check_size("hex", 2 * len(used))
    return _strings(column, (ends - ends[0]) * 2, used.tobytes().hex().encode())


def _strings(column: pa.Array, offsets: np.ndarray, data: bytes | bytearray) -> pa.Array:
    """The strings at `offsets` of `data`; null where the column is."""
    bits = None if not column.null_count else pc.is_valid(column).buffers()[1]
    parts = [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(column), parts)


def _check_size(form: str, size: int) -> None:
    if size > _LARGEST:
        raise InvalidArgumentError(
            reason=f"a body is too large for {form}",
            expected=f"less than {_LARGEST:,} bytes of {form}",
            actual=f"{size:,}",
            advice="Lower maxBodyBytes, or leave the columns of bodies out",
        )


def bodies_as(form: str | None, column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values as strings in one of BODY_FORMS; None: as `text_or_marked_base64`. Null stays null.

    text: of a charset; other bytes as `\\xff`. json: JSON without blanks between its values, its numbers and
    keys as they are; a value that is no JSON as text. Control characters are not escaped.
    Raises InvalidArgumentError for 2 GiB or more of base64 or hex.
    """
    if form is None:
        return text_or_marked_base64(column, charset)
    if form == BASE64:
        return base64_of(column)
    if form == HEX:
        return hex_of(column)
    text, encoded = text_and_base64(column, charset)
    if encoded is not None:
        foreign = pc.is_valid(encoded)
        escaped = [_escaped(raw, charset) for raw in column.filter(foreign).to_pylist()]
        text = pc.replace_with_mask(text, foreign, pa.array(escaped, pa.string()))
    return _json_on_one_line(text) if form == JSON else text


def readable_bodies(column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values for a person: JSON on one line, other text of a charset as it is, and the rest as
    `base64:...`. JSON of more than MOST_JSON_BYTES is shown as it is."""
    return _json_on_one_line(text_or_marked_base64(column, charset), MOST_JSON_BYTES)


def text_or_marked_base64(column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values as text of a charset, and others as `base64:...`."""
    text, encoded = text_and_base64(column, charset)
    if encoded is None:
        return text
    mark, nothing = pa.scalar(_MARK), pa.scalar("", pa.string())
    return pc.coalesce(text, pc.binary_join_element_wise(mark, encoded, nothing))


def _escaped(raw: bytes, charset: str) -> str:
    """Bytes that are not of a charset, as text of it with `\\xff` for the others."""
    try:
        text = raw.decode(charset, "backslashreplace")
    except UnicodeError:  # some codecs leave out nothing
        return raw.decode("ascii", "backslashreplace")
    # UTF-7 and the escapes of Python may name half of a character.
    return text.encode("utf-8", "backslashreplace").decode()


def _json_on_one_line(text: pa.Array, most: int | None = None) -> pa.Array:
    """JSON without blanks between its values. `most`: only of at most so many bytes."""
    candidates = pc.match_substring_regex(text, r"^\x{FEFF}?\s*[\[{]")
    if most is not None:
        candidates = pc.and_(candidates, pc.less_equal(pc.binary_length(text), most))
    candidates = candidates.fill_null(False)
    if not pc.any(candidates).as_py():
        return text
    lines = [_on_one_line(one) for one in text.filter(candidates).to_pylist()]
    return pc.replace_with_mask(text, candidates, pa.array(lines, pa.string()))


def _on_one_line(text: str) -> str:
    """JSON without blanks between its values, and without a byte order mark; other text as it is."""
    plain = text.removeprefix("\ufeff")
    try:
        json.loads(plain)
    except (ValueError, RecursionError):
        return text
    # Not what `json` would write: it drops repeated keys and rounds numbers.
    return _BLANKS.sub(lambda found: found[1] or "", plain)
