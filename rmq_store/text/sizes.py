"""Counts as text: bytes, how many there are of a thing, and how many messages errors hide."""

from __future__ import annotations

from rmq_store.errors import StoreError

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """A byte count with a unit, such as `1.5 MiB`."""
    for unit in UNITS:
        if abs(count) < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def counted(count: int, noun: str) -> str:
    """How many there are of a thing: `1 entry`, `1,200 entries`, `3 days`."""
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {many}"


class HiddenMessages:
    """Counts what some errors hide. As a text: `at least 3 messages`, or `2 places` if no number is known."""

    def __init__(self) -> None:
        self.errors = 0
        self._messages, self._more = 0, False  # that are known to be hidden; whether others may be

    def add(self, error: StoreError) -> None:
        """Count those of one more error."""
        messages = 0 if error.entry is None else error.entry.messages
        self.errors += 1
        self._messages += messages
        self._more |= messages != 1

    def __str__(self) -> str:
        if not self._messages:
            return counted(self.errors, "place")
        return "at least " * self._more + counted(self._messages, "message")
