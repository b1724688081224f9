"""Escape what a terminal would act on, in texts from outside: names, paths, values."""

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


def printable(text: object) -> str:
    """A text without control characters: each is written as in JSON, such as `\\u001b` or `\\n`.

    A byte of a file name that is not UTF-8 is written as `\\xff`.
    """
    words = str(text)
    return words if words.isprintable() else _UNPRINTABLE.sub(_escape, words)


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
    """Escape a line for the log, which names topics, groups and files."""
    record.msg, record.args = printable(record.getMessage()), None
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
