"""How a question is answered: planned, worked on share by share, merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rmq_store.store import MessageStore

Share = TypeVar("Share")
Part = TypeVar("Part")
Answer = TypeVar("Answer", covariant=True)
OnProgress = Callable[[int], None]
"""Receives counts as work proceeds, in the unit of the question: bytes of the log for verify."""


class StoreSource(Protocol):
    """A store that can be opened, here or, where this is picklable, in another process."""

    def open(self) -> AbstractContextManager[MessageStore]:
        """The store, to read. Raises what MessageStore.open raises."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process has open already; leaving `open` does not close it."""

    store: MessageStore

    def open(self) -> AbstractContextManager[MessageStore]:
        """The store."""
        return nullcontext(self.store)


class Question(Protocol[Share, Part, Answer]):
    """What is asked. Questions, shares and parts are plain values that pickle."""

    def plan(self, store: MessageStore) -> Sequence[Share]:
        """The shares of the work; each can be done by another process."""

    def work(self, store: MessageStore, share: Share, progress: OnProgress) -> Part:
        """The work on one share."""

    def weight(self, share: Share) -> int:
        """What `work` reports as progress of a share in all."""

    def merge(self, store: MessageStore, parts: Sequence[Part]) -> Answer:
        """The answer, from the parts in the order of their shares."""


class Engine(Protocol):
    """Runs the work of a question."""

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in their order, as they are done."""


class InProcess:
    """Works on one share after the other in this process."""

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in their order, as they are done."""
        with source.open() as store:
            for share in shares:
                yield question.work(store, share, progress)


class Stopped(Exception):
    """The work was asked to stop before all of it was done, so there is no answer."""


def ask(
    question: Question[Share, Part, Answer],
    source: StoreSource,
    engine: Engine | None = None,
    *,
    progress: OnProgress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """The answer of a question about a store, by default worked out in this process.

    Raises Stopped where `should_stop`, asked after each part, says so before the last part is done.
    """
    with source.open() as store:
        shares = question.plan(store)
        parts: list[Part] = []
        running = (engine or InProcess()).run(source, question, shares, progress or _ignore)
        for part in running:
            parts.append(part)
            if len(parts) < len(shares) and should_stop():
                raise Stopped
        return question.merge(store, parts)


def ask_opened(
    question: Question[Share, Part, Answer],
    store: MessageStore,
    progress: OnProgress | None = None,
) -> Answer:
    """The answer of a question about an open store, worked out in this process."""
    return ask(question, OpenedStore(store), progress=progress)


def _ignore(count: int) -> None:
    return
