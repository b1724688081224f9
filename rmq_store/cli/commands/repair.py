"""rmqstore rebuild, salvage, recover: commands that make a store sound."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.commands.info import size
from rmq_store.cli.main import EXIT_FINDINGS
from rmq_store.cli.printing import Progress, json_option, print_json

config_option = click.option(
    "--config",
    "--broker-conf",
    "broker_conf",
    type=click.Path(),
    help="The broker.conf it ran with.",
)


@click.command()
@click.argument("store", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--release", help="Write as this release of the broker; by default as the newest.")
@config_option
@json_option
def salvage(
    store: str, target: str, release: str | None, broker_conf: str | None, as_json: bool
) -> None:
    """The whole messages of the log of STORE into a new store TARGET, which a broker can start on.

    Queues and index are not needed and made anew. Every byte of the log that is left out is told
    with its reason. Exit code 1 where anything was left out.
    """
    from rmq_store.admin.salvage import salvage as save
    from rmq_store.store import MessageStore
    from rmq_store.text.json_keys import as_json_object

    with MessageStore.open(store, broker_conf=broker_conf, queues=False) as opened:
        total = opened.log.chain.stop - opened.log.chain.start
    with Progress("salvage", total) as progress:
        report = save(store, target, config=broker_conf, release=release, progress=progress)
    if as_json:
        print_json(as_json_object(report.to_dict()))
    else:
        click.echo(f"{report.messages} messages, {size(report.record_bytes)}, are in {target}")
        for one in report.skipped:
            click.echo(
                f"left out: {one.start} to {one.stop}: {one.kind}"
                + (f": {one.reason}" if one.reason else "")
            )
        click.echo(
            f"{report.log_stop - report.log_start} bytes of log: {report.record_bytes} of records, "
            f"{report.skipped_bytes} left out, {report.no_loss_bytes} filler and unwritten"
        )
    if report.skipped_ranges:
        sys.exit(EXIT_FINDINGS)


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


@click.command()
@click.argument("store", type=click.Path())
@click.option(
    "--mode",
    type=click.Choice(["strict", "broker"]),
    default="strict",
    show_default=True,
    help="Ours, or as a broker would.",
)
@click.option("--release", help="Of the broker that is to start on it; by default the newest.")
@config_option
@json_option
def recover(
    store: str, mode: str, release: str | None, broker_conf: str | None, as_json: bool
) -> None:
    """Bring a store that was not closed cleanly into the state of a clean stop. CHANGES THE STORE.

    The log is cut behind its last whole record, queues and index are made to agree with it. Refused
    while a broker has the store open. `verify` looks first and changes nothing.
    """
    from rmq_store.recovery.recover import recover as mend
    from rmq_store.text.json_keys import as_json_object

    report = mend(store, broker_conf, mode=mode, release=release)
    if as_json:
        print_json(as_json_object(report.to_dict()))
    else:
        click.echo(str(report))
    if report.damage:
        sys.exit(EXIT_FINDINGS)
