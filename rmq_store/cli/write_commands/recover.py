"""rmqstore recover."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import config_option, json_option
from rmq_store.cli.printing import print_json


@click.command()
@click.argument("store", type=click.Path())
@click.option(
    "--mode",
    type=click.Choice(["strict", "broker"]),
    default="strict",
    show_default=True,
    help="strict: keep as much as possible; broker: like DefaultMessageStore.",
)
@click.option("--release", help="The broker release that will start on it (default: the newest).")
@config_option
@json_option
def recover(
    store: str, mode: str, release: str | None, broker_conf: str | None, as_json: bool
) -> None:
    """Repair in place a store that was not closed cleanly. CHANGES THE STORE.

    Cuts the log after its last intact record, and makes queues and index match it. Fails while a
    broker has the store open. To check first without a change, run `rmqstore verify`.
    """
    from rmq_store.recovery.recover_store import recover as mend
    from rmq_store.text.json_keys import as_json_object

    report = mend(store, broker_conf, mode=mode, release=release)
    if as_json:
        print_json(as_json_object(report.to_dict()))
    else:
        click.echo(str(report))
    if report.damage:
        sys.exit(EXIT_FINDINGS)
