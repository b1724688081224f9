"""The pages about the store: facts, topics, groups, its tables, SQL, and the plots of the report."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from rmq_store.browse.messages import TRACE_FORM, rows_from
from rmq_store.browse.page import (
    ROWS,
    Form,
    FormField,
    Page,
    Question,
    address,
    readable_text,
    rows_section,
    table_of,
)
from rmq_store.dataset.message_dataset import messages_of
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.report.section import Cell, Grid, Remark, Section, text
from rmq_store.report.store_report import SECTIONS, section_of
from rmq_store.sql.database import StoreDatabase
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.tables.groups import GROUPS
from rmq_store.tables.queues import TOPICS
from rmq_store.tables.table import Table
from rmq_store.verify.findings import Severity

_SAMPLED = 10_000  # messages: the bytes of a longer lag are estimated
_FILTERS = ("consumerGroup", "topic", "originTopic", "state", "kind", "status")
_OF_GROUP = {"deadLetters": "Its dead letters", "retries": "Its retries", "pop": "What it popped"}
_BROKER = ("brokerName",)
GROUPS_FORM = Form("groups", "Show", [FormField("topic", "Topic")])
"""The form that asks for the groups of a topic."""
_HINT = "SELECT topic, count(*) FROM messages GROUP BY ALL"
SQL_FORM = Form("sql", "Run", [FormField("q", "SQL", _HINT, kind="long")])
"""The form that asks for a query."""


def overview(question: Question) -> Page:
    """What the store is, how it ended, and the damage that opening it and a quick look show."""
    sections = [section_of(question.inquiry, name) for name in ("facts", "damage")]
    return Page("Overview", sections, TRACE_FORM)


def topics(question: Question) -> Page:
    """The topics of users, or all."""
    form = Form("topics", "Show", [FormField("system", "System topics too", kind="flag")])
    return _rows_page(
        question, "Topics", TOPICS, form, {} if question.word("system") else {"system": False}
    )


def table(question: Question) -> Page:
    """A table, as `rmqstore table` prints it, or those of its rows that have some values; or all tables."""
    name = question.word("name")
    if name is None:
        rows = [
            [Cell(known, leads_to=address("table", name=known)), text(table.about)]
            for known, table in TABLES_OF_A_STORE.items()
        ]
        grid = Grid("tables", "", ("table", "rows"), rows)
        return Page("Tables", [Section("tables", "", grids=[grid])])
    if name not in TABLES_OF_A_STORE:
        advice = nearest(name, TABLES_OF_A_STORE)
        raise InvalidArgumentError(reason=f"there is no table {name!r}", advice=advice)
    known = TABLES_OF_A_STORE[name]
    names = [column.name for column in known.columns if column.name in _FILTERS]
    form = Form(
        "table", "Filter", [FormField("name", kind="hidden"), *(FormField(n, n) for n in names)]
    )
    values = {n: word for n in names if (word := question.word(n)) is not None}
    return _rows_page(question, f"Table {name}", known, form if names else None, values)


def _rows_page(
    question: Question, title: str, table: Table, form: Form | None, values: Mapping[str, object]
) -> Page:
    """The rows of a table that have some values."""
    start = question.number("start") or 0
    every = table.rows(question.store, on_damage=question.note)
    rows = (row for row in every if all(row.get(name) == value for name, value in values.items()))
    listed = list(islice(rows, start, start + ROWS + 1))
    shown = table.of_rows(question.store.broker_name, listed[:ROWS])
    section = rows_section(table.name, table.about.capitalize(), shown, hidden=_BROKER)
    return Page(title, [section], form, question.next_rows(start, len(listed)))


def groups(question: Question) -> Page:
    """How far each group is behind in each topic, as `rmqstore lag --by group` has it."""
    topic = question.word("topic")
    topics = [] if topic is None else [topic]
    answer = lag_of(question.store, topics=topics, read_whole=_SAMPLED)
    rows = table_of(answer.by_group())
    by_group = rows_section("groups", "By group and topic", rows)
    return Page("Groups", [_lag(question, answer), by_group], GROUPS_FORM)


def group(question: Question) -> Page:
    """How far a group is in each queue, and where else the store has something of it."""
    name = question.needed("name")
    answer = lag_of(question.store, [name], read_whole=_SAMPLED)
    rows = GROUPS.of_rows(question.store.broker_name, answer.furthest_behind())
    queues = rows_section("queues", "Its queues", rows, hidden=(*_BROKER, "consumerGroup"))
    links = [
        (text, address("table", name=of, consumerGroup=name)) for of, text in _OF_GROUP.items()
    ]
    return Page(f"Group {name}", [_lag(question, answer), queues], None, links)


def _lag(question: Question, answer: LagAnswer) -> Section:
    """How far groups are behind, and what is wrong with them."""
    about = (
        f"{answer.summary()}. By the broker's offset files, which miss what was consumed since they were "
        f"written. The bytes of more than {_SAMPLED:,} messages of a queue are estimated."
    )
    remarks = [
        Remark(Severity.WARNING, what, question.named.command("lag")) for what in answer.problems()
    ]
    return Section("lag", "", about, remarks=remarks)


def sql(question: Question) -> Page:
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


def plots(question: Question) -> Page:
    """A section of the report, with its plots."""
    name = question.word("section") or "space"
    if name not in SECTIONS:
        reason = f"the report has no section {name!r}"
        raise InvalidArgumentError(reason=reason, advice=nearest(name, SECTIONS))
    links = [(title, address("plots", section=anchor)) for anchor, title in SECTIONS.items()]
    return Page("Report", [section_of(question.inquiry, name)], None, links)
