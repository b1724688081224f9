"""rmqstore info."""

from __future__ import annotations

from dataclasses import asdict

from rmq_store.cli.command import command
from rmq_store.cli.options import STORE, StoreArgs
from rmq_store.cli.output import OUTPUT, Output, print_json, say
from rmq_store.text.times import iso_time

_NO_TIME = ("unknown", "never")


@command
def info(at: StoreArgs = STORE, out: Output = OUTPUT) -> bool:
    """Show the store's size, log range and whether it was closed cleanly."""
    from rmq_store.admin.info import facts_of, store_info

    info = store_info(at.store, broker_name=at.broker_name, broker_conf=at.broker_conf)
    if out.as_json:
        fields = asdict(info)
        times = {name: iso_time(fields[name]) for name in fields if name.endswith("Timestamp")}
        print_json({**fields, **{n: None if at in _NO_TIME else at for n, at in times.items()}})
    else:
        for name, value in facts_of(info):
            wrong = name == "damage" or (name == "closed" and not info.closed)
            wrong = wrong or (name == "queues" and info.queuesUnread is not None)
            say(f"{name:<12} {value}", fg="red" if wrong else None)
    return bool(info.damage) or info.queuesUnread is not None
