"""The options of commands: what an option is, those that commands and jobs share, how they open a store, and
where they work.

An option is declared once: its words, its type and its meaning. The parameter that takes its value names it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.errors import InvalidArgumentError, StoreError, printable, spoken
from rmq_store.files.remote.uri_filesystem import local_path
from rmq_store.text.times import TIME_FORMS, Time, fixed_range, fixed_time, parse_time, parse_zone

if TYPE_CHECKING:
    from rmq_store.questions.answer_by_shares import Engine, StoreSource
    from rmq_store.reading.store_reader import StoreReader

_LEAST_WAIT, _MOST_WAIT = 0.05, 86_400.0


class OptionOfHelpAll(click.Option):
    """An option that only --help-all lists, because few need it."""


class DeclaredOption:
    """An option or an argument, without the name of the parameter that takes its value."""

    def __init__(self, kind: type[click.Parameter], words: Sequence[str], **settings: Any) -> None:
        self.kind, self.words, self.settings = kind, words, settings

    def but(self, kind: type[click.Parameter] | None = None, **settings: Any) -> Any:
        """The same of another kind, or with other settings."""
        return DeclaredOption(kind or self.kind, self.words, **self.settings | settings)

    def params(self, name: str) -> list[click.Parameter]:
        """As click has it, for the parameter `name`."""
        shows = {"show_default": True} if "default" in self.settings else {}
        return [self.kind([*self.words, name], **self.settings | shows)]

    def value(self, name: str, given: dict[str, Any]) -> Any:
        """Take the value out of those that are given."""
        return given.pop(name)


class _Bundle(DeclaredOption):
    """Several options, whose values come as one."""

    def __init__(self, make: Callable[..., Any], parts: Mapping[str, DeclaredOption]) -> None:
        self._make, self._parts = make, parts

    def params(self, name: str) -> list[click.Parameter]:
        return click_params(self._parts)

    def value(self, name: str, given: dict[str, Any]) -> Any:
        parts = self._parts.items()
        return self._make(**{part: declared.value(part, given) for part, declared in parts})


def option(*words: str, kind: type[click.Option] = click.Option, **settings: Any) -> Any:
    """An option; its help shows a default. `settings`: as click has them."""
    return DeclaredOption(kind, words, **settings)


def argument(kind: type[click.Argument] = click.Argument, **settings: Any) -> Any:
    """An argument. `settings`: as click has them."""
    return DeclaredOption(kind, (), **settings)


flag = partial(option, is_flag=True)
rare_option = partial(option, kind=OptionOfHelpAll)
rare_flag = partial(rare_option, is_flag=True)


def options_as_one(make: Callable[..., Any], **parts: DeclaredOption) -> Any:
    """Options whose values come as one: what `make` returns for them by name."""
    return _Bundle(make, parts)


def click_params(options: Mapping[str, DeclaredOption]) -> list[click.Parameter]:
    """Options by the names of their values, as click has them."""
    return [param for name, declared in options.items() for param in declared.params(name)]


# --- types of values -------------------------------------------------------------------------------


class StorePath(click.Path):
    """The type of an argument that names a store: a folder, also as file:///FOLDER, or an address such as
    s3://bucket/store. Raises InvalidArgumentError for an address with credentials."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(local_path(os.fspath(value)), param, ctx)


class WholeNumber(click.IntRange):
    """The type of an option that takes a whole number, maybe in a range. Errors name it by `name`."""

    name = "whole number"


def nonempty_text(text: str) -> str:
    """The type of an option that takes a text which is not empty."""
    if not text.strip():
        raise click.BadParameter("it is empty. Leave the option out, or give a value")
    return text


def seconds(text: str) -> float:
    """The type of an option that takes a time to wait, from 0.05 s to a day."""
    with suppress(ValueError):
        if _LEAST_WAIT <= float(text) <= _MOST_WAIT:
            return float(text)
    raise click.BadParameter(f"{text!r} is not a number of seconds from 0.05 to 86400.")


def option_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an option whose value `parse` makes, or raises a ValueError that ends a sentence."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} {error}") from None

    return convert


time, zone = option_type(parse_time), option_type(parse_zone)


# --- the store ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreArgs:
    """STORE, and the options for what the store's files do not contain."""

    store: str
    broker_conf: str | None = None
    broker_name: str | None = None

    def open(self) -> StoreReader:
        """Open the store, and warn of what cannot be read. Raises what StoreReader.open raises."""
        from rmq_store.reading.store_reader import StoreReader

        opened = StoreReader.open(
            self.store, broker_conf=self.broker_conf, broker_name=self.broker_name
        )
        warn_of(opened)
        return opened


@contextmanager
def opened_stores(at: StoreArgs, others: Sequence[str] = ()) -> Iterator[list[StoreReader]]:
    """The stores of STORE and of others, which may be patterns, open; each with a name of its own.

    Raises InvalidArgumentError for a pattern that matches none, click.UsageError for an option that
    is for one store, and the errors of `StoreArgs.open`.
    """
    from rmq_store.config.locate import (
        broker_names_of_paths,
        matching_folders,
        without_same_folders,
    )

    patterns = (at.store, *others)
    paths = without_same_folders(
        [path for pattern in patterns for path in matching_folders(pattern)]
    )
    names = [at.broker_name] if len(paths) == 1 else broker_names_of_paths(paths)
    if len(paths) > 1 and (at.broker_conf or at.broker_name):
        raise click.UsageError(
            f"--broker-conf and --broker-name are for one store, and there are {len(paths)}"
        )
    with ExitStack() as stack:
        opened = []
        for path, name in zip(paths, names, strict=True):
            store = StoreArgs(path, at.broker_conf, name).open()
            opened.append(stack.enter_context(store))
            store.release_files()
        yield opened


def time_range(
    stores: Sequence[StoreReader], begin: Time | None, end: Time | None
) -> tuple[int | None, int | None]:
    """The times of --since and --until in ms; the newest message of all stores fixes a relative one."""
    from rmq_store.search.log_partitions import newest_time

    return fixed_range(begin, end, partial(newest_time, stores))


def warn_of(store: StoreReader) -> None:
    """Print a line for each thing of the store that cannot be read."""
    for warning in (*store.opening.losses(), *store.opening.notes()):
        click.echo(f"rmqstore: warning: {printable(spoken(warning))}", err=True)


def time_in(store: StoreReader, moment: Time | None) -> int | None:
    """A time in ms; one relative to the newest message is fixed by the store's."""
    from rmq_store.search.log_partitions import newest_time

    return fixed_time(moment, partial(newest_time, [store]))


def topic_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """For completion: the topics of the store typed so far that begin with what is typed."""
    return _completed(ctx, typed, lambda store: store.view.topics.every)


def group_names(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """For completion: the consumer groups of the store typed so far."""
    from rmq_store.search.selection import known_groups

    return _completed(ctx, typed, lambda store: sorted(known_groups(store)))


def _completed(
    ctx: click.Context, typed: str, names: Callable[[StoreReader], Iterable[str]]
) -> list[str]:
    from rmq_store.reading.store_reader import StoreReader

    # An option that still lacks its value leaves the arguments as they are.
    path = ctx.params.get("store") or next(iter(ctx.args), None)
    # The store may come behind the option; why it cannot be opened, the command itself says.
    with suppress(StoreError):
        if path is not None:
            with StoreReader.open(path, broker_conf=ctx.params.get("broker_conf")) as store:
                return [name for name in names(store) if name.startswith(typed)]
    return []


# --- the options that commands share -------------------------------------------------------------------


def joined_values(separator: str) -> Callable[[click.Context, click.Parameter, Any], str | None]:
    """A callback for a repeatable option: its values as one text, None if it is not given."""

    def join(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
        return separator.join(values) if values else None

    return join


def _tags(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    if not values:
        return None
    from rmq_store.reading.query import warn_of_tags

    tags = " || ".join(values)
    warn_of_tags(tags, lambda several: " ".join(f"--tag {tag}" for tag in several))
    return tags


class _SecondArgument(click.Argument):
    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def require_one_target(target: str | None, second: str | None) -> str:
    """The value of --to or of the argument. Raises click.UsageError unless just one is given."""
    targets = [path for path in (target, second) if path is not None]
    if not targets:
        raise click.UsageError("missing option --to DIR: the folder of the new store")
    if len(targets) > 1:
        raise click.UsageError(f"the new store is named twice: {targets[0]} and {targets[1]}")
    return targets[0]


_TOPIC_NAME = option("--topic", shell_complete=topic_names, type=nonempty_text, metavar="TOPIC")
TOPIC = _TOPIC_NAME.but(help="Only this topic.")
TOPICS = _TOPIC_NAME.but(help="Only this topic; repeatable.", multiple=True)
_GROUP_NAME = option("--group", shell_complete=group_names, type=nonempty_text, metavar="GROUP")
GROUP = _GROUP_NAME.but(help="Only this consumer group.")
GROUPS = _GROUP_NAME.but(help="Only this consumer group; repeatable.", multiple=True)
QUEUES = option(
    "--queue", type=int, metavar="ID", multiple=True, help="Only this queue; repeatable."
)
SINCE = option(
    "--since",
    type=time,
    metavar="TIME",
    help=f"Only messages stored at TIME or later: {TIME_FORMS}.",
)
UNTIL = option("--until", type=time, metavar="TIME", help="Only messages stored before TIME.")
TAGS = option(
    "--tag",
    type=nonempty_text,
    metavar="TAG",
    multiple=True,
    callback=_tags,
    help="Only messages with this tag, or one of 'a || b'; repeatable.",
)
KEYS = option(
    "--key",
    type=nonempty_text,
    metavar="KEY",
    multiple=True,
    help="Only messages with this word in KEYS, or this UNIQ_KEY; repeatable.",
)
SYSTEM = flag("--system", help="Include system topics.")
TOP = option("--top", type=WholeNumber(min=1), metavar="N")
ZONE = option(
    "--zone",
    type=zone,
    metavar="ZONE",
    default="UTC",
    help="Time zone of the days and hours, such as Asia/Shanghai.",
)
LIMIT = option("--limit", type=WholeNumber(min=1), metavar="N", help="Print at most N messages.")
HISTORY = flag(
    "--history", help="All messages of a compaction topic, not only the last of each key."
)
SKIP_DAMAGED = flag("--skip-damaged", help="Leave out damaged messages, and report them.")
BROKER_CONF = option(
    "--broker-conf", type=click.Path(), metavar="FILE", help="The broker's configuration file."
)
BROKER_NAME = option(
    "--broker-name",
    type=nonempty_text,
    metavar="NAME",
    help="The broker's name (default: the one in --broker-conf, else the folder's name).",
)
RELEASE = option(
    "--release",
    metavar="RELEASE",
    help="Write files like this broker release (default: the newest).",
)
STORE_PATH = argument(type=StorePath())
STORE = options_as_one(
    StoreArgs, store=STORE_PATH, broker_conf=BROKER_CONF, broker_name=BROKER_NAME
)
TARGET = options_as_one(  # its value may also be a second argument
    require_one_target,
    target=option("--to", type=StorePath(), metavar="DIR", help="The new store. Required."),
    second=argument(_SecondArgument, required=False, type=StorePath()),
)
JSON = flag("--json", help="Print one JSON object per line.")

WORDS: Mapping[str, DeclaredOption] = {
    "topic": TOPICS,
    "tags": TAGS,
    "keys": KEYS,
    "startingTimestamp": SINCE,
    "endingTimestamp": UNTIL,
    "brokerConf": BROKER_CONF,
    "brokerName": BROKER_NAME,
    "includeSystemTopics": SYSTEM,
}
"""Options of the Spark source that commands and jobs call otherwise."""

_ALONE = {
    "subscribe": "--topic",
    "startingOffsets": "--offset",
    "compacted": "--history",
    "unwrapBatches": "--raw",
    "mode": "--skip-damaged",
}
"""Those that jobs have by their own names, and commands by others: name -> word."""

_BY_MEANING = {
    **dict.fromkeys(("--config", "--conf", "--broker-config", "--configuration"), "--broker-conf"),
    **dict.fromkeys(("--from", "--start", "--begin", "--after"), "--since"),
    **dict.fromkeys(("--end", "--before"), "--until"),
    **dict.fromkeys(("--consumer", "--consumer-group"), "--group"),
    **dict.fromkeys(("--max", "--count", "--head"), "--limit"),
}


def shell_option_name(name: str) -> str:
    """The name of an option of the source as a shell has such names."""
    return "--" + re.sub("[A-Z]", lambda capital: f"-{capital[0].lower()}", name)


MEANT = {
    **{shell_option_name(name): declared.words[0] for name, declared in WORDS.items()},
    **{shell_option_name(name): nonempty_text for name, nonempty_text in _ALONE.items()},
    **_BY_MEANING,
}
"""What the Spark source and other tools call an option -> our word."""


# --- where a command works: in this process, or on an engine that another package supplies ------------


OTHER_ENGINES = "rmqstore.engines"
"""The entry points of packages that supply engines: such a package stands above this one.

A function of the command, its StoreArgs and its EngineArgs returns the store as other processes open it, and
the engine; None for work in this process. For AUTO it decides, and reports its choice on stderr. It raises
StoreError if it cannot.
"""
LOCAL, SPARK, AUTO = "local", "spark", "auto"


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """The options --engine (LOCAL, unless there is a master) and --master."""

    engine: str | None = None
    master: str | None = None


ENGINE = option(
    "--engine",
    type=click.Choice([AUTO, LOCAL, SPARK]),
    help="Work in this process (local) or on Spark; auto: by the bytes of the log. Default: "
    "local, with --master spark.",
)
MASTER = option("--master", metavar="URL", help="Spark's master (default: all cores of this host).")
ENGINE_ARGS = options_as_one(EngineArgs, engine=ENGINE, master=MASTER)


@contextmanager
def store_and_engine(
    command: str, at: StoreArgs, on: EngineArgs
) -> Iterator[tuple[StoreReader, StoreSource, Engine | None]]:
    """Open the store, and start the engine: the store, the same store as the engine opens it, and the
    engine (None: this process). Raises what StoreReader.open and the engine raise."""
    from rmq_store.questions.answer_by_shares import OpenedStore

    is_local = on.engine == LOCAL or (on.engine is None and on.master is None)
    if is_local and on.master is not None:
        raise click.UsageError("--master is for --engine spark")
    supplied = None if is_local else _supplied(command, at, on)
    if supplied is None:
        with at.open() as opened:
            yield opened, OpenedStore(opened), None
        return
    source, engine = supplied
    # A connection of the engine that closes is an error; only the reader of our output may leave.
    with on_broken_pipe(signal.SIG_IGN), source.open() as opened:
        warn_of(opened)
        yield opened, source, engine


@contextmanager
def on_broken_pipe(do: signal.Handlers) -> Iterator[None]:
    """While the context lasts, do this on a SIGPIPE."""
    before = signal.signal(signal.SIGPIPE, do)
    try:
        yield
    finally:
        if before is not None:  # a library written in C may have set one
            signal.signal(signal.SIGPIPE, before)


def _supplied(command: str, at: StoreArgs, on: EngineArgs) -> tuple[StoreSource, Engine] | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=OTHER_ENGINES, name=SPARK):
        supplied: tuple[StoreSource, Engine] | None = point.load()(command, at, on)
        return supplied
    raise InvalidArgumentError(
        reason="no installed package supplies the engine spark",
        advice="pip install 'rmqstore[spark]', or leave out --engine and --master",
    )
