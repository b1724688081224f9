"""`diff --messages`: the messages of two stores, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.questions import diff_messages
from tests.support.damage import write_in_log
from tests.support.golden import Golden, GoldenStore, in_a_queue, unpack, user_topic
from tests.support.running.commands import call, complaint, objects, run
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


@pytest.mark.parametrize("at_once", [diff_messages._COMPARED_AT_ONCE, 100])
def test_a_replay_has_the_messages_of_its_source(
    golden: Golden, replayed: tuple[str, str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_messages, "_COMPARED_AT_ONCE", at_once)
    truth = golden("clean-5.5.0").truth
    expected = Counter(r["topic"] for r in truth if user_topic(r) and in_a_queue(r))
    rows = objects("diff", *replayed, "--messages")
    assert {row["topic"] for row in rows} == expected.keys()
    for row in rows:
        assert (row["onlyFirst"], row["onlySecond"], row["different"]) == (0, 0, 0)
        if row["topic"] != "inner":  # the messages of inner batches count one by one
            assert row["both"] == expected[row["topic"]]
    said = complaint("diff", *replayed, "--messages", expect=0)
    assert said.startswith(f"0 topics of {len(rows)} with differences")


@pytest.mark.parametrize("at_once", [diff_messages._COMPARED_AT_ONCE, 2])
def test_it_names_what_one_store_lacks_and_other_bodies(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_messages, "_COMPARED_AT_ONCE", at_once)
    one = [("a", 0, "x"), ("b", 0, "x"), ("c", 1, "x"), ("c", 1, "y"), ("c", 1, "y")]
    one += [("d", 1, "x"), ("d", 1, "x"), ("", 2, "x"), ("", 2, "y")]
    two = [("c", 3, "other"), ("c", 3, "x"), ("b", 2, "x"), ("e", 0, "x"), ("d", 0, "x")]
    two += [("", 0, "x"), ("", 0, "z")]
    first, second = store_of(tmp_path / "one", one), store_of(tmp_path / "two", two)
    *rows, counts = objects("diff", first, second, "--messages", expect=1)
    found = {"both": 4, "onlyFirst": 4, "onlySecond": 2, "different": 1}
    assert counts == {"topic": "orders", **found}
    names = ("uniqKey", "where", "store", "queueId", "queueOffset")
    assert {tuple(row[name] for name in names) for row in rows} == {
        ("a", "first", "first", 0, 0),
        ("c", "different", "first", 1, 1),
        ("c", "first", "first", 1, 2),
        ("d", "first", "first", 1, 4),
        (None, "first", "first", 2, 1),
        ("c", "different", "second", 3, 0),
        ("e", "second", "second", 0, 0),
        (None, "second", "second", 0, 3),
    }
    assert "orders\ta\tfirst\tfirst\t0\t0" in run("diff", first, second, "--messages", expect=1)


@pytest.mark.campaign
def test_spark_gives_the_same_answer(
    spark: SparkSession, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many shares, of which one has a message that the other store lacks, and another has damage."""
    monkeypatch.setattr(diff_messages, "_SHARE_BYTES", 256 << 10)
    hurt = unpack("clean-5.5.0", tmp_path)
    hurt_record(hurt)
    words = (
        "diff",
        golden("clean-5.5.0").path,
        hurt.path,
        "--messages",
        "--skip-damaged",
        "--json",
    )
    here, there = (call(*words, "--engine", engine) for engine in ("local", "spark"))
    assert here.returncode == 1
    assert '"onlyFirst":1' in here.stdout
    assert "left out: [RMQSTORE_CORRUPT_RECORD]" in here.stderr
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)


def hurt_record(store: GoldenStore) -> None:
    """Destroy the magic of one record of the topic orders."""
    record = next(r for r in store.truth if r["topic"] == "orders" and len(r["body"]) > 40)
    write_in_log(store, record["commitLogOffset"] + 4, bytes(4))


def test_damage_ends_it_or_is_left_out(golden: Golden, tmp_path: Path) -> None:
    whole, hurt = golden("clean-5.5.0").path, unpack("clean-5.5.0", tmp_path)
    hurt_record(hurt)
    words = ("diff", whole, hurt.path, "--messages", "--topic", "orders")
    assert "--skip-damaged" in complaint(*words, expect=2)
    assert "orders\t970\t1\t0\t0" in run(*words, "--skip-damaged", expect=1)


def test_what_it_refuses(replayed: tuple[str, str]) -> None:
    for words, text in (
        (("--topic", "orders"), "--topic is for --messages"),
        (("--skip-damaged",), "--skip-damaged is for --messages"),
        (("--engine", "spark"), "--engine is for --messages"),
        (("--messages", "--topic", "order"), "Did you mean 'orders'"),
    ):
        assert text in complaint("diff", *replayed, *words, expect=2)
