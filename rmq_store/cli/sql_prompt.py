"""The prompt of `rmqstore sql`: lines with a history, statements that end with a semicolon."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from rmq_store.cli.printing import say
from rmq_store.errors import StoreError

_FIRST, _NEXT = "rmqstore> ", "      ... "
_ENDS = ("exit", "quit", "\\q")
_MOST_LINES = 1000


def prompt(run: Callable[[str], None]) -> None:
    """Read statements until ctrl-D, `exit` or `quit`, and run each that ends with a semicolon.

    Ctrl-C drops what is typed, or ends the statement that runs. Errors are printed.
    """
    say(
        "Views: messages, and the tables of rmqstore table. A statement ends with ; and ctrl-D exits."
    )
    history = _history()
    typed: list[str] = []
    try:
        while True:
            try:
                line = input(_NEXT if typed else _FIRST)
                if not typed and line.strip().rstrip(";").lower() in _ENDS:
                    return
                typed.append(line)
                if line.rstrip().endswith(";"):
                    statement, typed = "\n".join(typed), []
                    run(statement)
            except KeyboardInterrupt:
                typed = []
                click.echo()
            except StoreError as error:
                say(f"rmqstore: {error}", err=True)
    except EOFError:
        click.echo()
    finally:
        _keep(history)


def _history() -> Path | None:
    """The file of earlier lines, which are then at hand; None where there is no readline."""
    try:
        import readline
    except ImportError:
        return None
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state) / "rmqstore" / "sql_history"
    with suppress(OSError):
        readline.read_history_file(path)
    return path


def _keep(history: Path | None) -> None:
    """Keep the lines for the next prompt. They may name customers, so nobody else reads them."""
    if history is None:
        return
    import readline

    readline.set_history_length(_MOST_LINES)
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.write_history_file(history)
