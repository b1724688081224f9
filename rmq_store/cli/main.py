"""`rmqstore`: the commands by name. A command's module is imported when the command runs."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import click

# When numpy loads, its linear algebra starts one thread per core. No command needs them, and each
# would wait for them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rmq_store import loops
from rmq_store.cli.command import exit_code_of, in_shell_words
from rmq_store.errors import LOG, nearest, spoken, spoken_as
from rmq_store.heap_settings import keep_freed_memory

_WIDEST_NAME = len("transactions") + 2  # cells of --help before the texts
_OBJECTS_BETWEEN_COLLECTIONS = 50_000  # 700 is Python's own number

# Command -> the module of `commands` that defines it, and what it does.
COMMANDS = {
    "info": ("tables", "Show the store's size, log range and whether it was closed cleanly."),
    "topics": ("tables", "List topics with their queues and messages."),
    "queues": ("tables", "List queues: offsets, messages, and messages not yet dispatched."),
    "lag": ("groups", "How far consumer groups are behind, and which lost messages."),
    "usage": ("tables", "Which topic, queue or day fills the disk."),
    "table": ("tables", "Print a table of the Spark source by name."),
    "cat": ("find", "Print the messages of a topic."),
    "find": ("find", "Find messages by topic, key, id, tag, property, time or text."),
    "tail": ("tail", "Print the newest messages of topics; -f waits for more."),
    "sql": ("sql", "Ask in SQL about messages and tables, by DuckDB."),
    "trace": ("find", "Show a message's history by key or id: retries, DLQ, delay, transaction."),
    "scheduled": (
        "system_topics",
        "List messages that are to be delivered later, and which are overdue.",
    ),
    "transactions": ("system_topics", "List transactions with what became of them."),
    "retries": ("system_topics", "List messages that consumers sent back."),
    "pop": ("system_topics", "List messages that consumers popped and did not acknowledge."),
    "traces": ("system_topics", "Print what clients reported of their messages."),
    "retention": (
        "groups",
        "Show what the broker would delete now, and which groups lose messages.",
    ),
    "verify": ("verify", "Check that log, queues, index and configuration agree."),
    "diff": ("verify", "Show what two stores, such as master and slave, do not have in common."),
    "report": (
        "verify",
        "Write a report of the store into one HTML file: findings, tables and plots.",
    ),
    "browse": ("browse", "Show a store in a browser: the dashboard of a broker that is down."),
    "rebuild": ("repair", "Rebuild queues and index from the log into a new store."),
    "salvage": ("repair", "Copy intact messages of a damaged log into a new store."),
    "recover": (
        "repair",
        "Show how to repair a store that was not closed cleanly, or repair it in place.",
    ),
    "offsets": ("groups", "Show a group's offsets, or reset them while the broker is down."),
}


# The groups of --help, as in docs/commands.md; commands of other packages are a group of their own.
_GROUPS = {
    "Look": ("info", "topics", "queues", "table", "browse"),
    "Find": (
        *("cat", "find", "tail", "trace", "sql"),
        *("scheduled", "transactions", "retries", "pop", "traces"),
    ),
    "Check": ("verify", "diff", "lag", "usage", "retention", "report"),
    "Repair": ("recover", "rebuild", "salvage", "offsets"),
}
_OF_SPARK = ("--engine", "--master")


OTHER_COMMANDS = "rmqstore.commands"
"""The entry points of packages that add commands: dicts as COMMANDS, with "module:command"."""


def other_commands() -> dict[str, tuple[str, str]]:
    """The commands of other packages. They stand above this package, so it does not import them."""
    from importlib.metadata import entry_points

    commands: dict[str, tuple[str, str]] = {}
    for point in entry_points(group=OTHER_COMMANDS):
        commands |= point.load()
    return commands


class _Commands(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # as other tools have it
            args = [*(word for word in args[1:] if word != "help"), "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *other_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, name = f"rmq_store.cli.commands.{COMMANDS[cmd_name][0]}", cmd_name
        elif cmd_name in (others := other_commands()):
            module, name = others[cmd_name][0].split(":")
        else:
            return None
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Uses the texts of COMMANDS, so that --help does not import the commands.
        others = other_commands()
        texts = {name: what for name, (_, what) in {**COMMANDS, **others}.items()}
        groups = {**_GROUPS, **({"Move": others} if others else {})}
        for title, names in groups.items():
            with formatter.section(title):
                spacing = _WIDEST_NAME - max(map(len, names))
                formatter.write_dl([(name, texts[name]) for name in names], col_spacing=spacing)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else "-"
        if name in COMMANDS:
            # Another process, such as a notebook, may use pandas itself, and so may Spark.
            if "pyarrow" not in sys.modules and not any(arg.startswith(_OF_SPARK) for arg in args):
                sys.meta_path.insert(0, _NoPandas())
        elif not name.startswith("-") and name not in (others := other_commands()):
            ctx.fail(f"there is no command {name!r}. {nearest(name, {**COMMANDS, **others})}")
        return super().resolve_command(ctx, args)


def _show_version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if not given or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"rmqstore, version {version('rmqstore')}")
    if not loops.compiled():
        click.echo(f"loops run interpreted, and so slowly: {loops.why_interpreted()}")
    ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 no problem; 1 a problem was found, or nothing was found; 2 the command "
    "could not do it.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def rmqstore() -> None:
    """Read the files of an Apache RocketMQ broker without the broker. Only commands that say so
    change the store."""


def main(**settings: Any) -> None:
    """Run a command; print each error on one line. This is the entry point of `rmqstore`. `settings`: of
    click's context, such as `default_map`."""
    # Like other shell tools: end without an error when the reader of the output closes it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    keep_freed_memory()
    # The objects of a store with many queues all stay alive: to look for dead ones costs a tenth.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)

    def run() -> Any:
        with spoken_as(in_shell_words), _WarningsShown(logging.WARNING):
            return rmqstore.main(prog_name="rmqstore", standalone_mode=False, **settings)

    # All ends with the process. Otherwise Python looks through the objects of all modules for garbage.
    atexit.register(gc.freeze)
    sys.exit(exit_code_of("rmqstore", run))


class _WarningsShown(logging.Handler):
    """Prints each warning of the log on stderr while it is a context, once however often it comes."""

    def __enter__(self) -> None:
        self._said = set[str]()
        LOG.addHandler(self)

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = spoken(record.getMessage())
        if line not in self._said:
            self._said.add(line)
            click.echo(f"rmqstore: warning: {line}", err=True)


class _NoPandas:
    """pandas loads in 0.2 s, by pyarrow, and no command of this package uses it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("a command does not load pandas", name=name)
        return None
