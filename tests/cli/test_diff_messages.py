"""`diff --messages`: the messages of two stores, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.questions import diff_messages
from tests.conftest import user_topic
from tests.support.golden import in_a_queue
from tests.support.running.commands import Golden, call, objects
from tests.support.stores import SMALL

Sent = tuple[str, int, str]  # UNIQ_KEY, queueId, body


@pytest.fixture
def replayed(golden: Golden, tmp_path: Path) -> tuple[str, str]:
    """A store, and one that a replay made of it."""
    source, target = golden("clean-5.5.0").path, str(tmp_path / "replayed")
    assert call("replay", source, "--to", target).returncode == 0
    return source, target


def store_of(path: Path, messages: Iterable[Sent]) -> str:
    with MessageStore.create(path, SMALL) as store:
        for key, queue_id, body in messages:
            properties = {"UNIQ_KEY": key} if key else {}
            row = {"topic": "orders", "queueId": queue_id, "body": body.encode()}
            store.append({**row, "properties": properties, "bornTimestamp": 1_000})
    return str(path)


@pytest.mark.parametrize("at_once", [diff_messages._MOST, 100])
def test_a_replay_has_the_messages_of_its_source(
    golden: Golden, replayed: tuple[str, str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_messages, "_MOST", at_once)
    truth = golden("clean-5.5.0").truth
    expected = Counter(r["topic"] for r in truth if user_topic(r) and in_a_queue(r))
    rows = objects("diff", *replayed, "--messages")
    assert {row["topic"] for row in rows} == expected.keys()
    for row in rows:
        assert (row["onlyFirst"], row["onlySecond"], row["different"]) == (0, 0, 0)
        if row["topic"] != "inner":  # the messages of inner batches count one by one
            assert row["both"] == expected[row["topic"]]
    done = call("diff", *replayed, "--messages")
    assert done.returncode == 0
    assert done.stderr.startswith(f"0 topics of {len(rows)} with differences")


def test_it_names_what_one_store_lacks_and_other_bodies(tmp_path: Path) -> None:
    one = [("a", 0, "x"), ("b", 0, "x"), ("c", 1, "x"), ("d", 1, "x"), ("d", 1, "x"), ("", 2, "x")]
    two = [("c", 3, "other"), ("b", 2, "x"), ("e", 0, "x"), ("d", 0, "x"), ("", 0, "x")]
    first, second = store_of(tmp_path / "one", one), store_of(tmp_path / "two", two)
    (row,) = objects("diff", first, second, "--messages", expect=1)
    counts = {name: row[name] for name in ("both", "onlyFirst", "onlySecond", "different")}
    assert counts == {"both": 3, "onlyFirst": 2, "onlySecond": 1, "different": 1}
    messages = {
        (m["uniqKey"], m["where"], m["store"], m["queueId"], m["queueOffset"])
        for m in row["messages"]
    }
    assert messages == {
        ("a", "first", "first", 0, 0),
        ("c", "different", "first", 1, 0),
        ("d", "first", "first", 1, 2),
        ("c", "different", "second", 3, 0),
        ("e", "second", "second", 0, 0),
    }
    shown = call("diff", first, second, "--messages")
    assert shown.returncode == 1
    assert "orders\ta\tfirst\tfirst\t0\t0" in shown.stdout


def test_what_it_refuses(replayed: tuple[str, str]) -> None:
    for words, text in (
        (("--topic", "orders"), "--topic is for --messages"),
        (("--messages", "--topic", "order"), "Did you mean 'orders'"),
    ):
        done = call("diff", *replayed, *words)
        assert done.returncode == 2
        assert text in done.stderr
