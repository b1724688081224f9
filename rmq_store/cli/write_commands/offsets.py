"""rmqstore offsets."""

from __future__ import annotations

import sys
from typing import Any

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.cli.printing import print_json, print_rows
from rmq_store.cli.read_commands.tables import print_named
from rmq_store.text.times import parse_time


@click.command()
@store_command
@click.option("--group", help="Of this consumer group.")
@click.option("--topic", help="Of this topic alone.")
@click.option("--queue", "queue_ids", type=int, multiple=True, help="Of these queues alone.")
@click.option(
    "--reset-to",
    "place",
    metavar="PLACE",
    help="earliest, latest, a queue offset, or with --reset-to-time a time instead.",
)
@click.option(
    "--reset-to-time",
    "at",
    metavar="TIME",
    help="The first message stored then or later: ms, or ISO 8601.",
)
@click.option("--new-group", is_flag=True, help="The group has no offsets yet (needs --topic).")
@click.option("--apply", "really", is_flag=True, help="Write it; without, it is only shown.")
@json_option
def offsets(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    group: str | None,
    topic: str | None,
    queue_ids: tuple[int, ...],
    place: str | None,
    at: str | None,
    new_group: bool,
    really: bool,
    as_json: bool,
) -> None:
    """Show the offsets of consumer groups; reset those of one while the broker is down.

    A reset is shown first and written with --apply, into the broker's file, the old one kept as
    .bak. It is refused while a broker holds the store's lock. --broker-conf matters where it puts
    the log into a folder elsewhere.
    """
    if place is None and at is None:
        if really:
            raise click.UsageError("--apply needs --reset-to or --reset-to-time")
        print_named(
            "groups",
            store,
            broker_conf,
            broker_name,
            as_json,
            topic=topic,
            group=group,
            queue_ids=queue_ids,
        )
        return
    if group is None:
        raise click.UsageError("say whose offsets to reset: --group")
    if place is not None and at is not None:
        raise click.UsageError("say one of --reset-to and --reset-to-time")
    if new_group and topic is None:
        raise click.UsageError("--new-group needs --topic: the group has none of its own yet")
    from rmq_store.admin.reset_offsets import apply_reset, plan_reset
    from rmq_store.text.json_keys import as_json_object

    with open_store(store, broker_conf, broker_name) as opened:
        to: Any = int(place) if place is not None and place.isdigit() else place
        changes = plan_reset(
            opened,
            group,
            to=to,
            timestamp=parse_time(at),
            topic=topic,
            queue_ids=queue_ids or None,
            new_group=new_group,
        )
        written = apply_reset(opened, changes) if really and changes else None
    if as_json:
        for change in changes:
            print_json({**as_json_object(change), "written": written is not None})
    else:
        print_rows(
            ["topic", "queueId", "before", "after", "minOffset", "maxOffset"],
            [
                [
                    c.topic,
                    str(c.queue_id),
                    "" if c.before is None else str(c.before),
                    str(c.after),
                    str(c.min_offset),
                    str(c.max_offset),
                ]
                for c in changes
            ],
        )
        todo = "--apply does it" if changes else "there is nothing to reset"
        click.echo(f"written to {written}" if written else f"nothing was written; {todo}", err=True)
    if not changes:
        sys.exit(EXIT_FINDINGS)
