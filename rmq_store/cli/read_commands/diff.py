"""rmqstore diff."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.option_names import OnceCommand
from rmq_store.cli.options import StoreArgs, StorePath, config_option, json_option
from rmq_store.cli.printing import print_table, say
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

_SHOWN = ("what", "name", "first", "count", "meaning")


@click.command(cls=OnceCommand)
@click.argument("store", type=StorePath())
@click.argument("other", type=StorePath())
@config_option
@click.option(
    "--other-conf",
    type=click.Path(),
    metavar="FILE",
    help="The configuration file of OTHER's broker.",
)
@json_option
def diff(
    store: str, other: str, broker_conf: str | None, other_conf: str | None, as_json: bool
) -> None:
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
    if rows or as_json:
        print_table(found, as_json, columns=_SHOWN, kept=("what", "name", "first", "meaning"))
    if not rows:
        say(
            f"no difference: log {start} to {end}, {queues}, offsets and configuration", err=as_json
        )
        return
    say(f"{counted(len(rows), 'difference')}; first: {store}, second: {other}", err=True)
    sys.exit(EXIT_FINDINGS)
