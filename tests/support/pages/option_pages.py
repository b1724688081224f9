"""The synopsis and the options of a command, as its page in the docs has them.

`python -m tests.support.pages.option_pages` writes both again in every page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

from rmq_store.cli.main import COMMANDS, rmqstore
from rmq_store.cli.options import SINCE
from rmqstore_jobs.running.source_options import SourceOption
from tests.support.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
JOBS = ("dlq", "export", "replay")
# docs/commands.md says which forms a time has.
_FORMS = SINCE.settings["help"].partition(": ")[2]
_TIME = "[TIME](../commands.md#what-all-commands-share)"
_SHORT = {
    f"{said[0]} TIME{said[1]}: {_FORMS}": f"{said[0]} {_TIME}{said[1]}."
    for said in (
        ("The first message stored at", " or later"),
        ("Delete log files whose messages are all older than", ""),
    )
}
SYNOPSIS = re.compile(r"(?<=^## Synopsis\n\n```text\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"(?<=^## Options\n\n).*?(?=^## )", re.DOTALL | re.MULTILINE)
# What docs/commands.md says of all commands that have them.
SHARED = (
    *("--broker-conf", "--broker-name", "--json", "--engine", "--master", "--tag", "--key"),
    *("--skip-damaged", "--history", "--header", "--columns", "--full", "--charset", "--since"),
    *("--until", "--report", "--checksums", "--limit", "--system", "--release"),
)
_HEADER = "| option | meaning |\n|---|---|\n"


def pages() -> Iterator[tuple[Path, str, click.Command]]:
    """Each page with what is typed, and its command."""
    context = click.Context(rmqstore)
    for name in COMMANDS:
        command = rmqstore.get_command(context, name)
        assert command is not None
        yield DOCS / "commands" / f"{name}.md", f"rmqstore {name}", command
    for name in JOBS:
        command = import_module(f"rmqstore_jobs.{name}").main
        yield DOCS / "commands" / f"{name}.md", f"rmqstore {name}", command


def synopsis(typed: str, command: click.Command) -> str:
    """One line, as click has it."""
    # click keeps the help option of the first context, so that this one has to be as the command's own.
    pieces = command.collect_usage_pieces(click.Context(command, **command.context_settings))
    return f"{typed} {' '.join(pieces)}\n"


def options(command: click.Command) -> str:
    """A table of the command's own options, and the names of those that other pages explain."""
    rows, shared, others = [], [], []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        if isinstance(option, SourceOption):
            others.append(f"`{option.opts[0]}`")
        elif option.opts[0] in SHARED:
            shared.append(f"`{option.opts[0]}`")
        elif "--help" not in option.opts:
            rows.append(_row(option))
    reported = _HEADER + "".join(rows) + "\n" if rows else ""
    if shared:
        also = "Also" if rows else "Only"
        reported += f"{also} [shared](../commands.md#shared-options): {', '.join(shared)}.\n\n"
    if others:
        reported += f"Of the [Spark source](../spark.md): {', '.join(others)}.\n\n"
    return reported


def _row(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if not option.is_flag:
        names += f" {option.make_metavar(click.Context(click.Command('any')))}"
    default = "" if option.is_flag or not option.show_default else f" Default: {option.default}."
    limits = ""
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        limits = f" ({option.type._describe_range()})"
    must = " Required." if option.required else ""
    about = _SHORT.get(option.help or "", option.help or "")
    cells = (f"`{names}`", f"{about}{limits}{default}{must}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


class Use(NamedTuple):
    """An option of a command."""

    front: str
    option: click.Option


def uses() -> dict[str, list[Use]]:
    """Who has each option, by its first name; without options that only the Spark source explains."""
    every: dict[str, list[Use]] = defaultdict(list)
    for page, _, command in pages():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                word = next(name for name in option.opts if name.startswith("--"))
                if not isinstance(option, SourceOption):
                    every[word].append(Use(page.stem, option))
    return every


def _with(pattern: re.Pattern[str], text: str, new: str) -> str:
    found = pattern.search(text)
    assert found is not None
    return text[: found.start()] + new + text[found.end() :]


if __name__ == "__main__":
    for page, typed, command in pages():
        text = page.read_text("utf-8")
        text = _with(SYNOPSIS, text, synopsis(typed, command))
        text = _with(TABLE, text, options(command))
        page.write_text(text, "utf-8")
