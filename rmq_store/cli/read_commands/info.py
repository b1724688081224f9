"""rmqstore info."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from rmq_store.admin.info import StoreInfo, store_info
from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import json_option, store_command
from rmq_store.cli.printing import print_json, say
from rmq_store.cli.words import OnceCommand
from rmq_store.markers.lock_file import LockState
from rmq_store.text.sizes import size
from rmq_store.text.times import iso_time

_NO_TIME = ("unknown", "never")


@click.command(cls=OnceCommand, short_help="Show the store's size and log range.")
@store_command
@json_option
def info(store: str, broker_conf: str | None, broker_name: str | None, as_json: bool) -> None:
    """Show the store's size, log range and whether it was closed cleanly."""
    info = store_info(store, broker_name=broker_name, broker_conf=broker_conf)
    if as_json:
        fields = asdict(info)
        times = {name: iso_time(fields[name]) for name in fields if name.endswith("Timestamp")}
        print_json({**fields, **{n: None if at in _NO_TIME else at for n, at in times.items()}})
    else:
        for name, value in _sentences(info):
            say(f"{name:<12} {value}")
    if info.damage:
        sys.exit(EXIT_FINDINGS)


def _closed(info: StoreInfo) -> str:
    if info.closed:
        return "cleanly"
    if info.lockHeld is None:
        return "not cleanly, or a broker has it open (abort)"
    return "not yet: a broker or a writer has it open" if info.lockHeld else "not cleanly (abort)"


def _sentences(info: StoreInfo) -> list[tuple[str, str]]:
    used = info.logEnd - info.logStart
    return [
        ("store", info.path),
        ("broker", info.brokerName),
        ("closed", _closed(info)),
        ("lock", str(LockState(info.lockHeld, info.lockPid))),
        (
            "log",
            f"{info.logStart} to {info.logEnd}: {size(used)}, {info.logFiles} files "
            f"of {size(info.logFileSize)}",
        ),
        (
            "stored",
            f"{iso_time(info.firstStoreTimestamp)} to {iso_time(info.lastStoreTimestamp)}",
        ),
        ("checkpoint", iso_time(info.checkpointTimestamp)),
        ("topics", f"{info.topics}, and {info.systemTopics} system topics"),
        ("queues", str(info.queues)),
        ("index files", str(info.indexFiles)),
        *(("damage", f"{what}; see rmqstore verify") for what in info.damage),
    ]
