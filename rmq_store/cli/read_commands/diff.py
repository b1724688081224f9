"""rmqstore diff."""

from __future__ import annotations

import click

from rmq_store.cli.command import command
from rmq_store.cli.options import BROKER_CONF, STORE_PATH, StoreArgs, option
from rmq_store.cli.output import OUTPUT, Output, note, say
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

_SHOWN = ("what", "name", "first", "count", "meaning")


@command
def diff(
    store: str = STORE_PATH,
    other: str = STORE_PATH,
    broker_conf: str | None = BROKER_CONF,
    other_conf: str | None = option(
        "--other-conf",
        type=click.Path(),
        metavar="FILE",
        help="The configuration file of OTHER's broker.",
    ),
    out: Output = OUTPUT,
) -> bool:
    """Show what two stores of one broker group do not have in common, such as master and slave.

    The logs are compared byte by byte up to the first record that differs, then the queues entry by
    entry, consumer offsets and the configuration. Exit code 1 if they differ.
    """
    from rmq_store.tables.diff import DIFF, compared_bytes, differences

    with (
        StoreArgs(store, broker_conf).open() as first,
        StoreArgs(other, other_conf).open() as second,
    ):
        with Progress("diff", compared_bytes(first, second)) as progress:
            rows = list(differences(first, second, progress))
        start, end = first.log_range()
        queues = counted(len(first.queues()), "queue")
        found = DIFF.of_rows(first.broker_name, rows)
    if rows:
        out.table([found], _SHOWN, kept=("what", "name", "first", "meaning"))
        note(f"{counted(len(rows), 'difference')}; first: {store}, second: {other}")
    else:
        tell = note if out.as_json else say
        tell(f"no difference: log {start} to {end}, {queues}, offsets and configuration")
    return bool(rows)
