"""The pages of a store: what a page asks and has, in words of an address, forms, tables and downloads; and
what each answers: facts, topics, groups, tables, SQL, plots and messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from markupsafe import Markup, escape
from starlette.responses import Response

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.dataset.message_dataset import messages_of
from rmq_store.errors import InvalidArgumentError, StoreError, is_utf8, nearest, printable
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.questions.trace import trace as lives_of
from rmq_store.reading.query import OnDamage, ReadOptions, ignore_damage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report.section import (
    Grid,
    Inquiry,
    NamedStore,
    ReadLimits,
    Remark,
    ReportCell,
    Section,
    text,
)
from rmq_store.report.store_report import SECTIONS, section_of
from rmq_store.search.find_messages import find as find_by
from rmq_store.search.find_messages import find_by_id, why_not_found, with_listed_offsets_only
from rmq_store.search.log_partitions import newest_time
from rmq_store.search.message_history import MessageHistory
from rmq_store.search.selection import (
    CLOCK_SLACK_MS,
    Search,
    property_of_text,
    ranges_in_store,
    stored_in_time,
)
from rmq_store.sql.database import StoreDatabase
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.tables.groups import GROUPS
from rmq_store.tables.queues import QUEUES, TOPICS, queue_rows
from rmq_store.tables.table import Table
from rmq_store.text.bodies import BODY_FORMS, UTF8, bodies_as, charset_named, readable_bodies
from rmq_store.text.lines import json_lines, plain_text, printable_columns
from rmq_store.text.sizes import size
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


_SAMPLED = 10_000  # messages: the bytes of a longer lag are estimated
_FILTERS = ("consumerGroup", "topic", "originTopic", "state", "kind", "status")
_OF_GROUP = {"deadLetters": "Its dead letters", "retries": "Its retries", "pop": "What it popped"}
_BROKER = ("brokerName",)
GROUPS_FORM = Form("groups", "Show", [FormField("topic", "Topic")])
"""The form that asks for the groups of a topic."""
_HINT_OF_SQL = "SELECT topic, count(*) FROM messages GROUP BY ALL"
SQL_FORM = Form("sql", "Run", [FormField("q", "SQL", _HINT_OF_SQL, kind="long")])
"""The form that asks for a query."""


def overview(question: PageRequest) -> Page:
    """What the store is, how it ended, and the damage that opening it and a quick look show."""
    sections = [section_of(question.inquiry, name) for name in ("facts", "damage")]
    return Page("Overview", sections, TRACE_FORM)


def topics(question: PageRequest) -> Page:
    """The topics of users, or all."""
    form = Form("topics", "Show", [FormField("system", "System topics too", kind="flag")])
    return _rows_page(
        question, "Topics", TOPICS, form, {} if question.word("system") else {"system": False}
    )


def table(question: PageRequest) -> Page:
    """A table, as `rmqstore table` prints it, or those of its rows that have some values; or all tables."""
    name = question.word("name")
    if name is None:
        rows = [
            [ReportCell(listed, leads_to=address("table", name=listed)), text(table.about)]
            for listed, table in TABLES_OF_A_STORE.items()
        ]
        grid = Grid("tables", "", ("table", "rows"), rows)
        return Page("Tables", [Section("tables", "", grids=[grid])])
    if name not in TABLES_OF_A_STORE:
        advice = nearest(name, TABLES_OF_A_STORE)
        raise InvalidArgumentError(reason=f"there is no table {name!r}", advice=advice)
    listed = TABLES_OF_A_STORE[name]
    names = [column.name for column in listed.columns if column.name in _FILTERS]
    form = Form(
        "table", "Filter", [FormField("name", kind="hidden"), *(FormField(n, n) for n in names)]
    )
    values = {n: word for n in names if (word := question.word(n)) is not None}
    return _rows_page(question, f"Table {name}", listed, form if names else None, values)


def _rows_page(
    question: PageRequest, title: str, table: Table, form: Form | None, values: Mapping[str, object]
) -> Page:
    """The rows of a table that have some values."""
    start = question.number("start") or 0
    every = table.rows(question.store, on_damage=question.note)
    rows = (row for row in every if all(row.get(name) == value for name, value in values.items()))
    listed = list(islice(rows, start, start + ROWS + 1))
    shown = table.of_rows(question.store.broker_name, listed[:ROWS])
    section = rows_section(table.name, table.about.capitalize(), shown, hidden=_BROKER)
    return Page(title, [section], form, question.link_to_next_rows(start, len(listed)))


def groups(question: PageRequest) -> Page:
    """How far each group is behind in each topic, as `rmqstore lag --by group` has it."""
    topic = question.word("topic")
    topics = [] if topic is None else [topic]
    answer = lag_of(question.store, topics=topics, read_whole=_SAMPLED)
    rows = arrow_table_of(answer.by_group())
    by_group = rows_section("groups", "By group and topic", rows)
    return Page("Groups", [_lag(question, answer), by_group], GROUPS_FORM)


def group(question: PageRequest) -> Page:
    """How far a group is in each queue, and where else the store has something of it."""
    name = question.needed("name")
    answer = lag_of(question.store, [name], read_whole=_SAMPLED)
    rows = GROUPS.of_rows(question.store.broker_name, answer.furthest_behind())
    queues = rows_section("queues", "Its queues", rows, hidden=(*_BROKER, "consumerGroup"))
    links = [
        (text, address("table", name=of, consumerGroup=name)) for of, text in _OF_GROUP.items()
    ]
    return Page(f"Group {name}", [_lag(question, answer), queues], None, links)


def _lag(question: PageRequest, answer: LagAnswer) -> Section:
    """How far groups are behind, and what is wrong with them."""
    about = (
        f"{answer.summary()}. By the broker's offset files, which miss what was consumed since they were "
        f"written. The bytes of more than {_SAMPLED:,} messages of a queue are estimated."
    )
    remarks = [
        Remark(Severity.WARNING, what, question.named.command("lag")) for what in answer.problems()
    ]
    return Section("lag", "", about, remarks=remarks)


def sql(question: PageRequest) -> Page:
    """The first rows of a query, as `rmqstore sql` has them."""
    query = question.word("q")
    if query is None:
        return Page("SQL", [], SQL_FORM)
    messages = messages_of([question.store], on_damage=question.note)
    sections, plan = [], None
    making = StoreDatabase(messages, [question.store], on_damage=question.note)
    with making as database, question.stopped_by(database.interrupt):
        for answer in database.answers(query, only_one=True):
            plan = answer.plan or plan
            if answer.rows is not None:
                rows = rows_from(answer.rows, 0, ROWS + 1)
                more = f"Only the first {ROWS} rows are shown." if len(rows) > ROWS else ""
                sections.append(rows_section("rows", "Rows", rows.slice(0, ROWS), more=more))
    return Page("SQL", sections, SQL_FORM, text=None if plan is None else readable_text(plan))


def plots(question: PageRequest) -> Page:
    """A section of the report, with its plots."""
    name = question.word("section") or "space"
    if name not in SECTIONS:
        reason = f"the report has no section {name!r}"
        raise InvalidArgumentError(reason=reason, advice=nearest(name, SECTIONS))
    links = [(title, address("plots", section=anchor)) for anchor, title in SECTIONS.items()]
    return Page("Report", [section_of(question.inquiry, name)], None, links)


LISTED = (
    *("storeTimestamp", "topic", "queueId", "queueOffset", "tags", "keys", "uniqKey", "storeSize"),
    "commitLogOffset",
)
"""The columns of a list of messages."""
_TAG = FormField("tag", "Tag", "or several: a || b")
_HINT_OF_TIMES = "10:00, -1h, ISO, ms"
_TIMES = (
    FormField("since", "Stored since", _HINT_OF_TIMES),
    FormField("until", "Stored before", _HINT_OF_TIMES),
)
TOPIC_FORM = Form(
    "topic", "Show", [FormField("name", kind="hidden"), FormField("queue", "Queue"), _TAG, *_TIMES]
)
"""The form that asks for some messages of a topic."""


def rows_from(batches: Iterable[pa.RecordBatch], start: int, count: int) -> pa.Table:
    """Some rows of batches; nothing behind them is read."""
    rows = pa.table({})
    for batch in batches:
        more = pa.Table.from_batches([batch.slice(min(start, batch.num_rows), count - len(rows))])
        start = max(0, start - batch.num_rows)
        rows = pa.concat_tables([rows, more]) if len(rows) else more
        if len(rows) == count:
            break
    return rows


def topic(question: PageRequest) -> Page:
    """The messages of a topic, newest first, and its queues."""
    store, name, tags = question.store, question.needed("name"), question.word("tag")
    queue, upto = question.number("queue"), question.number("before")
    since, until = question.times()
    search = Search([name], None if queue is None else [queue], since, until)
    slices = ranges_in_store(store, search, CLOCK_SLACK_MS)
    if upto is not None:
        slices = ranges_before(store, slices, upto)
    newest = newest_slices(store, slices, ROWS, tags)
    rows = messages_in(store, newest, LISTED, tags, question.note)
    links = [("Its groups", address("groups", topic=name))]
    if any(end.start > whole.start for end, whole in zip(newest, slices, strict=True)):
        starts = [store.log_offset_of(end.queue, end.start) for end in newest if len(end)]
        place = min(rows["commitLogOffset"].to_pylist() + starts)
        links.insert(0, ("Older messages", question.same(before=place)))
    rows = rows.filter(pa.array(stored_in_time(rows, since, until)))
    queues = QUEUES.of_rows(store.broker_name, queue_rows(store, store.queues(name)))
    sections = [
        rows_section("messages", "Messages, newest first", rows, hidden=["topic"]),
        rows_section("queues", "Queues", queues, hidden=["brokerName", "topic"]),
    ]
    return Page(f"Topic {name}", sections, TOPIC_FORM, links)


FIND_FORM = Form(
    "find",
    "Find",
    [
        FormField("key", "Key", "of KEYS, or UNIQ_KEY"),
        FormField("id", "Id", "offsetMsgId, UNIQ_KEY"),
        FormField("topic", "Topic"),
        _TAG,
        FormField("property", "Property", "NAME=VALUE"),
        FormField("text", "Text in the body"),
        *_TIMES,
        FormField("system", "System topics too", kind="flag"),
    ],
)
"""The form that asks for messages by what they have."""


def find(question: PageRequest) -> Page:
    """The messages that `rmqstore find` has for the same words."""
    if not any(question.word(field.name) for field in FIND_FORM.fields):
        return Page("Find messages", [], FIND_FORM)
    start = question.number("start") or 0
    rows = rows_from(_found(question), start, ROWS + 1)
    section = rows_section("found", "Messages, oldest first", rows.slice(0, ROWS))
    word = question.word("key") or question.word("id")
    if word is not None and not len(rows):
        section = replace(section, about=f"No message found{why_not_found(question.store, word)}.")
    return Page("Find messages", [section], FIND_FORM, question.link_to_next_rows(start, len(rows)))


def _found(question: PageRequest) -> Iterator[pa.RecordBatch]:
    message_id = question.word("id")
    if message_id is not None:
        return find_by_id(question.store, message_id, LISTED, question.note, unwrap_batches=True)
    topic, key, text = (question.word(name) for name in ("topic", "key", "text"))
    property_ = question.word("property")
    search = Search(
        None if topic is None else [topic],
        None,
        *question.times(),
        tags=question.word("tag"),
        properties={} if property_ is None else dict([property_of_text(property_)]),
        text=None if text is None else text.encode(errors="surrogatepass"),
        include_system_topics=question.word("system") is not None,
        keys=() if key is None else (key,),
        unwrap_batches=True,
    )
    return find_by(question.store, search, LISTED, question.note)


TRACE_FORM = Form("trace", "Trace", [FormField("key", "Key, UNIQ_KEY or offsetMsgId")])
"""The form that asks for what became of a message."""
_MOST_SHOWN = 1 << 16  # characters of a body, or of a property
_MOST_UNINDEXED = 64 << 20  # bytes of the log that the page of a message may search for its history
_BODY, _PROPERTIES = "body", "properties"
BODY_FORM = Form(
    "message",
    "Show the body",
    [
        *(FormField(name, kind="hidden") for name in ("at", "topic", "queue", "offset")),
        FormField("as", "Body as", kind="choice", choices=("text, else base64", *BODY_FORMS)),
        FormField("charset", "Charset", "UTF-8"),
    ],
)
"""The form that asks for a body in another form."""
_REPORTED = ("timestamp", "traceType", "groupName", "outcome", "costMs", "clientHost")


def message(question: PageRequest) -> Page:
    """A message: its body as text, its history and groups, its fields and properties."""
    rows = _read(question)
    if len(rows) != 1:
        title = "Messages of an inner batch" if len(rows) else ""
        return Page("Message", [rows_section("messages", title, rows.select(list(LISTED)))])
    (row,) = rows.select(["uniqKey", "msgId", "commitLogOffset"]).to_pylist()
    key = row["uniqKey"] or row["msgId"]
    body = rows[_BODY][0].as_py() if _BODY in rows.column_names else None
    return Page(
        f"Message at log offset {row['commitLogOffset']}",
        [
            *_history(question, key, _MOST_UNINDEXED),
            Section("fields", "Fields", grids=[_fields(rows)]),
            Section("properties", "Properties", grids=[_properties(rows)]),
        ],
        BODY_FORM,
        [*_links(question, rows, body), ("Its history", address("trace", key=key))],
        None if body is None else _text_of(body, question.word("as"), question.word("charset")),
    )


def _fields(rows: pa.Table) -> Grid:
    """The values of a message by name, but for the long ones; each word of its keys leads to its trace."""
    row = grid_of(
        rows.drop_columns([n for n in (_BODY, _PROPERTIES) if n in rows.column_names]), ""
    )
    cells = (replace(cell, kind="text") for cell in row.rows[0])
    listed = [[text(name), cell] for name, cell in zip(row.columns, cells, strict=True)]
    words = (rows["keys"][0].as_py() or "").split()
    links = (ReportCell(word, leads_to=address("trace", key=word)) for word in words)
    listed += [[text("word of keys"), link] for link in links]
    return Grid("fields", "", ("field", "value"), listed)


def _properties(rows: pa.Table) -> Grid:
    pairs = rows[_PROPERTIES][0].as_py()
    cells: list[list[ReportCell]] = [[text(word[:_MOST_SHOWN]) for word in pair] for pair in pairs]
    return Grid("properties", "", ("name", "value"), cells)


def _links(question: PageRequest, rows: pa.Table, body: bytes | None) -> Iterator[tuple[str, str]]:
    """Downloads, and the messages before and behind a message in its queue."""
    if body is not None:
        yield f"Download the body ({size(len(body))})", address("body", **question.words)
        yield "Download as JSON", address("json", **question.words)
    topic, number, at = (rows[name][0].as_py() for name in ("topic", "queueId", "queueOffset"))
    if at is None:
        return
    low, high = question.store.view.limits(QueueId(topic, number))
    for word, offset in (("Previous", at - 1), ("Next", at + 1)):
        if low <= offset < high:
            beside = address("message", topic=topic, queue=number, offset=offset)
            yield f"{word} in queue {number}", beside


def _read(question: PageRequest) -> pa.Table:
    """The message at a log offset or a queue offset, without its body if that is damaged; or all of an inner
    batch. Raises InvalidArgumentError where there is none, and no damage."""
    rows = _read_columns(question, None)
    if not len(rows) and question.damage:
        rows = _read_columns(question, [name for name in rows.column_names if name != _BODY])
    if not len(rows) and not question.damage:
        advice = "The queues on the page of a topic show their first and last offset"
        raise InvalidArgumentError(reason="no message is there", advice=advice)
    return rows


def _read_columns(question: PageRequest, columns: Sequence[str] | None) -> pa.Table:
    how: ReadOptions = {
        "columns": columns,
        "check_crc": columns is None,
        "unwrap_batches": True,
        "check_ends": False,
        "compacted": False,
        "on_damage": question.note,
    }
    store, at = question.store, question.number("at")
    if at is not None:
        of_log = store.read_log(at, at + 1, include_unqueued=True, **how)
        return pa.Table.from_batches(
            (with_listed_offsets_only(store, b) for b in of_log), of_log.schema
        )
    queue = QueueId(question.needed("topic"), question.number("queue") or 0)
    offset = question.number("offset") or 0
    return store.read_slices([QueueSlice(queue, offset, offset + 1)], **how).read_all()


def _text_of(body: bytes, form: str | None, charset: str | None) -> Markup:
    """A body for a person, in a form and of a charset; the start of a large one."""
    column = pa.array([body], pa.binary())
    known = UTF8 if charset is None else charset_named(charset)
    shown = bodies_as(form if form in BODY_FORMS else None, column, known)
    every: str = shown[0].as_py()
    rest = len(every) - _MOST_SHOWN
    cut = f"\n… {rest:,} more characters: download the body" if rest > 0 else ""
    return readable_text(every[:_MOST_SHOWN] + cut)


def body(question: PageRequest) -> Response:
    """The bytes of a body, decompressed."""
    batch, name = _one(question)
    return download(batch[_BODY][0].as_py(), f"{name}.bin", "application/octet-stream")


def as_json(question: PageRequest) -> Response:
    """A message as `rmqstore cat --json` prints it."""
    batch, name = _one(question)
    return download(json_lines(batch), f"{name}.json", "application/json")


def _one(question: PageRequest) -> tuple[pa.RecordBatch, str]:
    """A message, and a name for a file. Raises InvalidArgumentError for several, and for a damaged one."""
    rows = _read(question)
    if len(rows) != 1 or _BODY not in rows.column_names:
        raise InvalidArgumentError(reason="this is not one message that can be read whole")
    return rows.combine_chunks().to_batches()[0], f"message-{rows['commitLogOffset'][0]}"


def trace(question: PageRequest) -> Page:
    """The histories of the messages with a key, as `rmqstore trace` has them."""
    key = question.word("key")
    if key is None:
        return Page("Trace a message", [], TRACE_FORM)
    sections = _history(question, key)
    if not sections:
        gone = why_not_found(question.store, key)
        sections = [Section("none", "", f"No message has the key {key}{gone}.")]
    return Page(f"Trace of {key}", sections, TRACE_FORM)


def _history(question: PageRequest, key: str, most_unindexed: int | None = None) -> list[Section]:
    """The history of each message with a key; none if more bytes of the log have no index."""
    try:
        if most_unindexed is not None and question.inquiry.bytes_without_index > most_unindexed:
            return []
        lives = lives_of(question.store, key)
    except StoreError as error:
        question.note(error)
        return []
    return [_section_of(question, life, number) for number, life in enumerate(lives)]


def _section_of(question: PageRequest, life: MessageHistory, number: int) -> Section:
    """The records of a message, and the groups and clients that had to do with it."""
    for error in life.damage:
        question.note(error)
    reports = [{name: report.get(name) for name in _REPORTED} for report in life.reports]
    tables = {
        "Records": arrow_table_of(map(asdict, life.steps), ["storeTimestamp"]),
        "Groups": arrow_table_of(map(asdict, life.consumers), ["written", "invisibleUntil"]),
        "Reports of clients": arrow_table_of(reports, ["timestamp"]),
    }
    grids = [
        grid_of(rows, f"{title.split()[0].lower()}-{number}", title, hidden=["uniqKey"])
        for title, rows in tables.items()
        if len(rows)
    ]
    name = life.uniqKey or life.steps[0].msgId
    title = f"History of {name}: {life.outcome}"
    return Section(
        f"history-{number}", title, grids=grids, commands=[question.named.command("trace", name)]
    )


PAGES: Mapping[str, Callable[[PageRequest], Page | Response]] = {
    "": overview,
    "topics": topics,
    "topic": topic,
    "find": find,
    "message": message,
    "body": body,
    "json": as_json,
    "trace": trace,
    "groups": groups,
    "group": group,
    "table": table,
    "sql": sql,
    "plots": plots,
}
"""The pages by the last part of their addresses."""

FORMS: Mapping[str, Form] = {
    form.page: form
    for form in (TOPIC_FORM, FIND_FORM, BODY_FORM, TRACE_FORM, GROUPS_FORM, SQL_FORM)
}
"""What asks again where a page cannot be made."""
