"""What a read of a store returns, and how: the keywords that all reads share, and their value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from rmq_store.arrow.column_definitions import DEFAULT_NAMES, arrow_schema, column_names
from rmq_store.errors import (
    LOG,
    InvalidArgumentError,
    ListedAt,
    StoreError,
    is_utf8,
    nearest,
    warn_once,
)
from rmq_store.format.byte_layout import TAG_SEPARATOR
from rmq_store.format.compression import DEFAULT_MAX_BODY_BYTES
from rmq_store.text.sizes import HiddenMessages

if TYPE_CHECKING:
    from typing_extensions import Unpack


FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
CORRUPT = "corruptRecord"  # the column about damage in mode PERMISSIVE

OnDamage = Callable[[StoreError], None]
BATCH_ROWS = 8192
BATCH_BYTES = 16 << 20
FIRST_BATCH_ROWS = 256
"""Of a query: one that needs only twenty rows should not wait for more."""
BODIES = frozenset(("body", "rawBody"))
"""Columns whose values are held against a CRC, in a query that reads them."""

ALL_TAGS = "*"

Concerns = Callable[[StoreError], bool]


def ignore_damage(_: StoreError) -> None:
    """An `on_damage` that leaves out what cannot be read, and does not say it."""


def raise_error(error: StoreError) -> None:
    """What becomes of an error without an `on_damage`."""
    raise error


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

    def columns(self, names: Sequence[str] | None) -> Sequence[str] | None:
        """The columns of a read: without given ones also `corruptRecord`, if there are rows with
        it."""
        if names is None and self.mode == PERMISSIVE:
            return (*DEFAULT_NAMES, CORRUPT)
        return names

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
            reason="a search returns messages, which cannot say what is damaged",
            expected=f"on_damage as a function, or {FAILFAST} or {DROPMALFORMED}",
            actual=PERMISSIVE,
            advice="Give a function that takes the errors",
        )
    return lambda error: LOG.warning("left out, mode=%s: %s", DROPMALFORMED, error)


def nullable_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of `columns`, all nullable: a row about damage has few values."""
    return pa.schema([field.with_nullable(True) for field in arrow_schema(columns)])


def listed_record_size(entry: ListedAt | None) -> int | None:
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
        "storeSize": lambda e: listed_record_size(e.entry),
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


class CommonReadOptions(TypedDict, total=False):
    """Keywords that all reads of a store share; each may be left out.

    - `keys`: messages with this word, or one of these, in KEYS, or as UNIQ_KEY.
    - `batch_rows` (8192), `batch_bytes` (16 MiB of stored bytes, about; not where no record is
      read): the most of a batch; `first_batch_rows`: of the first one.
    - `check_crc` (true): bodies are held against their CRC.
    - `max_body_bytes` (256 MiB): a body that grows over this is damage.
    - `unwrap_batches` (false; true for `messages`, as in SQL and Spark): a row for each message of an inner
      batch, not one for its record.
    - `check_ends` (true): a read that reaches the end of a queue ends with the errors of what opening the
      store saw to be missing there.
    - `log_order` (true): rows come in the order of the log. Without it, a read of columns that all
      stand in the queue entries gives queue after queue, in about half the time.
    - `compacted` (true): a queue of a topic with cleanup.policy=COMPACTION that has files in
      `compaction/` gives what a consumer is served: of each key the last message, as far as the broker
      has compacted the queue. With false it gives all messages of the queue, as any other.
    - `on_damage`: a function that takes the error of what is left out; without it the error is
      raised. Or a mode of the Spark source by name: "failfast" raises it, "permissive" returns a
      row with `corruptRecord` (then all columns are nullable), "dropmalformed" logs the count.
    """

    keys: str | Collection[str] | None
    batch_rows: int
    batch_bytes: int
    first_batch_rows: int | None
    check_crc: bool
    max_body_bytes: int
    unwrap_batches: bool
    check_ends: bool
    log_order: bool
    compacted: bool
    on_damage: OnDamage | str | None


class ReadOptions(CommonReadOptions, total=False):
    """The keywords of `read_slices` and `read_log`: those of CommonReadOptions, and

    - `columns`: names of the schema, by default all but rawBody and the like.
    - `tags`: "a || b" or a list, compared as text.
    - `encoded` (false): brokerName and topic are dictionaries. Not in a mode of damage.
    - `concerns`: whether an error is about messages that the caller wants; others are dropped.
    """

    columns: str | Sequence[str] | None
    tags: str | Sequence[str] | None
    encoded: bool
    concerns: Concerns | None


@dataclass(frozen=True, slots=True)
class Query:
    """What a read returns, and how: the keywords of ReadOptions, checked. `tags` and `keys`: None means all.

    `verify_queue`: records are read even if no column needs them.
    """

    columns: Sequence[str] | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    first_batch_rows: int | None = None
    check_crc: bool = True
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    unwrap_batches: bool = False
    verify_queue: bool = False
    check_ends: bool = True
    log_order: bool = True
    compacted: bool = True
    on_damage: OnDamage | None = None
    encoded: bool = False
    concerns: Concerns | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        names = column_names(self.columns)
        if isinstance(self.on_damage, DamageMode):
            return self.on_damage.schema(names)
        return arrow_schema(names, encoded=self.encoded)

    @classmethod
    def of(cls, verify_queue: bool, **how: Unpack[ReadOptions]) -> Query:
        """The query of a caller's keywords.

        Raises InvalidArgumentError for an unknown keyword or column, and sizes below 1.
        """
        for name in how:
            if name not in ReadOptions.__annotations__:
                raise InvalidArgumentError(
                    reason=f"a read has no option {name!r}",
                    advice=nearest(name, ReadOptions.__annotations__),
                )
        keys = several_values("keys", how.get("keys"))
        columns: Sequence[str] | None = several_values("columns", how.get("columns"))
        on_damage = handler_of(how.get("on_damage"))
        if isinstance(on_damage, DamageMode):
            columns = on_damage.columns(columns)
        options: dict[str, Any] = {
            **how,
            "columns": column_names(columns),
            "tags": parse_tags(how.get("tags")),
            "keys": None if keys is None else frozenset(written_text("a key", key) for key in keys),
            "on_damage": on_damage,
        }
        query = cls(**options, verify_queue=verify_queue)
        if query.encoded and isinstance(on_damage, DamageMode):
            raise InvalidArgumentError(
                reason="a mode of damage has no encoded columns", advice="Leave encoded out"
            )
        positive_number("batch_rows", query.batch_rows)
        positive_number("batch_bytes", query.batch_bytes)
        return query


def several_values(name: str, given_value: Any, kind: type = str) -> tuple[Any, ...] | None:
    """The values of an argument that takes one or several of a `kind`, texts or whole numbers; None stays.

    Raises InvalidArgumentError for others.
    """
    if given_value is None:
        return None
    values = (given_value,) if isinstance(given_value, kind) else given_value
    chosen = tuple(values) if isinstance(values, Iterable) else (values,)
    if not all(isinstance(value, kind) for value in chosen):
        what = "a text" if kind is str else "a whole number"
        raise InvalidArgumentError(reason=f"{name} is {what}, or several", actual=repr(given_value))
    return chosen


def text(name: str, value: Any) -> str:
    """The value of an argument that takes a text. Raises InvalidArgumentError for another."""
    if not isinstance(value, str):
        raise InvalidArgumentError(reason=f"{name} is a text", actual=repr(value))
    return value


def written_text(name: str, value: Any) -> str:
    """The value of an argument that messages have as UTF-8. Raises InvalidArgumentError for what is none."""
    if not is_utf8(text(name, value)):
        raise InvalidArgumentError(
            reason=f"{name} is not UTF-8",
            actual=repr(value),
            advice="Check the encoding of the shell",
        )
    return str(value)


def number(name: str, value: Any) -> Any:
    """The value of an argument that takes a whole number. Raises InvalidArgumentError for another."""
    if value is not None and not isinstance(value, Integral):
        raise InvalidArgumentError(reason=f"{name} is a whole number", actual=repr(value))
    return value


def positive_number(name: str, value: int) -> int:
    """The value. Raises InvalidArgumentError if it is no whole number, or below 1."""
    number(name, value)
    if value < 1:
        raise InvalidArgumentError(reason=f"{name} must be at least 1", actual=value)
    return value


def parse_tags(tags: str | Sequence[str] | None) -> frozenset[str] | None:
    """The tags of an expression such as "a || b", or of a list; None: all. An empty list selects nothing."""
    if tags is None:
        return None
    words = tags.split(TAG_SEPARATOR) if isinstance(tags, str) else several_values("tags", tags)
    if not words:
        return frozenset()
    wanted = frozenset(written_text("a tag", word).strip() for word in words if word.strip())
    return None if not wanted or ALL_TAGS in wanted else wanted


def is_plain_tag(tag: str) -> bool:
    """Whether `tags=[tag]` selects just the messages with this tag: others mean all, or lose their blanks."""
    return tag == tag.strip() and tag not in ("", "*")


def _in_one_expression(tags: Sequence[str]) -> str:
    return repr(f" {TAG_SEPARATOR} ".join(tags))


def warn_of_tags(
    tags: str | Sequence[str] | None, form: Callable[[Sequence[str]], str] = _in_one_expression
) -> None:
    """Warn, once for each, of a tag that looks like several; `form`: how several are given."""
    for tag in sorted(parse_tags(tags) or ()):
        words = tuple(word.strip() for word in re.split("[,|]", tag) if word.strip())
        if len(words) > 1:
            warn_once("%r is one tag; several are given as %s", tag, form(words))
