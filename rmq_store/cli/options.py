"""Options that commands share, and how they open a store."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import tzinfo
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli import option_names
from rmq_store.cli.shell_words import in_shell_words
from rmq_store.errors import StoreError, spoken, spoken_as
from rmq_store.escaping import printable
from rmq_store.files.remote.uri_filesystem import local_path
from rmq_store.text.times import (
    NotATimeError,
    Time,
    fixed_range,
    fixed_time,
    parse_time,
    parse_zone,
)

if TYPE_CHECKING:
    from rmq_store.store import MessageStore

_LEAST_WAIT, _MOST_WAIT = 0.05, 86_400.0
_F = TypeVar("_F", bound=Callable[..., Any])


class StorePath(click.Path):
    """The type of an argument that names a store: a folder, also as file:///FOLDER, or an address such as
    s3://bucket/store. Raises InvalidArgumentError for an address with credentials."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(local_path(os.fspath(value)), param, ctx)


config_option = click.option(
    "--broker-conf", type=click.Path(), metavar="FILE", help=option_names.BROKER_CONF
)
release_option = click.option("--release", metavar="RELEASE", help=option_names.RELEASE)


@dataclass(frozen=True, slots=True)
class StoreArgs:
    """STORE, and the options for what the store's files do not contain."""

    store: str
    broker_conf: str | None = None
    broker_name: str | None = None

    def open(self) -> MessageStore:
        """Open the store to read it, and warn of what cannot be read. Raises what MessageStore.open
        raises."""
        from rmq_store.store import MessageStore

        opened = MessageStore.open(
            self.store, broker_conf=self.broker_conf, broker_name=self.broker_name
        )
        warn_of(opened)
        return opened

    def each(self, others: Sequence[str] = ()) -> list[StoreArgs]:
        """One for each store of STORE and of others, which may be patterns, with a name of its own.

        Raises InvalidArgumentError for a pattern that matches none, click.UsageError for an option that
        is for one store.
        """
        from rmq_store.config.locate import expanded, names_of, without_repeats

        found = without_repeats([path for one in (self.store, *others) for path in expanded(one)])
        if len(found) == 1:
            return [replace(self, store=found[0])]
        if self.broker_conf or self.broker_name:
            raise click.UsageError(
                f"--broker-conf and --broker-name are for one store, and there are {len(found)}"
            )
        return [
            StoreArgs(path, None, name) for path, name in zip(found, names_of(found), strict=True)
        ]


def bundled(name: str, kind: type, *options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """A decorator that adds options, and gives a command their values as one: a `kind`, a dataclass with
    a field for each, as the parameter `name`."""

    def decorate(command: _F) -> _F:
        @wraps(command)
        def run(**given: Any) -> Any:
            own = {field.name: given.pop(field.name) for field in fields(kind)}
            running = click.get_current_context().command
            with spoken_as(partial(in_shell_words, command=running)):
                return command(**given, **{name: kind(**own)})

        bundle: Any = run
        return with_options(*options)(bundle)  # type: ignore[no-any-return]

    return decorate


def with_options(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """A decorator that adds options; a help lists them in this order."""

    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class WholeNumber(click.IntRange):
    """The type of an option that takes a whole number, maybe in a range. Errors name it by `name`."""

    name = "whole number"


def word(text: str) -> str:
    """The type of an option that takes a text which is not empty."""
    if not text.strip():
        raise click.BadParameter("it is empty. Leave the option out, or give a value")
    return text


def store_command_of(**settings: Any) -> Callable[[_F], _F]:
    """A decorator that adds the parameter `at`: StoreArgs. `settings`: of the argument STORE."""
    name = click.option("--broker-name", type=word, metavar="NAME", help=option_names.BROKER_NAME)
    store = click.argument("store", type=StorePath(), **settings)
    return bundled("at", StoreArgs, store, config_option, name)


store_command = store_command_of()
skip_damaged_option = click.option(
    "--skip-damaged", is_flag=True, help="Leave out damaged messages, and report them."
)
history_option = click.option("--history", is_flag=True, help=option_names.HISTORY)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line."
)


@contextmanager
def opened_stores(at: StoreArgs, others: Sequence[str] = ()) -> Iterator[list[MessageStore]]:
    """The stores of `each`, open. Raises its errors, and those of `StoreArgs.open`."""
    with ExitStack() as stack:
        opened = []
        for one in at.each(others):
            opened.append(stack.enter_context(one.open()))
            opened[-1].release_files()
        yield opened


def time_range(
    stores: Sequence[MessageStore], begin: Time | None, end: Time | None
) -> tuple[int | None, int | None]:
    """The times of --since and --until in ms; the newest message of all stores fixes a relative one.

    Raises InvalidArgumentError as `fixed_range`.
    """
    from rmq_store.search.log_by_time import newest_time

    return fixed_range(begin, end, partial(newest_time, stores))


def warn_of(store: MessageStore) -> None:
    """Print a line for each thing of the store that cannot be read."""
    for warning in (*store.opening.losses(), *store.opening.notes()):
        click.echo(f"rmqstore: warning: {printable(spoken(warning))}", err=True)


def topic_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """For completion: the topics of the store typed so far that begin with what is typed."""
    return _completed(ctx, typed, lambda store: store.view.topics.every)


def group_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """For completion: the consumer groups of the store typed so far."""
    from rmq_store.search.queue_selection import known_groups

    return _completed(ctx, typed, lambda store: sorted(known_groups(store)))


def _completed(
    ctx: click.Context, typed: str, names: Callable[[MessageStore], Iterable[str]]
) -> list[str]:
    from rmq_store.store import MessageStore

    # An option that still lacks its value leaves the arguments as they are.
    path = ctx.params.get("store") or next(iter(ctx.args), None)
    if path is None:
        return []  # the store comes behind the option
    try:
        with MessageStore.open(path, broker_conf=ctx.params.get("broker_conf")) as store:
            return [name for name in names(store) if name.startswith(typed)]
    except StoreError:
        return []  # the command itself says why


def seconds(text: str) -> float:
    """The type of an option that takes a time to wait, from 0.05 s to a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST_WAIT <= value <= _MOST_WAIT:
        raise click.BadParameter(f"{text!r} is not a number of seconds from 0.05 to 86400.")
    return value


def time(text: str) -> Time:
    """The type of an option that takes a time. Raises click.BadParameter for another text."""
    try:
        return parse_time(text)
    except NotATimeError as error:
        raise click.BadParameter(f"{text!r} {error}.") from None


def zone(text: str) -> tzinfo:
    """The type of an option that takes a time zone. Raises click.BadParameter for an unknown one."""
    try:
        return parse_zone(text)
    except NotATimeError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


def time_in(store: MessageStore, given: Time | None) -> int | None:
    """A time in ms; one relative to the newest message is fixed by the store's."""
    from rmq_store.search.log_by_time import newest_time

    return fixed_time(given, partial(newest_time, [store]))


time_options = with_options(
    click.option("--since", "begin", type=time, metavar="TIME", help=option_names.SINCE),
    click.option("--until", "end", type=time, metavar="TIME", help=option_names.UNTIL),
)


def topic_option(text: str = option_names.TOPIC, **settings: Any) -> Callable[[_F], _F]:
    """A decorator that adds the option --topic, for one topic."""
    return click.option(
        "--topic", shell_complete=topic_names, type=word, metavar="TOPIC", help=text, **settings
    )


def topics_option(text: str = option_names.TOPICS) -> Callable[[_F], _F]:
    """A decorator that adds the option --topic, for any number of topics."""
    return click.option(
        *("--topic", "topics"),
        shell_complete=topic_names,
        type=word,
        metavar="TOPIC",
        multiple=True,
        help=text,
    )


queues_option = click.option(
    *("--queue", "queue_ids"),
    type=int,
    metavar="ID",
    multiple=True,
    help="Only this queue; repeatable.",
)


def group_option(text: str = option_names.GROUP) -> Callable[[_F], _F]:
    """A decorator that adds the option --group, for one consumer group."""
    return click.option(
        "--group", shell_complete=group_names, type=word, metavar="GROUP", help=text
    )


def _tags(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    """The tags as one expression."""
    tags = option_names.joined(" || ")(ctx, param, values)
    if tags is not None:
        from rmq_store.reading.query import warn_of_tags

        warn_of_tags(tags, lambda several: " ".join(f"--tag {tag}" for tag in several))
    return tags


tag_option = click.option(
    *("--tag", "tags"),
    type=word,
    metavar="TAG",
    multiple=True,
    callback=_tags,
    help=option_names.TAG,
)


class _SecondArgument(click.Argument):
    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


target_option = with_options(  # its value may also be a second argument
    click.option(
        "--to", "target", type=StorePath(), metavar="DIR", help="The new store. Required."
    ),
    click.argument("second", cls=_SecondArgument, required=False, type=StorePath()),
)


def one_target(target: str | None, second: str | None) -> str:
    """The value of --to or of the argument. Raises click.UsageError unless just one is given."""
    given = [path for path in (target, second) if path is not None]
    if not given:
        raise click.UsageError("missing option --to DIR: the folder of the new store")
    if len(given) > 1:
        raise click.UsageError(f"the new store is named twice: {given[0]} and {given[1]}")
    return given[0]
