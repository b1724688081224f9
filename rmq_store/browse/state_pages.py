"""The pages about the store: facts, topics, groups, its tables, SQL, and the plots of the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import pyarrow as pa
from markupsafe import escape

from rmq_store.browse.grids import grid_of, linked
from rmq_store.browse.message_lists import rows_from, rows_section
from rmq_store.browse.one_message import KEY
from rmq_store.browse.page import ROWS, Field, Form, Page, Question, address
from rmq_store.dataset.message_dataset import messages_of
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.questions.lag_summary import LagAnswer, lag_of
from rmq_store.report.section import Cell, Grid, Remark, Section, in_units, number, span, text
from rmq_store.report.store_report import SECTIONS, section_of
from rmq_store.sql.database import StoreDatabase
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.tables.groups import GROUPS
from rmq_store.tables.queues import TOPICS
from rmq_store.tables.table import Row, Table
from rmq_store.verify.findings import Severity

_SAMPLED = 1000  # messages: the bytes of a longer lag are estimated
_FILTERS = ("consumerGroup", "topic", "originTopic", "state", "kind", "status")
_OF_GROUP = {"deadLetters": "Its dead letters", "retries": "Its retries", "pop": "What it popped"}


def overview(asked: Question) -> Page:
    """What the store is, how it ended, and the damage that opening it and a quick look show."""
    return Page("Overview", [section_of(asked.inquiry, name) for name in ("facts", "damage")], KEY)


def topics(asked: Question) -> Page:
    """The topics of users, or all."""
    wanted = None if asked.word("system") else False
    form = Form("topics", "Show", [Field("system", "System topics too", kind="flag")])
    return _table_page(asked, "Topics", TOPICS, form, {"system": wanted})


def table(asked: Question) -> Page:
    """A table, as `rmqstore table` prints it, or those of its rows that have some values; or all tables."""
    name = asked.word("name")
    if name is None:
        every = [
            [Cell(one, leads_to=address("table", name=one)), text(known.about)]
            for one, known in TABLES_OF_A_STORE.items()
        ]
        grid = Grid("tables", "", ("table", "rows"), every)
        return Page("Tables", [Section("tables", "", grids=[grid])])
    known = TABLES_OF_A_STORE.get(name)
    if known is None:
        advice = nearest(name, TABLES_OF_A_STORE)
        raise InvalidArgumentError(reason=f"there is no table {name!r}", advice=advice)
    fields = [Field(one.name, one.name) for one in known.columns if one.name in _FILTERS]
    form = Form("table", "Filter", [Field("name", kind="hidden"), *fields]) if fields else None
    wanted = {one.name: asked.word(one.name) for one in fields}
    return _table_page(asked, f"Table {name}", known, form, wanted)


def _table_page(
    asked: Question, title: str, table: Table, form: Form | None, wanted: Mapping[str, object]
) -> Page:
    """The rows of a table, without those that have other values than are wanted."""
    values = {name: value for name, value in wanted.items() if value is not None}
    start = asked.number("start") or 0
    rows = (
        row
        for row in _rows_of(asked, table)
        if all(row.get(name) == value for name, value in values.items())
    )
    some = list(islice(rows, start, start + ROWS + 1))
    section = rows_section(
        table.name, table.about.capitalize(), _without_broker(asked, table, some[:ROWS])
    )
    return Page(title, [section], form, asked.next_rows(start, len(some)))


def _rows_of(asked: Question, table: Table) -> Iterable[Row]:
    if table.rows_past_damage is not None:
        return table.rows_past_damage(asked.store, asked.note)
    assert table.rows_of is not None
    return table.rows_of(asked.store, None)


def _without_broker(asked: Question, table: Table, rows: Iterable[Row]) -> pa.Table:
    return table.of_rows(asked.store.broker_name, rows).drop_columns(["brokerName"])


def groups(asked: Question) -> Page:
    """How far each group is behind in each topic, as `rmqstore lag --by group` has it."""
    answer = lag_of(asked.store, read_whole=_SAMPLED)
    rows = [
        [
            *(linked(name, row[name], row[name]) for name in ("consumerGroup", "topic")),
            number(row["queues"]),
            number(row["lag"]),
            in_units(row["lagBytes"]),
            span(row["lagMs"]),
            number(row["notAcknowledged"]),
        ]
        for row in answer.by_group()
    ]
    columns = ("group", "topic", "queues", "messages", "bytes", "time", "popped, not acknowledged")
    grids = [Grid("groups", "", columns, rows)] if rows else []
    return Page("Consumer groups", [_progress(asked, answer, grids)])


def group(asked: Question) -> Page:
    """How far a group is in each queue, and where else the store has something of it."""
    name = asked.needed("name")
    answer = lag_of(asked.store, [name], read_whole=_SAMPLED)
    rows = _without_broker(asked, GROUPS, answer.furthest_behind())
    links = [
        (what, address("table", name=one, consumerGroup=name)) for one, what in _OF_GROUP.items()
    ]
    grids = [grid_of(rows, "queues", "")] if len(rows) else []
    return Page(f"Group {name}", [_progress(asked, answer, grids)], None, links)


def _progress(asked: Question, answer: LagAnswer, grids: Sequence[Grid]) -> Section:
    """Rows about lag, and what is wrong with the groups."""
    remarks = [Remark(Severity.WARNING, one, asked.command("lag")) for one in answer.problems()]
    about = (
        f"{answer.summary()}. By the broker's offset files, which miss what was consumed since they were "
        f"written. The bytes of more than {_SAMPLED:,} messages of a queue are estimated."
    )
    return Section("progress", "Progress", about, grids=grids, remarks=remarks)


def sql(asked: Question) -> Page:
    """The first rows of a query, as `rmqstore sql` has them."""
    query = asked.word("q")
    hint = "SELECT topic, count(*) FROM messages GROUP BY ALL"
    form = Form("sql", "Run", [Field("q", "SQL", hint, kind="long")])
    if query is None:
        return Page("SQL", [], form)
    messages = messages_of([asked.store], on_damage=asked.note)
    sections, plan = [], None
    making = StoreDatabase(messages, [asked.store], on_damage=asked.note)
    with making as database, asked.stopped_by(database.interrupt):
        for answer in database.answers(query, only_one=True):
            plan = answer.plan or plan
            if answer.rows is not None:
                rows = rows_from(answer.rows, 0, ROWS + 1)
                more = f"Only the first {ROWS} rows are shown." if len(rows) > ROWS else None
                sections.append(rows_section("rows", "Rows", rows.slice(0, ROWS), more))
    return Page("SQL", sections, form, text=None if plan is None else escape(plan))


def plots(asked: Question) -> Page:
    """A section of the report, with its plots."""
    name = asked.word("section") or "space"
    if name not in SECTIONS:
        raise InvalidArgumentError(
            reason=f"the report has no section {name!r}", advice=nearest(name, SECTIONS)
        )
    links = [(title, address("plots", section=one)) for one, title in SECTIONS.items()]
    return Page("Report", [section_of(asked.inquiry, name)], None, links)
