"""Where a command works: in this process, or on an engine that another package supplies."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from rmq_store.cli.options import StoreArgs, bundled, warn_of
from rmq_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rmq_store.questions.answer_by_shares import Engine, StoreSource
    from rmq_store.store import MessageStore

OTHER_ENGINES = "rmqstore.engines"
"""The entry points of packages that supply engines: functions such as OtherEngine."""
LOCAL, SPARK, AUTO = "local", "spark", "auto"


def _nothing(_: MessageStore) -> None:
    return


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """The options --engine (LOCAL, unless there is a master) and --master."""

    engine: str | None = None
    master: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command line says of the store and the engine.

    `look` raises StoreError for names that the store does not have: another engine takes ten seconds
    to start.
    """

    command: str
    at: StoreArgs
    on: EngineArgs = EngineArgs()
    look: Callable[[MessageStore], object] = _nothing


class OtherEngine(Protocol):
    """Supplies an engine. It stands above this package, so it is found by its entry point."""

    def __call__(self, wanted: Wanted) -> tuple[StoreSource, Engine] | None:
        """The store as other processes open it, and the engine; None for work in this process.

        For AUTO it decides, and reports its choice on stderr. Raises StoreError if it cannot.
        """


@dataclass(frozen=True, slots=True)
class Asked:
    """An open store, the same store as an engine opens it, and the engine (None: this process)."""

    store: MessageStore
    source: StoreSource
    engine: Engine | None = None


engine_options = bundled(
    "on",
    EngineArgs,
    click.option(
        "--engine",
        type=click.Choice([AUTO, LOCAL, SPARK]),
        help="Work in this process (local) or on Spark; auto: by the bytes of the log. Default: "
        "local, with --master spark.",
    ),
    click.option(
        "--master", metavar="URL", help="Spark's master (default: all cores of this host)."
    ),
)
"""Adds the parameter `on`: EngineArgs."""


@contextmanager
def asked_store(wanted: Wanted) -> Iterator[Asked]:
    """Open the store, and start the engine. Raises what MessageStore.open and the engine raise."""
    from rmq_store.questions.answer_by_shares import OpenedStore

    other = _other(wanted)
    if other is None:
        with wanted.at.open() as opened:
            yield Asked(opened, OpenedStore(opened))
        return
    source, engine = other
    # A connection of the engine that closes is an error; only the reader of our output may leave.
    with on_broken_pipe(signal.SIG_IGN), source.open() as opened:
        warn_of(opened)
        yield Asked(opened, source, engine)


@contextmanager
def on_broken_pipe(do: signal.Handlers) -> Iterator[None]:
    """While the context lasts, do this on a SIGPIPE; nothing where the system has none."""
    before = signal.signal(signal.SIGPIPE, do) if hasattr(signal, "SIGPIPE") else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGPIPE, before)


def _other(wanted: Wanted) -> tuple[StoreSource, Engine] | None:
    engine, master = wanted.on.engine, wanted.on.master
    if engine == LOCAL and master is not None:
        raise click.UsageError("--master is for --engine spark")
    if engine == LOCAL or (engine is None and master is None):
        return None
    from importlib.metadata import entry_points

    for point in entry_points(group=OTHER_ENGINES, name=SPARK):
        supply: OtherEngine = point.load()
        return supply(wanted)
    raise InvalidArgumentError(
        reason="no installed package supplies the engine spark",
        advice="pip install 'rmqstore[spark]', or leave out --engine and --master",
    )
