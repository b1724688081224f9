"""Tables of jobs for a pipe: tab-separated, numbers without separators, every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

from rich.console import Console

from rmq_store.escaping import printable


def print_plain(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a blank line, the title, the names of the columns, and the rows; nothing without rows."""
    if rows:
        print_lines(console, title, [list(rows[0]), *(row.values() for row in rows)])


def print_lines(console: Console, title: str, lines: Iterable[Iterable[Any]]) -> None:
    """Print a blank line, the title, and lines of values."""
    _say(console, "")
    _say(console, title)
    for line in lines:
        _say(console, "\t".join(printable(plain_value(value)) for value in line))


def plain_value(value: Any) -> str:
    """A value as text; a time as ISO 8601 in UTC, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        # Spark returns times in the zone of this process, without a zone.
        at = value.astimezone(timezone.utc).isoformat(timespec="milliseconds")
        return at.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def _say(console: Console, line: str) -> None:
    print(line, file=console.file)  # rich makes blanks of tabs
