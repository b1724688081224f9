"""Who gets a page, one page at a time, its time limit, what stops it, and a store that changes meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store.browse import pages, server
from tests.browse.conftest import Site, served
from tests.support.golden import Golden, unpack

NAME = "clean-5.2.0"
SiteOf = Callable[[str], Site]
ENDLESS = "SELECT count(*) FROM range(1000000000000) a, range(1000) b WHERE a.range % 7 = b.range"


@pytest.fixture
def site(site_of: SiteOf) -> Site:
    return site_of(NAME)


@pytest.mark.parametrize(
    "host",
    ["example.com", "example.com:80", "127.0.0.1.example.com", "", "127.0.0.1:80:80", "[::2]"],
)
def test_another_host_is_refused(site: Site, host: str) -> None:
    """Such as of a page elsewhere whose name was bound to this address."""
    got = site.ask("GET", site.path, host or " ")
    said = b"This server answers to 127.0.0.1 and localhost only.\n"
    assert (got.status, got.content) == (400, said)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8077", "localhost", "[::1]:9"])
def test_a_tunnel_may_have_another_port(site: Site, host: str) -> None:
    assert site.ask("GET", site.path, host).status == 200


@pytest.mark.parametrize("target", ["/", "/topics", "/x/topics", "/favicon.ico", "/%ff/", "//"])
def test_without_the_token_there_is_nothing(site: Site, target: str) -> None:
    for path in (target, f"{site.path[:-2]}/", f"{site.path[:-1]}x/topics"):
        got = site.ask("GET", path)
        said = b"Open the address that rmqstore browse printed.\n"
        assert (got.status, got.content) == (403, said)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_pages_are_only_read(site: Site, method: str) -> None:
    assert site.ask(method, site.path).status == 405


@pytest.mark.parametrize("page", ["", "topics", "nope", "body?topic=orders&queue=0&offset=0"])
def test_the_headers_of_every_answer(site: Site, page: str) -> None:
    for got in (site.get(page), site.ask("GET", "/"), site.ask("GET", site.path, "example.com")):
        headers = {name.lower(): value for name, value in got.headers.items()}
        assert headers["content-security-policy"].startswith("default-src 'none'; ")
        assert "script" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    head = site.ask("HEAD", site.path + page)
    assert (head.status, head.content) == (site.get(page).status, b"")


def test_the_token_alone_leads_to_the_pages(site: Site) -> None:
    got = site.ask("GET", site.path[:-1])
    assert (got.status, got.headers["location"]) == (307, site.path)
    assert site.get("nope").status == 404


def test_no_wrong_word_is_a_fault(site: Site) -> None:
    wrong = [
        "topic",
        "topic?name=nope",
        "topic?name=orders&queue=x",
        "topic?name=orders&queue=99",
        "topic?name=orders&since=yesterday",
        "topic?name=orders&since=10:00&until=09:00",
        "topic?name=orders&before=" + "9" * 30,
        "topic?name=%ff",
        "message",
        "message?at=7",
        "message?at=999999999999",
        "message?topic=orders&queue=0&offset=99999999",
        "body?at=7",
        "json?topic=nope&queue=0",
        "find?topic=nope",
        "find?id=nope&start=-1",
        "group",
        "table?name=nope",
        "trace?key=%ff",
        *("find?key=%ed%a0%80", "find?id=%ed%a0%80", "find?property=a", "find?property=="),
    ]
    for address in wrong:
        got = site.get(address)
        assert got.status == 422, address
        assert "RMQSTORE_" in got.text, address
        assert "fault of rmqstore" not in got.text, address


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE", 0.05)


@pytest.mark.usefixtures("impatient")
def test_one_page_at_a_time_and_a_link_that_stops_it(golden: Golden) -> None:
    with served(golden(NAME).path) as site:
        working = site.once("sql", q=ENDLESS)
        assert working.status == 202
        assert working.soup.select("a[autofocus]")[0].get_text() == "Stop it"
        assert "This page is being made" in working.text
        other = site.once("topics")
        assert other.status == 202
        assert "Another page is being made" in other.text
        stopped = site.get(other.links()["Stop it"])
        assert stopped.status == 200
        ended = site.get(stopped.links()["What it has come to"])
        assert (ended.status, "it was stopped by hand" in ended.text) == (422, True)
        assert site.get("topics").status == 200
        assert site.get("topic", name="orders").rows("messages")
        assert "Nothing runs" in site.get("stop").text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("page", ["sql", "find"])
def test_the_time_limit_ends_a_query_and_a_read(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    def endless(store: Any, *how: Any) -> Iterator[Any]:
        while True:
            yield from store.read_batches("orders")

    monkeypatch.setattr(pages, "find_by", endless)
    monkeypatch.setattr(pages, "ROWS", 1 << 62)
    with served(golden(NAME).path, limit=2) as site:
        got = site.get(page, **{"sql": {"q": ENDLESS}, "find": {"text": "x"}}[page])
        assert got.status == 422
        assert "it took longer than 2 s, the limit of --timeout" in got.text
        assert site.get("topic", name="orders").rows("messages")


@pytest.mark.usefixtures("impatient")
def test_a_server_that_ends_ends_what_runs(golden: Golden) -> None:
    with served(golden(NAME).path) as site:
        assert site.once("sql", q=ENDLESS).status == 202


def test_a_store_that_is_replaced_is_said_and_can_be_looked_at_again(tmp_path: Path) -> None:
    path = Path(unpack(NAME, tmp_path).path)
    other = Path(unpack("clean-4.3.2", tmp_path).path)
    with served(str(path)) as site:
        before = {row["topic"] for row in site.get("topics").rows("topics")}
        shutil.rmtree(path)
        other.rename(path)
        message = "message?topic=orders&queue=0&offset=0"
        for page in ("topic?name=orders", message, "table?name=queues"):
            got = site.get(page)
            assert got.status == 422
            assert "RMQSTORE_OTHER_STORE" in got.text
        again = site.get("again")
        assert (again.status, again.headers["location"]) == (303, ".")
        after = {row["topic"] for row in site.get("topics").rows("topics")}
        assert before != after
        shutil.rmtree(path)
        assert "RMQSTORE_NOT_A_STORE" in site.get("again").text


def test_a_store_that_grows_is_shown_as_it_was(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    from rmq_store.store import MessageStore

    site = make_site([{"body": b"old"}])
    with MessageStore.append_to(tmp_path / "made") as writer:
        writer.append({"topic": "t", "queueId": 0, "body": b"new"})
    assert len(site.get("topic", name="t").rows("messages")) == 1
    assert site.get("again").status == 303
    assert len(site.get("topic", name="t").rows("messages")) == 2
