"""rmqstore cat."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.messages import Damage, chosen_columns, columns_option, print_batches
from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.text.times import parse_time


@click.command()
@store_command
@click.option("--topic", required=True, help="Of this topic.")
@click.option("--queue", "queue_ids", type=int, multiple=True, help="Of these queues alone.")
@click.option("--offset", type=int, help="From this queue offset on.")
@click.option("--from", "begin", help="Stored then or later: ms, or ISO 8601 (UTC without a zone).")
@click.option("--to", "end", help="Stored before then.")
@click.option("--tag", "tags", help="With one of these tags: 'a || b'.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--skip-damaged", is_flag=True, help="Leave out what is damaged, and say so.")
@columns_option
@json_option
def cat(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    topic: str,
    queue_ids: tuple[int, ...],
    offset: int | None,
    begin: str | None,
    end: str | None,
    tags: str | None,
    limit: int | None,
    skip_damaged: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Messages of a topic, in the order of the log; values separated by tabs."""
    from rmq_store.format.queues import QueueSlice
    from rmq_store.query.selection import Search, selected_slices

    names = chosen_columns(columns, as_json)
    damage = Damage()
    with open_store(store, broker_conf, broker_name) as opened:
        slices = selected_slices(
            opened,
            Search([topic], queue_ids or None, parse_time(begin), parse_time(end)),
        )
        if offset is not None:
            slices = [QueueSlice(s.queue, max(s.start, offset), s.stop) for s in slices]
        batches = opened.read_slices(
            [part for part in slices if part.start < part.stop],
            columns=names,
            tags=tags,
            on_damage=damage if skip_damaged else None,
        )
        print_batches(batches, as_json, limit)
    damage.conclude()
    if damage.count:
        sys.exit(EXIT_FINDINGS)
