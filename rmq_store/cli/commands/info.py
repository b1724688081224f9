"""rmqstore info."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone

import click

from rmq_store.admin.info import StoreInfo, store_info
from rmq_store.cli.printing import json_option, print_json, store_command

_NO_TIME = ("unknown", "never")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.command(short_help="What store this is.")
@store_command
@json_option
def info(store: str, broker_conf: str | None, broker_name: str | None, as_json: bool) -> None:
    """What store this is: its files, the range of its log, how it was closed."""
    found = store_info(store, broker_name=broker_name, broker_conf=broker_conf)
    if as_json:
        told = asdict(found)
        times = {name: _time(told[name]) for name in told if name.endswith("Timestamp")}
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
        ("stored", f"{_time(found.firstStoreTimestamp)} to {_time(found.lastStoreTimestamp)}"),
        ("checkpoint", _time(found.checkpointTimestamp)),
        ("topics", f"{found.topics}, and {found.systemTopics} of the system's own"),
        ("queues", str(found.queues)),
        ("index files", str(found.indexFiles)),
    ]


def _time(ms: int | None) -> str:
    if ms is None:
        return "unknown"
    if ms <= 0:
        return "never"
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
