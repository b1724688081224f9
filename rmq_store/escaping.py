"""What texts from outside must not show: characters that a terminal would act on, credentials of a URI."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}  # as in JSON
# Controls, what XML refuses, line separators, marks that reorder a line, and halves of surrogate pairs,
# which stand for bytes of a name that is not UTF-8.
CONTROLS = (
    "\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff"
)
_UNPRINTABLE = re.compile(f"[{CONTROLS}\ud800-\udfff]")
_URI = re.compile(r"(?<![\w+.-])([a-zA-Z][a-zA-Z0-9+.-]+):(/{1,2})([^\s'\"]+)")
_WITHOUT_PORTS = ("s3", "gs", "gcs")  # a bucket has none
_WITH_CONTAINERS = ("abfs", "abfss")  # container@account


def printable(text: object) -> str:
    """A text without control characters: each is written as in JSON, such as `\\u001b` or `\\n`.

    A byte of a file name that is not UTF-8 is written as `\\xff`.
    """
    words = str(text)
    return words if words.isprintable() else _UNPRINTABLE.sub(_escape, words)


def without_credentials(text: str) -> str:
    """A text whose URIs show no user, password or settings: `s3://***@bucket/store`.

    A secret may hold slashes, so all of a URI up to its last `@` is hidden if it may begin with a user and a
    password. A port is none.
    """
    if ":/" not in text:
        return text
    return _URI.sub(_without_credentials, text)


def _without_credentials(uri: re.Match[str]) -> str:
    scheme, slashes, rest = uri.groups()
    if scheme == "file":
        return uri[0]
    place = rest.partition("/")[0]
    _, colon, port = place.partition(":")
    if "@" in place:
        has_user = bool(colon) or scheme not in _WITH_CONTAINERS
    else:  # a secret with a slash, or a port
        is_port = port.isdigit() and scheme not in _WITHOUT_PORTS
        has_user = bool(colon) and "@" in rest and not is_port
    if has_user:
        rest = "***@" + rest.rpartition("@")[2]
    front, _, settings = rest.partition("?")
    return f"{scheme}:{slashes}{f'{front}?***' if '=' in settings else rest}"


def is_utf8(name: str) -> bool:
    """Whether a name from the file system is UTF-8."""
    return name.isprintable() or not re.search("[\ud800-\udfff]", name)


def json_text(
    value: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None
) -> str:
    """A value as JSON without control characters in its strings; on one line without blanks, unless `indent`
    says otherwise. `default`: makes a value of JSON of another one."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=False, default=default, indent=indent, separators=separators
    )
    return "\n".join(_UNPRINTABLE.sub(_in_json, line) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(match[0]) or f"\\u{code:04x}"


def _in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _as_printable(record: logging.LogRecord) -> bool:
    """Escape a line for the log, which names topics, groups and files, and hide credentials in it."""
    record.msg, record.args = printable(without_credentials(record.getMessage())), None
    return True


LOG = logging.getLogger("rmqstore")
"""The logger of all packages here, with every line escaped."""
LOG.addFilter(_as_printable)

_MOST_SAID = 10_000
_said: set[str] = set()


def warn_once(text: str, *values: object) -> None:
    """Log a warning about a fact of the files, once a process: every open of a store finds it again.

    Not for what one read leaves out: each read says that.
    """
    said = text % values
    if said not in _said:
        if len(_said) < _MOST_SAID:
            _said.add(said)
        LOG.warning("%s", said)
