"""What a page asks and what it has: the words of an address, forms, sections and downloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.responses import Response

from rmq_store.errors import InvalidArgumentError, StoreError
from rmq_store.escaping import printable
from rmq_store.report.report_scope import Bounds, Inquiry, Named
from rmq_store.report.section import Command, Remark, Section
from rmq_store.search.log_by_time import newest_time
from rmq_store.store import MessageStore
from rmq_store.text.times import NotATimeError, Time, fixed_range, parse_time
from rmq_store.verify.findings import Severity

ROWS = 100
"""Rows of a page."""
_MOST_DAMAGE = 20  # errors that are listed


def address(page: str, **words: object) -> str:
    """The address of a page, relative to that of any other; without words that are None or empty."""
    query = {name: word for name, word in words.items() if word not in (None, "")}
    # Names from files may have halves of surrogate pairs.
    return f"{page}?{urlencode(query, errors='surrogatepass')}" if query else page


def readable(text: str) -> Markup:
    """A text for a person: lines stay lines, and what else is not printable is escaped."""
    pieces = re.split(r"([\n\t])", text.replace("\r\n", "\n"))
    return escape("".join(piece if piece in "\n\t" else printable(piece) for piece in pieces))


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. `kind`: text, long, flag, hidden, or choice among `choices`."""

    name: str
    label: str = ""
    hint: str = ""
    kind: str = "text"
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """A form. `page`: the one that answers; `button`: what is on it."""

    page: str
    button: str
    fields: Sequence[Field]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `links`: texts and addresses; `text`: of a body; `status`: of HTTP. `again`: load it again."""

    title: str
    sections: Sequence[Section] = ()
    form: Form | None = None
    links: Sequence[tuple[str, str]] = ()
    text: Markup | None = None
    status: int = 200
    again: bool = False


def download(content: bytes, name: str, media_type: str) -> Response:
    """Bytes that a browser stores, and does not show."""
    where = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, where, media_type)


@dataclass(frozen=True)
class Question:
    """What a page asks of the open store. `page`, `words`: its address; `stops`: see `Job`."""

    store: MessageStore
    named: Named
    now_ms: int
    page: str
    words: Mapping[str, str]
    stops: list[Callable[[], None]]
    damage: dict[tuple[str | None, int | None], StoreError] = field(default_factory=dict)

    def word(self, name: str) -> str | None:
        """A word; None if it is not given, or empty."""
        return self.words.get(name, "").strip() or None

    def needed(self, name: str) -> str:
        """A word. Raises InvalidArgumentError without it."""
        word = self.word(name)
        if word is None:
            raise InvalidArgumentError(reason=f"{name} is missing", advice=f"Give {name}")
        return word

    def number(self, name: str) -> int | None:
        """A whole number from 0 on; None if it is not given. Raises InvalidArgumentError."""
        word = self.word(name)
        if word is None or (word.isascii() and word.isdigit() and len(word) < 19):
            return None if word is None else int(word)
        raise InvalidArgumentError(reason=f"{name} is a whole number from 0 on", actual=repr(word))

    def times(self) -> tuple[int | None, int | None]:
        """The range of times, in ms, of the words since and until. Raises InvalidArgumentError."""
        since, until = self._time("since"), self._time("until")
        newest = partial(newest_time, [self.store])
        return fixed_range(since, until, newest, ("since", "until"))

    def _time(self, name: str) -> Time | None:
        word = self.word(name)
        try:
            return None if word is None else parse_time(word)
        except NotATimeError as error:
            raise InvalidArgumentError(reason=f"{name}: {word!r} {error}") from None

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the context lasts, `stop` too ends what the page reads."""
        self.stops.append(stop)
        try:
            yield
        finally:
            self.stops.remove(stop)

    def note(self, error: StoreError) -> None:
        """Take the error of what is left out; the page shows the first ones."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.setdefault((error.path, error.offset), error)

    def same(self, **words: object) -> str:
        """The address of this page with other words."""
        return address(self.page, **{**self.words, **words})

    def next_rows(self, start: int, count: int) -> list[tuple[str, str]]:
        """The link to the rows behind the page, of `count` rows from `start` on."""
        return [("Next rows", self.same(start=start + ROWS))] if count > ROWS else []

    def command(self, name: str, *words: object) -> Command:
        """The command that prints the same."""
        return self.named.command(name, *words)

    @cached_property
    def inquiry(self) -> Inquiry:
        """The same for a section of the report."""
        return Inquiry(self.store, self.named, Bounds(), self.now_ms)

    def left_out(self) -> list[Section]:
        """The section on what the page left out because of damage; none without any."""
        if not self.damage:
            return []
        look = self.command("verify")
        remarks = [Remark(Severity.ERROR, str(error), look) for error in self.damage.values()]
        first = "The first of them:" if len(remarks) == _MOST_DAMAGE else ""
        about = f"Places that cannot be read, so that the rows above may lack some. {first}"
        return [Section("left-out", "Left out", about, remarks=remarks)]
