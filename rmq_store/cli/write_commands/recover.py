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
    from rmq_store.recovery.recover_store import recover as mend
    from rmq_store.text.json_keys import as_json_object

    report = mend(store, broker_conf, mode=mode, release=release)
    if as_json:
        print_json(as_json_object(report.to_dict()))
    else:
        click.echo(str(report))
    if report.damage:
        sys.exit(EXIT_FINDINGS)
