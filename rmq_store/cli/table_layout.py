"""Columns of a table that fit a terminal: names and sentences in lines, cut texts, or one value a line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, zip_longest

from rich.cells import cell_len, set_cell_size

from rmq_store.tables.table import PATHS, SENTENCES

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
        filled = [cell for cell in cells if cell]
        if filled and not is_text and all(map(_NUMBER.match, filled)):
            return cls(name, ColumnKind.NUMBER, cells)
        is_time = bool(filled) and all(map(_TIME.match, filled))
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
        self.widths = [max(1, cell_len(column.name), column.wanted) for column in self._columns]
        if self._excess() > 0:
            self._set_narrow()
        # Bodies get what is left, or a text in the last column.
        bodies = [at for at, column in enumerate(self._columns) if column.kind is ColumnKind.BODY]
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
        names = [max(map(cell_len, column.heading), default=0) for column in self._columns]
        self.short_times = True
        needed = [
            column.full_width - 4 * (column.kind is ColumnKind.TIME) for column in self._columns
        ]
        # A column has a cell even if it has no name and its first values are empty: later ones are not.
        self.widths = [max(1, *pair) for pair in zip(names, needed, strict=True)]
        least = {
            at: max(column.least, names[at])
            for at, column in enumerate(self._columns)
            if column.kind in (ColumnKind.TEXT, ColumnKind.PATH, ColumnKind.SENTENCE)
        }
        while self._excess() > 0:  # the widest text gives a cell
            texts = [at for at in least if self.widths[at] > least[at]]
            if not texts:
                break
            self.widths[max(texts, key=self.widths.__getitem__)] -= 1
        # Columns whose names have several lines get what is left.
        for at, column in enumerate(self._columns):
            wanted = cell_len(column.name) - self.widths[at]
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
            names = max(len(column.name) for column in self._columns)
            pairs = zip(self._columns, cells, strict=True)
            return [*chain.from_iterable(self._listed(*pair, names) for pair in pairs), ""]
        chosen = [cells[at] for at in self._places]
        shown = [
            _lines_of(_WORDS.findall(cell), width) or [""]
            if column.kind is ColumnKind.SENTENCE and self._cuts
            else [self._shown(column, cell, width)]
            for column, cell, width in zip(self._columns, chosen, self.widths, strict=True)
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
