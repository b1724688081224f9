"""Writing: what is refused before a byte is written, who may write, and what a close leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import batch_topics, read_topic_configs
from rmq_store.errors import (
    InvalidArgumentError,
    InvalidMessageError,
    ReadOnlyStoreError,
    StoreError,
    StoreLockedError,
    TargetExistsError,
    UncleanStoreError,
)
from rmq_store.markers import Checkpoint
from tests.support.damage import write_in_log
from tests.support.golden import Golden, GoldenStore, files_below, unpack, verified
from tests.support.running.campaigns import few
from tests.support.running.examples import campaign, fast

SMALL = {
    "mappedFileSizeCommitLog": 8192,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 11,
    "maxIndexNum": 16,
    "maxMessageSize": 4000,
}


MAP = pa.map_(pa.string(), pa.string())


def message(**more: Any) -> dict[str, Any]:
    return {"topic": "orders", "queueId": 0, "body": b"x", **more}


def batch(*messages: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(one) for one in messages])


def test_messages_come_back_as_they_were_given(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL, broker_name="b") as store:
        done = store.append(
            message(tags="paid", keys="k1 k2", uniqKey="U1", flag=7, bornHost="[::1]:9", body=b"")
        )
        assert (done.queue_offset, done.commit_log_offset) == (0, 0)
        store.append_batch(batch(*(message(keys=f"n{i}", body=b"y" * i) for i in range(200))))
        assert store.max_offset("orders", 0) == 201
    with MessageStore.open(tmp_path / "s") as store:
        first = store.message_at(0)
        assert (first.tags, first.keys, first.uniq_key, first.flag) == ("paid", "k1 k2", "U1", 7)
        assert (first.born_host, first.body) == ("[0:0:0:0:0:0:0:1]:9", b"")
        assert first.msg_id == done.msg_id
        found = store.get_message("orders", 0, 1, max_messages=500).messages
        assert [len(one.body) for one in found] == list(range(200))
        assert [m.queue_offset for m in store.query_message("orders", "n150")] == [151]


REFUSED = {
    "body too large": (message(body=b"x" * 4001), "body"),
    "topic empty": (message(topic=""), "topic is empty"),
    "forbidden character": (message(topic="or ders"), "forbidden character"),
    "topic too long": (message(topic="t" * 128), "over 127"),
    "properties too large": (message(properties={"a": "v" * 32_767}), "properties"),
    "host": (message(bornHost="nowhere"), "ip:port"),
    "queue below 0": (message(queueId=-1), "queueId"),
    "time below 0": (message(storeTimestamp=-1), "storeTimestamp is below 0"),
    "tags differ": (message(tags="a", properties={"TAGS": "b"}), "differ"),
    "stored tags differ": (message(tags="a", rawProperties=b"TAGS\x01b\x02"), "differ"),
    "stored properties differ": (
        message(rawProperties=b"TAGS\x01b\x02", properties={"TAGS": "a"}),
        "rawProperties and properties differ",
    ),
    "unknown field": (message(qeueId=1), "queueId"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_broker_refuses_is_refused_before_a_byte_is_written(
    case: str, tmp_path: Path
) -> None:
    wrong, says = REFUSED[case]
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store.append(message())
        store.dispatch()
        before = files_below(tmp_path / "s")
        with pytest.raises(InvalidMessageError, match=says) as refused:
            store.append(wrong)
        assert "the batch" not in str(refused.value)
        arrays = {name: pa.array([value]) for name, value in wrong.items() if name != "properties"}
        if "properties" in wrong:
            arrays["properties"] = pa.array([list(wrong["properties"].items())], MAP)
        with pytest.raises(InvalidMessageError, match=says):
            store.append_batch(pa.RecordBatch.from_pydict(arrays))
        assert files_below(tmp_path / "s") == before
        store.append(message())
    with MessageStore.open(tmp_path / "s") as reader:
        assert reader.max_offset("orders", 0) == 2


def test_one_wrong_message_keeps_the_whole_batch_out(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        with pytest.raises(InvalidMessageError, match="message 2 of the batch"):
            store.append_batch(batch(message(), message(), message(body=b"x" * 5000)))
        assert store.log_range() == (0, 0)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("queueId", [0, 1, 3_000_000_000, 4], "3000000000 not in range"),
        ("queueId", ["0", "1", "one", "two"], "Failed to parse string: 'one'"),
        ("flag", [0.0, 1.0, 2.5, 3.5], "2.5.* truncated"),
        ("tags", [b"a", b"b", b"\xff", b"d"], "Invalid UTF8"),
        (
            "bornTimestamp",
            [datetime(2024, 1, 1, microsecond=us) for us in (0, 1000, 1001, 7)],
            "would lose data",
        ),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_reported_with_its_row(
    column: str, values: list[Any], says: str, tmp_path: Path
) -> None:
    columns = {"topic": ["orders"] * 4, "queueId": [0] * 4, "body": [b""] * 4, column: values}
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        with pytest.raises(InvalidMessageError, match=f"message 2 .*{column}.*{says}"):
            store.append_batch(pa.RecordBatch.from_pydict(columns))
        columns[column] = [[1]] * 4  # no value of this type fits
        with pytest.raises(InvalidMessageError, match=f"{column} has the wrong type"):
            store.append_batch(pa.RecordBatch.from_pydict(columns))
        assert store.log_range() == (0, 0)


@pytest.mark.parametrize(
    ("release", "wrong", "says"),
    [
        ("4.9.7", message(topic="%RETRY%" + "g" * 130), "5.1.0"),
        ("4.5.2", message(storeHost="[::1]:1"), "IPv6"),
    ],
)
def test_what_a_release_cannot_store_is_refused_by_name(
    release: str, wrong: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with MessageStore.create(tmp_path / "s", SMALL, release=release) as store:
        with pytest.raises(InvalidMessageError, match=f"{release}.*|{says}") as caught:
            store.append(wrong)
        assert says in str(caught.value)
        with pytest.raises(InvalidMessageError):
            store.append_batch(batch(wrong))
    with MessageStore.create(tmp_path / "new", SMALL) as store:
        store.append(wrong)


@pytest.mark.parametrize("release", ["4.2", "five", "4.3.x", ""])
def test_what_is_no_release_is_refused(release: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"one of 4\.3 to 4\.9"):
        MessageStore.create(tmp_path / "s", release=release)


def test_a_config_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="mappedFileSizeCommitLog"):
        MessageStore.create(tmp_path / "s", {"mappedFileSizeCommitlog": 8192})


def test_create_leaves_alone_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TargetExistsError, match="append_to"):
        MessageStore.create(tmp_path)
    assert files_below(tmp_path) == {"notes.txt": b"mine"}


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store.append(message())
        with pytest.raises(StoreLockedError):
            MessageStore.append_to(tmp_path / "s")
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            assert pool.apply(_error_of_appending, (str(tmp_path / "s"),)) == "StoreLockedError"
        with MessageStore.open(tmp_path / "s") as reader:  # reading needs no lock
            assert reader.max_offset("orders", 0) == 1
    with MessageStore.append_to(tmp_path / "s") as store:
        assert store.append(message()).queue_offset == 1


def _error_of_appending(path: str) -> str:
    try:
        with MessageStore.append_to(path):
            return "none"
    except StoreError as error:
        return type(error).__name__


def test_a_clean_close_leaves_what_a_broker_leaves(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        assert (tmp_path / "s/abort").read_text() == str(os.getpid())
        last = [store.append(message(queueId=i % 3, storeTimestamp=5000 + i)) for i in range(9)][-1]
    assert not (tmp_path / "s/abort").exists()
    assert (tmp_path / "s/lock").read_bytes() == b"lock"
    checkpoint = Checkpoint.read(tmp_path / "s/checkpoint")
    assert checkpoint is not None
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == 5008
    assert checkpoint.logics_physical_offset == last.commit_log_offset
    assert (tmp_path / "s/checkpoint").stat().st_size == 4096
    assert read_topic_configs(tmp_path / "s")["orders"]["writeQueueNums"] == 3


def test_an_exception_of_the_caller_still_closes_cleanly(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with MessageStore.create(tmp_path / "s", SMALL) as store:
            store.append(message())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    with MessageStore.append_to(tmp_path / "s") as store:
        assert store.max_offset("orders", 0) == 1


def test_a_write_that_fails_leaves_abort_and_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    store = MessageStore.create(tmp_path / "s", SMALL)
    store.append(message())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="No space left"):
            store.append(message())
    with pytest.raises(ReadOnlyStoreError, match="recovery"):
        store.append(message())
    store.close()
    assert (tmp_path / "s/abort").exists()
    with pytest.raises(UncleanStoreError):
        MessageStore.append_to(tmp_path / "s", recovery="refuse")
    with MessageStore.open(tmp_path / "s") as reader:
        assert reader.max_offset("orders", 0) == 1
    with MessageStore.append_to(tmp_path / "s", SMALL) as store:
        assert store.append(message()).queue_offset == 1


@pytest.mark.parametrize("name", ["crash-5.3.3", "hot-5.5.0"])
def test_a_store_that_was_not_closed_is_refused_untouched(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    before = store.fingerprint()
    with pytest.raises(UncleanStoreError, match="abort"):
        MessageStore.append_to(store.path, recovery="refuse")
    changed = {path for path, mark in store.fingerprint().items() if before.get(path) != mark}
    assert changed <= {f"{store.path}/lock"}


def test_an_unreadable_tail_is_refused(copy: GoldenStore) -> None:
    with copy.open() as reader:
        end = reader.log_range()[1]
    write_in_log(copy, end + 40, b"torn")
    with pytest.raises(UncleanStoreError, match="not a record"):
        MessageStore.append_to(copy.path, recovery="refuse")


def test_a_geometry_that_contradicts_the_files_is_refused(copy: GoldenStore) -> None:
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueue"):
        MessageStore.append_to(copy.path, {"mappedFileSizeConsumeQueue": 4000})


CONTINUED = ("clean-5.5.0", "clean-4.9.7", "direct-5.5.0", "expired-5.5.0")


@pytest.mark.parametrize("name", few("going on", CONTINUED, "clean-4.9.7", "direct-5.5.0"))
def test_a_broker_s_store_goes_on_where_it_ended(golden: Golden, name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    with golden(name).open() as reader:
        ends = {queue: reader.max_offset(*queue) for queue in reader.queues()}
        keys_before = [m.commit_log_offset for m in reader.query_message("orders", "ORDER_1")]
    release = name.rpartition("-")[2]
    with MessageStore.append_to(store.path, release=release) as writer:
        for number in range(500):
            done = writer.append(message(queueId=number % 3, keys=f"new{number} ORDER_1"))
            assert done.queue_offset == ends[("orders", number % 3)] + number // 3  # type: ignore[index]
    with store.open() as reader:
        for extent in reader.scan():
            assert extent.gap is None or extent.gap.name in ("FILLER", "UNWRITTEN")
        found = [m.commit_log_offset for m in reader.query_message("orders", "ORDER_1", 10_000)]
        assert found[: len(keys_before)] == keys_before
        assert len(found) == len(keys_before) + 500
        assert [m.keys for m in reader.query_message("orders", "new499")] == ["new499 ORDER_1"]
        for queue, end in ends.items():
            assert reader.max_offset(*queue) >= end


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
one_message = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(
            ["orders", "a-b_c%d|e", "%RETRY%" + "g" * 140, "SCHEDULE_TOPIC_XXXX"]
        ),
        "queueId": st.integers(0, 3),
        "body": st.binary(max_size=300),
        "properties": st.dictionaries(
            st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY"]), texts.filter(bool)),
            # Some releases could not tell zeros at the end from an end that was not written.
            texts.map(lambda text: text.rstrip("\0")),
            max_size=4,
        ),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sysFlag": st.sampled_from([0, 2, 4, 8, 12]),
        "bornTimestamp": st.integers(0, 2**50),
        "storeTimestamp": st.integers(1, 2**45),
        "bornHost": st.sampled_from(["1.2.3.4:5", "[2001:db8::1]:65535"]),
        "storeHost": st.sampled_from(["127.0.0.1:10911", "[::1]:10911"]),
        "reconsumeTimes": st.integers(0, 16),
        "preparedTransactionOffset": st.integers(0, 2**40),
    }
)


def check_both_ways(messages: list[dict[str, Any]], release: str, crc: bool, folder: Path) -> None:
    """One batch and single messages leave the same files but for names that are times."""
    config = StoreConfig.of({**SMALL, "enabledAppendPropCRC": crc})
    rows = [{**one, "properties": list(one["properties"].items())} for one in messages]
    kinds = {"queueId": pa.int32(), "body": pa.binary(), "properties": MAP}
    kinds |= dict.fromkeys(("topic", "bornHost", "storeHost"), pa.string())
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in rows[0]])
    with MessageStore.create(folder / "one", config, release=release) as store:
        singly = [store.append(one) for one in messages]
    with MessageStore.create(folder / "many", config, release=release) as store:
        together = store.append_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert [one.commit_log_offset for one in singly] == together.commit_log_offset.tolist()
    assert [one.queue_offset for one in singly] == together.queue_offset.tolist()
    left, right = files_below(folder / "one"), files_below(folder / "many")
    for part in ("commitlog", "consumequeue"):
        mine = {n: raw for n, raw in left.items() if n.startswith(part)}
        assert mine == {n: raw for n, raw in right.items() if n.startswith(part)}
    assert [raw for n, raw in sorted(left.items()) if n.startswith("index")] == [
        raw for n, raw in sorted(right.items()) if n.startswith("index")
    ]


@fast(8)
@given(
    messages=st.lists(one_message, min_size=1, max_size=30),
    release=st.sampled_from(["5.5.0", "5.3.3", "5.1.1"]),
    crc=st.booleans(),
)
def test_columns_are_written_as_single_messages_are(
    messages: list[dict[str, Any]],
    release: str,
    crc: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check_both_ways(messages, release, crc, tmp_path_factory.mktemp("both"))


@pytest.mark.campaign
@campaign(1000)
@given(
    messages=st.lists(one_message, min_size=1, max_size=40),
    release=st.sampled_from(["5.5.0", "5.4.0", "5.3.3", "5.2.0", "5.1.1"]),
    crc=st.booleans(),
)
def test_columns_are_written_as_single_messages_are_at_length(
    messages: list[dict[str, Any]],
    release: str,
    crc: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check_both_ways(messages, release, crc, tmp_path_factory.mktemp("both"))


def test_delay_topics_get_their_deliver_time(tmp_path: Path) -> None:
    config = {**SMALL, "messageDelayLevel": "1s 5m 2h"}
    with MessageStore.create(tmp_path / "s", config) as store:
        for level in ("1", "2", "3", "9", "0"):
            delayed = {"topic": "SCHEDULE_TOPIC_XXXX", "properties": {"DELAY": level}}
            store.append(message(storeTimestamp=1000, **delayed))
    with MessageStore.open(tmp_path / "s") as store:
        batches = store.read_batches("SCHEDULE_TOPIC_XXXX", columns=["tagsCode"])
        codes = np.concatenate([batch.column(0).to_numpy() for batch in batches])
        assert codes.tolist() == [2000, 301_000, 7_201_000, 7_201_000, 0]


def test_a_new_store_never_writes_into_the_log_whose_settings_it_was_given(tmp_path: Path) -> None:
    other = tmp_path / "other/commitlog"
    with MessageStore.create(other.parent, SMALL) as store:
        store.append(message(body=b"first"))
    before = files_below(other)
    conf = {**SMALL, "storePathCommitLog": str(other), "readOnlyCommitLogStorePaths": str(other)}
    with MessageStore.create(tmp_path / "new", conf) as store:
        store.append(message(body=b"second"))
    assert files_below(other) == before
    with MessageStore.open(tmp_path / "new") as store:
        assert store.message_at(0).body == b"second"


@pytest.mark.parametrize("path", ["store/commitlog", "./commitlog/", "../store/commitlog"])
def test_a_relative_path_of_the_log_is_that_of_a_broker(tmp_path: Path, path: str) -> None:
    """A broker reads it from the folder in which it is started, not from the store's root."""
    conf = {**SMALL, "storePathRootDir": "store", "storePathCommitLog": path}
    with MessageStore.create(tmp_path / "store", conf) as store:
        store.append(message(body=b"first"))
    assert [path.parent.name for path in tmp_path.rglob(f"{0:020}")].count("commitlog") == 1
    assert Path(tmp_path, "store", "commitlog", f"{0:020}").exists()
    with MessageStore.append_to(tmp_path / "store", conf) as store:
        store.append(message(body=b"second"))
    with MessageStore.open(tmp_path / "store") as store:
        assert store.log_range()[0] == 0
        assert sum(batch.num_rows for batch in store.read_batches()) == 2


@pytest.mark.parametrize("name", ["clean-5.5.0", "batches-5.5.0", "multipath-5.5.0"])
def test_a_lost_topics_json_is_written_with_the_kinds_of_queues_that_are_there(
    tmp_path: Path, name: str
) -> None:
    """No broker starts where it declares a topic with batch queues as a plain one."""
    store = unpack(name, tmp_path)
    batch = {path.name for path in Path(store.path, "batchconsumequeue").iterdir()}
    shutil.rmtree(Path(store.path, "config"), ignore_errors=True)
    config = StoreConfig.of({**store.log_folders})
    with MessageStore.append_to(store.path, config) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b"x"})
    assert batch_topics(read_topic_configs(store.path)) == batch
    assert verified(store.path, config=config).verdict.starts


def test_settings_of_topics_that_are_not_written_stay(copy: GoldenStore) -> None:
    """Queues that are being emptied get no new messages, and a deleted topic is not there again."""
    path = Path(copy.path, "config", "topics.json")
    content = json.loads(path.read_text("utf-8"))
    table = content["topicConfigTable"]
    table["orders"] |= {"readQueueNums": 4, "writeQueueNums": 2}
    table["retrying"] |= {"readQueueNums": 1, "writeQueueNums": 1}
    del table["payments"]
    path.write_text(json.dumps(content), "utf-8")
    with MessageStore.append_to(copy.path) as writer:
        writer.append({"topic": "orders", "queueId": 3, "body": b"x"})
        writer.append({"topic": "new", "queueId": 1, "body": b"x"})
    after = read_topic_configs(copy.path)
    numbers = {t: (s["readQueueNums"], s["writeQueueNums"]) for t, s in after.items()}
    assert (numbers["orders"], numbers["retrying"], numbers["new"]) == ((4, 2), (1, 1), (2, 2))
    assert "payments" not in after
    assert {**after, "new": None} == {**table, "new": None}
    with MessageStore.append_to(copy.path) as writer:
        writer.append({"topic": "payments", "queueId": 0, "body": b"x"})
        queues = len(writer.queues("payments"))
    assert read_topic_configs(copy.path)["payments"]["readQueueNums"] == queues > 1


def test_topics_of_a_writer_that_did_not_close_are_declared_by_the_next(tmp_path: Path) -> None:
    store, crashed = tmp_path / "store", tmp_path / "crashed"
    with MessageStore.create(store, SMALL) as writer:
        writer.append(message(queueId=0))
    with MessageStore.append_to(store, SMALL) as writer:
        writer.append(message(queueId=3))
        writer.append(message(topic="other"))
        writer.flush()
        shutil.copytree(store, crashed)
    with MessageStore.append_to(crashed, SMALL) as writer:
        writer.append(message(topic="last"))
    after = read_topic_configs(crashed)
    assert {topic: after[topic]["readQueueNums"] for topic in ("orders", "other", "last")} == {
        "orders": 4,
        "other": 1,
        "last": 1,
    }
