"""rmqstore info, topics, queues, table: what a store has."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.messages import Damage
from rmq_store.cli.options import StoreArgs, argument, bundle
from rmq_store.cli.output import OUTPUT, Output, note, print_json, reading, say
from rmq_store.errors import nearest
from rmq_store.text.times import iso_time

_NO_TIME = ("unknown", "never")


@command
def info(at: StoreArgs = options.STORE, out: Output = OUTPUT) -> bool:
    """Show the store's size, log range and whether it was closed cleanly."""
    from rmq_store.admin.info import facts_of, store_info

    info = store_info(at.store, broker_name=at.broker_name, broker_conf=at.broker_conf)
    if out.as_json:
        fields = asdict(info)
        times = {name: iso_time(fields[name]) for name in fields if name.endswith("Timestamp")}
        print_json({**fields, **{n: None if at in _NO_TIME else at for n, at in times.items()}})
    else:
        for name, value in facts_of(info):
            wrong = name == "damage" or (name == "closed" and not info.closed)
            wrong = wrong or (name == "queues" and info.queuesUnread is not None)
            say(f"{name:<12} {value}", fg="red" if wrong else None)
    return bool(info.damage) or info.queuesUnread is not None


if TYPE_CHECKING:
    pass


@command
def topics(
    at: StoreArgs = options.STORE, out: Output = OUTPUT, system: bool = options.SYSTEM
) -> bool:
    """List topics with their queues and messages."""
    return print_named("topics", at, out, system=system)


@command
def queues(
    at: StoreArgs = options.STORE,
    out: Output = OUTPUT,
    topic: str | None = options.TOPIC,
    system: bool = options.SYSTEM,
) -> bool:
    """List queues: offsets, messages, and messages that only the log has so far."""
    return print_named("queues", at, out, topic=topic, system=system)


def _table_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """The names of tables that begin with what is typed."""
    from rmq_store.tables import TABLES_OF_A_STORE

    return [name for name in TABLES_OF_A_STORE if name.startswith(typed)]


def _is_store(word: str) -> bool:
    return "://" in word or os.path.isdir(word)


@command
def table(
    name: str | None = argument(metavar="NAME", required=False, shell_complete=_table_names),
    at: StoreArgs = bundle(
        StoreArgs,
        store=options.STORE_PATH.but(metavar="STORE", required=False),
        broker_conf=options.BROKER_CONF,
        broker_name=options.BROKER_NAME,
    ),
    skip_damaged: bool = options.SKIP_DAMAGED,
    out: Output = OUTPUT,
) -> bool:
    """Print a table of the Spark source by its NAME: files, index, checkpoint, config, damage,
    ..."""
    from rmq_store.tables import TABLES, TABLES_OF_A_STORE
    from rmq_store.tables.diff import DIFF

    if name is None or at.store is None:
        given = "STORE is missing" if name in TABLES_OF_A_STORE else "NAME is missing"
        raise click.UsageError(f"{given}. The tables: {', '.join(sorted(TABLES_OF_A_STORE))}")
    if name not in TABLES and (at.store in TABLES or _is_store(name)):
        name, at = at.store, replace(at, store=name)  # all other commands have the store first
    if name == DIFF.name:
        raise click.UsageError("table diff is about two stores: rmqstore diff STORE OTHER")
    if name not in TABLES_OF_A_STORE:
        raise click.BadParameter(f"there is no table {name!r}. {nearest(name, TABLES_OF_A_STORE)}")
    past = TABLES[name].rows_past_damage
    if skip_damaged and past is None:
        of_messages = [one.name for one in TABLES.values() if one.rows_past_damage is not None]
        raise click.UsageError(
            f"--skip-damaged is for tables of messages: {', '.join(of_messages)}"
        )
    if past is None:
        return print_named(name, at, out, system=True)
    damage = Damage(skip_damaged)
    with at.open() as opened, damage, reading(name, opened):
        rows = past(opened, damage.once if skip_damaged else None)
        found = TABLES[name].of_rows(opened.broker_name, rows)
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
    import pyarrow.compute as pc

    from rmq_store.search.queue_selection import require_topic
    from rmq_store.tables import TABLES

    with at.open() as opened:
        if topic is not None:
            require_topic(opened, topic)
        with reading(name, opened):
            found = TABLES[name].of(opened)
            lacks_some, behind = opened.opening.has_losses, opened.opening.behind
            of_topics = name == "topics"
            unread = of_topics and opened.view.topics.problem is not None
            absent = of_topics and not opened.view.topics.has_file
            unknown = list(filter(opened.is_undeclared, opened.topics() if of_topics else ()))
        if topic is not None:
            found = found.filter(pc.equal(found["topic"], topic))
        elif not system:
            kept = [not opened.is_system_topic(one) for one in found["topic"].to_pylist()]
            found = found.filter(pa.array(kept, pa.bool_()))
    if not out.as_json and "perm" in found.column_names:
        at = found.column_names.index("perm")
        words = [_perm_text(perm) for perm in found["perm"].to_pylist()]
        found = found.set_column(at, "perm", pa.array(words, pa.string()))
    there = [column for column in _SHOWN.get(name, ()) if column in found.column_names]
    out.table([found], there, kept=_KEPT.get(name, ()))
    if behind is not None and name in ("topics", "queues"):
        note(behind)
    if absent:
        note("there is no topics.json: perm is not known, nor topics without a queue")
    if unknown:
        note(f"not in topics.json, so that a broker refuses them: {', '.join(unknown)}")
    return unread or lacks_some


def _perm_text(perm: int | None) -> str | None:
    """A perm as RocketMQ's tools print it (PermName#perm2String)."""
    if perm is None:
        return None
    return "".join(letter if perm & bit else "-" for letter, bit in _PERM_BITS)
