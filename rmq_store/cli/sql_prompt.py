"""The prompt of `rmqstore sql`: statements of several lines, commands with a dot, history and completion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.cli.output import Output, note, print_line, problem
from rmq_store.errors import StoreError, nearest
from rmq_store.tables import TABLES_OF_A_STORE
from rmq_store.text.sizes import counted

if TYPE_CHECKING:
    from rmq_store.sql.database import StoreDatabase

_FIRST, _NEXT = "rmqstore> ", "      ... "
_MOST_LINES = 1000  # of the history
_ENDS = ("exit", "quit", "\\q")
_LISTED = re.compile(r"\\G;?\s*$")
_ABOUT_MESSAGES = {
    "messages": "the messages of users' topics",
    "rawMessages": "the same with the columns on request, such as rawBody",
}
_HELP = (
    "A statement ends with ; or, to have each value of a row in a line of its own, with \\G.",
    ".tables         the views",
    ".schema VIEW    the columns of a view",
    ".exit           the end, as ctrl-D",
    "Tab completes names; ctrl-C ends the statement that runs, or drops what is typed.",
)

Run = Callable[[str, bool], int | None]
"""Runs statements, with each value in a line of its own if the second argument says so. Returns the number
of rows; None without any."""


class Prompt:
    """Reads statements and commands in a terminal until ctrl-D, and runs each. Errors are printed."""

    def __init__(self, database: StoreDatabase, run: Run) -> None:
        self._database, self._run = database, run
        self._commands: Mapping[str, Callable[[str], None]] = {
            ".tables": self._print_views,
            ".schema": self._print_columns,
            ".help": self._print_help,
            ".exit": lambda _: _end(),
        }

    def read(self) -> None:
        """Read and run until the end. Ctrl-C drops what is typed, or ends the statement that runs."""
        print_line(f"Times are in {self._database.zone}. .help says what to type.")
        typed: list[str] = []
        with self._history(), suppress(EOFError):
            while True:
                try:
                    typed.append(input(_NEXT if typed else _FIRST))
                    text = "\n".join(typed)
                    if _is_whole(text):
                        typed = []
                        self._do(text.strip())
                except KeyboardInterrupt:
                    typed = []
                    click.echo()
                except StoreError as error:
                    problem(str(error))
        click.echo()

    def _do(self, text: str) -> None:
        """Run a statement, or a command, and say how long it took."""
        name, _, rest = text.rstrip("; ").partition(" ")
        name = name.lower()
        if name in _ENDS:
            _end()
        if name in ("help", "?"):
            name = ".help"
        if name.startswith("."):
            command = self._commands.get(name)
            if command is None:
                problem(f"there is no command {name}. {nearest(name, self._commands)}")
            else:
                command(rest.strip())
        elif name:
            began = monotonic()
            count = self._run(_LISTED.sub(";", text), bool(_LISTED.search(text)))
            rows = "" if count is None else f"{counted(count, 'row')}, "
            note(f"{rows}{monotonic() - began:.2f} s")

    def _print_help(self, _: str) -> None:
        for line in _HELP:
            print_line(line)

    def _print_views(self, _: str) -> None:
        about = {name: table.about for name, table in TABLES_OF_A_STORE.items()} | _ABOUT_MESSAGES
        rows = [{"view": name, "meaning": about[name]} for name in self._database.views]
        Output(False).rows(rows)

    def _print_columns(self, view: str) -> None:
        name = {name.lower(): name for name in self._database.views}.get(view.lower())
        if name is None:
            wrong = f"there is no view {view!r}" if view else ".schema takes the name of a view"
            problem(f"{wrong}. {nearest(view, self._database.views)}")
            return
        table = TABLES_OF_A_STORE.get(name)
        columns: Any = COLUMNS if table is None else table.columns
        meanings = {column.name: column.meaning for column in columns}
        types = self._database.types(name)
        rows = [{"column": c, "type": kind, "meaning": meanings[c]} for c, kind in types]
        Output(False).rows(rows)

    @contextmanager
    def _history(self) -> Iterator[None]:
        """Have earlier lines at hand, and completion. They may name customers: nobody else reads them."""
        try:
            import readline
        except ImportError:
            yield
            return
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        path = Path(state) / "rmqstore" / "sql_history"
        with suppress(OSError):
            readline.read_history_file(path)
        matching: list[str] = []

        def complete(typed: str, number: int) -> str | None:
            if number == 0:
                matching[:] = [
                    word.upper() if typed.isupper() and word.islower() else word
                    for word in dict.fromkeys(self._words(readline.get_line_buffer()))
                    if word.lower().startswith(typed.lower())
                ]
            return matching[number] if number < len(matching) else None

        readline.set_completer(complete)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        try:
            yield
        finally:
            readline.set_history_length(_MOST_LINES)
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                readline.write_history_file(path)

    def _words(self, line: str) -> Iterator[str]:
        """What may come in a line: commands, views, the columns of those that it names, or of all."""
        if line.startswith("."):
            yield from self._commands
        views = self._database.views
        yield from views
        named = [name for name in views if name.lower() in line.lower()]
        for name in named or views:
            yield from views[name].schema.names
        if not line.startswith("."):
            yield from self._database.keywords()


def _is_whole(text: str) -> bool:
    first = text.strip().split(" ")[0].lower().rstrip(";")
    is_command = first.startswith(".") or first in ("", "help", "?", *_ENDS)
    ends = text.rstrip().endswith(";") or _LISTED.search(text) is not None
    return ends or (is_command and "\n" not in text)


def _end() -> None:
    raise EOFError
