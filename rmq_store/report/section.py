"""What a report is about, and what it is made of: sections of tables, plots and remarks, as plain values."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rmq_store.errors import printable
from rmq_store.files.remote.uri_filesystem import absolute_path
from rmq_store.format.queues import QueueSlice
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.questions.usage import UsageAnswer, usage_of
from rmq_store.reading.store_reader import StoreReader
from rmq_store.tables.table import all_ranges
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import shown_duration, shown_time
from rmq_store.verify.findings import Severity
from rmq_store.verify.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TIMES = ("first", "last", "died")  # columns, beside those that end in Timestamp
_SIZES = ("bytes", "lagBytes", "storeSize", "size", "allocated")


@dataclass(frozen=True, slots=True)
class ReportCell:
    """A cell of a table: what is shown, and the exact value where that is rounded. `kind`: text, number,
    time or command. `leads_to`: a page about it, where there are several."""

    text: str
    exact: str | None = None
    kind: str = "text"
    leads_to: str | None = None


@dataclass(frozen=True, slots=True)
class Command(ReportCell):
    """A command line for a shell, quoted."""

    kind: str = "command"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. `more` says what it leaves out."""

    anchor: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[ReportCell]]
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


def sentence_of_rest(count: int, listed: int, what: str = "more") -> str | None:
    """A sentence on what a table does not list; None if it has all."""
    return f"{count - listed:,} {what} are not listed." if count > listed else None


def text(value: object) -> ReportCell:
    """A cell with a text; empty for None."""
    return ReportCell("" if value is None else str(value))


def number(value: int | None) -> ReportCell:
    """A cell with a whole number; empty for None."""
    return ReportCell("" if value is None else f"{value:,}", None, "number")


def byte_count(count: int | None) -> ReportCell:
    """A cell with a byte count."""
    return number(None) if count is None else ReportCell(size(count), f"{count:,} bytes", "number")


def cell_of(name: str, value: Any) -> ReportCell:
    """A value of a table's column, in the form that the column's name shows. Times are ms."""
    if isinstance(value, datetime):
        value = round(value.replace(tzinfo=value.tzinfo or timezone.utc).timestamp() * 1000)
    if value is None:
        return text(None)
    if name in _TIMES or name.endswith("Timestamp"):
        return ReportCell(shown_time(value), f"{value} ms", "time")
    if name.endswith("Ms"):
        return ReportCell(shown_duration(value), f"{value:,} ms", "number")
    if name in _SIZES:
        return byte_count(value)
    return number(value) if isinstance(value, int) else text(value)


def columns_of_rows(
    anchor: str,
    title: str,
    names: str,
    rows: Iterable[Mapping[str, Any]],
    more: str | None = None,
    command: Callable[[Mapping[str, Any]], ReportCell] | None = None,
) -> Grid:
    """Columns of a table by their names, with the command that looks closer at each row."""
    columns, last = names.split(), [] if command is None else [command]
    cells = [
        [*(cell_of(name, row.get(name)) for name in columns), *(look(row) for look in last)]
        for row in rows
    ]
    return Grid(anchor, title, [*columns, *["command" for _ in last]], cells, more)


LARGEST = 20  # messages that are listed
COLOURED = 4  # topics with a colour of their own; as many as `plots.draw_bars` colours
_WHICH_BROKER = ("--broker-conf", "--broker-name")


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much a report reads at most, so that it holds for a store of any size.

    `entries`: of queues, 20 bytes each. `held`: messages of the broker's own topics, for each section.
    `offsets`: of consumer groups. `bytes_without_index`: bytes of the log without an index, which finding the
    copies of delayed and prepared messages reads. `verified`: bytes of the log that are checked without
    being asked for, which takes seconds.
    """

    entries: int = 20_000_000
    held: int = 50_000
    offsets: int = 50_000
    bytes_without_index: int = 1 << 30
    verified: int = 4 << 30


NO_BOUNDS = ReadLimits(*[1 << 62] * 4)


@dataclass(frozen=True)
class NamedStore:
    """How the user names a store: its path, made absolute, and options of every command."""

    path: str
    broker_conf: str | None = None
    broker_name: str | None = None

    @classmethod
    def of(
        cls, path: str, broker_conf: str | None = None, broker_name: str | None = None
    ) -> NamedStore:
        """The store at `path`; relative paths start at the working folder."""
        return cls(absolute_path(path), broker_conf and os.path.abspath(broker_conf), broker_name)

    def command(self, name: str, *words: object) -> Command:
        """A command on this store for a shell: `rmqstore NAME STORE WORDS...`."""
        options = zip(_WHICH_BROKER, (self.broker_conf, self.broker_name), strict=True)
        words_of_options = [word for pair in options if pair[1] is not None for word in pair]
        every = ("rmqstore", *name.split(), self.path, *words, *words_of_options)
        return Command(" ".join(map(shell_word, map(str, every))))


@dataclass(frozen=True)
class Inquiry:
    """An open store and what is asked of it. `now_ms`: the moment that retention is planned for."""

    store: StoreReader
    named: NamedStore
    bounds: ReadLimits
    now_ms: int
    verify: bool = False
    progress: OnProgress | None = None

    def command(self, name: str, *words: object) -> Command:
        """See `NamedStore.command`."""
        return self.named.command(name, *words)

    @cached_property
    def messages(self) -> int:
        """The messages of all queues, light queues included."""
        return sum(map(len, all_ranges(self.store)))

    @cached_property
    def entries_of_a_queue(self) -> int | None:
        """Entries of a queue that may be read; None for all."""
        if self.messages <= self.bounds.entries:
            return None
        return max(1, self.bounds.entries // max(1, len(self.store.queues())))

    @cached_property
    def usage(self) -> UsageAnswer:
        """Messages and bytes by topic and day, and the largest messages."""
        return usage_of(
            self.store, None, LARGEST, entries_of_a_queue=self.entries_of_a_queue, days_by_log=True
        )

    @cached_property
    def leading(self) -> list[str]:
        """The topics that take the most bytes, which have a colour of their own in every plot."""
        return [row["topic"] for row in self.usage.by("topic") if not row["shared"]][:COLOURED]

    def ranges(self, topics: Iterable[str]) -> list[QueueSlice]:
        """The ranges of the queues of some topics, of those that the store has."""
        view = self.store.view
        return list(view.ranges_of([topic for topic in topics if view.queues_of(topic)]))

    def held(self, topics: Iterable[str]) -> int:
        """The messages in the queues of some topics."""
        return sum(map(len, self.ranges(topics)))

    @cached_property
    def bytes_without_index(self) -> int:
        """Bytes of the log that no index file covers."""
        return sum(stop - start for start, stop in self.store.key_index().gaps())


def shell_word(word: str) -> str:
    """A word as a shell takes it, on one line and without control characters (bash, zsh, ksh)."""
    if printable(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_in_ansi_c, word)) + "'"


def _in_ansi_c(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if printable(character) == character:
        return character
    try:
        raw = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        raw = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def failed_section(anchor: str, title: str, error: Exception, command: Command) -> Section:
    """A section that could not be made."""
    return Section(anchor, title, missing=LeftOutSection(str(error), command))
