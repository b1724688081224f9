"""Names, properties and bodies that a browser would act on: shown, escaped, and never markup."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin

import pytest

from rmq_store.errors import printable
from rmq_store.tables import TABLES_OF_A_STORE
from tests.browse.conftest import Got, Site, served
from tests.support.damage import RAW, hostile_store

TOPICS = (
    "<script>alert(1)<",
    "a\nb",
    '"><img src=x onerror=alert(1)>',
    "bi\u202edi",
    "x&name=y",
    "%41",
)
GROUPS = ("</pre><script>", "it's {{ 7 * 7 }}", "g\x1b]0;x\x07", "javascript:alert(1)")
HTML = (
    b"<!doctype html><script>alert(document.domain)</script><h1 id=main>\x00\xe2\x80\xae\r\n\tline"
)
OWN = (
    "html head meta link title style body a header p nav ul li main h1 h2 h3 form label input textarea "
    "select option button pre section div table caption thead tbody tr th td code span"
)


def assert_harmless(got: Got) -> None:
    """Only elements of the pages, no script, and links that stay below the token."""
    text = got.content.decode()
    assert RAW.search(text) is None, RAW.search(text)
    for element in got.soup.find_all(True):
        assert element.name in OWN.split(), element
        for name, value in element.attrs.items():
            assert not name.startswith("on"), name
            if name in ("href", "src", "action"):
                where = urljoin("http://h/token/page", str(value))
                assert where.startswith(("http://h/token/", "data:,")), value


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A real store with hostile topics and groups, beside a folder name that is HTML."""
    offsets = [f"{topic}@{group}" for topic in TOPICS for group in GROUPS]
    with served(hostile_store(tmp_path_factory.mktemp("<i>$e$"), TOPICS, offsets)) as site:
        yield site


PAGES = [
    *("", "topics", "groups", "table", "nope", "%3Cb%3E", "stop", "message?at=%3Cb%3E"),
    *("find?key=%3Cscript%3E", "trace?key=%3Cscript%3E", "topic?name=%3Cscript%3E"),
    *("find?text=%ed%a0%80", "sql?q=FROM+topics", "sql?q=%3C%2Ftextarea%3E%3Cscript%3E"),
    *(
        "sql?q=SELECT+%27%3Cb%3E%27+AS+%22%3Ci%3E%22",
        *(f"table?name={x}" for x in TABLES_OF_A_STORE),
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_harmless(hostile: Site, page: str) -> None:
    assert_harmless(hostile.get(page))


def test_every_name_is_shown_and_leads_to_its_page(hostile: Site) -> None:
    topics = hostile.get("topics?system=yes")
    assert {printable(name) for name in TOPICS} <= {row["topic"] for row in topics.rows("topics")}
    groups = hostile.get("groups")
    listed = {row["consumerGroup"] for row in groups.rows("groups")}
    assert {printable(name) for name in GROUPS} <= listed
    for page, names, title in ((topics, TOPICS, "Topic"), (groups, GROUPS, "Group")):
        links = {one.get_text(): str(one["href"]) for one in page.soup.select("main table a")}
        for name in names:
            got = hostile.get(links[printable(name)])
            assert_harmless(got)
            assert f"{title} {' '.join(printable(name).split())}" in got.text


MESSAGES: list[dict[str, Any]] = [
    {"body": HTML, "properties": {"TAGS": "<i>", "KEYS": "<b>1 \"'&", "<u>": "</td><script>"}},
    {"body": HTML + b"<p>" * (1 << 18), "properties": {"huge": "<" * 30_000}},
    {"body": json.dumps({"a": "\u202e</pre>"}, ensure_ascii=False).encode()},
    {"body": b""},
]


def test_messages_are_harmless(make_site: Callable[..., Site]) -> None:
    site = make_site(MESSAGES)
    listed = site.get("topic", name="t")
    assert_harmless(listed)
    assert len(listed.rows("messages")) == len(MESSAGES)
    for offset, message in enumerate(MESSAGES):
        for form in ("", "text", "json", "hex", "base64"):
            page = site.get("message", topic="t", queue=0, offset=offset, **{"as": form})
            assert page.status == 200
            assert_harmless(page)
        body = site.get(next(link for name, link in page.links().items() if "body" in name))
        assert body.content == message["body"]
        assert body.headers["content-type"] == "application/octet-stream"
        assert body.headers["content-disposition"].startswith("attachment")
        assert body.headers["x-content-type-options"] == "nosniff"
    assert_harmless(site.get("trace", key="<b>1"))
    assert_harmless(site.get("sql", q="SELECT *, text(body) AS t FROM messages"))
    assert_harmless(site.get("find", text="<script>"))


def test_a_body_is_shown_line_by_line_and_a_large_one_in_part(
    make_site: Callable[..., Site],
) -> None:
    site = make_site([{"body": b"a\n\tb\x1b[1m"}, {"body": b"x" * (1 << 20)}])
    texts = [site.get("message", topic="t", queue=0, offset=at).soup.pre for at in (0, 1)]
    assert texts[0] is not None
    assert texts[0].get_text() == "a\n\tb\\u001b[1m"
    assert texts[1] is not None
    assert texts[1].get_text().endswith("983,040 more characters: download the body")
