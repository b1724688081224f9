"""Answer a question: plan it, work on each share, merge the parts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Protocol, TypeVar

from rmq_store.errors import LOG, AccessError
from rmq_store.reading.store_reader import PinnedStore, StoreReader
from rmq_store.text.progress import Progress

_WORTH_IT = 64 << 20  # bytes of the log
Share = TypeVar("Share")
Part = TypeVar("Part")
Answer = TypeVar("Answer", covariant=True)
OnProgress = Callable[[int], None]
"""Receives counts during the work, in the unit of the question: bytes of the log for verify."""


class StoreSource(Protocol):
    """A store that can be opened here or, if it is picklable, in another process."""

    def open(self) -> AbstractContextManager[StoreReader]:
        """Open the store to read it. Raises what StoreReader.open raises."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process has open. Leaving `open` does not close it."""

    store: StoreReader

    def open(self) -> AbstractContextManager[StoreReader]:
        """The store."""
        return nullcontext(self.store)


class Question(Protocol[Share, Part, Answer]):
    """A question about a store. Questions, shares and parts are plain picklable values."""

    def plan(self, store: StoreReader) -> Sequence[Share]:
        """The shares of the work. Each can run in another process."""

    def work(self, store: StoreReader, share: Share, progress: OnProgress) -> Part:
        """The work on one share."""

    def weight(self, share: Share) -> int:
        """The total that `work` reports as progress of a share."""

    def merge(self, store: StoreReader, parts: Iterable[Part]) -> Answer:
        """The answer, from the parts in the order of their shares, each when it is done."""


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


class Processes:
    """Works on the shares in several processes of this host, each with the store opened for itself."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in their order, as they are done."""
        with source.open() as store:
            pinned = store.pinned()
        # A fork takes milliseconds and is safe where no other thread holds a lock.
        alone = sys.platform == "linux" and threading.active_count() == 1
        context = get_context("fork" if alone else "spawn")
        try:
            with ProcessPoolExecutor(self.workers, context, _start, (pinned,)) as pool:
                parts = pool.map(partial(_work, question), shares)
                for share, part in zip(shares, parts, strict=True):
                    progress(question.weight(share))
                    yield part
        except BrokenProcessPool as broken:
            raise AccessError(
                None,
                reason="a process that worked on a part of the store was killed, perhaps for want of memory",
                advice="Run it again with more memory free; rmqstore verify --workers 1 needs the least",
            ) from broken


def processes_for(store: StoreReader, workers: int | None = None) -> Processes | None:
    """By default a process for each core that this one may use; None for a short log, which takes less time
    than to start them."""
    start, end = store.log_range()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    count = cores if workers is None else workers
    return None if count < 2 or end - start < _WORTH_IT else Processes(count)


_pinned: PinnedStore  # in a worker of Processes
_opened: StoreReader | None = None  # there too, from the first share on


def _start(pinned: PinnedStore) -> None:
    global _pinned
    _pinned = pinned
    # A worker that raises for Ctrl-C takes the next share.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(question: Question[Share, Part, Answer], share: Share) -> Part:
    global _opened
    if _opened is None:
        LOG.disabled = True  # the parent has said what opening says
        _opened = _pinned.open()
        LOG.disabled = False
    return question.work(_opened, share, ignore)


def ask(
    question: Question[Share, Part, Answer],
    source: StoreSource,
    engine: Engine | None = None,
    *,
    progress: OnProgress | None = None,
) -> Answer:
    """The answer to a question about a store, by default computed in this process.

    A `Progress` also gets the total of the question.
    """
    with source.open() as store:
        shares = question.plan(store)
        if isinstance(progress, Progress):
            progress.expect(sum(map(question.weight, shares)))
        parts = (engine or InProcess()).run(source, question, shares, progress or ignore)
        return question.merge(store, parts)


def ignore(count: int) -> None:
    """The progress of a question that nobody looks at."""
