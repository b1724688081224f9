"""Options that commands share, and the store they open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rmq_store.store import MessageStore

_F = TypeVar("_F", bound=Callable[..., Any])


def store_command(command: _F) -> _F:
    """The argument STORE, and the options that say what its files do not."""
    for decorate in reversed(
        (
            click.argument("store", type=click.Path()),
            click.option("--broker-conf", type=click.Path(), help="The broker.conf it ran with."),
            click.option("--broker-name", help="The broker's name; by default the folder's."),
        )
    ):
        command = decorate(command)
    return command


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, keys as the source's columns."
)


def open_store(store: str, broker_conf: str | None, broker_name: str | None) -> MessageStore:
    """The store, to read. Raises what MessageStore.open raises."""
    from rmq_store.store import MessageStore

    return MessageStore.open(store, broker_conf=broker_conf, broker_name=broker_name)


config_option = click.option(
    "--config",
    "--broker-conf",
    "broker_conf",
    type=click.Path(),
    help="The broker.conf it ran with.",
)
