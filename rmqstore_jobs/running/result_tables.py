"""The result of a job, as printed tables and as JSON, with its provenance.

On a terminal tables are drawn, with at most 40 rows. In a pipe they are tab-separated, with every row
and numbers without separators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from rmq_store.cli.table_layout import Column, TerminalTable, filled
from rmq_store.escaping import json_text, printable
from rmq_store.text.json_keys import as_json_object, camel_case
from rmq_store.text.sizes import counted
from rmq_store.text.times import in_utc
from rmqstore_jobs.running.provenance import Provenance, source_rows

Row = Mapping[str, Any]
_MOST_ROWS = 40
_KEPT = ("consumerGroup", "originTopic", "uniqKey", "reconsumeTimes", "died")
"""Columns of dead letters that a narrow terminal has to show."""


class JobResult(ABC):
    """What every job returns, a dataclass. `ok` decides the exit code; `stopped_by`: why the job
    ended early, and how to continue. `verdict` is the first line."""

    __slots__ = ()

    ok: bool
    stopped_by: str | None
    problems: tuple[str, ...]
    source: Provenance

    def to_json(self, indent: int | None = None) -> str:
        """The result as one JSON object, keys in camelCase; times as ISO 8601, in UTC."""
        fields = self._as_json_object()
        return json_text(fields, indent=indent, default=plain_value)

    def _as_json_object(self) -> dict[str, Any]:
        fields: dict[str, Any] = as_json_object(self)
        fields["source"]["options"] = as_json_object(self.source.options)
        return fields

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json(indent=1) + "\n", encoding="utf-8")

    def show(self, console: Console, warnings: int = 0, errors: Console | None = None) -> None:
        """Print for a person: the verdict and the problems, then the tables and what was read.

        `warnings`: how many the job has logged. `errors` takes what is wrong, if it is given.
        """
        good = "green" if self.ok else "yellow"
        color = good if self.stopped_by is None else "red"
        after = f"; {counted(warnings, 'warning')} before" if warnings else ""
        errors = errors or console
        first = console if self.stopped_by is None else errors
        _print_line(first, printable(self._verdict() + after), color=color, bold=True)
        for problem in self.problems:
            _print_line(errors, printable(f"! {problem}"), color="red", bold=True)
        self._show_tables(console)
        print_pairs(console, "what was read", source_rows(self.source))

    @abstractmethod
    def _verdict(self) -> str:
        """The first line."""

    @abstractmethod
    def _show_tables(self, console: Console) -> None:
        """Print the tables of the job."""


@dataclass(frozen=True, slots=True)
class Answer(JobResult):
    """A job's result: tables by title, numbers by name.

    `verdict`: what the first line says unless the job ended early; by default only whether there are
    problems.
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

    def _as_json_object(self) -> dict[str, Any]:
        """As all reports: titles and names are keys, like fields."""
        named = {
            "numbers": _with_keys(self.numbers),
            "tables": {
                _key_of(title): [_with_keys(row) for row in rows]
                for title, rows in self.tables.items()
            },
        }
        return JobResult._as_json_object(self) | named

    def _verdict(self) -> str:
        took = f"in {self.seconds:.1f} s{' (continued an earlier run)' * self.resumed}"
        if self.stopped_by is not None:
            return f"stopped {took}: {self.stopped_by}"
        usual = "no problems" if self.ok else "finished with problems"
        return f"{self.verdict or usual}, {took}"

    def _show_tables(self, console: Console) -> None:
        for title, rows in self.tables.items():
            print_table(console, f"{self.job}: {title}", rows)
        print_pairs(console, f"{self.job}: total", self.numbers.items())


def _with_keys(row: Row) -> dict[str, Any]:
    return {_key_of(name): as_json_object(value) for name, value in row.items()}


def _key_of(name: str) -> str:
    return camel_case(name.replace(" ", "_"))


def print_table(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print rows with the names of their columns; nothing without rows."""
    if not rows:
        return
    if not console.is_terminal:
        _print_plain(console, title, [list(rows[0]), *(row.values() for row in rows)])
        return
    shown = [[_cell(value) for value in row.values()] for row in rows[:_MOST_ROWS]]
    columns = [Column.of(name, [row[at] for row in shown]) for at, name in enumerate(rows[0])]
    _print_line(console, title, italic=True)
    echo = partial(_print_line, console)
    kept = [name for name in rows[0] if name in _KEPT]
    TerminalTable(echo, echo, kept, width=console.width).print(columns)
    if len(rows) > _MOST_ROWS:
        _print_line(console, f"and {len(rows) - _MOST_ROWS:,} more; --json has all rows")


def print_pairs(console: Console, title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values."""
    if not console.is_terminal:
        _print_plain(console, title, pairs)
        return
    shown = [(printable(name), _cell(value)) for name, value in pairs]
    width = max((cell_len(name) for name, _ in shown), default=0)
    _print_line(console, title, italic=True)
    for name, value in shown:
        _print_line(console, f"{filled(name, width)}  {value}")


def _print_line(console: Console, text: str, **style: Any) -> None:
    """Print text that is printable, whatever its width; `style`: as rich has it."""
    console.print(Text(text, style=Style(**style)), soft_wrap=True)


def _print_plain(console: Console, title: str, lines: Iterable[Iterable[Any]]) -> None:
    """Print a blank line, the title, and lines of values."""
    texts = ("\t".join(printable(plain_value(value)) for value in line) for line in lines)
    for text in ("", title, *texts):
        print(text, file=console.file)  # rich makes blanks of tabs


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return printable(plain_value(value))


def plain_value(value: Any) -> str:
    """A value as text; a time as ISO 8601 in UTC, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return in_utc(value)  # Spark returns times in the zone of this process, without a zone
    return value.isoformat() if isinstance(value, date) else str(value)
