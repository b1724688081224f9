"""What a page asks and what it has: the words of an address, forms, sections, tables and downloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from markupsafe import Markup, escape
from starlette.responses import Response

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.errors import InvalidArgumentError, StoreError, is_utf8, printable
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage, ignore_damage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report.section import (
    Grid,
    Inquiry,
    NamedStore,
    ReadLimits,
    Remark,
    ReportCell,
    Section,
)
from rmq_store.search.log_partitions import newest_time
from rmq_store.text.bodies import readable_bodies
from rmq_store.text.lines import plain_text, printable_columns
from rmq_store.text.times import NotATimeError, Time, fixed_range, parse_time
from rmq_store.verify.findings import Severity

ROWS = 100
"""Rows of a page."""
_MOST_DAMAGE = 20  # errors that are listed


def address(page: str, **words: object) -> str:
    """The address of a page, relative to that of any other; without words that are None or empty."""
    query = {name: word for name, word in words.items() if word not in (None, "")}
    # Names from files may have halves of surrogate pairs.
    return f"{page}?{urlencode(query, errors='surrogatepass')}" if query else page


def readable_text(text: str) -> Markup:
    """A text for a person: lines stay lines, and what else is not printable is escaped."""
    pieces = re.split(r"([\n\t])", text.replace("\r\n", "\n"))
    return escape("".join(piece if piece in "\n\t" else printable(piece) for piece in pieces))


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form. `kind`: text, long, flag, hidden, or choice among `choices`."""

    name: str
    label: str = ""
    hint: str = ""
    kind: str = "text"
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """A form. `page`: the one that answers; `button`: what is on it."""

    page: str
    button: str
    fields: Sequence[FormField]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `links`: texts and addresses; `text`: of a body; `status`: of HTTP. `again`: load it again."""

    title: str
    sections: Sequence[Section] = ()
    form: Form | None = None
    links: Sequence[tuple[str, str]] = ()
    text: Markup | None = None
    status: int = 200
    again: bool = False


def download(content: bytes, name: str, media_type: str) -> Response:
    """Bytes that a browser stores, and does not show."""
    where = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, where, media_type)


@dataclass(frozen=True)
class PageRequest:
    """What a page asks of the open store. `page`, `words`: its address; `stops`: see `PageJob`."""

    store: StoreReader
    named: NamedStore
    now_ms: int
    page: str
    words: Mapping[str, str]
    stops: list[Callable[[], None]]
    damage: dict[tuple[str | None, int | None], StoreError] = field(default_factory=dict)

    def word(self, name: str) -> str | None:
        """A word; None if it is not given, or empty."""
        return self.words.get(name, "").strip() or None

    def needed(self, name: str) -> str:
        """A word. Raises InvalidArgumentError without it."""
        word = self.word(name)
        if word is None:
            raise InvalidArgumentError(reason=f"{name} is missing", advice=f"Give {name}")
        return word

    def number(self, name: str) -> int | None:
        """A whole number from 0 on; None if it is not given. Raises InvalidArgumentError."""
        word = self.word(name)
        if word is None or (word.isascii() and word.isdigit() and len(word) < 19):
            return None if word is None else int(word)
        raise InvalidArgumentError(reason=f"{name} is a whole number from 0 on", actual=repr(word))

    def times(self) -> tuple[int | None, int | None]:
        """The range of times, in ms, of the words since and until. Raises InvalidArgumentError."""
        since, until = self._time("since"), self._time("until")
        newest = partial(newest_time, [self.store])
        return fixed_range(since, until, newest, ("since", "until"))

    def _time(self, name: str) -> Time | None:
        word = self.word(name)
        try:
            return None if word is None else parse_time(word)
        except NotATimeError as error:
            raise InvalidArgumentError(reason=f"{name}: {word!r} {error}") from None

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the context lasts, `stop` too ends what the page reads."""
        self.stops.append(stop)
        try:
            yield
        finally:
            self.stops.remove(stop)

    def note(self, error: StoreError) -> None:
        """Take the error of what is left out; the page shows the first ones."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.setdefault((error.path, error.offset), error)

    def same(self, **words: object) -> str:
        """The address of this page with other words."""
        return address(self.page, **{**self.words, **words})

    def link_to_next_rows(self, start: int, count: int) -> list[tuple[str, str]]:
        """The link to the rows behind the page, of `count` rows from `start` on."""
        return [("Next rows", self.same(start=start + ROWS))] if count > ROWS else []

    @cached_property
    def inquiry(self) -> Inquiry:
        """The same for a section of the report."""
        return Inquiry(self.store, self.named, ReadLimits(), self.now_ms)

    def left_out(self) -> list[Section]:
        """The section on what the page left out because of damage; none without any."""
        if not self.damage:
            return []
        look = self.named.command("verify")
        remarks = [Remark(Severity.ERROR, str(error), look) for error in self.damage.values()]
        first = "The first of them:" if len(remarks) == _MOST_DAMAGE else ""
        about = f"Places that cannot be read, so that the rows above may lack some. {first}"
        return [Section("left-out", "Left out", about, remarks=remarks)]


LONGEST = 300  # characters of a cell
# Column -> the page about its value, and the word there.
_PLACE = "commitLogOffset"  # the queue entries have it
_PAGES = {
    **dict.fromkeys(("topic", "originTopic", "heldIn"), ("topic", "name")),
    "consumerGroup": ("group", "name"),
    **dict.fromkeys(("uniqKey", "msgId", "originMsgId", "transactionId", "key"), ("trace", "key")),
    **dict.fromkeys((_PLACE, "originCommitLogOffset", "halfCommitLogOffset"), ("message", "at")),
}
_OF_QUEUE = {"topic": "topic", "queueId": "queue", "queueOffset": "offset"}


def _leads_to(column: str, row: Mapping[str, Any]) -> str | None:
    """The page about a value of a row. A message is found by its queue, even if its record is damaged."""
    if column not in _PAGES or row.get(column) in (None, ""):
        return None
    if column == _PLACE and not any(row.get(name) is None for name in _OF_QUEUE):
        return address("message", **{word: row[name] for name, word in _OF_QUEUE.items()})
    page, word = _PAGES[column]
    return address(page, **{word: row[column]})


def rows_section(
    anchor: str, title: str, rows: pa.Table, more: str = "", hidden: Collection[str] = ()
) -> Section:
    """A section with rows."""
    if not len(rows):
        return Section(anchor, title, "There are no rows.")
    return Section(anchor, title, grids=[grid_of(rows, anchor, more=more, hidden=hidden)])


def grid_of(
    rows: pa.Table, anchor: str, title: str = "", more: str = "", hidden: Collection[str] = ()
) -> Grid:
    """Some rows as a table, without `hidden` columns, and without empty ones, which it names."""
    batch = printable_columns(rows.combine_chunks().to_batches()[0])
    names = batch.schema.names
    empty = [name for name in names if batch.column(name).null_count == len(batch)]
    names = [name for name in names if name not in (*empty, *hidden)]
    if empty:
        more += f" Empty, and not shown: {', '.join(empty)}."
    named = {*_PAGES, *_OF_QUEUE}
    links = batch.select([f.name for f in batch.schema if f.name in named and _is_linkable(f.type)])
    values = links.to_pylist() or [{}] * len(batch)
    columns = [_cells(name, batch.column(name), values) for name in names]
    return Grid(anchor, title, names, list(zip(*columns, strict=True)), more.strip() or None)


def _is_linkable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))


def _cells(name: str, column: pa.Array, rows: Iterable[Mapping[str, Any]]) -> list[ReportCell]:
    kind = "number" if pa.types.is_integer(column.type) else "text"
    kind = "time" if pa.types.is_timestamp(column.type) else kind
    if pa.types.is_binary(column.type):
        column = readable_bodies(column)
    if pa.types.is_string(column.type):  # before control characters are escaped: it may be large
        column = pc.utf8_slice_codeunits(column, 0, LONGEST + 1)
    return [
        ReportCell(
            text if len(text) <= LONGEST else f"{text[:LONGEST]}…", None, kind, _leads_to(name, row)
        )
        for text, row in zip(plain_text(column).to_pylist(), rows, strict=True)
    ]


def arrow_table_of(rows: Iterable[Mapping[str, Any]], times: Collection[str] = ()) -> pa.Table:
    """Rows as an Arrow table; `times`: columns in ms. Texts of JSON become UTF-8."""
    table = pa.Table.from_pylist([{name: _plain(row[name]) for name in row} for row in rows])
    for name in times if len(table) else ():
        column = table[name].cast(pa.int64()).cast(TIMESTAMP)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _plain(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not is_utf8(value) else value


_WIDER = 8  # times, where few entries of a window have the tag


def newest_slices(
    store: StoreReader, slices: Sequence[QueueSlice], count: int, tags: str | None = None
) -> list[QueueSlice]:
    """The ends of queue ranges with the newest `count` messages of all, or some more of an inner batch."""
    width = count
    while True:
        windows = [replace(piece, start=max(piece.start, piece.stop - width)) for piece in slices]
        cut = [w for w, piece in zip(windows, slices, strict=True) if w.start > piece.start]
        # Before this place, messages of other windows may be missing.
        sure = max((store.log_offset_of(piece.queue, piece.start) for piece in cut), default=0)
        places = _places(store, windows, tags)
        places = places[places >= sure]
        if len(places) > count or (cut and len(places) == count):
            place, at_log = int(np.partition(places, -count)[-count]), store.view.offset_at_log
            return [piece.cut(at_log(piece.queue, place), piece.stop) for piece in slices]
        if not cut:
            return windows
        width *= _WIDER


def _places(store: StoreReader, windows: Sequence[QueueSlice], tags: str | None) -> np.ndarray:
    batches = store.read_slices(
        windows,
        columns=[_PLACE],
        tags=tags,
        unwrap_batches=True,
        check_ends=False,
        compacted=False,
        on_damage=ignore_damage,  # the read of the messages says it
    )
    columns = [batch.column(_PLACE).to_numpy() for batch in batches]
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def ranges_before(store: StoreReader, slices: Sequence[QueueSlice], place: int) -> list[QueueSlice]:
    """The queue ranges up to the messages at a log offset."""
    at_log = store.view.offset_at_log
    return [piece.cut(piece.start, at_log(piece.queue, place)) for piece in slices]


def messages_in(
    store: StoreReader,
    slices: Sequence[QueueSlice],
    columns: Sequence[str],
    tags: str | None,
    on_damage: OnDamage,
) -> pa.Table:
    """The messages of queue ranges, newest first."""
    batches = store.read_slices(
        slices,
        columns=columns,
        tags=tags,
        unwrap_batches=True,
        compacted=False,
        on_damage=on_damage,
    )
    rows = batches.read_all()
    return rows.take(np.arange(len(rows))[::-1])
