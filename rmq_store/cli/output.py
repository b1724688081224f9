"""What commands print: a table, a record, a note or a problem, as text or as JSON."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import chain, groupby, islice, zip_longest
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size

from rmq_store.cli.options import JSON, options_as_one
from rmq_store.errors import json_text, printable
from rmq_store.tables.table import PATHS, SENTENCES
from rmq_store.text.lines import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.text.times import LATEST_MS, utc_text

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.reading.store_reader import StoreReader

_LAID_OUT = 1000  # rows by which the columns of a table get their widths
_WRONG_STATES = ("overdue", "lost")


@dataclass(frozen=True, slots=True)
class Output:
    """Prints text for a person, or with --json one JSON object a line."""

    as_json: bool

    def record(self, report: Any, lines: Iterable[str], **style: Any) -> None:
        """Print a report: its fields as one JSON object with camelCase keys, or its lines."""
        if self.as_json:
            print_json(as_json_object(report))
            return
        for line in lines:
            print_line(line, **style)

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        names: Sequence[str] | None = None,
        cells: Iterable[Sequence[str]] | None = None,
        *,
        texts: Collection[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        """Print rows: JSON objects, or a table of the columns `names`.

        `cells`: the rows as the table has them. `texts`: columns of texts, even if they look like numbers.
        `kept`: columns that a narrow terminal has to show.
        """
        if self.as_json:
            for row in rows:
                print_json(row)
            return
        listed = list(rows)
        columns = list(listed[0] if listed else ()) if names is None else names
        values = ([cell(row[name]) for name in columns] for row in listed)
        if columns:
            _print_rows(columns, values if cells is None else cells, texts=texts, kept=kept)

    def table(
        self,
        pieces: Iterable[pa.Table],
        columns: Sequence[str] = (),
        *,
        kept: Collection[str] = (),
        progress: Progress | None = None,
    ) -> None:
        """Print the pieces of one table, at least one, each as it comes: JSON lines, or the `columns`, by
        default all. `kept`: those that a narrow terminal has to show.

        `progress`: of the reading, which leaves the terminal to what is printed.
        """
        if self.as_json:
            for piece in pieces:
                for row in _with_plain_times(piece).to_pylist():
                    remove_progress_bar(progress)
                    print_json(row)
            return
        import pyarrow as pa

        left = iter(pieces)
        first = next(left)
        names = list(columns or first.column_names)
        texts = [name for name in names if pa.types.is_string(first.schema.field(name).type)]
        shown = (_with_plain_times(piece.select(names)) for piece in chain([first], left))
        rows = (row for piece in shown for row in piece.to_pylist())
        cells = ([cell(value) for value in row.values()] for row in rows)
        _print_rows(names, cells, progress, texts=texts, kept=kept)


OUTPUT = options_as_one(Output, as_json=JSON)


def write_stdout(raw: bytes) -> None:
    """Write bytes to stdout. Raises BrokenPipeError if the reader closed it."""
    sys.stdout.buffer.write(raw)


def print_line(text: str, **style: Any) -> None:
    """Print one line, with what is not printable escaped; `style`: as for `print_styled`."""
    print_styled(printable(text), **style)


def print_styled(text: str, *, err: bool = False, **style: Any) -> None:
    """Print printable text in a style of click's, without one if NO_COLOR is set (no-color.org)."""
    click.echo(text if os.environ.get("NO_COLOR") else click.style(text, **style), err=err)


def note(text: str) -> None:
    """Say on stderr what is beside the answer."""
    click.echo(printable(text), err=True)


def problem(text: str) -> None:
    """Say on stderr what is wrong."""
    note(f"rmqstore: {text}")


def _print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    progress: Progress | None = None,
    *,
    texts: Collection[str] = (),
    kept: Collection[str] = (),
) -> None:
    """Print rows of text under a header: on a terminal in columns that fit it, by the first rows."""
    if not sys.stdout.isatty():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(map(printable, row)))
        return
    from rmq_store.cli.output import Column

    shown = ([printable(value) for value in row] for row in rows)
    table = TerminalTable(kept, marks=True)
    while some := list(islice(shown, _LAID_OUT)):
        remove_progress_bar(progress)
        columns = zip(names, zip(*some, strict=True), strict=True)
        table.print(
            [Column.of(n, cells, is_text=n in texts, is_whole=not kept) for n, cells in columns]
        )


class TerminalTable:
    """A table on a terminal: the first rows set the widths and come with a header; later ones keep them.
    `how`: as for `Layout`. `marks`: rows with a status that is a reason to look closer are red."""

    def __init__(self, kept: Collection[str] = (), *, marks: bool = False, **how: bool) -> None:
        self._kept, self._marks, self._how = kept, marks, how
        self._layout: Layout | None = None

    def print(self, columns: Sequence[Column]) -> None:
        """Print the rows that the cells of some columns make."""
        if self._layout is None:
            from rmq_store.cli.output import Layout  # it loads rich, for a terminal alone

            self._layout = Layout(columns, get_terminal_size().columns, self._kept, **self._how)
            if left_out := ", ".join(self._layout.left_out):
                note(f"a wider terminal, a pipe and --json show more: {left_out}")
            for line in self._layout.header():
                print_styled(line, bold=True)
        rows = list(zip(*(column.cells for column in columns), strict=True))
        for wrong, some in groupby(rows, partial(self._is_wrong, columns)):
            lines = "\n".join(line for cells in some for line in self._layout.lines(cells))
            print_styled(lines, fg="red" if wrong else None)

    def _is_wrong(self, columns: Sequence[Column], cells: Sequence[str]) -> bool:
        values = {column.name: cell for column, cell in zip(columns, cells, strict=True)}
        wrong = values.get("status", "") not in ("OK", "") or values.get("state") in _WRONG_STATES
        return self._marks and wrong


def _with_plain_times(table: pa.Table) -> pa.Table:
    """The table with numbers (ms) instead of times in columns with a time beyond the year 9999."""
    import pyarrow as pa

    from rmq_store.arrow import compute as pc

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            numbers = table.column(at).cast(pa.int64())
            ends = pc.min_max(numbers).as_py()
            if (ends["min"] or 0) < -LATEST_MS or (ends["max"] or 0) > LATEST_MS:
                table = table.set_column(at, field.name, numbers)
    return table


def remove_progress_bar(progress: Progress | None) -> None:
    """Remove a progress bar before lines are printed, if stdout is a terminal too."""
    if progress is not None and progress.active and sys.stdout.isatty():
        progress.pause()


def progress_of_reads(what: str, store: StoreReader) -> Progress:
    """Progress by the bytes that are read of a store from now on, of a number that is not known."""

    def total() -> int:
        reads = store.reads()
        return reads.log.bytes + reads.queues.bytes

    before = total()
    return Progress(what, measure=lambda: total() - before)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on a line; times as ISO 8601."""
    click.echo(json_text(value, default=cell))


def cell(value: Any) -> str:
    """A value as the text of a table; empty for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return utc_text(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


CUT = "…"
GAP = "  "
_ANY_WIDTH = 1 << 30
_LEAST_BODY = 16  # cells
_LEAST_TEXT = 10  # cells: of a longer text at least as many are shown
_LEAST_SENTENCE = 24  # cells
_LEAST_PARTS = 3  # of a path: the topic, the queue and the file
_READABLE_TEXT = 16  # cells: so many come before a column that may be left out
_WORDS = re.compile(r"\s*\S+")
_HUMPS = re.compile(r"[^A-Z]+|[A-Z]+[^A-Z]*")
_NUMBER = re.compile(r"[-+]?\d[\d,.]*( ?[KMGTP]?i?B|%)?$")
_TIME = re.compile(r"\d{4,5}-\d\d-\d\dT[\d:.]+(Z|[-+]\d\d:\d\d)$")
_MILLIS = re.compile(r"\.\d{3}(?=Z$|[-+]\d\d:\d\d$)")


class ColumnKind(Enum):
    """What is done to values that are too long."""

    NUMBER = "number"  # nothing; they stand at the right
    TIME = "time"  # they lose their milliseconds
    TEXT = "text"  # cut in the middle, because ids differ at both ends; asked for, not at all
    PATH = "path"  # cut at the start; they keep the topic, the queue and the name of the file
    SENTENCE = "sentence"  # they come on several lines
    BODY = "body"  # they get the width that the others leave, and are cut at the end


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `cells`: the values as printable text.

    `limits`: the least and the most cells where there is room; later values may be longer. `is_whole`: a
    text is never cut, because it was asked for.
    """

    name: str
    kind: ColumnKind
    cells: Sequence[str]
    limits: tuple[int, int] = (0, 1000)
    is_whole: bool = False

    @classmethod
    def of(
        cls, name: str, cells: Sequence[str], *, is_text: bool = False, is_whole: bool = False
    ) -> Column:
        """A column whose kind its name or its values show; empty ones fit all kinds."""
        if name in PATHS or name in SENTENCES:
            return cls(name, ColumnKind.PATH if name in PATHS else ColumnKind.SENTENCE, cells)
        given = [cell for cell in cells if cell]
        if given and not is_text and all(map(_NUMBER.match, given)):
            return cls(name, ColumnKind.NUMBER, cells)
        is_time = bool(given) and all(map(_TIME.match, given))
        return cls(name, ColumnKind.TIME if is_time else ColumnKind.TEXT, cells, is_whole=is_whole)

    @property
    def wanted(self) -> int:
        """The cells that the values get where there is room."""
        least, most = self.limits
        is_limited = self.kind is ColumnKind.TEXT and not self.is_whole
        return max(least, min(self.full_width, most) if is_limited else self.full_width)

    @property
    def full_width(self) -> int:
        """The cells of the longest value; of bodies those that some of one need."""
        longest = max(map(cell_len, self.cells), default=0)
        return min(longest, _LEAST_BODY) if self.kind is ColumnKind.BODY else longest

    @property
    def least(self) -> int:
        """The cells to which values may be cut; of paths those of the last parts of the longest."""
        if self.kind is ColumnKind.SENTENCE:
            return min(self.full_width, _LEAST_SENTENCE)
        if self.kind is not ColumnKind.PATH:
            return self.full_width if self.is_whole else _LEAST_TEXT
        ends = (os.sep.join(cell.split(os.sep)[-_LEAST_PARTS:]) for cell in self.cells)
        return max(map(cell_len, ends), default=0) + len(CUT)

    @property
    def heading(self) -> list[str]:
        """The words of the name, which may stand on lines of their own."""
        return _HUMPS.findall(self.name)


class Layout:
    """The widths of the columns of a table in a terminal of `width` cells, by some of its rows.

    Where the columns need it, names and sentences come on several lines, times lose their milliseconds,
    and texts are cut. Columns that are not among `kept`, if given, are left out then, the last ones first.
    `is_listed`: each value has a line, because that was asked for, or because even so they do not fit.
    Without `cuts` lines are as wide as their values.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        width: int,
        kept: Collection[str] = (),
        *,
        cuts: bool = True,
        is_listed: bool = False,
    ) -> None:
        self._every, self._width, self._cuts = columns, width if cuts else _ANY_WIDTH, cuts
        self._choose(range(len(columns)))
        self.is_listed = is_listed or self._excess() > 0
        if is_listed:
            return
        places = [at for at, column in enumerate(columns) if column.name in kept]
        if places and not self._is_readable():
            self._leave_out(places)

    def _choose(self, places: Sequence[int]) -> None:
        self._places = places
        self._columns = [self._every[at] for at in places]
        self.short_times = False
        self.widths = [max(1, cell_len(one.name), one.wanted) for one in self._columns]
        if self._excess() > 0:
            self._set_narrow()
        # Bodies get what is left, or a text in the last column.
        bodies = [at for at, one in enumerate(self._columns) if one.kind is ColumnKind.BODY]
        last = len(self._columns) - 1
        bodies = bodies or [last] * (self._columns[last].kind is ColumnKind.TEXT)
        left = -self._excess()
        for at in bodies if left > 0 and self._cuts else ():
            self.widths[at] += left // len(bodies)

    def _leave_out(self, kept: Sequence[int]) -> None:
        """Show the columns `kept`, and as many others as leave them readable; empty ones last."""
        self._choose(kept)
        if self._excess() > 0:
            self._choose(range(len(self._every)))
            return
        self.is_listed = False
        chosen = list(kept)
        others = [at for at in range(len(self._every)) if at not in kept]
        for at in sorted(others, key=lambda at: not any(self._every[at].cells)):
            self._choose(sorted([*chosen, at]))
            if self._is_readable():
                chosen = sorted([*chosen, at])
        self._choose(chosen)

    def _is_readable(self) -> bool:
        texts = [
            width >= min(_READABLE_TEXT, one.full_width)
            for one, width in zip(self._columns, self.widths, strict=True)
            if one.kind is ColumnKind.TEXT
        ]
        return self._excess() <= 0 and all(texts)

    @property
    def left_out(self) -> list[str]:
        """The names of the columns that are not shown."""
        return [one.name for at, one in enumerate(self._every) if at not in self._places]

    def _excess(self) -> int:
        return sum(self.widths) + len(GAP) * (len(self.widths) - 1) - self._width

    def _set_narrow(self) -> None:
        names = [max(map(cell_len, one.heading), default=0) for one in self._columns]
        self.short_times = True
        needed = [one.full_width - 4 * (one.kind is ColumnKind.TIME) for one in self._columns]
        # A column has a cell even if it has no name and its first values are empty: later ones are not.
        self.widths = [max(1, *pair) for pair in zip(names, needed, strict=True)]
        least = {
            at: max(one.least, names[at])
            for at, one in enumerate(self._columns)
            if one.kind in (ColumnKind.TEXT, ColumnKind.PATH, ColumnKind.SENTENCE)
        }
        while self._excess() > 0:  # the widest text gives a cell
            texts = [at for at in least if self.widths[at] > least[at]]
            if not texts:
                break
            self.widths[max(texts, key=self.widths.__getitem__)] -= 1
        # Columns whose names have several lines get what is left.
        for at, one in enumerate(self._columns):
            wanted = cell_len(one.name) - self.widths[at]
            if 0 < wanted <= -self._excess():
                self.widths[at] += wanted

    def header(self) -> list[str]:
        """The lines of the header; none if each value has a line with its name."""
        if self.is_listed:
            return []
        pairs = zip(self._columns, self.widths, strict=True)
        names = [_lines_of(one.heading, width) for one, width in pairs]
        most = max(map(len, names), default=1)
        filled_up = [[""] * (most - len(lines)) + lines for lines in names]
        return [self._joined(line).rstrip() for line in zip(*filled_up, strict=True)]

    def lines(self, cells: Sequence[str]) -> list[str]:
        """A row in one or more lines; or one for each value that is not empty, and a blank one."""
        if self.is_listed:
            names = max(len(one.name) for one in self._columns)
            pairs = zip(self._columns, cells, strict=True)
            return [*chain.from_iterable(self._listed(*pair, names) for pair in pairs), ""]
        chosen = [cells[at] for at in self._places]
        shown = [
            _lines_of(_WORDS.findall(cell), width) or [""]
            if one.kind is ColumnKind.SENTENCE and self._cuts
            else [self._shown(one, cell, width)]
            for one, cell, width in zip(self._columns, chosen, self.widths, strict=True)
        ]
        lines = (self._joined(line) for line in zip_longest(*shown, fillvalue=""))
        return [line if at == 0 else line.rstrip() for at, line in enumerate(lines)]

    def _listed(self, column: Column, cell: str, names: int) -> list[str]:
        """A value with its name, which a sentence may need several lines for; none for an empty one."""
        room = self._width - names - len(GAP)
        wraps = column.kind is ColumnKind.SENTENCE and room >= _LEAST_SENTENCE
        lines = _lines_of(_WORDS.findall(cell), room) if wraps else [cell] * bool(cell)
        heads = [column.name, *[""] * len(lines)]
        return [padded(head, names) + GAP + line for head, line in zip(heads, lines, strict=False)]

    def _shown(self, column: Column, cell: str, width: int) -> str:
        kind = column.kind
        if kind is ColumnKind.TIME and self.short_times:
            return _MILLIS.sub("", cell)
        if not self._cuts or column.is_whole:
            return cell
        if kind is ColumnKind.PATH:
            return cut_start(cell, width)
        if kind is ColumnKind.BODY:
            return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + CUT
        return cut_middle(cell, width) if kind is ColumnKind.TEXT else cell

    def _joined(self, cells: Sequence[str]) -> str:
        """The cells of a line; a text at its end is not filled with blanks."""
        filled_up: list[str] = []
        for one, cell, width in zip(self._columns, cells, self.widths, strict=True):
            is_number = one.kind is ColumnKind.NUMBER
            is_last = len(filled_up) == len(cells) - 1 and not is_number
            filled_up.append(cell if is_last else padded(cell, width, right=is_number))
        return GAP.join(filled_up)


def _lines_of(words: Iterable[str], width: int) -> list[str]:
    """Words in lines of at most `width` cells, unless a word is longer."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + cell_len(word) <= width:
            lines[-1] += word
        else:
            lines.append(word.lstrip())
    return lines


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text with blanks up to a width."""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def cut_start(text: str, width: int) -> str:
    """A text in at most `width` cells, with its end."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) > width - len(CUT):
        text = text[1:]
    return CUT + text


def cut_middle(text: str, width: int) -> str:
    """A text in at most `width` cells, with its start and its end."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    tail = text[len(text) - end :]
    while cell_len(tail) > end:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)) + CUT + tail
