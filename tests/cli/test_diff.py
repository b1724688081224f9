"""diff and the table `diff`: two copies of a real broker's store, of which one was changed."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError
from tests.support.damage import flip, flip_in_log, write_at
from tests.support.golden import Golden, GoldenStore, messages_in, unpack
from tests.support.running.commands import call
from tests.support.spark.reads import rows_of

NAME = "clean-5.5.0"


@pytest.fixture
def one(tmp_path: Path) -> GoldenStore:
    return unpack(NAME, tmp_path / "one")


@pytest.fixture
def other(tmp_path: Path) -> GoldenStore:
    return unpack(NAME, tmp_path / "other")


def rows(one: GoldenStore, other: GoldenStore) -> list[dict[str, object]]:
    done = call("diff", one.path, other.path, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if found else 0), done.both
    return found


def test_the_first_record_that_differs(one: GoldenStore, other: GoldenStore) -> None:
    record = [r for r in one.truth if r["topic"] == "orders"][300]
    flip_in_log(other, record["commitLogOffset"] + record["storeSize"] // 2)
    flip_in_log(other, one.truth[-1]["commitLogOffset"] + 60)  # later ones are not looked for
    (found,) = rows(one, other)
    assert (found["what"], found["first"]) == ("log", record["commitLogOffset"])
    with MessageStore.open(one.path) as store:
        assert found["count"] == store.log_range()[1] - record["commitLogOffset"]
    place = f"orders/{record['queueId']}@{record['queueOffset']} at {record['commitLogOffset']}"
    assert str(found["one"]).startswith(place)
    assert "not a record" in str(found["other"])
    (turned,) = rows(other, one)
    assert (turned["one"], turned["other"]) == (found["other"], found["one"])


def test_what_brokers_leave_in_fillers_is_no_difference(
    one: GoldenStore, other: GoldenStore
) -> None:
    first = sorted(Path(one.path, "commitlog").iterdir())[0]
    flip_in_log(other, first.stat().st_size - 1)
    assert rows(one, other) == []


def test_a_log_and_queues_that_go_on(one: GoldenStore, other: GoldenStore) -> None:
    with MessageStore.open(one.path) as store:
        end = store.log_range()[1]
        offset = store.max_offset("orders", 1)
    with MessageStore.append_to(other.path, other.conf) as writer:
        for body in (b"a", b"b"):
            writer.append({"topic": "orders", "queueId": 1, "body": body})
    log, queue = rows(one, other)
    assert (log["what"], log["first"]) == ("log", end)
    assert "the log of the second store goes on" in str(log["meaning"])
    assert (queue["name"], queue["first"], queue["count"]) == ("orders/1", offset, 2)
    assert queue["meaning"] == "only the second store has these messages"


def test_files_that_expired_in_one(one: GoldenStore, other: GoldenStore) -> None:
    files = sorted(Path(other.path, "commitlog").iterdir())
    files[0].unlink()
    start = int(files[1].name)
    found = rows(one, other)
    assert (found[0]["what"], found[0]["first"], found[0]["count"]) == ("log", 0, start)
    gone = {(r["topic"], r["queueId"]) for r in one.truth if r["commitLogOffset"] < start}
    named = {row["name"] for row in found if row["what"] == "queue"}
    users = {f"{topic}/{queue}" for topic, queue in gone if topic in ("orders", "payments")}
    assert users <= named
    for row in found[1:]:
        topic, queue = str(row["name"]).rsplit("/", 1)
        lost = [
            r
            for r in one.truth
            if (r["topic"], str(r["queueId"])) == (topic, queue) and r["commitLogOffset"] < start
        ]
        assert row["meaning"] == "only the first store has these messages"
        assert row["first"] == min(r["queueOffset"] for r in lost)


def test_queues_offsets_and_configuration(one: GoldenStore, other: GoldenStore) -> None:
    shutil.rmtree(Path(other.path, "consumequeue", "documents"))
    unit = Path(other.path, "consumequeue", "payments", "0", "0" * 20)
    flip(unit, 20 * 3 + 19)  # the tagsCode of its fourth entry
    config = Path(other.path, "config")
    offsets = (config / "consumerOffset.json").read_text()
    (config / "consumerOffset.json").write_text(offsets.replace("0:49", "0:50"))
    topics = json.loads((config / "topics.json").read_text())
    topics["topicConfigTable"]["orders"]["readQueueNums"] = 2
    del topics["topicConfigTable"]["payments"]
    (config / "topics.json").write_text(json.dumps(topics))
    found = rows(one, other)
    assert [(row["what"], row["name"]) for row in found[:3]] == [
        ("queue", "documents/0"),
        ("queue", "payments/0"),
        ("offset", "consumer g-slow orders/0"),
    ]
    assert (found[0]["count"], found[0]["other"]) == (56, None)
    assert (found[1]["first"], found[1]["count"]) == (3, 1)
    assert (found[2]["one"], found[2]["other"]) == ("49", "50")
    values = {str(row["name"]): row["other"] for row in found[3:]}
    assert {row["what"] for row in found[3:]} == {"config"}
    assert values["topics.json topicConfigTable.orders.readQueueNums"] == "2"
    assert values["topics.json topicConfigTable.payments.perm"] is None
    assert all("payments" in name for name in values if "readQueueNums" not in name)
    turned = rows(other, one)
    assert [row["name"] for row in turned] == [row["name"] for row in found]
    assert turned[0]["meaning"] == "only the second store has this queue"


def test_the_source_of_spark_has_the_same_rows(one: GoldenStore, other: GoldenStore) -> None:
    flip_in_log(other, one.truth[40]["commitLogOffset"] + 100)
    stores = json.dumps({"master": one.path, "slave": other.path})
    (row,) = rows_of({"table": "diff", "stores": stores})
    (expected,) = rows(one, other)
    assert {**row, "brokerName": ""} == {**expected, "brokerName": ""}
    with pytest.raises(InvalidArgumentError, match="'diff' compares"):
        rows_of({"table": "diff", "path": one.path})


def test_what_follows_a_hole_in_both_logs_is_compared(one: GoldenStore, other: GoldenStore) -> None:
    for store in (one, other):
        sorted(Path(store.path, "commitlog").iterdir())[1].unlink()
    assert rows(one, other) == []
    record = one.truth[-3]
    flip_in_log(other, record["commitLogOffset"] + record["storeSize"] // 2)
    (found,) = rows(one, other)
    assert (found["what"], found["first"]) == ("log", record["commitLogOffset"])


def test_a_file_that_cannot_be_read_is_named(one: GoldenStore, other: GoldenStore) -> None:
    def damage(store: GoldenStore, text: str) -> None:
        for name in ("topics.json", "topics.json.bak"):
            Path(store.path, "config", name).write_text(text)

    damage(other, "{ cut")
    (found,) = rows(one, other)
    assert (found["what"], found["name"], found["one"]) == ("config", "topics.json", None)
    assert "RMQSTORE_CORRUPT_CONFIG" in str(found["other"])
    assert "cannot be read in the second store" in str(found["meaning"])
    damage(one, "{ cut too")
    (found,) = rows(one, other)
    assert "cannot be read in both stores" in str(found["meaning"])


def test_a_backup_that_stands_for_its_file_has_the_same_values(
    one: GoldenStore, other: GoldenStore
) -> None:
    config = Path(other.path, "config")
    shutil.copy(config / "topics.json", config / "topics.json.bak")
    (config / "topics.json").unlink()
    assert rows(one, other) == []


def test_a_secret_that_differs_is_named_and_not_shown(one: GoldenStore, other: GoldenStore) -> None:
    for store, secret in ((one, "abc"), (other, "xyz")):
        Path(store.path, "config", "plain.json").write_text(json.dumps({"secretKey": secret}))
    (found,) = rows(one, other)
    assert found["name"] == "plain.json secretKey"
    assert (found["one"], found["other"]) == ("(hidden)", "(hidden)")
    assert not any(secret in str(found) for secret in ("abc", "xyz"))


def test_tags_in_the_extension_of_a_queue_are_compared(golden: Golden, tmp_path: Path) -> None:
    store = golden("ext-5.5.0")
    done = call("rebuild", store.path, "--to", str(tmp_path / "new"), "--broker-conf", store.conf)
    assert done.returncode == 0, done.both
    assert list(Path(store.path, "consumequeue_ext").rglob("0*0"))
    done = call("diff", store.path, str(tmp_path / "new"), "--json")
    # The store has no topics.json, and the new one has.
    assert {json.loads(line)["what"] for line in done.stdout.splitlines()} == {"config"}


def test_entries_that_lead_nowhere_are_none(one: GoldenStore, other: GoldenStore) -> None:
    inside = f"consumequeue/payments/0/{0:020d}"
    write_at(Path(other.path, inside), 20 * 5, bytes(60))
    (found,) = rows(one, other)
    assert (found["name"], found["first"], found["count"]) == ("payments/0", 5, 3)
    assert found["meaning"] == "only one of the stores has an entry"
    write_at(Path(one.path, inside), 20 * 5, bytes(60))
    no_place = struct.pack(">qiq", -1, 0, 0)  # in another form
    write_at(Path(one.path, inside), 20 * 5, no_place)
    assert rows(one, other) == []


def test_an_entry_of_a_batch_counts_its_messages(one: GoldenStore, other: GoldenStore) -> None:
    batches = sorted(
        (record["queueOffset"], messages_in(record))
        for record in one.truth
        if record["topic"] == "inner"
    )
    number, (offset, count) = next(
        (number, batch) for number, batch in enumerate(batches) if number and batch[1] > 1
    )
    (unit,) = Path(other.path, "batchconsumequeue", "inner", "0").iterdir()
    flip(unit, 46 * number + 19)  # its tagsCode
    (found,) = rows(one, other)
    assert (found["name"], found["first"], found["count"]) == ("inner/0", offset, count)


def test_a_queue_file_with_the_name_of_a_distant_offset(
    one: GoldenStore, other: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are compared where there are some, and not offset by offset up to 2^57."""
    for store in (one, other):
        last = sorted(Path(store.path, "consumequeue/orders/0").iterdir())[-1]
        last.rename(last.with_name(f"{(1 << 62) // 2000 * 2000:020d}"))
    with MessageStore.open(one.path) as opened:
        view = type(opened.view)
    looks, entries_of = 0, view.entries_starting_in

    def counted(*arguments: Any) -> object:
        nonlocal looks
        looks += 1
        assert looks < 1000
        return entries_of(*arguments)

    monkeypatch.setattr(view, "entries_starting_in", counted)
    assert rows(one, other) == []
    assert looks
