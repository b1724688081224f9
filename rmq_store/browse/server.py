"""The pages over HTTP, for one person on this host: on loopback, behind a token, read only."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rmq_store.browse.pages import FORMS, PAGES, Page, PageRequest, address, readable_text
from rmq_store.errors import LOG, InvalidArgumentError, StoreError
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report.page import drawn_plots, template_environment
from rmq_store.report.section import LeftOutSection, NamedStore, Section
from rmq_store.text.times import shown_time

MENU = (
    ("Overview", "."),
    ("Topics", "topics"),
    ("Find", "find"),
    ("Trace", "trace"),
    ("Groups", "groups"),
    ("Dead letters", address("table", name="deadLetters")),
    ("Delayed", address("table", name="scheduled")),
    ("Tables", "table"),
    ("SQL", "sql"),
    ("Report", "plots"),
)
"""What every page leads to: texts and addresses."""


Work = Callable[[StoreReader, "PageJob"], Response]
"""What makes an answer by a store that is open."""

_PATIENCE = 1.5  # seconds that a browser waits for an answer, or for its turn
# Seconds from one order to stop to the next: what runs may not have begun to read.
_ORDERS_EVERY_S = 0.1
_MOST_KEPT = 4  # answers that no browser has fetched yet


class PageJob:
    """A page that is being made. `stops`: what ends the reads and queries that it has begun."""

    def __init__(self, address: str) -> None:
        self.address, self.began = address, time.monotonic()
        self.stops: list[Callable[[], None]] = []
        self.why_stopped: str | None = None
        self.done: asyncio.Future[Response]
        self.watch: asyncio.Task[None]

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    def stop(self, why: str) -> None:
        """Give the order to stop."""
        self.why_stopped = self.why_stopped or why

    def end(self) -> None:
        """End what it reads now."""
        for stop in list(self.stops):
            stop()

    async def end_within(self, seconds: float) -> None:
        """Stop the job when somebody gives the order, or when its time is over."""
        while not self.done.done():
            if self.seconds > seconds:
                self.stop(f"it took longer than {seconds:g} s, the limit of --timeout")
            if self.why_stopped is not None:
                self.end()
            await asyncio.wait({self.done}, timeout=_ORDERS_EVERY_S)


class StoreThread:
    """Answers by the open store, one after the other, in a thread of its own."""

    def __init__(self, open_store: Callable[[], StoreReader], limit: float) -> None:
        """`limit`: seconds for an answer. Raises as `open_store`."""
        self._open, self._limit = open_store, limit
        self._thread = ThreadPoolExecutor(1, "rmqstore-browse")
        self._jobs: dict[str, PageJob] = {}
        self.store, self.opened_ms = open_store(), time.time_ns() // 1_000_000

    def show_as_now(self) -> None:
        """Show the store as it is now. Raises as `open_store`, and the state from before stays."""
        before, self.store = self.store, self._open()
        before.close()
        self.opened_ms = time.time_ns() // 1_000_000
        for at, job in list(self._jobs.items()):  # answers about the state from before
            if job.done.done():
                self._jobs.pop(at, None)

    @property
    def running(self) -> PageJob | None:
        """The job that runs."""
        return next((job for job in self._jobs.values() if not job.done.done()), None)

    async def answer(self, address: str, work: Work) -> Response | PageJob:
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

    def _begin(self, address: str, work: Work) -> PageJob:
        for old in list(self._jobs)[: -_MOST_KEPT + 1]:
            del self._jobs[old]
        job = self._jobs[address] = PageJob(address)
        loop = asyncio.get_running_loop()
        job.done = loop.run_in_executor(self._thread, self._run, job, work)
        job.done.add_done_callback(lambda done: done.exception())  # nobody may come for it
        job.watch = loop.create_task(job.end_within(self._limit))
        return job

    def _run(self, job: PageJob, work: Work) -> Response:
        job.stops.append(self.store.end_reads)
        try:
            return work(self.store, job)
        finally:
            if job.why_stopped is not None:
                ended, self.store = self.store, self.store.reopen()
                ended.close()

    def close(self) -> None:
        """End what runs, and close the store."""
        last = self._thread.submit(self.store.close)
        while wait([last], _ORDERS_EVERY_S).not_done:
            for job in self._jobs.values():
                job.end()
        self._thread.shutdown()


HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost", "[::1]")  # of this host; a tunnel may have another port
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_AGAIN, _STOP = "again", "stop"


class Dashboard:
    """Answers requests. `app` is the application; `path`: where its pages are."""

    def __init__(
        self, open_store: Callable[[], StoreReader], named: NamedStore, limit: float
    ) -> None:
        """`limit`: seconds for a page. Raises as `open_store`."""
        self._token = secrets.token_urlsafe(24)
        self.path = f"/{self._token}/"
        self._named = named
        self._store_thread = StoreThread(open_store, limit)
        self._template = template_environment("rmq_store.browse", "rmq_store.report").get_template(
            "browse.html"
        )
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET"])])

    async def _answer(self, request: Request) -> Response:
        response = self._refused(request) or await self._allowed(request)
        response.headers.update(_HEADERS)
        return response

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        name, _, port = host.rpartition(":")
        if (name if port.isdigit() else host) not in _NAMES:
            return PlainTextResponse("This server answers to 127.0.0.1 and localhost only.\n", 400)
        token = request.path_params["path"].partition("/")[0]
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return PlainTextResponse("Open the address that rmqstore browse printed.\n", 403)
        return None

    async def _allowed(self, request: Request) -> Response:
        _, slash, name = request.path_params["path"].partition("/")
        if not slash:
            return RedirectResponse(self.path)
        if name == _STOP:
            return self._stopped()
        if name not in (*PAGES, _AGAIN):
            return self._shown(Page("There is no such page", status=404))
        query = request.url.query
        own = f"{name}?{query}" if query else name or "."
        make = self._seen_again if name == _AGAIN else partial(self._made, name, query)
        done = await self._store_thread.answer(own, make)
        return self._shown(_waiting(done, own)) if isinstance(done, PageJob) else done

    def _stopped(self) -> Response:
        job = self._store_thread.running
        if job is None:
            return self._shown(Page("Nothing runs"))
        job.stop("it was stopped by hand")
        return self._shown(Page("Stopped", links=[("What it has come to", job.address)]))

    def _seen_again(self, store: StoreReader, job: PageJob) -> Response:
        try:
            self._store_thread.show_as_now()
        except StoreError as error:
            return self._shown(self._failed(str(error), _AGAIN))
        return RedirectResponse(".", 303)

    def _made(self, name: str, query: str, store: StoreReader, job: PageJob) -> Response:
        """A page for the words of an address. Errors become pages."""
        words: dict[str, str] = {}
        question = PageRequest(
            store, self._named, time.time_ns() // 1_000_000, name, words, job.stops
        )
        page: Page | Response
        try:
            words.update(_words(query))
            with store.refusing_replacement():
                page = PAGES[name](question)
        except (StoreError, OSError) as error:
            page = self._failed(str(error), name)
        except Exception as error:  # of any kind: times and names are foreign
            LOG.exception("the page %s cannot be made", name)
            page = self._failed(f"a fault of rmqstore: {error!r}", name)
        if job.why_stopped is not None:
            page = self._failed(job.why_stopped, name)
        if isinstance(page, Response):
            return page
        return self._shown(
            replace(page, sections=[*page.sections, *question.left_out()]), words, job.address
        )

    def _failed(self, reason: str, name: str) -> Page:
        """The page that says why there is none."""
        missing = LeftOutSection(reason, self._named.command("info"))
        sections = [Section("failed", "", missing=missing)]
        return Page("No page", sections, FORMS.get(name), status=422)

    def _shown(self, page: Page, words: dict[str, str] | None = None, own: str = "") -> Response:
        sections, drawn = drawn_plots(page.sections)
        html = self._template.render(
            page=page,
            sections=sections,
            words={name: readable_text(word) for name, word in (words or {}).items()},
            menu=MENU,
            own=own,
            store=self._named.path,
            opened=shown_time(self._store_thread.opened_ms),
            svg_of=lambda plot, narrow: drawn[plot.anchor, narrow],
        )
        # Halves of surrogate pairs are escaped in what is shown, not in what a field has.
        return HTMLResponse(html.encode("utf-8", "replace"), page.status)

    def close(self) -> None:
        """End what runs, and close the store."""
        self._store_thread.close()


def _words(query: str) -> dict[str, str]:
    """The words of an address. Raises InvalidArgumentError for what is not UTF-8."""
    try:
        return dict(parse_qsl(query, errors="surrogatepass"))
    except ValueError:
        raise InvalidArgumentError(reason="the address is not UTF-8") from None


def _waiting(job: PageJob, own: str) -> Page:
    """The page that stands for one that is not made yet, and loads it again."""
    what = "This page" if job.address == own else "Another page"
    about = f"{what} is being made, for {job.seconds:.0f} seconds so far. One is made at a time."
    links = [("Stop it", _STOP), ("Look at it", job.address)]
    return Page("Working", [Section("working", "", about)], None, links, None, 202, again=True)


def loopback_socket(port: int) -> socket.socket:
    """A socket on loopback; port 0: one that is free. Raises InvalidArgumentError if it cannot be had."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise InvalidArgumentError(
            reason=f"port {port} cannot be had: {error.strerror}",
            advice="Leave --port out, and a free one is taken",
        ) from None


def server_of(dashboard: Dashboard) -> uvicorn.Server:
    """What answers by a dashboard until a signal, or its `should_exit`."""
    config = uvicorn.Config(
        dashboard.app,
        log_level="warning",
        access_log=False,  # it would have the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(dashboard: Dashboard, listening: socket.socket) -> None:
    """Answer until ctrl-C or SIGTERM; close the store then."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with closing(dashboard), suppress(KeyboardInterrupt):
            server_of(dashboard).run([listening])
    finally:
        signal.signal(signal.SIGTERM, before)
