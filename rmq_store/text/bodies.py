"""Convert bodies to text: as UTF-8, JSON on one line, base64 or hex."""

from __future__ import annotations

import codecs
import json
import re
from encodings.aliases import aliases

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.escaping import is_utf8
from rmq_store.text.binary_values import as_base64, as_hex, as_text

TEXT, JSON, BASE64, HEX, NONE = FORMS = ("text", "json", "base64", "hex", "none")
MOST_JSON_BYTES = 64 << 10
"""The largest body, in bytes, that `shown` looks at as JSON. JSON is parsed one body at a time."""
_UTF8 = "utf-8"
_MARK = "base64:"
_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


def charset_named(name: str) -> str:
    """The name of a charset as Python has it, for one that Java or Python knows: GBK, utf-8, Shift_JIS.

    Raises InvalidArgumentError for another one.
    """
    try:
        found = codecs.lookup(name)
        "".encode(found.name)  # a codec that makes bytes of bytes, such as hex, is refused here
    except (LookupError, ValueError):
        raise InvalidArgumentError(
            None,
            reason=f"there is no charset {name!r}",
            advice=nearest(name, {*aliases, *aliases.values()}),
        ) from None
    return found.name


def decoded(column: pa.Array, charset: str) -> pa.Array:
    """Binary values as text of a charset; null where the bytes are not of it.

    Raises InvalidArgumentError for an unknown charset.
    """
    name = charset_named(charset)
    if name == _UTF8:
        return as_text(column)[0]
    return pa.array([_decoded(raw, name) for raw in column.to_pylist()], pa.string())


def _decoded(raw: bytes | None, charset: str) -> str | None:
    try:
        text = None if raw is None else raw.decode(charset)
    except UnicodeError:
        return None
    return text if text is None or is_utf8(text) else None


def bodies_as(form: str, column: pa.Array) -> pa.Array:
    """Binary values as strings in one of FORMS except NONE. Null stays null.

    text: UTF-8; other bytes as `\\xff`. json: JSON without blanks between its values, its numbers and
    keys as they are; a value that is no JSON as text. Control characters are not escaped.
    Raises InvalidArgumentError for 2 GiB or more of base64 or hex.
    """
    if form == BASE64:
        return as_base64(column)
    if form == HEX:
        return as_hex(column)
    text = _with_bytes_escaped(column)
    return _json_on_one_line(text) if form == JSON else text


def shown(column: pa.Array) -> pa.Array:
    """Binary values for a person: JSON on one line, other UTF-8 text as it is, and the rest as
    `base64:...`. JSON of more than MOST_JSON_BYTES is shown as it is."""
    text, encoded = as_text(column)
    if encoded is not None:
        mark, nothing = pa.scalar(_MARK), pa.scalar("", pa.string())
        text = pc.coalesce(text, pc.binary_join_element_wise(mark, encoded, nothing))
    return _json_on_one_line(text, MOST_JSON_BYTES)


def _with_bytes_escaped(column: pa.Array) -> pa.Array:
    text, encoded = as_text(column)
    if encoded is None:
        return text
    foreign = pc.is_valid(encoded)
    escaped = [
        raw.decode("utf-8", "backslashreplace") for raw in column.filter(foreign).to_pylist()
    ]
    return pc.replace_with_mask(text, foreign, pa.array(escaped, pa.string()))


def _json_on_one_line(text: pa.Array, most: int | None = None) -> pa.Array:
    """The texts, with the blanks in JSON objects and arrays removed. `most`: only in texts of at most
    so many bytes."""
    candidates = pc.match_substring_regex(text, r"^\s*[\[{]")
    if most is not None:
        candidates = pc.and_(candidates, pc.less_equal(pc.binary_length(text), most))
    candidates = candidates.fill_null(False)
    if not pc.any(candidates).as_py():
        return text
    lines = [_on_one_line(one) for one in text.filter(candidates).to_pylist()]
    return pc.replace_with_mask(text, candidates, pa.array(lines, pa.string()))


def _on_one_line(text: str) -> str:
    """JSON without blanks between its values; other text as it is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    # Not what `json` would write: it drops repeated keys and rounds numbers.
    return _BLANKS.sub(lambda found: found[1] or "", text)
