"""rmqstore info."""

from __future__ import annotations

from dataclasses import asdict

import click

from rmq_store.admin.info import StoreInfo, store_info
from rmq_store.cli.options import json_option, store_command
from rmq_store.cli.printing import print_json
from rmq_store.text.sizes import size
from rmq_store.text.times import iso_time

_NO_TIME = ("unknown", "never")


@click.command(short_help="What store this is.")
@store_command
@json_option
def info(store: str, broker_conf: str | None, broker_name: str | None, as_json: bool) -> None:
    """What store this is: its files, the range of its log, how it was closed."""
    found = store_info(store, broker_name=broker_name, broker_conf=broker_conf)
    if as_json:
        told = asdict(found)
        times = {name: iso_time(told[name]) for name in told if name.endswith("Timestamp")}
        print_json({**told, **{n: None if at in _NO_TIME else at for n, at in times.items()}})
        return
    for name, value in _sentences(found):
        click.echo(f"{name:<12} {value}")


def _sentences(found: StoreInfo) -> list[tuple[str, str]]:
    used = found.logEnd - found.logStart
    return [
        ("store", found.path),
        ("broker", found.brokerName),
        ("closed", "in order" if found.closed else "not in order, or a broker has it open (abort)"),
        (
            "log",
            f"{found.logStart} to {found.logEnd}: {size(used)}, {found.logFiles} files "
            f"of {size(found.logFileSize)}",
        ),
        (
            "stored",
            f"{iso_time(found.firstStoreTimestamp)} to {iso_time(found.lastStoreTimestamp)}",
        ),
        ("checkpoint", iso_time(found.checkpointTimestamp)),
        ("topics", f"{found.topics}, and {found.systemTopics} of the system's own"),
        ("queues", str(found.queues)),
        ("index files", str(found.indexFiles)),
    ]
