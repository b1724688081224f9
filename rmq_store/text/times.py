"""Parse and format times."""

from __future__ import annotations

from datetime import datetime, timezone

import click


def parse_time(text: str | None) -> int | None:
    """A time as ms since the epoch. Digits are ms; other text is ISO 8601, in UTC if without a
    zone.

    Raises click.BadParameter for other text.
    """
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; give ms since 1970, or ISO 8601 such as "
            "2024-05-01T12:00:00+02:00"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return round(at.timestamp() * 1000)


def iso_time(ms: int | None) -> str:
    if ms is None:
        return "unknown"
    if ms <= 0:
        return "never"
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
