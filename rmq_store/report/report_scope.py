"""The store that a report is about, how much of it is read, and the commands that look closer."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rmq_store.errors import printable
from rmq_store.files.remote.uri_filesystem import absolute
from rmq_store.format.queues import QueueSlice
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.questions.usage import UsageAnswer, usage_of
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report.section import Command, LeftOutSection, Section
from rmq_store.tables.table import all_ranges

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
        return cls(absolute(path), broker_conf and os.path.abspath(broker_conf), broker_name)

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
        """See `Named.command`."""
        return self.named.command(name, *words)

    @cached_property
    def messages(self) -> int:
        """The messages of all queues, light queues included."""
        return sum(map(len, all_ranges(self.store)))

    @cached_property
    def most_of_a_queue(self) -> int | None:
        """Entries of a queue that may be read; None for all."""
        if self.messages <= self.bounds.entries:
            return None
        return max(1, self.bounds.entries // max(1, len(self.store.queues())))

    @cached_property
    def usage(self) -> UsageAnswer:
        """Messages and bytes by topic and day, and the largest messages."""
        return usage_of(
            self.store, None, LARGEST, most_of_a_queue=self.most_of_a_queue, days_by_log=True
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


def missing(anchor: str, title: str, error: Exception, command: Command) -> Section:
    """A section that could not be made."""
    return Section(anchor, title, missing=LeftOutSection(str(error), command))
