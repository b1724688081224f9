"""What cannot be read is said beside what can, in the words of the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browse.conftest import Site, served
from tests.support.damage import flip_in_log
from tests.support.golden import Golden, GoldenStore, bodies_of
from tests.support.running.campaigns import few
from tests.support.running.commands import call, complaint
from tests.support.slow_s3 import s3_server, upload


def test_a_damaged_body_is_said_and_the_rest_is_shown(copy: GoldenStore) -> None:
    truth = next(t for t in copy.truth if t["topic"] == "orders" and t["body"] and not t["sysFlag"])
    flip_in_log(copy, truth["commitLogOffset"] + 88 + len(bodies_of(truth)[1]) - 1, 0xFF)
    with served(copy.path) as site:
        where = {"topic": "orders", "queue": truth["queueId"], "offset": truth["queueOffset"]}
        page = site.get("message", **where)
        fields = {row["field"]: row["value"] for row in page.rows("fields")}
        assert fields["msgId"] == truth["offsetMsgId"]
        assert page.soup.pre is None
        for one in (page, site.get("message", at=truth["commitLogOffset"])):
            assert one.status == 200
            assert "bodyCRC" in one.text
            assert "RMQSTORE_CORRUPT_RECORD" in one.text
        assert site.get("body", at=truth["commitLogOffset"]).status == 422
        found = site.get("sql", q="SELECT count(body) AS n FROM messages")
        assert found.rows("rows")[0]["n"].isdigit()
        assert "Left out" in found.text
        assert "bodyCRC" in site.get("find", topic="orders", text="zzz").text


def test_a_lost_file_of_the_log_is_on_every_page_that_meets_it(copy: GoldenStore) -> None:
    lost = sorted(Path(copy.path, "commitlog").iterdir())[1]
    lost.unlink()
    with served(copy.path) as site:
        facts = site.get("")
        said = call("info", copy.path).stdout
        for row in facts.rows("facts-of-store"):
            assert f"{row['fact']:<12} {row['value']}" in said
        assert any(row["fact"] == "damage" for row in facts.rows("facts-of-store"))
        pages = [site.get("topic", name="orders")]
        while "Older messages" in pages[-1].links():
            pages.append(site.get(pages[-1].links()["Older messages"]))
        assert all(page.status == 200 for page in pages)
        assert any("RMQSTORE_MISSING_FILE" in page.text for page in pages)
        rows = [row for page in pages for row in page.rows("messages")]
        done = call("cat", copy.path, "--topic", "orders", "--skip-damaged", "--json")
        assert len(rows) == len(done.stdout.splitlines()) > 0


OTHERS = ("crash-5.5.0", "hot-5.5.0", "expired-5.5.0", "ext-5.5.0", "lmq-5.3.3")


@pytest.mark.parametrize("name", few("pages of damage", OTHERS, "crash-5.5.0", "expired-5.5.0"))
def test_no_page_of_another_store_is_a_fault(site_of: Callable[[str], Site], name: str) -> None:
    site = site_of(name)
    topics = site.get("topics?system=yes").rows("topics")
    tables = (f"table?name={one}" for one in ("files", "scheduled", "transactions", "pop"))
    for page in ("", "groups", *tables):
        assert site.get(page).status == 200, page
    for row in topics[:6]:
        got = site.get("topic", name=row["topic"])
        assert got.status == 200, got.text
        for found in got.rows("messages")[:1]:
            assert site.get("message", at=found["commitLogOffset"]).status == 200


def test_a_store_that_cannot_be_opened_ends_the_command(tmp_path: Path) -> None:
    assert "RMQSTORE_NOT_A_STORE" in complaint("browse", os.fspath(tmp_path), "--no-open", expect=2)


def test_a_lost_file_of_a_queue_hides_no_other_message(copy: GoldenStore) -> None:
    """Page by page, over the hole."""
    files = sorted(Path(copy.path, "consumequeue", "orders", "0").iterdir())
    assert len(files) > 2
    files[1].unlink()
    done = call("cat", copy.path, "--topic", "orders", "--skip-damaged", "--json")
    with served(copy.path) as site:
        rows = site.every_row("topic", "messages", "Older messages", name="orders")
        assert "RMQSTORE_" in site.get("topic", name="orders", queue=0).text + site.get("").text
    places = [json.loads(line)["commitLogOffset"] for line in done.stdout.splitlines()]
    assert [row["commitLogOffset"] for row in rows] == [str(one) for one in reversed(places)]


def test_a_store_in_an_object_store(golden: Golden) -> None:
    """Its messages are those of the folder that was uploaded."""
    local = golden("clean-5.2.0").path
    with s3_server() as options:
        there = upload(options, local, "browsed")
        with served(local) as site, served(there, storage_options=options) as remote:
            for page, anchor in (
                ("topics", "topics"),
                ("topic?name=orders", "messages"),
                ("trace?key=ORDER_1", "records-0"),
            ):
                rows = site.get(page).rows(anchor)
                assert rows
                assert remote.get(page).rows(anchor) == rows
