"""What a store answers for rooms above it: tables, and how a notebook shows it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from rmq_store import MessageStore, StoreError
from rmq_store.errors import AccessError, CorruptRecordError, InvalidArgumentError
from tests.support.damage import flip_body
from tests.support.golden import Golden, unpack
from tests.support.running.commands import run

NAME = "clean-4.9.7"


def test_an_empty_queue_has_neither_a_first_message_nor_a_last(golden: Golden) -> None:
    with golden("expired-5.5.0").open() as store:
        rows = store.table("queues").to_pylist()
    empty = {
        value for row in rows if not row["messages"] for name, value in row.items() if "Log" in name
    }
    assert empty == {None}


def test_tables_of_messages_take_damage(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    topic = next(r["topic"] for r in store.truth if r["topic"].startswith("%DLQ%"))
    flip_body(store, topic)
    with store.open() as opened:
        with pytest.raises(CorruptRecordError):
            opened.table("deadLetters")
        seen: list[StoreError] = []
        left = opened.table("deadLetters", on_damage=seen.append)
        assert seen
        assert left.num_rows == sum(r["topic"].startswith("%DLQ%") for r in store.truth) - 1


def test_unknown_tables_are_refused(golden: Golden) -> None:
    with golden(NAME).open() as store:
        with pytest.raises(InvalidArgumentError, match="Did you mean 'queues'"):
            store.table("queue")
        with pytest.raises(InvalidArgumentError, match="no table 'plan'"):
            store.table("plan")
        with pytest.raises(InvalidArgumentError, match="deadLetters"):
            store.table("queues", on_damage=print)


def test_a_notebook_shows_what_info_says(golden: Golden) -> None:
    store = golden(NAME)
    said = [line.split(maxsplit=1) for line in run("info", store.path).splitlines()]
    with store.open() as opened:
        page = opened._repr_html_()
        text = repr(opened)
        queues = len(opened.queues())
    cells = re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", page)
    shown = {unescape(name): unescape(value) for name, value in cells}
    expected = {name: value for name, value in said if name != "index"}
    assert {name: shown[name] for name in expected} == expected
    said_first = f"MessageStore({store.path!r}, broker_name='store', {queues} queues, log "
    assert text.startswith(said_first)
    assert len(text) < len(store.path) + 100


def test_a_name_is_no_markup(golden: Golden) -> None:
    with golden(NAME).open(broker_name="<b>\x1b[1m") as store:
        page = store._repr_html_()
    assert "&lt;b&gt;\\u001b[1m" in page
    assert "<b>" not in page


def test_a_store_that_cannot_be_read_shows_why(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: MessageStore) -> None:
        raise AccessError(store.path, reason="listing: <denied>")

    monkeypatch.setattr("rmq_store.admin.info.info_of", refuse)
    with golden(NAME).open() as store:
        page = store._repr_html_()
    assert "RMQSTORE_ACCESS" in page
    assert "listing: &lt;denied&gt;" in page
