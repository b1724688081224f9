"""What a read does with damage if its caller names a mode of Spark: raise, return a row, leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema
from rmq_store.errors import InvalidArgumentError, ListedAt, StoreError, nearest
from rmq_store.escaping import LOG
from rmq_store.text.hidden_messages import HiddenMessages

FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
CORRUPT = "corruptRecord"  # the column about damage in mode PERMISSIVE

OnDamage = Callable[[StoreError], None]


def leave_out(_: StoreError) -> None:
    """An `on_damage` that leaves out what cannot be read, and does not say it."""


class DamageTaker:
    """Takes the errors of a read in a mode; counts them by code (`counts`) and what they hide."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._waiting: list[StoreError] = []
        self.counts: Counter[str] = Counter()
        self._hidden = HiddenMessages()

    def __call__(self, error: StoreError) -> None:
        """Take the error of a message that is left out."""
        self.count(error.code, error)
        if self.mode == PERMISSIVE:
            self._waiting.append(error)

    def count(self, code: str, error: StoreError) -> None:
        """Count an error under a code."""
        self.counts[code] += 1
        self._hidden.add(error)

    def waiting_rows(self, broker_name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows about the errors since the last call; none unless the mode is PERMISSIVE."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            yield damage_rows(waiting, broker_name, columns)

    def log_counts(self, name: str) -> None:
        """Log one line about what the read of a store left out, if anything."""
        if self.counts:
            what = ", ".join(f"{number} x {code}" for code, number in sorted(self.counts.items()))
            LOG.warning("%s: not read, mode=%s: %s (%s)", name, self.mode, what, self._hidden)


class DamageMode(DamageTaker):
    """What a reader of a store does in mode PERMISSIVE or DROPMALFORMED, by itself."""

    def columns(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """The columns of a read: without given ones also `corruptRecord`, if there are rows with
        it."""
        if given is None and self.mode == PERMISSIVE:
            return (*DEFAULT_NAMES, CORRUPT)
        return given

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """The schema of batches with these columns."""
        return nullable_schema(columns) if self.mode == PERMISSIVE else arrow_schema(columns)

    def applied(
        self, batches: Iterable[pa.RecordBatch], broker_name: str, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The batches; in mode PERMISSIVE also a row for each error, after the batch it belongs to.

        All columns are then nullable. At the end, one line of the log says what was left out.
        """
        schema = self.schema(columns)
        for batch in batches:
            permissive = self.mode == PERMISSIVE
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema) if permissive else batch
            yield from self.waiting_rows(broker_name, columns)
        yield from self.waiting_rows(broker_name, columns)
        self.log_counts(broker_name)
        self.counts, self._hidden = Counter(), HiddenMessages()


def handler_of(on_damage: OnDamage | str | None) -> OnDamage | None:
    """What takes the errors of a read: a callable, or a mode by name in any case.

    None means that they are raised, as in FAILFAST. Raises InvalidArgumentError for another name.
    """
    if on_damage is None or callable(on_damage):
        return on_damage
    mode = str(on_damage).strip().upper()
    if mode not in MODES:
        raise InvalidArgumentError(
            None,
            reason=f"on_damage is a function or the name of a mode, not {on_damage!r}",
            expected=" or ".join(MODES),
            advice=nearest(on_damage, MODES),
        )
    return None if mode == FAILFAST else DamageMode(mode)


def handler_of_search(on_damage: OnDamage | str | None) -> OnDamage | None:
    """As `handler_of`, for a search: its messages have no place for the errors of mode PERMISSIVE.

    In mode DROPMALFORMED each error is a line of the log. Raises InvalidArgumentError for PERMISSIVE.
    """
    handler = handler_of(on_damage)
    if not isinstance(handler, DamageMode):
        return handler
    if handler.mode == PERMISSIVE:
        raise InvalidArgumentError(
            None,
            reason="a search returns messages, which cannot say what is damaged",
            expected=f"on_damage as a function, or {FAILFAST} or {DROPMALFORMED}",
            actual=PERMISSIVE,
            advice="Give a function that takes the errors",
        )
    return lambda error: LOG.warning("left out, mode=%s: %s", DROPMALFORMED, error)


def nullable_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of `columns`, all nullable: a row about damage has few values."""
    return pa.schema([field.with_nullable(True) for field in arrow_schema(columns)])


def record_size(entry: ListedAt | None) -> int | None:
    """Size of the record that an entry leads to; None without one."""
    return None if entry is None or entry.log_offset < 0 else entry.size


def damage_rows(
    errors: Sequence[StoreError], broker_name: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """A row for each error: the values of the queue entry, `corruptRecord`, and nulls."""
    makers: dict[str, Callable[[StoreError], Any]] = {
        "brokerName": lambda e: broker_name,
        "topic": lambda e: e.entry and e.entry.topic,
        "queueId": lambda e: None if e.entry is None else e.entry.queue_id,
        "queueOffset": lambda e: None if e.entry is None else e.entry.queue_offset,
        "commitLogOffset": lambda e: e.log_offset,
        "storeSize": lambda e: record_size(e.entry),
        CORRUPT: str,
    }
    schema = nullable_schema(columns)
    arrays = [
        pa.array([makers[field.name](error) for error in errors], field.type)
        if field.name in makers
        else pa.nulls(len(errors), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
