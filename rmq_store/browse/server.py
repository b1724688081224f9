"""The pages over HTTP, for one person on this host: on loopback, behind a token, read only."""

from __future__ import annotations

import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rmq_store.browse.desk import Desk, Job
from rmq_store.browse.page import Page, Question, readable
from rmq_store.browse.pages import FORMS, MENU, PAGES
from rmq_store.errors import InvalidArgumentError, StoreError
from rmq_store.escaping import LOG
from rmq_store.report.page import drawn_plots, templates
from rmq_store.report.report_scope import Named
from rmq_store.report.section import LeftOutSection, Section
from rmq_store.store import MessageStore
from rmq_store.text.times import shown_time

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

    def __init__(self, open_store: Callable[[], MessageStore], named: Named, limit: float) -> None:
        """`limit`: seconds for a page. Raises as `open_store`."""
        self._token = secrets.token_urlsafe(24)
        self.path = f"/{self._token}/"
        self._named = named
        self._desk: Desk = Desk(open_store, limit)
        self._template = templates("rmq_store.browse", "rmq_store.report").get_template(
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
        done = await self._desk.answer(own, make)
        return self._shown(_waiting(done, own)) if isinstance(done, Job) else done

    def _stopped(self) -> Response:
        job = self._desk.running
        if job is None:
            return self._shown(Page("Nothing runs"))
        job.stop("it was stopped by hand")
        return self._shown(Page("Stopped", links=[("What it has come to", job.address)]))

    def _seen_again(self, store: MessageStore, job: Job) -> Response:
        try:
            self._desk.look_again()
        except StoreError as error:
            return self._shown(self._failed(str(error), _AGAIN))
        return RedirectResponse(".", 303)

    def _made(self, name: str, query: str, store: MessageStore, job: Job) -> Response:
        """A page for the words of an address. Errors become pages."""
        words: dict[str, str] = {}
        question = Question(store, self._named, time.time_ns() // 1_000_000, name, words, job.stops)
        page: Page | Response
        try:
            words.update(_words(query))
            with store.of_one_store():
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
            words={name: readable(word) for name, word in (words or {}).items()},
            menu=MENU,
            own=own,
            store=self._named.path,
            opened=shown_time(self._desk.opened_ms),
            svg_of=lambda plot, narrow: drawn[plot.anchor, narrow],
        )
        # Halves of surrogate pairs are escaped in what is shown, not in what a field has.
        return HTMLResponse(html.encode("utf-8", "replace"), page.status)

    def close(self) -> None:
        """End what runs, and close the store."""
        self._desk.close()


def _words(query: str) -> dict[str, str]:
    """The words of an address. Raises InvalidArgumentError for what is not UTF-8."""
    try:
        return dict(parse_qsl(query, errors="surrogatepass"))
    except ValueError:
        raise InvalidArgumentError(reason="the address is not UTF-8") from None


def _waiting(job: Job, own: str) -> Page:
    """The page that stands for one that is not made yet, and loads it again."""
    what = "This page" if job.address == own else "Another page"
    about = f"{what} is being made, for {job.seconds:.0f} seconds so far. One is made at a time."
    links = [("Stop it", _STOP), ("Look at it", job.address)]
    return Page("Working", [Section("working", "", about)], None, links, None, 202, again=True)


def listening_on(port: int) -> socket.socket:
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
