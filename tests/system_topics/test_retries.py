"""The tables `retries` and `deadLetters`, held against the truth of golden stores."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import AccessError
from rmq_store.system_topics.retries import dead_letters, retries
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, Truth, in_a_queue, unpack
from tests.support.log_records import parts, records
from tests.support.running.commands import objects
from tests.support.stores import make_store

NAMES = ["clean-4.3.2", "clean-4.9.0", "clean-4.9.7", "clean-5.3.3", "clean-5.5.0"]


def origins(store: GoldenStore) -> dict[str, Truth]:
    """The messages that no consumer sent back, by UNIQ_KEY."""
    return {
        r["properties"]["UNIQ_KEY"]: r
        for r in store.truth
        if r["topic"] == "retrying" and "UNIQ_KEY" in r["properties"]
    }


@pytest.mark.parametrize("name", NAMES)
def test_retries_are_counted_by_the_message_that_was_sent_back(name: str, golden: Golden) -> None:
    store = golden(name)
    records = [r for r in store.truth if r["topic"].startswith("%RETRY%")]
    with store.open() as opened:
        found = list(retries(opened))
    expected = Counter(r["properties"]["UNIQ_KEY"] for r in records)
    assert {row["uniqKey"]: row["retries"] for row in found} == expected
    assert records
    sources = origins(store)
    for row in found:
        own = [r for r in records if r["properties"]["UNIQ_KEY"] == row["uniqKey"]]
        assert row["reconsumeTimes"] == max(r["reconsumeTimes"] for r in own)
        assert row["firstTimestamp"] == min(r["storeTimestamp"] for r in own)
        assert row["lastTimestamp"] == max(r["storeTimestamp"] for r in own)
        source = sources[row["uniqKey"]]
        place = (row["originTopic"], row["originQueueId"], row["originQueueOffset"])
        assert place == (source["topic"], source["queueId"], source["queueOffset"])
        assert row["consumerGroup"] == "g-retry"


def test_a_log_that_may_not_be_read_is_no_log_without_the_message(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(log: CommitLog, *_: object) -> None:
        raise AccessError(log.chain.folders[0], reason="Permission denied")

    with golden("clean-5.5.0").open() as opened:
        rows = retries(opened)
        monkeypatch.setattr(CommitLog, "record_or_gap_at", refuse)
        with pytest.raises(AccessError):
            list(rows)


@pytest.mark.parametrize("name", [*NAMES, "clean-5.2.0", "direct-5.5.0"])
def test_each_dead_letter_is_a_row(name: str, golden: Golden) -> None:
    store = golden(name)
    records = {
        (r["queueOffset"], r["commitLogOffset"]): r
        for r in store.truth
        if r["topic"].startswith("%DLQ%") and in_a_queue(r)
    }
    with store.open() as opened:
        found = {(row["queueOffset"], row["commitLogOffset"]): row for row in dead_letters(opened)}
    assert found.keys() == records.keys()
    for place, row in found.items():
        assert row["reconsumeTimes"] == records[place]["reconsumeTimes"]
        assert row["lastTimestamp"] == records[place]["storeTimestamp"]


def test_a_dead_letter_has_the_place_that_it_came_from(golden: Golden) -> None:
    store = golden("clean-4.9.7")
    with store.open() as opened:
        found = opened.table("deadLetters").to_pylist()
        tried = opened.table("retries").to_pylist()
    assert len(found) == 13
    sources = origins(store)
    for row in found:
        source = sources[row["uniqKey"]]
        assert row["originCommitLogOffset"] == source["commitLogOffset"]
        assert (row["consumerGroup"], row["originTopic"]) == ("g-retry", "retrying")
    given_up = {row["uniqKey"] for row in tried if row["deadLetterTimestamp"] is not None}
    assert given_up == {row["uniqKey"] for row in found}


def test_an_origin_that_expired_has_no_place(tmp_path: Path) -> None:
    store = unpack("clean-4.9.7", tmp_path)
    files = sorted(Path(store.path, "commitlog").iterdir())
    first_dead = min(r["commitLogOffset"] for r in store.truth if r["topic"].startswith("%DLQ%"))
    for path in files[:-1]:
        following = files[files.index(path) + 1]
        if int(following.name) <= first_dead:
            path.unlink()
    with store.open() as opened:
        start = opened.log_range()[0]
        found = list(dead_letters(opened))
    assert start > 0
    gone = [row for row in found if "originQueueId" not in row]
    sources = origins(store)
    expected = [row for row in found if sources[row["uniqKey"]]["commitLogOffset"] < start]
    assert gone == expected
    assert all(row["originTopic"] == "retrying" for row in found)


# --- retries of pop -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "group", "origin"),
    [
        ("%RETRY%g+a_b", "g", "a_b"),
        ("%RETRY%g_a_b", "g", "a_b"),  # consumerOffset.json has it
        ("%RETRY%x_a_b", "x_a_b", None),
    ],
)
def test_trace_and_retries_say_the_same_of_a_pop_retry(
    copy: GoldenStore, topic: str, group: str, origin: str | None
) -> None:
    # A topic of a real broker gets the name that its pop service would give; no CRC covers it.
    retry = next(r for r in copy.truth if r["topic"] == "%RETRY%g-retry")
    key = retry["properties"]["UNIQ_KEY"]
    for file, at, raw in list(records(copy.path)):
        if parts(raw)[2] != b"%RETRY%g-retry":
            continue
        new = topic.encode()
        filled = parts(raw)[3].replace(b"RETRY_TOPIC\x01", b"retry_topic\x01")
        filled = filled.replace(b"ORIGIN_MESSAGE_ID\x01", b"origin_message_id\x01")
        missing = len(b"%RETRY%g-retry") - len(new)
        filled += b"x\x01".ljust(missing - 1, b"y") + b"\x02" if missing > 2 else b" " * missing
        body_end = raw.rindex(b"%RETRY%g-retry", 0, len(raw) - 2 - len(parts(raw)[3])) - 1
        changed = raw[:body_end] + bytes([len(new)]) + new + len(filled).to_bytes(2, "big") + filled
        assert len(changed) == len(raw)
        write_at(file, at, changed)
    queues = Path(copy.path, "consumequeue")
    (queues / "%RETRY%g-retry").rename(queues / topic)
    shutil.rmtree(Path(copy.path, "index"))  # it has the keys of the old name
    config = Path(copy.path, "config")
    topics = {"a_b": {"topicName": "a_b"}, "b": {"topicName": "b"}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    offsets = {"%RETRY%g_a_b@g": {"0": 1}, "%RETRY%x_a_b@other": {"0": 1}}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    rows = [one for one in objects("retries", copy.path) if one["uniqKey"] == key]
    assert [(row["consumerGroup"], row["originTopic"]) for row in rows] == [(group, origin)]
    about = [one["about"] for one in objects("trace", copy.path, key) if one["step"] == "retry"]
    said = (
        f"group {group}, from {origin}" if origin else f"{group}, which is a group or group_topic"
    )
    assert about
    assert all(one.endswith(f" of {said}") for one in about)
    if origin is not None:
        assert objects("trace", copy.path, key, "--topic", origin)


def test_a_retry_that_names_no_topic_is_known_by_its_origin_or_by_itself(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 3)
    with MessageStore.open(tmp_path / "s") as store:
        origin = store.message_at(0)
    retry = {"topic": "%RETRY%g", "queueId": 0, "body": b"again"}
    with MessageStore.append_to(tmp_path / "s") as writer:
        writer.append({**retry, "properties": {"ORIGIN_MESSAGE_ID": origin.msg_id}})
        for _ in range(2):  # nothing says that these are of one message
            writer.append(retry)
    with MessageStore.open(tmp_path / "s") as store:
        row, *others = store.table("retries").to_pylist()
    assert len(others) == 2
    place = (row["originTopic"], row["originQueueId"], row["originCommitLogOffset"])
    assert place == ("orders", 0, 0)
