"""Every page of a store that a broker wrote has the rows of the command that asks the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bs4 import Tag

from rmq_store.browse import pages
from rmq_store.browse.pages import messages_in, newest_slices, ranges_before
from rmq_store.errors import StoreError
from rmq_store.search.selection import Search, ranges_in_store
from rmq_store.tables import TABLES_OF_A_STORE
from tests.browse.conftest import Site, shown
from tests.support.golden import Golden, GoldenStore, bodies_of
from tests.support.running.campaigns import few
from tests.support.running.commands import objects, run

NAME, BATCHES = "clean-4.9.7", "batches-5.5.0"
SiteOf = Callable[[str], Site]
# What grows with the clock.
AGES = ("configAgeMs",)
CUT = "…"


@pytest.fixture
def site(site_of: SiteOf) -> Site:
    return site_of(NAME)


@pytest.fixture
def path(golden: Golden) -> str:
    return golden(NAME).path


def assert_same(
    found: Mapping[str, str], row: Mapping[str, Any], left_out: tuple[str, ...] = ()
) -> None:
    """Each value that the page shows is that of the row, and what it leaves out is empty in all rows."""
    for name, value in row.items():
        if name in (*AGES, *left_out):
            continue
        text, whole = found.get(name, ""), shown(value)
        same = text == whole or (text.endswith(CUT) and whole.startswith(text[:-1]))
        assert same, (name, text, whole)


def assert_same_rows(
    found: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]], *left_out: str
) -> None:
    assert len(found) == len(rows)
    for cells, row in zip(found, rows, strict=True):
        assert_same(cells, row, left_out)


@pytest.mark.parametrize("name", sorted(TABLES_OF_A_STORE))
@pytest.mark.parametrize("store", [NAME, "crash-5.5.0"])
def test_a_table(site_of: SiteOf, golden: Golden, store: str, name: str) -> None:
    rows = objects("table", name, golden(store).path)
    found = site_of(store).every_row("table", name, "Next rows", name=name)
    assert_same_rows(found, rows, "brokerName")


def test_all_tables_are_listed_with_their_pages(site: Site) -> None:
    page = site.get("table")
    assert [row["table"] for row in page.rows("tables")] == list(TABLES_OF_A_STORE)
    for link in page.soup.select("main table a"):
        assert site.get(str(link["href"])).status == 200


def test_rows_with_some_values(site: Site, path: str) -> None:
    rows = objects("table", "deadLetters", path)
    group = rows[0]["consumerGroup"]
    wanted = [row["msgId"] for row in rows if row["consumerGroup"] == group]
    found = site.every_row(
        "table", "deadLetters", "Next rows", name="deadLetters", consumerGroup=group
    )
    assert [row["msgId"] for row in found] == wanted
    assert not site.get("table", name="deadLetters", consumerGroup="no").rows("deadLetters")


def test_the_menu_leads_to_every_page(site: Site) -> None:
    links = site.get("topics").soup.select("header nav a")
    names = ["Overview", "Topics", "Find", "Trace", "Groups", "Dead letters", "Delayed", "Tables"]
    assert [link.get_text() for link in links] == [*names, "SQL", "Report"]
    pages = [str(link["href"]).removeprefix(".") for link in links]
    assert [site.get(page).status for page in pages] == [200] * len(pages)


def test_the_overview_has_the_facts_of_info(site: Site, path: str) -> None:
    lines = run("info", path).splitlines()
    facts = {row["fact"]: row["value"] for row in site.get("").rows("facts-of-store")}
    assert [f"{name:<12} {value}" for name, value in facts.items()] == lines
    assert "not verified: rmqstore verify STORE" in facts["queues"]


@pytest.mark.parametrize("words", [[], ["--system"]])
def test_topics(site: Site, path: str, words: list[str]) -> None:
    rows = objects("topics", path, *words)
    found = site.every_row("topics", "topics", "Next rows", system="yes" if words else None)
    assert [(row["topic"], row["messages"]) for row in found] == [
        (row["topic"], str(row["messages"])) for row in rows
    ]


def messages_of(store: GoldenStore, topic: str, *words: str) -> list[dict[str, Any]]:
    return objects("cat", store.path, "--topic", topic, *words)


@pytest.mark.parametrize(
    ("store", "topic"), [(NAME, "orders"), (NAME, "%RETRY%g-retry"), ("crash-5.5.0", "payments")]
)
def test_the_messages_of_a_topic_newest_first(
    site_of: SiteOf, golden: Golden, store: str, topic: str
) -> None:
    """Page after page all that `rmqstore cat` prints: none twice, none left out."""
    rows = messages_of(golden(store), topic)
    found = site_of(store).every_row("topic", "messages", "Older messages", name=topic)
    assert len(found) == len(rows) > 0
    for cells, row in zip(found, reversed(rows), strict=True):
        assert_same(cells, {name: row[name] for name in cells})


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ({"queue": 1}, ["--queue", "1"]),
        ({"tag": "shipped"}, ["--tag", "shipped"]),
        ({"tag": "FB || cancelled", "queue": 2}, ["--tag", "FB || cancelled", "--queue", "2"]),
        (
            {"since": "2026-11-21T09:25:08.500Z", "until": "2026-11-21T09:25:09Z"},
            ["--since", "2026-11-21T09:25:08.500Z", "--until", "2026-11-21T09:25:09Z"],
        ),
        ({"since": "-4s", "tag": "paid"}, ["--since", "-4s", "--tag", "paid"]),
    ],
)
def test_some_messages_of_a_topic(
    site: Site, golden: Golden, words: dict[str, Any], options: list[str]
) -> None:
    rows = messages_of(golden(NAME), "orders", *options)
    found = site.every_row("topic", "messages", "Older messages", name="orders", **words)
    assert rows
    assert [row["commitLogOffset"] for row in found] == [
        str(row["commitLogOffset"]) for row in reversed(rows)
    ]


def test_the_queues_of_a_topic(site: Site, path: str) -> None:
    rows = objects("queues", path, "--topic", "orders")
    found = site.get("topic", name="orders").rows("queues")
    assert_same_rows(found, rows, "brokerName", "topic")


@pytest.mark.parametrize("field", ["keys", "uniqKey", "msgId", "text", "property", "tag"])
def test_messages_are_found(site: Site, golden: Golden, field: str) -> None:
    truth = next(
        one for one in golden(NAME).truth if one["topic"] == "orders" and " " in (one["keys"] or "")
    )
    words = {
        "keys": ("key", truth["keys"].split()[0]),
        "uniqKey": ("id", truth["uniqKey"]),
        "msgId": ("id", truth["offsetMsgId"]),
        "text": ("text", "is on"),
        "property": ("property", "region=北"),
        "tag": ("tag", "paid"),
    }
    name, word = words[field]
    expect = 0 if field != "property" else 1
    rows = [] if expect else objects("find", golden(NAME).path, f"--{name}", word)
    found = site.every_row("find", "found", "Next rows", **{name: word})
    assert [row["commitLogOffset"] for row in found] == [
        str(row["commitLogOffset"]) for row in rows
    ]


def test_a_search_among_system_topics(site: Site, path: str) -> None:
    letter = objects("table", "deadLetters", path)[0]
    for words, options in (({}, []), ({"system": "yes"}, ["--system"])):
        rows = objects("find", path, "--key", letter["uniqKey"], *options)
        found = site.get("find", key=letter["uniqKey"], **words).rows("found")
        assert [row["topic"] for row in found] == [row["topic"] for row in rows]
    assert site.get("find").rows("found") == []


def test_a_message_has_what_the_command_prints(site: Site, golden: Golden) -> None:
    """By queue offset and by log offset: fields, properties and body, and the same to download."""
    store, site = golden(NAME), site
    truth = next(
        t for t in store.truth if t["topic"] == "orders" and t["queueId"] == 1 and t["body"]
    )
    where = ["--queue", "1", "--offset", str(truth["queueOffset"]), "--limit", "1"]
    (row,) = messages_of(store, "orders", *where)
    pages = [
        site.get("message", topic="orders", queue=1, offset=truth["queueOffset"]),
        site.get("message", at=truth["commitLogOffset"]),
    ]
    for page in pages:
        fields = {one["field"]: one["value"] for one in page.rows("fields")}
        assert_same(fields, row, ("body", "properties"))
        properties = {one["name"]: one["value"] for one in page.rows("properties")}
        assert properties == row["properties"]
        text = page.soup.find("pre")
        assert text is not None
        assert text.get_text() == row["body"]
        downloads = page.links()
        body, line = (site.get(downloads[one]) for one in downloads if one.startswith("Download"))
        assert body.content == bodies_of(truth)[0]
        assert line.content.decode() == run(
            "cat", store.path, "--topic", "orders", *where, "--json"
        )
        for one in (body, line):
            assert one.headers["content-disposition"].startswith('attachment; filename="message-')
            assert one.headers["content-type"] in ("application/octet-stream", "application/json")


def test_the_messages_beside_one_in_its_queue(site: Site) -> None:
    page = site.get("message", topic="orders", queue=0, offset=1)
    offsets = []
    for name in ("Previous in queue 0", "Next in queue 0"):
        beside = site.get(page.links()[name])
        offsets += [row["value"] for row in beside.rows("fields") if row["field"] == "queueOffset"]
    assert offsets == ["0", "2"]


def test_the_messages_of_an_inner_batch(site_of: SiteOf, golden: Golden) -> None:
    """The link of each leads to it, though all have the place of their record."""
    site = site_of(BATCHES)
    topic = next(r["topic"] for r in objects("topics", golden(BATCHES).path) if r["batch"])
    page = site.get("topic", name=topic)
    row, link = page.rows("messages")[1], page.soup.select("#messages tbody tr")[1].select("a")[-1]
    message = site.get(str(link["href"]))
    fields = {one["field"]: one["value"] for one in message.rows("fields")}
    assert {name: fields[name] for name in row} == row
    whole = site.get("message", at=row["commitLogOffset"]).rows("messages")
    assert row.items() <= whole[0].items() or row.items() <= whole[1].items()
    assert len(whole) > 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [("text", "a\\xff"), ("hex", "61ff"), ("base64", "Yf8="), (None, "base64:Yf8=")],
)
def test_a_body_in_other_forms(
    make_site: Callable[..., Site], form: str | None, expected: str
) -> None:
    site = make_site([{"body": b"a\xff"}])
    text = site.get(
        "message", topic="t", queue=0, offset=0, **({"as": form} if form else {})
    ).soup.pre
    assert text is not None
    assert text.get_text() == expected


def test_a_body_of_another_charset(make_site: Callable[..., Site]) -> None:
    site = make_site([{"body": "北京".encode("gbk")}])
    page = site.get("message", topic="t", queue=0, offset=0, charset="GBK")
    assert page.soup.pre is not None
    assert page.soup.pre.get_text() == "北京"
    assert site.get("message", topic="t", queue=0, offset=0, charset="nope").status == 422


def test_a_trace(site: Site, path: str) -> None:
    """Of a dead letter: records, groups, and all of that on the page of the message too."""
    letter = objects("table", "deadLetters", path)[0]
    steps = objects("trace", path, letter["uniqKey"])
    page = site.get("trace", key=letter["uniqKey"])
    for found in (page, site.get("message", at=letter["commitLogOffset"])):
        for cells, step in zip(found.rows("records-0"), steps, strict=True):
            exact = {**step, "storeTimestamp": step["storeTimestamp"]}
            assert_same(
                {**cells, "storeTimestamp": exact["storeTimestamp"]}, {n: exact[n] for n in cells}
            )
        groups = found.rows("groups-0")
        assert [one["consumerGroup"] for one in groups] == [
            one["consumerGroup"] for one in steps[0]["consumers"]
        ]
        assert [one["state"] for one in groups] == [one["state"] for one in steps[0]["consumers"]]
    assert "No message has the key nobody" in site.get("trace", key="nobody").text
    assert site.get("trace").status == 200


def test_a_message_does_not_wait_for_its_history(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an index, that is a search of the log, which a link leads to."""
    monkeypatch.setattr(pages, "_MOST_UNINDEXED", -1)
    page = site.get("message", topic="orders", queue=0, offset=1)
    assert page.rows("fields")
    assert not page.rows("records-0")
    assert site.get(page.links()["Its history"]).rows("records-0")


def test_groups(site: Site, path: str) -> None:
    rows = objects("lag", path, "--by", "group")
    page = site.get("groups")
    assert_same_rows(page.rows("groups"), rows)
    orders = site.get(site.get("topic", name="orders").links()["Its groups"])
    of_topic = [row["consumerGroup"] for row in rows if row["topic"] == "orders"]
    assert [row["consumerGroup"] for row in orders.rows("groups")] == of_topic
    group = rows[0]["consumerGroup"]
    queues = objects("lag", path, "--group", group)
    of_group = site.get("group", name=group)
    assert_same_rows(of_group.rows("queues"), queues, "brokerName", "consumerGroup")
    assert [site.get(one).status for one in of_group.links().values()] == [200] * 3
    assert site.get("group", name="nobody").status == 422


QUERIES = (
    "SELECT topic, count(*) AS n, max(storeTimestamp) AS newest FROM messages GROUP BY ALL ORDER BY n",
    "SELECT [1, NULL] AS l, {'a': 1.5} AS s, NULL AS nothing, text(body) AS t FROM messages LIMIT 3",
    "SELECT * FROM groups ORDER BY ALL",
)


@pytest.mark.parametrize("query", QUERIES)
def test_sql(site: Site, path: str, query: str) -> None:
    rows = objects("sql", path, query)
    found = site.get("sql", q=query).rows("rows")
    assert len(found) == len(rows)
    for cells, row in zip(found, rows, strict=True):
        for name, value in row.items():
            if name not in AGES:
                assert json.dumps(cells.get(name, "")) == json.dumps(shown(value)), name


def test_sql_shows_its_first_rows_and_plans(site: Site, tmp_path: Path) -> None:
    page = site.get("sql", q="FROM range(1000)")
    assert [row["range"] for row in page.rows("rows")] == [str(row) for row in range(100)]
    assert "Only the first 100 rows are shown." in page.text
    assert "SCAN" in site.get("sql", q="EXPLAIN FROM messages").text
    area = page.soup.textarea
    assert area is not None
    assert area.get_text().strip() == "FROM range(1000)"
    for wrong in ("SELEC", "SELECT 1; SELECT 2", f"COPY (SELECT 1) TO '{tmp_path / 'x'}'"):
        refused = site.get("sql", q=wrong)
        assert refused.status == 422
        assert "RMQSTORE_SQL" in refused.text
    assert not any(tmp_path.iterdir())


def test_a_query_stays_in_its_field(site: Site) -> None:
    """Line by line, also one that is refused: to be corrected."""
    for query, status in (("SELECT 1 AS n,\r\n\t'<&\u202e' AS x", 200), ("SELEC\n'\"1", 422)):
        page = site.get("sql", q=query)
        assert page.status == status
        area = page.soup.textarea
        assert area is not None
        assert area.get_text() == query.replace("\r", "").replace("\u202e", "\\u202e")
    field = site.get("topic", name="orders", since="gestern").soup.find("input", {"name": "since"})
    assert isinstance(field, Tag)
    assert field["value"] == "gestern"


def test_plots(site: Site) -> None:
    page = site.get("plots")
    assert len(page.soup.select("svg")) == 4  # two, narrow and wide
    sections = page.links()
    assert len(sections) > 10
    for link in list(sections.values())[:2]:
        assert site.get(link).status == 200
    assert site.get("plots", section="no").status == 422


COUNT = 53
COLUMNS = ("queueId", "queueOffset", "commitLogOffset")
# Inner batches, light queues, queue extensions, large and small files, a crash.
STORES = ("batches-5.5.0", "lmq-5.3.3", "ext-5.5.0", "geometry-5.5.0", "hours-crash-5.5.0")


def fail(error: StoreError) -> None:
    raise error


@pytest.mark.parametrize("tags", [None, "paid"])
@pytest.mark.parametrize("name", few("pages", STORES, "batches-5.5.0", "lmq-5.3.3"))
def test_pages_have_every_message_once(golden: Golden, name: str, tags: str | None) -> None:
    with golden(name).open() as store:
        for topic in store.topics()[:6]:
            slices = ranges_in_store(store, Search([topic]))
            whole = messages_in(store, slices, COLUMNS, tags, fail).to_pylist()
            found = []
            while any(map(len, slices)):
                newest = newest_slices(store, slices, COUNT, tags)
                rows = messages_in(store, newest, COLUMNS, tags, fail).to_pylist()
                assert len(rows) >= COUNT or newest == slices
                found += rows
                places = [
                    store.log_offset_of(part.queue, part.start) for part in newest if len(part)
                ]
                slices = ranges_before(store, slices, min(places))
            assert found == whole
