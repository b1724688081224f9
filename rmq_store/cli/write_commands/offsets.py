"""rmqstore offsets."""

from __future__ import annotations

from typing import Any

import click

from rmq_store.cli.command import command
from rmq_store.cli.options import (
    GROUP,
    QUEUES,
    STORE,
    TOPIC,
    StoreArgs,
    flag,
    option,
    time,
    time_in,
)
from rmq_store.cli.output import OUTPUT, Output, note
from rmq_store.cli.read_commands.tables import print_lag
from rmq_store.text.times import TIME_FORMS, Time


@command
def offsets(
    at: StoreArgs = STORE,
    group: str | None = GROUP,
    topic: str | None = TOPIC,
    queue_ids: tuple[int, ...] = QUEUES,
    place: str | None = option(
        "--reset-to", metavar="PLACE", help="earliest, latest or a queue offset."
    ),
    moment: Time | None = option(
        "--reset-to-time",
        type=time,
        metavar="TIME",
        help=f"The first message stored at TIME or later: {TIME_FORMS}.",
    ),
    new_group: bool = flag("--new-group", help="The group has no offsets yet (needs --topic)."),
    really: bool = flag("--apply", help="Write the new offsets; without it they are only shown."),
    out: Output = OUTPUT,
) -> bool:
    """Show offsets of consumer groups, or reset those of one group while the broker is down.

    Without --apply a reset is only shown. --apply writes it into the broker's offset file and keeps
    the old file as .bak. It fails while a broker holds the store's lock. Give --broker-conf if it
    sets another folder for the log.
    """
    if place is None and moment is None:
        if really:
            raise click.UsageError("--apply needs --reset-to or --reset-to-time")
        groups, topics = ([] if name is None else [name] for name in (group, topic))
        return print_lag(at, out, groups, topics, queue_ids)
    if group is None:
        raise click.UsageError("--reset-to and --reset-to-time need --group")
    if place is not None and moment is not None:
        raise click.UsageError("give only one of --reset-to and --reset-to-time")
    if new_group and topic is None:
        raise click.UsageError("--new-group needs --topic: a new group has no topics yet")
    from rmq_store.admin.reset_offsets import apply_reset, plan_reset
    from rmq_store.text.json_keys import as_json_object

    with at.open() as opened:
        to: Any = int(place) if place is not None and place.isdigit() else place
        changes = plan_reset(
            opened,
            group,
            to=to,
            timestamp=time_in(opened, moment),
            topic=topic,
            queue_ids=queue_ids or None,
            new_group=new_group,
        )
        written = apply_reset(opened, changes) if really and changes else None
    rows = [{**as_json_object(change), "written": written is not None} for change in changes]
    out.rows(rows, ("topic", "queueId", "before", "after", "minOffset", "maxOffset"))
    if not out.as_json:
        todo = "--apply writes it" if changes else "there is nothing to reset"
        note(f"written to {written}" if written else f"nothing was written; {todo}")
    return not changes
