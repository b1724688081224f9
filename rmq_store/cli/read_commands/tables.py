"""rmqstore topics, queues, lag, table: print tables of the Spark source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_store.cli.command import command
from rmq_store.cli.messages import Damage
from rmq_store.cli.options import (
    BROKER_CONF,
    BROKER_NAME,
    GROUPS,
    SKIP_DAMAGED,
    STORE,
    STORE_PATH,
    SYSTEM,
    TOPIC,
    TOPICS,
    StoreArgs,
    WholeNumber,
    argument,
    bundle,
    option,
)
from rmq_store.cli.output import OUTPUT, Output, note, problem, reading
from rmq_store.errors import nearest
from rmq_store.text.progress import Progress

if TYPE_CHECKING:
    from rmq_store.store import MessageStore


@command
def topics(at: StoreArgs = STORE, out: Output = OUTPUT, system: bool = SYSTEM) -> bool:
    """List topics with their queues and messages."""
    return print_named("topics", at, out, system=system)


@command
def queues(
    at: StoreArgs = STORE, out: Output = OUTPUT, topic: str | None = TOPIC, system: bool = SYSTEM
) -> bool:
    """List queues: offsets, messages, and messages that only the log has so far."""
    return print_named("queues", at, out, topic=topic, system=system)


@command
def lag(
    at: StoreArgs = STORE,
    out: Output = OUTPUT,
    groups: tuple[str, ...] = GROUPS,
    topics: tuple[str, ...] = TOPICS,
    top: int | None = option(
        "--top", type=WholeNumber(min=1), metavar="N", help="Only the N furthest behind."
    ),
    max_lag: int | None = option(
        "--max-lag",
        type=WholeNumber(min=0),
        metavar="N",
        help="Exit with 1 if a group is more messages behind in a topic.",
    ),
    by: str = option(
        "--by",
        type=click.Choice(["queue", "group"]),
        default="queue",
        show_default=True,
        help="A row for each queue, or one for each group and topic.",
    ),
) -> bool:
    """Show how far consumer groups are behind in each queue: messages, bytes, time.

    The row that is furthest behind comes first. The offsets come from the broker's offset file, which
    misses what was consumed since the broker wrote it; --json prints the file's age. Exit code 1 if a
    group lost messages, does not get some, has an offset behind them, or is more than --max-lag behind,
    if the store lacks messages of any group, if the offsets are gone, and if --max-lag finds none.
    """
    return print_lag(at, out, groups, topics, top=top, max_lag=max_lag, by_group=by == "group")


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
        store=STORE_PATH.but(metavar="STORE", required=False),
        broker_conf=BROKER_CONF,
        broker_name=BROKER_NAME,
    ),
    skip_damaged: bool = SKIP_DAMAGED,
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
    "groups": (
        *("consumerGroup", "topic", "queueId", "consumerOffset"),
        *("lag", "lagBytes", "lagMs", "status"),
    ),
}

_TOTALS = ("consumerGroup", "topic", "queues", "lag", "lagBytes", "lagMs", "queuesWithLoss")
_PERM_BITS = (("R", 4), ("W", 2), ("X", 1))

# Those that a narrow terminal keeps.
_KEPT = {
    "files": ("path", "size"),
    "groups": ("consumerGroup", "topic", "queueId", "lag", "status"),
    "queues": ("topic", "queueId", "maxOffset", "messages"),
}


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


def print_lag(
    at: StoreArgs,
    out: Output,
    groups: Sequence[str],
    topics: Sequence[str],
    queue_ids: Sequence[int] = (),
    *,
    top: int | None = None,
    max_lag: int | None = None,
    by_group: bool = False,
) -> bool:
    """Print the lag of groups in topics and queues, and what is wrong on stderr."""
    from rmq_store.questions.lag_summary import lag_of
    from rmq_store.tables import TABLES

    with at.open() as opened, Progress("lag", unit="offsets") as progress:
        found = lag_of(opened, groups, topics, queue_ids, progress=progress)
        lacks_some = opened.opening.has_losses
        is_asked = bool(groups) or max_lag is not None
        unknown = list(_unknown_lag(opened, is_asked=is_asked))
        if max_lag is not None and not unknown:
            unknown += found.without_offset(groups, topics)
        rows = TABLES["groups"].of_rows(opened.broker_name, found.furthest_behind()[:top])
    if by_group:
        texts = ("consumerGroup", "topic")
        out.rows(found.by_group()[:top], _TOTALS, texts=texts, kept=(*texts, "lag"))
    else:
        out.table([rows], _SHOWN["groups"], kept=_KEPT["groups"])
    note(found.summary())
    problems = [*unknown, *found.problems(max_lag)]
    for sentence in problems:
        problem(sentence)
    return bool(problems) or lacks_some


def _unknown_lag(store: MessageStore, *, is_asked: bool) -> Iterator[str]:
    """A sentence if there is no file of offsets, and there are groups or the lag `is_asked` for.

    Else that is only said: a store that never had a consumer has no such file, nor one that no broker made.
    """
    from rmq_store.config.consumer_offsets import CONSUMER_FILES, has_consumer_offsets
    from rmq_store.search.queue_selection import users_groups
    from rmq_store.verify.config_against_store import taken_by_broker

    if has_consumer_offsets(store.path):
        return
    absent = f"there is no {CONSUMER_FILES[0]}: how far groups have consumed is not known"
    of_broker = store.view.topics.has_file or taken_by_broker(store) is not None
    groups = users_groups(store) if of_broker else []
    if not groups and not is_asked:
        note(absent)
        return
    there = f" ({', '.join(groups[:_NAMED])}{', ...' if len(groups) > _NAMED else ''})"
    yield f"{absent}{there if groups else ''}. Look for the file in a copy or a replica"


_NAMED = 3  # groups in a sentence
