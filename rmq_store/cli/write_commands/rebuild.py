"""rmqstore rebuild."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import config_option, json_option
from rmq_store.cli.printing import print_json
from rmq_store.text.progress import Progress


@click.command()
@click.argument("store", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--copy", "log", flag_value="copy", default=True, help="Copy the log (the default).")
@click.option(
    "--link",
    "log",
    flag_value="link",
    help="Link the full files of the log; the last one is copied. On the same file system.",
)
@click.option("--release", help="As this release of the broker does; by default the newest.")
@config_option
@json_option
def rebuild(
    store: str,
    target: str,
    log: str,
    release: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> None:
    """Queues and index of STORE made anew from its log, in the new store TARGET.

    TARGET is complete and a broker can start on it. STORE is not changed. Killed half-way, the same
    command goes on. Exit code 1 where the log is damaged: what is whole is there all the same.
    """
    from rmq_store.admin.rebuild import rebuild as make
    from rmq_store.admin.rebuild import work_of
    from rmq_store.store import MessageStore
    from rmq_store.text.json_keys import as_json_object

    with MessageStore.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = work_of(opened)
    with Progress("rebuild", total) as progress:
        report = make(
            store, target, log=log, release=release, config=broker_conf, progress=progress
        )
    if as_json:
        print_json(as_json_object(report.to_dict()))
    else:
        found = report.recovery
        click.echo(
            f"{report.target}: {found.records} records, {len(found.queues)} queues, "
            f"{found.entries_rebuilt} entries and {found.index_items_rebuilt} index items made"
            + (", going on with what was begun before" if report.resumed else "")
        )
        for start, stop in found.damage:
            click.echo(
                f"damaged: {start} to {stop} of the log; a broker cannot send what was there"
            )
    if not report.all_well:
        sys.exit(EXIT_FINDINGS)
