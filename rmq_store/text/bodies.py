"""Convert bodies to text: as UTF-8, JSON on one line, base64 or hex."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.text.binary_values import UTF8, as_base64, as_hex, as_text

TEXT, JSON, BASE64, HEX, NONE = FORMS = ("text", "json", "base64", "hex", "none")
MOST_JSON_BYTES = 64 << 10
"""The largest body, in bytes, that `shown` looks at as JSON. JSON is parsed one body at a time."""
_MARK = "base64:"
_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


def bodies_as(form: str, column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values as strings in one of FORMS except NONE. Null stays null.

    text: of a charset; other bytes as `\\xff`. json: JSON without blanks between its values, its numbers and
    keys as they are; a value that is no JSON as text. Control characters are not escaped.
    Raises InvalidArgumentError for 2 GiB or more of base64 or hex.
    """
    if form == BASE64:
        return as_base64(column)
    if form == HEX:
        return as_hex(column)
    text = _with_bytes_escaped(column, charset)
    return _json_on_one_line(text) if form == JSON else text


def shown(column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values for a person: JSON on one line, other text of a charset as it is, and the rest as
    `base64:...`. JSON of more than MOST_JSON_BYTES is shown as it is."""
    return _json_on_one_line(marked(column, charset), MOST_JSON_BYTES)


def marked(column: pa.Array, charset: str = UTF8) -> pa.Array:
    """Binary values as text of a charset, and others as `base64:...`."""
    text, encoded = as_text(column, charset)
    if encoded is None:
        return text
    mark, nothing = pa.scalar(_MARK), pa.scalar("", pa.string())
    return pc.coalesce(text, pc.binary_join_element_wise(mark, encoded, nothing))


def _with_bytes_escaped(column: pa.Array, charset: str) -> pa.Array:
    text, encoded = as_text(column, charset)
    if encoded is None:
        return text
    foreign = pc.is_valid(encoded)
    escaped = [_escaped(raw, charset) for raw in column.filter(foreign).to_pylist()]
    return pc.replace_with_mask(text, foreign, pa.array(escaped, pa.string()))


def _escaped(raw: bytes, charset: str) -> str:
    """Bytes that are not of a charset, as text of it with `\\xff` for the others."""
    try:
        text = raw.decode(charset, "backslashreplace")
    except UnicodeError:  # some codecs leave out nothing
        return raw.decode("ascii", "backslashreplace")
    # UTF-7 and the escapes of Python may name half of a character.
    return text.encode("utf-8", "backslashreplace").decode()


def _json_on_one_line(text: pa.Array, most: int | None = None) -> pa.Array:
    """The texts, with the blanks in JSON objects and arrays removed. `most`: only in texts of at most
    so many bytes."""
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
