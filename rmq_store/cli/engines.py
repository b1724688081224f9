"""Where a command works: in this process, or on an engine that another package supplies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rmq_store.cli.options import StoreArgs, bundle, option, warn_of
from rmq_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rmq_store.questions.answer_by_shares import Engine, StoreSource
    from rmq_store.store import MessageStore

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
ENGINE_ARGS = bundle(EngineArgs, engine=ENGINE, master=MASTER)


@contextmanager
def store_and_engine(
    command: str, at: StoreArgs, on: EngineArgs
) -> Iterator[tuple[MessageStore, StoreSource, Engine | None]]:
    """Open the store, and start the engine: the store, the same store as the engine opens it, and the
    engine (None: this process). Raises what MessageStore.open and the engine raise."""
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
