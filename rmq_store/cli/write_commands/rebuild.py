"""rmqstore rebuild."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import config_option, json_option
from rmq_store.cli.printing import print_json, say
from rmq_store.text.progress import Progress


@click.command()
@click.argument("store", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--copy", "log", flag_value="copy", default=True, help="Copy the log (the default).")
@click.option(
    "--link",
    "log",
    flag_value="link",
    help="Hard-link full log files and copy the last one; needs the same file system.",
)
@click.option("--release", help="Write files like this broker release (default: the newest).")
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
    """Rebuild queues and index of STORE from its log, into the new store TARGET.

    A broker can start on TARGET. STORE is not changed. If interrupted, run the same command to
    continue. Exit code 1 if the log is damaged: TARGET then has the intact messages.
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
        recovery = report.recovery
        say(
            f"{report.target}: {recovery.records} records, {len(recovery.queues)} queues, "
            f"{recovery.entries_rebuilt} entries and {recovery.index_items_rebuilt} index items rebuilt"
            + (", continuing an earlier run" if report.resumed else "")
        )
        for start, stop in recovery.damage:
            say(f"damaged: log offsets {start} to {stop}; a broker cannot send messages from there")
    if not report.all_well:
        sys.exit(EXIT_FINDINGS)
