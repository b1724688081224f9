"""What `trace` says of transactions and of messages that a group sent back, where the broker's own records
say it in another way than usual."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rmq_store import MessageStore
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, unpack
from tests.support.log_records import fields, records
from tests.support.running.commands import objects, run

OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RETRY = "%RETRY%g-retry"


def outcome(path: str, key: str) -> str:
    return run("trace", path, key).splitlines()[0].partition(": ")[2]


def test_an_op_message_counts_whatever_its_time_is(copy: GoldenStore) -> None:
    """As where the clock was set back between a half message and its end."""
    rows = objects("transactions", copy.path)
    rolled_back = [row["uniqKey"] for row in rows if row["state"] == "rolledBack"]
    assert {outcome(copy.path, key) for key in rolled_back} == {"rolled back"}
    for record in fields(copy.path):
        if record.topic == OP:
            write_in_log(copy, record.log_offset + 56, (1_000_000_000_000).to_bytes(8, "big"))
    assert {outcome(copy.path, key) for key in rolled_back} == {"rolled back"}
    waiting = [row["uniqKey"] for row in rows if row["state"] == "open"]
    assert {outcome(copy.path, key) for key in waiting} == {"undecided"}


def test_an_op_message_may_name_the_log_offset_of_the_half_message(tmp_path: Path) -> None:
    """As with transRocksDBEnable: its body is one zero byte."""
    place = 0

    def message(topic: str, body: bytes, **properties: str) -> pa.RecordBatch:
        maps = pa.array([list(properties.items())], pa.map_(pa.string(), pa.string()))
        columns = {"topic": pa.array([topic]), "queueId": pa.array([0], pa.int32())}
        return pa.RecordBatch.from_pydict(columns | {"body": pa.array([body]), "properties": maps})

    with MessageStore.create(tmp_path / "store") as writer:
        for key in ("ENDED", "OPEN"):
            half = message(
                "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
                b"x",
                UNIQ_KEY=key,
                REAL_TOPIC="pay",
                REAL_QID="0",
            )
            done = writer.append_batch(half)
            place = place or int(done.commit_log_offset[0]) + 1
        op = message(
            "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", b"\0", TAGS="d", TRANS_OFFSET=str(place - 1)
        )
        writer.append_batch(op)
    path = str(tmp_path / "store")
    assert (outcome(path, "ENDED"), outcome(path, "OPEN")) == ("rolled back", "undecided")


def test_a_message_that_was_sent_back_waits_while_it_is_delayed(tmp_path: Path) -> None:
    """Between two attempts a message is in a delay level, for seconds up to two hours."""
    store = unpack("clean-5.5.0", tmp_path)
    retries = [r for r in fields(store.path) if r.topic == RETRY]
    key = retries[0].properties["UNIQ_KEY"]
    (before,) = list(objects("trace", store.path, key)[0]["consumers"])
    assert before["retries"] == len([r for r in retries if r.properties["UNIQ_KEY"] == key])
    for file, at, raw in list(records(store.path)):  # those that the delay level has delivered
        place = int(file.name) + at
        if place in {r.log_offset for r in retries} and key.encode() in raw:
            write_in_log(store, place + raw.index(key.encode()), b"X" * len(key))
    after = list(objects("trace", store.path, key)[0]["consumers"])
    assert [(c["consumerGroup"], c["state"], c["topic"]) for c in after] == [
        ("g-retry", "waiting", RETRY)
    ]
    assert after[0]["retries"] == before["retries"]


def test_an_offset_after_the_end_of_the_queue_proves_nothing(copy: GoldenStore) -> None:
    """A topic that was deleted and created again: on 4.x its groups keep their offsets."""
    with copy.open() as store:
        first, end = store.get_message("orders", 0, 0).messages[0], store.max_offset("orders", 0)
    path, key = Path(copy.path, "config", "consumerOffset.json"), str(first.uniq_key)
    for offset, state in ((end, "consumed"), (end + 1, "unknown")):
        path.write_text(f'{{"offsetTable":{{"orders@g":{{0:{offset}}}}}}}', "utf-8")
        (group,) = objects("trace", copy.path, key)[0]["consumers"]
        assert group["state"] == state
    assert f"was {end + 1} at" in (said := run("trace", copy.path, key))
    assert "after the end of the queue" in said
