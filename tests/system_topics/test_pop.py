"""What groups popped, in stages of one store, as the client was given it and acknowledged it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmq_store import MessageStore
from rmq_store.system_topics import pop
from rmq_store.system_topics.pop import PopLog
from rmqstore_jobs.dlq import DlqSpec
from rmqstore_jobs.dlq import run as resend
from tests.support.golden import GoldenStore, unpack_field, unpack_state
from tests.support.log_records import fields
from tests.support.rocksdb import write_database
from tests.support.running.commands import call, complaint, objects, run
from tests.support.stores import SMALL

STAGES = (
    "s0-given-none-acked-at-once",
    "s1-8acked-2changed",
    "s2-revived",
    "s3-second",
    "s4-end-running",
)
INVISIBLE_MS = 12_000  # by the pops; of the two that were changed 20 s, of those in order 30 s


class Given(NamedTuple):
    """A message that the client has: until when nobody else gets it, and how often it was given."""

    until: int
    attempt: int


class Stage(NamedTuple):
    """What the client had not acknowledged, and what it had, when the store was copied."""

    path: Path
    waiting: dict[str, Given]
    acknowledged: Counter[str]


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    folder = unpack_field("pop-stages-5.5.0", tmp_path, "state")
    waiting: dict[str, Given] = {}
    acknowledged = Counter[str]()
    for event in map(json.loads, (folder / "events.jsonl").read_text().splitlines()):
        if event.get("copy") == request.param:
            now = event["t"]
            still = {name: given for name, given in waiting.items() if given.until > now}
            return Stage(folder / request.param, still, acknowledged)
        if "given" in event:
            waiting[event["given"]] = Given(event["t"] + INVISIBLE_MS, event["attempt"])
        elif "fifo_given_kept" in event:
            waiting[event["fifo_given_kept"]] = Given(event["t"] + 30_000, event["attempt"])
        elif "changed" in event:
            until = event["t"] + 20_000
            waiting[event["changed"]] = waiting[event["changed"]]._replace(until=until)
        elif "acked" in event:
            waiting.pop(event["acked"])
            acknowledged[event["acked"]] += 1
    raise AssertionError(f"there is no stage {request.param}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of the table, each with the body of its message."""
    bodies = {(r.topic, r.queue_id, r.queue_offset): r.body.decode() for r in fields(path)}
    return [
        row | {"body": bodies[row["topic"], row["queueId"], row["queueOffset"]]}
        for row in objects("table", "pop", str(path))
    ]


def test_it_has_what_the_client_had(stage: Stage) -> None:
    rows = rows_of(stage.path)
    waiting = {row["body"]: row["timesGiven"] for row in rows if row["state"] == "invisible"}
    assert waiting == {name: given.attempt for name, given in stage.waiting.items()}
    of_checkpoints = [row for row in rows if row["acknowledgedTimestamp"] is not None]
    acknowledged = Counter(row["body"] for row in of_checkpoints)
    # The proxy acknowledges what it writes as a dead letter, and the client notes its own a moment late.
    dead = Counter(r.body.decode() for r in fields(stage.path) if r.topic == "%DLQ%gp")
    assert stage.acknowledged + dead <= acknowledged
    assert (acknowledged - stage.acknowledged - dead).total() <= 1


def test_lag_counts_what_was_not_acknowledged_apart(stage: Stage) -> None:
    with MessageStore.open(stage.path) as store:
        offsets = store.consumer_offsets()
    expected = Counter(
        (row["consumerGroup"], row["topic"], row["queueId"])
        for row in rows_of(stage.path)
        if row["state"] in ("invisible", "due")
        and row["queueOffset"]
        < offsets.get(row["consumerGroup"], {}).get(row["topic"], {}).get(row["queueId"], 0)
    )
    lag = {
        (row["consumerGroup"], row["topic"], row["queueId"]): row["notAcknowledged"]
        for row in objects("table", "groups", str(stage.path))
    }
    assert {key: count for key, count in lag.items() if count} == expected
    if expected:
        said = call("lag", str(stage.path)).stderr
        assert f"{expected.total()} popped before their offsets" in said


def test_lag_says_that_it_read_the_newest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack_field("pop-stages-5.5.0", tmp_path, "state") / "s2-revived"
    monkeypatch.setattr(pop, "NEWEST", 6)
    assert "; at least 1 popped before their offsets" in call("lag", str(store)).stderr


def test_lag_and_trace_go_on_where_it_is_not_known(tmp_path: Path) -> None:
    store = unpack_field("pop-stages-5.5.0", tmp_path, "state") / "s3-second"
    for path in (store / "config").glob("consumerOrderInfo.json*"):
        path.write_text("{")
    rows = objects("table", "groups", str(store))
    assert rows
    assert {row["notAcknowledged"] for row in rows} == {None}
    record = next(record for record in fields(store) if record.topic == "popt")
    for words in (("lag", str(store)), ("trace", str(store), record.properties["UNIQ_KEY"])):
        assert "consumerOrderInfo.json" in complaint(*words, expect=0)
    assert "consumerOrderInfo.json" in call("table", "pop", str(store)).stderr


def test_a_message_in_order_is_invisible_until_the_time_that_a_client_has_set(
    copy: GoldenStore,
) -> None:
    """OrderInfo#needBlock: `ot` has the time of a queue offset, instead of popTime + i."""
    newest = max(record["storeTimestamp"] for record in copy.truth)
    until = newest + 600_000
    order = {"o": [38, 1], "popTime": newest - 40_000, "i": 30_000, "cm": 0, "ot": {"38": until}}
    path = Path(copy.path, "config", "consumerOrderInfo.json")
    path.write_text(json.dumps({"table": {"orders@g": {"0": order}}}), "utf-8")
    with copy.open() as store:
        rows = store.table("pop").to_pylist()
    found = {
        row["queueOffset"]: (row["state"], int(row["invisibleUntil"].timestamp() * 1000))
        for row in rows
        if row["consumerGroup"] == "g"
    }
    assert found == {38: ("invisible", until), 39: ("due", newest - 10_000)}


def test_a_database_has_what_was_not_acknowledged(tmp_path: Path) -> None:
    """As a broker with popConsumerKVServiceEnable keeps it (PopConsumerRocksdbStore)."""
    store = unpack_field("pop-stages-5.5.0", tmp_path, "state") / STAGES[0]
    row = {"popTime": 1_000, "groupId": "gk", "topicId": "popt", "queueId": 1, "retryFlag": 0}
    row |= {"invisibleTime": 1 << 50, "offset": 10, "attemptTimes": 0, "suspend": False}
    retry = row | {"retryFlag": 1, "invisibleTime": 5, "offset": 3}
    values = {bytes([at]): json.dumps(one).encode() for at, one in enumerate((row, retry))}
    write_database(store / "kvStore", {"popState": values})
    rows = [row for row in objects("table", "pop", str(store)) if row["consumerGroup"] == "gk"]
    found = [(row["topic"], row["queueOffset"], row["state"], row["timesGiven"]) for row in rows]
    assert found == [("popt", 10, "invisible", 1), ("%RETRY%gk_popt", 3, "due", 1)]


def test_a_message_that_is_given_again_in_its_queue_counts_twice() -> None:
    """Where a broker lost the group's offset; a changed invisible time is no further pop."""

    def check_point(at: int, time: int, until: int, count: int = 1) -> dict[str, Any]:
        content = {"c": "g", "t": "t", "q": 0, "so": at, "pt": time, "it": until - time, "bm": 0}
        body = json.dumps(content | {"n": count, "d": []}).encode()
        place = {
            "queueId": 0,
            "queueOffset": time,
            "topic": None,
            "dueTimestamp": None,
            "commitLogOffset": 0,
        }
        return {"heldIn": "rmq_sys_REVIVE_LOG_c", "tags": "ck", "body": body, **place}

    log = PopLog({})
    for row in (check_point(5, 10, 20, 2), check_point(6, 15, 40), check_point(5, 30, 50)):
        assert list(log.ended_by(row)) == []
    (offsets,) = log.open.values()
    found = {at: (pop.given, pop.until, pop.times) for at, pop in offsets.items()}
    assert found == {5: (30, 50, 2), 6: (10, 40, 1)}


@pytest.mark.parametrize(
    "changed",
    [
        {"c": ["g"], "t": {}},
        {"n": 10**15},
        {"n": 10**30},
        {"so": -1},
        {"pt": 1 << 70},
        {"it": "12000"},
        {"d": [1.5]},
        {"bm": None},
        {"it": 1 << 60},
        {"pt": 1 << 60},
    ],
)
def test_a_check_point_that_no_broker_writes_ends_nothing(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    content = {"c": "g", "t": "t", "q": 0, "so": 5, "pt": 1000, "it": 10, "bm": 0, "n": 1, "d": []}
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        bodies = [*map(json.dumps, (content | changed, content, [], {"c": "g"})), "[" * 3_000]
        for text in bodies:
            record = {"topic": "rmq_sys_REVIVE_LOG_c", "queueId": 0, "tags": "ck"}
            store.append({**record, "body": text.encode()})
    rows = [row for row in objects("table", "pop", str(tmp_path / "s")) if row["topic"] == "t"]
    assert call("pop", str(tmp_path / "s")).returncode == 0
    assert ("g", 5) in {(row["consumerGroup"], row["queueOffset"]) for row in rows}
    assert len(rows) < 2000


def test_a_batch_of_acknowledgements_has_no_offset_0() -> None:
    """enablePopBatchAck: `aol` has the offsets, and `ao` is 0 (PopBufferMergeService#putBatchAckToStore)."""
    content = {"c": "g", "t": "t", "q": 0, "so": 0, "pt": 10}
    row = {"heldIn": "rmq_sys_REVIVE_LOG_c", "queueId": 0, "topic": None, "dueTimestamp": None}
    row["commitLogOffset"] = 0
    given = json.dumps(content | {"it": 10, "bm": 0, "n": 5, "d": []}).encode()
    log = PopLog({})
    assert list(log.ended_by(row | {"queueOffset": 0, "tags": "ck", "body": given})) == []
    batch = json.dumps(content | {"ao": 0, "aol": [3, 4]}).encode()
    ended = log.ended_by(row | {"queueOffset": 1, "tags": "bAck", "body": batch})
    states = {offset: state for _, offset, _, state in ended}
    assert states == {3: "acknowledged", 4: "acknowledged"}
    (offsets,) = log.open.values()
    assert sorted(offsets) == [0, 1, 2]


def test_a_copy_of_another_group_is_no_retry_of_this_one(tmp_path: Path) -> None:
    """Both groups popped the message; it came again to one of them alone."""
    content = {"t": "t", "q": 0, "so": 0, "pt": 1000, "it": 10, "bm": 0, "n": 1, "d": []}
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        message = {"queueId": 0, "body": b"x", "properties": {"UNIQ_KEY": "K" * 32}}
        store.append({"topic": "t", **message})
        store.append({"topic": "%RETRY%one_t", **message, "reconsumeTimes": 1})
        for group in ("one", "other"):
            body = json.dumps(content | {"c": group}).encode()
            topic = "rmq_sys_REVIVE_LOG_c"
            store.append({"topic": topic, "queueId": 0, "tags": "ck", "body": body})
    rows = objects("table", "pop", str(tmp_path / "s"))
    states = {row["consumerGroup"]: row["state"] for row in rows if row["topic"] == "t"}
    assert states == {"one": "retried", "other": "due"}


def test_trace_says_who_popped_a_message(stage: Stage) -> None:
    ends = {}
    for row in objects("table", "pop", str(stage.path)):
        ends[row["topic"], row["queueId"], row["queueOffset"]] = row["state"]
    popped = [record for record in fields(stage.path) if record.topic == "popt"][::7]
    seen = Counter[str]()
    for record in popped:
        steps = objects("trace", str(stage.path), record.properties["UNIQ_KEY"])
        last = next(step for step in reversed(steps) if step["topic"] != "rmq_sys_wheel_timer")
        state = ends.get((last["topic"], last["queueId"], last["queueOffset"]))
        if state is None and not (stage.path / "config" / "consumerOffset.json").exists():
            assert last["consumers"] == []  # nothing says that a group reads the topic
            continue
        (consumer,) = last["consumers"]
        seen[consumer["state"]] += 1
        if last["topic"].startswith("%DLQ%"):
            assert consumer["state"] == "dead"
        elif state in ("invisible", "due"):
            assert consumer["state"] == "popped"
        elif state == "acknowledged":
            assert consumer["state"] == "consumed"
        assert consumer["consumerGroup"] == "gp"
    assert seen.total() > 1


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack_state("pop-5.5.0", tmp_path)


def dead_and_given(store: GoldenStore) -> dict[str, int]:
    """Of each dead letter, by KEYS, how often the client was given it."""
    given = Counter(event["given"] for event in store.lines("events") if "given" in event)
    dead = [record for record in fields(store.path) if record.topic == "%DLQ%gp"]
    return {record.keys: given[record.body.decode()] for record in dead}


def test_each_was_given_as_often_as_the_client_was(store: GoldenStore) -> None:
    expected = dead_and_given(store)
    assert set(expected.values()) == {3}
    (report,) = objects("dlq", store.path, "--top", "100")
    letters = {row["keys"]: row for row in report["tables"]["theNewest"]}
    assert letters.keys() == expected.keys()
    assert {row["originTopic"] for row in letters.values()} == {"popt"}
    for key, times in expected.items():
        assert f"failed {times} times" in letters[key]["why"]
        assert f"after {times} attempts" in run("trace", store.path, key)


def test_they_are_sent_again_to_the_topic_that_they_came_from(
    store: GoldenStore, tmp_path: Path
) -> None:
    target = tmp_path / "again"
    assert resend(None, DlqSpec(store.path, groups=("gp",), resend=str(target))).ok
    assert {record.topic for record in fields(target)} == {"popt"}
    assert {record.keys for record in fields(target)} == dead_and_given(store).keys()


def test_their_origin_topic_selects_them_and_is_refused_where_they_are_sent_again(
    store: GoldenStore, tmp_path: Path
) -> None:
    """Not the retry topic from which the client got them last: `%RETRY%gp_popt`."""
    expected = dead_and_given(store)
    (report,) = objects("dlq", store.path, "--topic", "popt", "--top", "100")
    assert {row["keys"] for row in report["tables"]["theNewest"]} == expected.keys()
    (none,) = objects("dlq", store.path, "--topic", "%RETRY%gp_popt")
    assert not any(none["tables"].values())
    target = str(tmp_path / "again")
    said = complaint("dlq", store.path, "--topic", "popt", "--to", target, expect=2)
    assert "by group, not by origin topic" in said
    assert not Path(target).exists()
    said = complaint("dlq", store.path, "--origin-topic", "popt", expect=2)
    assert "unknown option --origin-topic" in said
