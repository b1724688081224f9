"""rmqstore info, topics, queues, table, usage: what a store has, and what fills the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import DAMAGE, SkippedDamage
from rmq_store.cli.options import StoreArgs, argument, option, options_as_one
from rmq_store.cli.output import OUTPUT, Output, note, print_json, print_line, progress_of_reads
from rmq_store.errors import nearest
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import iso_time, shown_minute, shown_time

if TYPE_CHECKING:
    from rmq_store.questions.usage import UsageAnswer
    from rmq_store.text.times import Time

_NO_TIME = ("unknown", "never")


@command
def info(at: StoreArgs = options.STORE, out: Output = OUTPUT) -> bool:
    """Show the store's size, log range and whether it was closed cleanly.

    Examples:
        rmqstore info /data/store
    """
    from rmq_store.admin.info import store_info, summary_of

    info = store_info(at.store, broker_name=at.broker_name, broker_conf=at.broker_conf)
    if out.as_json:
        fields = asdict(info)
        times = {name: iso_time(fields[name]) for name in fields if name.endswith("Timestamp")}
        print_json({**fields, **{n: None if at in _NO_TIME else at for n, at in times.items()}})
    else:
        for name, value in summary_of(info):
            wrong = name == "damage" or (name == "closed" and not info.closed)
            wrong = wrong or (name == "queues" and info.queuesUnread is not None)
            print_line(f"{name:<12} {value}", fg="red" if wrong else None)
    return bool(info.damage) or info.queuesUnread is not None


@command
def topics(
    at: StoreArgs = options.STORE, out: Output = OUTPUT, system: bool = options.SYSTEM
) -> bool:
    """List topics with their queues and messages.

    Examples:
        rmqstore topics /data/store
        # with those of the broker, such as %RETRY%g-slow
        rmqstore topics /data/store --system
    """
    return print_named("topics", at, out, system=system)


@command
def queues(
    at: StoreArgs = options.STORE,
    out: Output = OUTPUT,
    topic: str | None = options.TOPIC,
    system: bool = options.SYSTEM,
) -> bool:
    """List queues: offsets, messages, and messages that only the log has so far.

    Examples:
        rmqstore queues /data/store --topic orders
    """
    return print_named("queues", at, out, topic=topic, system=system)


def _table_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    from rmq_store.tables import TABLES_OF_A_STORE

    return [name for name in TABLES_OF_A_STORE if name.startswith(typed)]


@command
def table(
    name: str | None = argument(metavar="NAME", required=False, shell_complete=_table_names),
    at: StoreArgs = options_as_one(
        StoreArgs,
        store=options.STORE_PATH.but(metavar="STORE", required=False),
        broker_conf=options.BROKER_CONF,
        broker_name=options.BROKER_NAME,
    ),
    damage: SkippedDamage = DAMAGE,
    out: Output = OUTPUT,
) -> bool:
    """Print a table of the Spark source by its NAME: files, index, checkpoint, config, damage,
    ...

    Examples:
        rmqstore table files /data/store
        rmqstore table checkpoint /data/store --json
    """
    from rmq_store.tables import TABLES, TABLES_OF_A_STORE, TABLES_OF_MESSAGES
    from rmq_store.tables.diff import DIFF

    if name is None or at.store is None:
        given = "STORE is missing" if name in TABLES_OF_A_STORE else "NAME is missing"
        raise click.UsageError(f"{given}. The tables: {', '.join(sorted(TABLES_OF_A_STORE))}")
    if name not in TABLES and (at.store in TABLES or "://" in name or os.path.isdir(name)):
        name, at = at.store, replace(at, store=name)  # all other commands have the store first
    if name == DIFF.name:
        raise click.UsageError("table diff is about two stores: rmqstore diff STORE OTHER")
    if name not in TABLES_OF_A_STORE:
        raise click.BadParameter(f"there is no table {name!r}. {nearest(name, TABLES_OF_A_STORE)}")
    if name not in TABLES_OF_MESSAGES:
        if not damage.skips:
            return print_named(name, at, out, system=True)
        names = ", ".join(TABLES_OF_MESSAGES)
        raise click.UsageError(f"--skip-damaged is for tables of messages: {names}")
    with at.open() as opened, damage, progress_of_reads(name, opened):
        found = TABLES[name].of(opened, on_damage=damage.handler)
    out.table([found])
    return damage.conclude()


# The columns printed as text. --json prints all columns.
_SHOWN = {
    "topics": ("topic", "queues", "messages", "perm"),
    "queues": ("topic", "queueId", "minOffset", "maxOffset", "messages"),
}

_PERM_BITS = (("R", 4), ("W", 2), ("X", 1))

# Those that a narrow terminal keeps.
_KEPT = {"files": ("path", "size"), "queues": ("topic", "queueId", "maxOffset", "messages")}


def print_named(
    name: str, at: StoreArgs, out: Output, *, topic: str | None = None, system: bool = True
) -> bool:
    """Print a table of the source; with `topic`, only its rows."""
    import pyarrow as pa

    from rmq_store.search.selection import require_topic
    from rmq_store.tables import TABLES

    with at.open() as opened:
        if topic is not None:
            require_topic(opened, topic)
        with progress_of_reads(name, opened):
            rows = TABLES[name].rows(opened)
            if topic is not None:
                rows = (row for row in rows if row["topic"] == topic)
            elif not system:
                rows = (row for row in rows if not opened.is_system_topic(str(row["topic"])))
            answer = TABLES[name].of_rows(opened.broker_name, rows)
            lacks_some, behind = opened.opening.has_losses, opened.opening.behind
            of_topics = name == "topics"
            unread = of_topics and opened.view.topics.problem is not None
            absent = of_topics and not opened.view.topics.has_file
            unknown = list(filter(opened.is_undeclared, opened.topics() if of_topics else ()))
    if not out.as_json and "perm" in answer.column_names:
        # As RocketMQ's tools print it (PermName#perm2String).
        words = [
            None
            if perm is None
            else "".join(name if perm & bit else "-" for name, bit in _PERM_BITS)
            for perm in answer["perm"].to_pylist()
        ]
        at = answer.column_names.index("perm")
        answer = answer.set_column(at, "perm", pa.array(words, pa.string()))
    shown = [column for column in _SHOWN.get(name, ()) if column in answer.column_names]
    out.table([answer], shown, kept=_KEPT.get(name, ()))
    if behind is not None and name in ("topics", "queues"):
        note(behind)
    if absent:
        note("there is no topics.json: perm is not known, nor topics without a queue")
    if unknown:
        note(f"not in topics.json, so that a broker refuses them: {', '.join(unknown)}")
    return unread or lacks_some


_LARGEST = 20  # messages that are listed without --top
_DAY, _HOUR, _MESSAGE = "day", "hour", "message"
_KEPT_OF_MESSAGES = ("topic", "queueId", "queueOffset", "storeSize")
_OF_MESSAGES = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize")
_BY = {
    "topic": ("topic",),
    "queue": ("topic", "queueId"),
    _DAY: ("day",),
    _HOUR: ("hour",),
    "topic,day": ("topic", "day"),
}


@command
def usage(
    at: StoreArgs = options.STORE,
    by: str = option(
        "--by",
        type=click.Choice([*_BY, _MESSAGE]),
        default="topic",
        help="Group by; message: list the largest ones.",
    ),
    topics: tuple[str, ...] = options.TOPICS,
    begin: Time | None = options.SINCE,
    end: Time | None = options.UNTIL,
    top: int | None = options.TOP.but(help="Only the N largest (default: all; of messages 20)."),
    zone_of_days: tzinfo = options.ZONE,
    out: Output = OUTPUT,
) -> bool:
    """Show which topic, queue, day or hour fills the disk: messages and bytes, largest first.

    Days and hours are in their order, each day with the change from the one before. The last row counts
    bytes that no queue lists: prepared messages, filler, preallocated space. Rows marked as shared are
    light queues (LMQ): their records also count in other rows. Exit code 1 if messages are lost, as far
    as opening the store sees that.

    Examples:
        rmqstore usage /data/store --top 10
        # how much came when, and which messages are the largest
        rmqstore usage /data/store --by hour --topic orders --zone Asia/Shanghai
        rmqstore usage /data/store --by message --top 5
    """
    from rmq_store.questions.usage import usage_of
    from rmq_store.search.selection import Search, ranges_in_store
    from rmq_store.tables.queues import problem_of_times
    from rmq_store.tables.table import all_ranges

    with at.open() as opened, Progress("usage", unit="messages") as progress:
        first, stop = options.time_range([opened], begin, end)
        ranges = None
        if topics or first is not None or stop is not None:
            wanted = Search(topics or None, since=first, until=stop, include_system_topics=True)
            ranges = tuple(ranges_in_store(opened, wanted))
        progress.expect(sum(map(len, all_ranges(opened) if ranges is None else ranges)))
        most = (top or _LARGEST) if by == _MESSAGE else 0
        answer = usage_of(
            opened, ranges, most, zone=zone_of_days, hours=by == _HOUR, progress=progress
        )
        problem = None
        if {_DAY, _HOUR}.intersection(_BY.get(by, ())):
            problem = problem_of_times(opened)
        lacks_some = opened.opening.has_losses
    if problem is not None:
        note(problem)
    if by == _MESSAGE:
        out.rows(answer.largest, _OF_MESSAGES, texts=["topic"], kept=_KEPT_OF_MESSAGES)
        return lacks_some
    groups = _groups(answer, by, top)
    changes = ["change"] if by == _DAY else []
    out.rows(
        ({**row, _HOUR: shown_time(row[_HOUR])} if row.get(_HOUR) else row for row in groups),
        [*_BY[by], "messages", "bytes", "of the log", *changes],
        _cells(answer, groups, by, zone_of_days, whole=top is None and ranges is None),
    )
    growth = answer.growth() if by == _DAY and not out.as_json else None
    if growth is not None:
        days, mean = growth
        note(f"{size(mean)} a day, mean of {counted(days, 'day')} before the last")
    return lacks_some


def _groups(answer: UsageAnswer, by: str, top: int | None) -> list[dict[str, Any]]:
    """The rows of --json; days and hours in their order, days with the change in bytes from the last."""
    names, changes = _BY[by], answer.changes() if by == _DAY else {}
    groups = answer.by(*names)[:top]
    if by in (_DAY, _HOUR):
        groups.sort(key=lambda group: (group[by] is not None, group[by]))
    return [
        {
            **{name: group[name] for name in names},
            "messages": group["messages"],
            "bytes": group["bytes"],
            **({"change": changes.get(group["day"])} if by == _DAY else {}),
            "shared": group["shared"],
            "share": group["share of the log"],
        }
        for group in groups
    ]


def _cells(
    answer: UsageAnswer, groups: Sequence[Mapping[str, Any]], by: str, zone: tzinfo, *, whole: bool
) -> Iterator[list[str]]:
    """The groups as rows of a table; with `whole`, the bytes that no queue lists as its last row."""

    def share(count: int) -> str:
        return f"{count / answer.log_bytes:.1%}" if answer.log_bytes else ""

    names = _BY[by]
    for group in groups:
        line = ["(not known)" if group[name] is None else str(group[name]) for name in names]
        if group.get(_HOUR) is not None:
            line = [shown_minute(group[_HOUR], zone)]
        line += [str(group["messages"]), size(group["bytes"])]
        line.append(share(group["bytes"]) + (" (shared)" if group["shared"] else ""))
        if by == _DAY:
            change = group["change"]
            sign = "-" if (change or 0) < 0 else "+"
            line.append("" if change is None else f"{sign}{size(abs(change))}")
        yield line
    rest = answer.log_bytes - answer.bytes_in_queues
    if whole and rest > 0:
        last = ["(in no queue)", *[""] * (len(names) - 1), "", size(rest), share(rest)]
        yield [*last, ""] if by == _DAY else last
