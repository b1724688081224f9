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
@click.option("--topic", required=True, help="The topic.")
@click.option("--queue", "queue_ids", type=int, multiple=True, help="Only this queue; repeatable.")
@click.option("--offset", type=int, help="Start at this queue offset.")
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="Only messages stored at TIME or later: ms, or ISO 8601 (UTC if without a zone).",
)
@click.option("--to", "end", metavar="TIME", help="Only messages stored before TIME.")
@click.option("--tag", "tags", help="Only messages with one of these tags: 'a || b'.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print at most N messages.")
@click.option("--skip-damaged", is_flag=True, help="Leave out damaged messages, and report them.")
@click.option(
    "--verify-queue",
    is_flag=True,
    help="Compare the whole log with the queues, and each entry with its record.",
)
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
    verify_queue: bool,
    columns: str | None,
    as_json: bool,
) -> None:
    """Print the messages of a topic in log order; values are separated by tabs."""
    from rmq_store.format.queues import QueueSlice
    from rmq_store.search.queue_selection import Search, selected_slices

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
            slices,
            columns=names,
            tags=tags,
            verify_queue=verify_queue,
            on_damage=damage if skip_damaged else None,
        )
        print_batches(batches, as_json, limit)
    damage.conclude()
    if damage.count:
        sys.exit(EXIT_FINDINGS)
