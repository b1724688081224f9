"""rmqstore usage."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.cli.printing import print_json, print_rows
from rmq_store.text.sizes import size

_BY = {
    "topic": ("topic",),
    "queue": ("topic", "queueId"),
    "day": ("day",),
    "topic,day": ("topic", "day"),
}


@click.command()
@store_command
@click.option(
    "--by",
    type=click.Choice(list(_BY)),
    default="topic",
    show_default=True,
    help="What to add up by.",
)
@click.option("--top", type=click.IntRange(min=1), help="The so many largest alone.")
@json_option
def usage(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    by: str,
    top: int | None,
    as_json: bool,
) -> None:
    """Who fills the disk: bytes of the log and messages, the largest first.

    What no queue lists (prepared messages, filler, space preallocated) is told as a rest.
    """
    from rmq_store.tables import TABLES

    with open_store(store, broker_conf, broker_name) as opened:
        rows = TABLES["usage"].of(opened).to_pylist()
        start, end = opened.log_range()
    names = _BY[by]
    size_of: Counter[tuple[Any, ...]] = Counter()
    messages: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        group = tuple(row[name] for name in names)
        size_of[group] += row["bytes"]
        messages[group] += row["messages"]
    total = max(1, end - start)
    groups = size_of.most_common(top)
    if as_json:
        for group, count in groups:
            told = {
                name: None if value is None else str(value) if name == "day" else value
                for name, value in zip(names, group, strict=True)
            }
            print_json(
                {
                    **told,
                    "messages": messages[group],
                    "bytes": count,
                    "share": round(count / total, 4),
                }
            )
        return
    lines = [
        [*map(str, group), str(messages[group]), size(count), f"{count / total:.1%}"]
        for group, count in groups
    ]
    rest = end - start - sum(size_of.values())
    if top is None and rest > 0:
        lines.append(
            ["(in no queue)", *[""] * (len(names) - 1), "", size(rest), f"{rest / total:.1%}"]
        )
    print_rows([*names, "messages", "bytes", "of the log"], lines)
