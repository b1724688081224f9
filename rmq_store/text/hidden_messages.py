"""How many messages errors hide, as far as that is known."""

from __future__ import annotations

from rmq_store.errors import StoreError
from rmq_store.text.sizes import counted


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
