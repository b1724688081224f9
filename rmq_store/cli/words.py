"""The words of options that commands and jobs share: names, older names, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from rmq_store.text.times import TIME_FORMS

_F = TypeVar("_F", bound=Callable[..., Any])

SINCE = f"Only messages stored at TIME or later: {TIME_FORMS}."
UNTIL = "Only messages stored before TIME."
TAG = "Only messages with this tag, or with one of 'a || b'; repeatable."
TOPIC = "Only this topic."
TOPICS = "Only this topic; repeatable."
GROUPS = "Only this consumer group; repeatable."
BROKER_CONF = "The broker's configuration file."
BROKER_NAME = "The broker's name (default: the one in --broker-conf, else the folder's name)."
RELEASE = "Write files like this broker release (default: the newest)."
SYSTEM = "Include system topics."
LOG = "Copy the log, or hard-link its full files and copy the last; links need one file system."


class RenamedOption(click.Option):
    """An option that also has `old` names, which still work and which the help does not list."""

    def __init__(self, *args: Any, old: Iterable[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.old = tuple(old)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option to the parser, with all its names."""
        shown = self.opts
        self.opts = [*shown, *self.old]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def option(*names: str, old: Iterable[str] = (), **settings: Any) -> Callable[[_F], _F]:
    """A decorator that adds an option with older names."""
    return click.option(*names, cls=RenamedOption, old=old, **settings)


def old_names(param: click.Parameter) -> tuple[str, ...]:
    """The names of an option that its help does not list."""
    return param.old if isinstance(param, RenamedOption) else ()


def joined(separator: str) -> Callable[[click.Context, click.Parameter, Any], str | None]:
    """A callback for a repeatable option: its values as one text, None if it is not given."""

    def join(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
        return separator.join(values) if values else None

    return join
