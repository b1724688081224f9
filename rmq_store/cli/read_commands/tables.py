"""rmqstore topics, queues, lag, table: the source's tables in a shell."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.cli.printing import print_table
from rmq_store.errors import InvalidArgumentError, nearest


@click.command()
@store_command
@json_option
@click.option("--system", is_flag=True, help="The system's own topics as well.")
def topics(
    store: str, broker_conf: str | None, broker_name: str | None, as_json: bool, system: bool
) -> None:
    """The topics, with their queues and messages."""
    print_named("topics", store, broker_conf, broker_name, as_json, system=system)


@click.command()
@store_command
@json_option
@click.option("--topic", help="Of this topic alone.")
@click.option("--system", is_flag=True, help="The system's own topics as well.")
def queues(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    as_json: bool,
    topic: str | None,
    system: bool,
) -> None:
    """The queues: offsets, messages, and what is in the log but in no queue yet."""
    print_named("queues", store, broker_conf, broker_name, as_json, topic=topic, system=system)


@click.command()
@store_command
@json_option
@click.option("--group", help="Of this consumer group alone.")
@click.option("--topic", help="Of this topic alone.")
def lag(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    as_json: bool,
    group: str | None,
    topic: str | None,
) -> None:
    """How far consumer groups are behind in each queue: messages, bytes, time.

    By the broker's own file of offsets, whose age is told (--json): what was consumed since it was
    written is not in it.
    """
    print_named("groups", store, broker_conf, broker_name, as_json, topic=topic, group=group)


@click.command()
@click.argument("name")
@store_command
@json_option
def table(
    name: str, store: str, broker_conf: str | None, broker_name: str | None, as_json: bool
) -> None:
    """Any table of the Spark source by its NAME: files, index, checkpoint, config, damage, ..."""
    from rmq_store.tables import TABLES

    known = [known.name for known in TABLES.values() if known.rows_of is not None]
    if name not in known:
        raise click.BadParameter(f"there is no table {name!r}. {nearest(name, known)}")
    print_named(name, store, broker_conf, broker_name, as_json, system=True)


# What people see; with --json all columns come.
_SHOWN = {
    "topics": ("topic", "queues", "messages", "perm"),
    "queues": ("topic", "queueId", "minOffset", "maxOffset", "messages"),
    "groups": ("consumerGroup", "topic", "queueId", "consumerOffset", "lag", "lagBytes", "status"),
}


def print_named(
    name: str,
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    as_json: bool,
    *,
    topic: str | None = None,
    group: str | None = None,
    queue_ids: Sequence[int] = (),
    system: bool = True,
) -> None:
    """Print one of the source's tables, of a topic, queues or a group alone if so asked."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmq_store.query.selection import require_queue_ids
    from rmq_store.tables import TABLES

    with open_store(store, broker_conf, broker_name) as opened:
        if topic is not None and topic not in opened.topics():
            raise InvalidArgumentError(
                opened.path,
                reason=f"there is no topic {topic!r}",
                advice=nearest(topic, opened.topics()),
            )
        found = TABLES[name].of(opened)
        groups = sorted(set(found["consumerGroup"].to_pylist())) if group is not None else []
        if topic is not None:
            found = found.filter(pc.equal(found["topic"], topic))
        elif not system:
            kept = [not opened.is_system_topic(one) for one in found["topic"].to_pylist()]
            found = found.filter(kept)
        if queue_ids:
            if topic is not None:
                require_queue_ids(opened, topic, queue_ids)
            found = found.filter(pc.is_in(found["queueId"], pa.array(queue_ids, pa.int32())))
        if group is not None:
            if group not in groups:
                raise InvalidArgumentError(
                    opened.path,
                    reason=f"there is no consumer group {group!r}",
                    advice=nearest(group, groups),
                )
            found = found.filter(pc.equal(found["consumerGroup"], group))
    shown = _SHOWN.get(name)
    there = [column for column in shown or () if column in found.column_names]
    print_table(found, as_json, columns=there or None)
