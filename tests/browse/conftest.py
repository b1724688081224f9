"""Pages of `rmqstore browse`, fetched over HTTP, and read as a browser reads them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag

from rmq_store.browse.pages import address
from rmq_store.browse.server import HOST, Dashboard, loopback_socket, server_of
from rmq_store.report.section import NamedStore
from rmq_store.store import MessageStore
from tests.support.golden import GoldenStore


@dataclass(frozen=True)
class Got:
    """A response."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @cached_property
    def soup(self) -> BeautifulSoup:
        """The page."""
        return BeautifulSoup(self.content.decode(), "html.parser")

    @property
    def text(self) -> str:
        """The words of the page's content."""
        main = self.soup.find("main")
        assert isinstance(main, Tag)
        return " ".join(main.get_text(" ").split())

    def links(self) -> dict[str, str]:
        """The addresses of the links below the title, by their texts."""
        return {one.get_text(): str(one["href"]) for one in self.soup.select("main > nav a[href]")}

    def rows(self, anchor: str) -> list[dict[str, str]]:
        """The rows of a table: column -> the exact value where there is one, else what is shown."""
        table = self.soup.find("table", id=anchor)
        if table is None:
            return []
        return [
            {
                str(cell["data-column"]): str(cell.get("title") or cell.get_text())
                for cell in row.select("td")
            }
            for row in table.select("tbody tr")
        ]


@dataclass(frozen=True)
class Site:
    """A server that runs."""

    port: int
    path: str

    def get(self, where: str, **words: object) -> Got:
        """A page by its address, or by its name and words; loaded again until it is made, as by a browser."""
        while (got := self.once(where, **words)).status == 202:
            assert got.soup.select("meta[http-equiv=refresh]")
        return got

    def once(self, where: str, **words: object) -> Got:
        """What the server answers at first, which may be that it works on the page."""
        return self.ask("GET", self.path + address(where, **words))

    def ask(self, method: str, target: str, host: str | None = None) -> Got:
        """What the server answers to any request."""
        connection = http.client.HTTPConnection(HOST, self.port)
        connection.request(method, target, headers={"Host": host or f"{HOST}:{self.port}"})
        response = connection.getresponse()
        got = Got(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return got

    def every_row(
        self, where: str, anchor: str, more: str, **words: object
    ) -> list[dict[str, str]]:
        """The rows of a page and of those behind its link `more`."""
        page = self.get(where, **words)
        assert page.status == 200, page.text
        rows = page.rows(anchor)
        while more in page.links():
            page = self.get(page.links()[more])
            rows += page.rows(anchor)
        return rows


@contextmanager
def served(path: str, limit: float = 60, **how: Any) -> Iterator[Site]:
    """A server over a store, in this process."""
    dashboard = Dashboard(partial(MessageStore.open, path, **how), NamedStore.of(path), limit)
    listening = loopback_socket(0)
    server = server_of(dashboard)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield Site(listening.getsockname()[1], dashboard.path)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        dashboard.close()


@pytest.fixture(scope="module")
def site_of(golden: Callable[[str], GoldenStore]) -> Iterator[Callable[[str], Site]]:
    """`site_of(name)`: the server over a golden store."""
    with ExitStack() as stack:

        @cache
        def site(name: str) -> Site:
            return stack.enter_context(served(golden(name).path))

        yield site


def shown(value: Any) -> str:
    """A value of `--json` as a page shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """`make_site(messages)`: the server over a new store with messages, by default of topic t."""
    with ExitStack() as stack:

        def site(messages: Sequence[Mapping[str, Any]], **how: Any) -> Site:
            with MessageStore.create(tmp_path / "made") as writer:
                for message in messages:
                    writer.append({"topic": "t", "queueId": 0, **message})
            return stack.enter_context(served(str(tmp_path / "made"), **how))

        yield site
