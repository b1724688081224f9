"""The one thread that reads the store: one page at a time, within a time limit, until somebody stops it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from starlette.responses import Response

from rmq_store.store import MessageStore

Work = Callable[[MessageStore, "Job"], Response]
"""What makes an answer by a store that is open."""

_PATIENCE = 1.5  # seconds that a browser waits for an answer, or for its turn
_AGAIN = 0.1  # seconds from one order to stop to the next: what runs may not have begun to read
_MOST_KEPT = 4  # answers that no browser has fetched yet


class Job:
    """A page that is being made. `stops`: what ends the reads and queries that it has begun."""

    def __init__(self, address: str) -> None:
        self.address, self.began = address, time.monotonic()
        self.stops: list[Callable[[], None]] = []
        self.why_stopped: str | None = None
        self.done: asyncio.Future[Response]
        self.watch: asyncio.Task[None]
        self._order = asyncio.Event()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    def stop(self, why: str) -> None:
        """Give the order to stop."""
        self.why_stopped = self.why_stopped or why
        self._order.set()

    def end(self) -> None:
        """End what it reads now."""
        for stop in list(self.stops):
            stop()

    async def end_within(self, seconds: float) -> None:
        """Stop the job when somebody gives the order, or when its time is over."""
        order = asyncio.ensure_future(self._order.wait())
        tasks: set[asyncio.Future[Any]] = {self.done, order}
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        order.cancel()
        while not self.done.done():
            self.stop(f"it took longer than {seconds:g} s, the limit of --timeout")
            self.end()
            await asyncio.wait({self.done}, timeout=_AGAIN)


class Desk:
    """Answers by the open store, one after the other, in a thread of its own."""

    def __init__(self, open_store: Callable[[], MessageStore], limit: float) -> None:
        """`limit`: seconds for an answer. Raises as `open_store`."""
        self._open, self._limit = open_store, limit
        self._thread = ThreadPoolExecutor(1, "rmqstore-browse")
        self._jobs: dict[str, Job] = {}
        self.store, self.opened_ms = open_store(), time.time_ns() // 1_000_000

    def look_again(self) -> None:
        """Show the store as it is now. Raises as `open_store`, and the state from before stays."""
        before, self.store = self.store, self._open()
        before.close()
        self.opened_ms = time.time_ns() // 1_000_000
        for at, job in list(self._jobs.items()):  # answers about the state from before
            if job.done.done():
                self._jobs.pop(at, None)

    @property
    def running(self) -> Job | None:
        """The job that runs."""
        return next((job for job in self._jobs.values() if not job.done.done()), None)

    async def answer(self, address: str, work: Work) -> Response | Job:
        """What `work` returns, or raises; the job that still runs if that takes long, which may be another.

        Whoever comes again to the address gets the answer then.
        """
        job = self._jobs.get(address)
        if job is None:
            before = self.running
            if before is not None:
                await asyncio.wait({before.done}, timeout=_PATIENCE)
            if self.running is not None:
                return self.running
            job = self._begin(address, work)
        await asyncio.wait({job.done}, timeout=_PATIENCE)
        if not job.done.done():
            return job
        if self._jobs.get(address) is job:
            self._jobs.pop(address, None)
        return job.done.result()

    def _begin(self, address: str, work: Work) -> Job:
        for old in list(self._jobs)[: -_MOST_KEPT + 1]:
            del self._jobs[old]
        job = self._jobs[address] = Job(address)
        loop = asyncio.get_running_loop()
        job.done = loop.run_in_executor(self._thread, self._run, job, work)
        job.done.add_done_callback(lambda done: done.exception())  # nobody may come for it
        job.watch = loop.create_task(job.end_within(self._limit))
        return job

    def _run(self, job: Job, work: Work) -> Response:
        job.stops.append(self.store.end_reads)
        try:
            return work(self.store, job)
        finally:
            if job.why_stopped is not None:
                ended, self.store = self.store, self.store.again()
                ended.close()

    def close(self) -> None:
        """End what runs, and close the store."""
        last = self._thread.submit(self.store.close)
        while wait([last], _AGAIN).not_done:
            for job in self._jobs.values():
                job.end()
        self._thread.shutdown()
