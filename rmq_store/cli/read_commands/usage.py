"""rmqstore usage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.engines import Wanted, asked_store, engine_options
from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.option_names import OnceCommand
from rmq_store.cli.options import json_option, store_command
from rmq_store.cli.printing import print_json, print_rows, say
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import size

if TYPE_CHECKING:
    from rmq_store.questions.usage import Damage, UsageAnswer

_SHARED = " (shared)"
_MOST_LISTED = 10
_BY = {
    "topic": ("topic",),
    "queue": ("topic", "queueId"),
    "day": ("day",),
    "topic,day": ("topic", "day"),
}


@click.command(cls=OnceCommand)
@store_command
@click.option(
    "--by",
    type=click.Choice(list(_BY)),
    default="topic",
    show_default=True,
    help="Group by.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the N largest.")
@engine_options
@json_option
def usage(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    by: str,
    top: int | None,
    engine: str | None,
    master: str | None,
    as_json: bool,
) -> None:
    """Show which topic, queue or day fills the disk: messages and bytes, largest first.

    The last row counts bytes that no queue lists: prepared messages, filler, preallocated space.
    Rows marked as shared are light queues (LMQ): their records also count in other rows. Exit code 1
    if damage was found.
    """
    from rmq_store.questions.answer_by_shares import ask
    from rmq_store.questions.usage import UsageQuestion

    with (
        asked_store(Wanted("usage", store, broker_conf, broker_name, engine, master)) as asked,
        Progress("usage", unit="messages") as progress,
    ):
        question = UsageQuestion(finds_damage=True)
        found = ask(question, asked.source, asked.engine, progress=progress)
    names = _BY[by]
    groups = found.by(*names)[:top]
    if as_json:
        for group in groups:
            print_json(
                {
                    **{name: _plain_day(group[name]) for name in names},
                    "messages": group["messages"],
                    "bytes": group["bytes"],
                    "shared": group["shared"],
                    "share": group["share of the log"],
                }
            )
    else:
        _print_groups(found, names, groups, whole=top is None)
    _conclude(found.damage)


def _print_groups(
    found: UsageAnswer, names: Sequence[str], groups: Sequence[dict[str, Any]], *, whole: bool
) -> None:
    def share(count: int) -> str:
        return f"{count / found.log_bytes:.1%}" if found.log_bytes else ""

    lines = [
        [
            *("(not known)" if group[name] is None else str(group[name]) for name in names),
            str(group["messages"]),
            size(group["bytes"]),
            share(group["bytes"]) + (_SHARED if group["shared"] else ""),
        ]
        for group in groups
    ]
    rest = found.log_bytes - found.listed_bytes
    if whole and rest > 0:
        nothing = [""] * (len(names) - 1)
        lines.append(["(in no queue)", *nothing, "", size(rest), share(rest)])
    print_rows([*names, "messages", "bytes", "of the log"], lines)


def _conclude(damage: Damage) -> None:
    """Say what the numbers lack, and exit with 1 if they lack something."""
    if not damage.records:
        say(
            "rmqstore: the records of this log were not read; rmqstore verify finds damaged ones",
            err=True,
        )
    if not damage.places:
        return
    for error in damage.errors[:_MOST_LISTED]:
        say(f"rmqstore: not counted, or not readable: {error}", err=True)
    say(f"rmqstore: {damage}", err=True)
    sys.exit(EXIT_FINDINGS)


def _plain_day(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
