"""What a report consists of: sections with tables, plots and remarks, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rmq_store.text.sizes import counted, size
from rmq_store.text.times import shown_duration, shown_time
from rmq_store.verify.findings import Severity
from rmq_store.verify.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TIMES = ("first", "last", "died")  # columns, beside those that end in Timestamp
_SIZES = ("bytes", "lagBytes", "storeSize", "size", "allocated")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: what is shown, and the exact value where that is rounded. `kind`: text, number,
    time or command. `leads_to`: a page about it, where there are several."""

    text: str
    exact: str | None = None
    kind: str = "text"
    leads_to: str | None = None


@dataclass(frozen=True, slots=True)
class Command(Cell):
    """A command line for a shell, quoted."""

    kind: str = "command"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. `more` says what it leaves out."""

    anchor: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: str | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: `draw` draws on axes, narrow or wide. `height`: inches. `about` describes it in words."""

    anchor: str
    about: str
    draw: Callable[[Axes, bool], None]
    height: float = 3.2


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding of the report, and the command that goes on from it."""

    severity: Severity
    text: str
    command: Command


@dataclass(frozen=True, slots=True)
class LeftOutSection:
    """Why a section is not there, and the command that looks closer. `bounded`: it would take long."""

    reason: str
    command: Command
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A section. `unseen`: what was not looked at. `commands` show more of the same."""

    anchor: str
    title: str
    about: str = ""
    plots: Sequence[Plot] = ()
    grids: Sequence[Grid] = ()
    remarks: Sequence[Remark] = ()
    unseen: Sequence[str] = ()
    commands: Sequence[Command] = ()
    missing: LeftOutSection | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the store at `path` (as it is named) at a moment: ms since the epoch."""

    path: str
    made_ms: int
    version: str
    sections: Sequence[Section] = field(default_factory=list)

    @property
    def remarks(self) -> list[Remark]:
        """The findings of all sections, the worst first."""
        return worst_first(remark for section in self.sections for remark in section.remarks)

    @property
    def verdict(self) -> list[tuple[str, str]]:
        """The lines of the verdict; none if the whole log was not checked."""
        verdicts = (section.verdict for section in self.sections)
        return [line for verdict in verdicts if verdict is not None for line in verdict.lines()]

    def count(self, severity: Severity) -> int:
        """The number of findings of a severity."""
        return sum(remark.severity is severity for remark in self.remarks)

    def counted(self, severity: Severity) -> str:
        """The number of findings of a severity in words, such as `1 error`."""
        return counted(self.count(severity), severity.value)

    @property
    def has_problem(self) -> bool:
        """Whether there is an error, or a section could not be made."""
        return self.count(Severity.ERROR) > 0 or len(self.failed) > 0

    @property
    def failed(self) -> list[str]:
        """The titles of the sections that could not be made."""
        return [one.title for one in self.sections if one.missing and not one.missing.bounded]


def worst_first(remarks: Iterable[Remark]) -> list[Remark]:
    """Findings in the order of their severities."""
    return sorted(remarks, key=lambda remark: -list(Severity).index(remark.severity))


def not_listed(count: int, listed: int, what: str = "more") -> str | None:
    """A sentence on what a table does not list; None if it has all."""
    return f"{count - listed:,} {what} are not listed." if count > listed else None


def text(value: object) -> Cell:
    """A cell with a text; empty for None."""
    return Cell("" if value is None else str(value))


def number(value: int | None) -> Cell:
    """A cell with a whole number; empty for None."""
    return Cell("" if value is None else f"{value:,}", None, "number")


def byte_count(count: int | None) -> Cell:
    """A cell with a byte count."""
    return number(None) if count is None else Cell(size(count), f"{count:,} bytes", "number")


def cell_of(name: str, value: Any) -> Cell:
    """A value of a table's column, in the form that the column's name shows. Times are ms."""
    if isinstance(value, datetime):
        value = round(value.replace(tzinfo=value.tzinfo or timezone.utc).timestamp() * 1000)
    if value is None:
        return text(None)
    if name in _TIMES or name.endswith("Timestamp"):
        return Cell(shown_time(value), f"{value} ms", "time")
    if name.endswith("Ms"):
        return Cell(shown_duration(value), f"{value:,} ms", "number")
    if name in _SIZES:
        return byte_count(value)
    return number(value) if isinstance(value, int) else text(value)


def listing(
    anchor: str,
    title: str,
    names: str,
    rows: Iterable[Mapping[str, Any]],
    more: str | None = None,
    command: Callable[[Mapping[str, Any]], Cell] | None = None,
) -> Grid:
    """Columns of a table by their names, with the command that looks closer at each row."""
    columns, last = names.split(), [] if command is None else [command]
    cells = [
        [*(cell_of(name, row.get(name)) for name in columns), *(look(row) for look in last)]
        for row in rows
    ]
    return Grid(anchor, title, [*columns, *["command" for _ in last]], cells, more)
