"""The pages of a store: facts, topics, groups, tables, SQL and plots; and those with messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice

import pyarrow as pa
from markupsafe import Markup
from starlette.responses import Response

from rmq_store.browse.page import (
    ROWS,
    Form,
    FormField,
    Page,
    PageRequest,
    address,
    arrow_table_of,
    download,
    grid_of,
    messages_in,
    newest_slices,
    ranges_before,
    readable_text,
    rows_section,
)
from rmq_store.dataset.message_dataset import messages_of
from rmq_store.errors import InvalidArgumentError, StoreError, nearest
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.questions.trace import trace as lives_of
from rmq_store.reading.query import ReadOptions
from rmq_store.report.section import Grid, Remark, ReportCell, Section, text
from rmq_store.report.store_report import SECTIONS, section_of
from rmq_store.search.find_messages import find as find_by
from rmq_store.search.find_messages import find_by_id, why_not_found, with_listed_offsets_only
from rmq_store.search.message_history import MessageHistory
from rmq_store.search.selection import Search, ranges_in_store, stored_in_time
from rmq_store.sql.database import StoreDatabase
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.tables.groups import GROUPS
from rmq_store.tables.queues import QUEUES, TOPICS, queue_rows
from rmq_store.tables.table import Table
from rmq_store.text.bodies import BODY_FORMS, UTF8, bodies_as, charset_named
from rmq_store.text.lines import json_lines
from rmq_store.text.sizes import size
from rmq_store.verify.findings import Severity

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
    slices = ranges_in_store(store, search)
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
    name, _, value = (question.word("property") or "").partition("=")
    search = Search(
        None if topic is None else [topic],
        None,
        *question.times(),
        tags=question.word("tag"),
        properties={name: value} if name else {},
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
