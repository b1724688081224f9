"""Options that commands share, and how they open a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rmq_store.store import MessageStore

_F = TypeVar("_F", bound=Callable[..., Any])


def store_command(command: _F) -> _F:
    """Add the argument STORE, and options for what the store's files do not contain."""
    for decorate in reversed(
        (
            click.argument("store", type=click.Path()),
            click.option(
                "--broker-conf", type=click.Path(), help="The broker's configuration file."
            ),
            click.option("--broker-name", help="The broker's name (default: the folder's name)."),
        )
    ):
        command = decorate(command)
    return command


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line; keys are the source's columns.",
)


def open_store(
    store: str, broker_conf: str | None, broker_name: str | None, *, warns: bool = True
) -> MessageStore:
    """Open the store to read it, and warn of what cannot be read. Raises what MessageStore.open raises."""
    from rmq_store.store import MessageStore

    opened = MessageStore.open(store, broker_conf=broker_conf, broker_name=broker_name)
    for warning in opened.view.warnings() if warns else ():
        click.echo(f"rmqstore: warning: {warning}", err=True)
    return opened


config_option = click.option(
    "--config",
    "--broker-conf",
    "broker_conf",
    type=click.Path(),
    help="The broker's configuration file.",
)
