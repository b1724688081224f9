"""The result of a job, as printed tables and as JSON, with its provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rmq_store.escaping import printable, printable_json
from rmq_store.text.json_keys import as_json_object
from rmqstore_jobs.running.plain_tables import plain_value, print_lines, print_plain
from rmqstore_jobs.running.provenance import READ, Provenance, source_rows, source_table

Row = Mapping[str, Any]
_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A job's result: tables by title, numbers by name. `ok` decides the exit code.

    `stopped_by`: why the job ended early, and how to continue. `verdict`: what the first line says
    if it did not; by default only whether there are problems.
    """

    job: str
    ok: bool
    tables: Mapping[str, Sequence[Row]]
    source: Provenance
    seconds: float
    numbers: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    resumed: bool = False
    stopped_by: str | None = None
    verdict: str | None = None

    def to_json(self) -> str:
        """The answer as one JSON object, keys in camelCase; times as ISO 8601, in UTC."""
        return printable_json(
            json.dumps(as_json_object(self), indent=1, ensure_ascii=False, default=plain_value)
        )

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def show(self, console: Console) -> None:
        """Print for a person."""
        show(self, console)


def show(answer: Answer, console: Console, most_rows: int = 40) -> None:
    """Print the verdict and the problems, then the tables.

    On a terminal each table has at most `most_rows` rows. In a pipe tables are tab-separated, with
    all rows.
    """
    say_first(console, _verdict(answer), answer.problems)
    if not console.is_terminal:
        for title, rows in answer.tables.items():
            print_plain(console, f"{answer.job}: {title}", rows)
        print_lines(console, f"{answer.job}: total", answer.numbers.items())
        print_lines(console, READ, source_rows(answer.source))
        return
    for title, rows in answer.tables.items():
        if rows:
            console.print(_fitting(f"{answer.job}: {title}", rows[:most_rows], console))
        if len(rows) > most_rows:
            console.print(Text(f"  and {len(rows) - most_rows:,} more; --json has all rows"))
    console.print(_numbers(answer))
    console.print(source_table(answer.source))


def say_first(console: Console, verdict: Text, problems: Sequence[str]) -> None:
    """Print how it went on the first line, and a line for each problem."""
    console.print(verdict, soft_wrap=True)
    for problem in problems:
        console.print(Text(printable(f"! {problem}"), style="bold red"), soft_wrap=True)


def _fitting(title: str, rows: Sequence[Row], console: Console) -> Table:
    """A table with columns if the screen is wide enough, else each row as names and values."""
    table = _table(title, rows)
    wide = console.options.update(width=_ANY_WIDTH, max_width=_ANY_WIDTH)
    if Measurement.get(console, wide, table).maximum <= console.width:
        return table
    listed = Table(title=title, title_justify="left", show_header=False, show_lines=True)
    listed.add_column()
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items()}
        pairs = [(Text(name, style="dim"), value) for name, value in cells.items() if value]
        listed.add_row(Text("  ").join(Text(" ").join((name, Text(v))) for name, v in pairs))
    return listed


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        number = all(isinstance(row[name], (int, float, type(None))) for row in rows)
        right = number and not isinstance(value, bool)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Text instead of str, so that brackets in names are not markup.
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    return table


def _numbers(answer: Answer) -> Table:
    table = Table(title=f"{answer.job}: total", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for name, value in answer.numbers.items():
        table.add_row(Text(printable(name)), Text(_cell(value)))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return printable(plain_value(value))


def _verdict(answer: Answer) -> Text:
    again = " (continued an earlier run)" if answer.resumed else ""
    took = f"in {answer.seconds:.1f} s{again}"
    if answer.stopped_by is not None:
        return Text(printable(f"stopped {took}: {answer.stopped_by}"), style="bold red")
    usual = "no problems" if answer.ok else "finished with problems"
    style = "bold green" if answer.ok else "bold yellow"
    return Text(printable(f"{answer.verdict or usual}, {took}"), style=style)
