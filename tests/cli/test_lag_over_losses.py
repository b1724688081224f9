"""What counts messages, on damaged stores: `lag` names the queues of which waiting messages are lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import OtherStoreError
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, complaint, objects, run
from tests.support.stores import append_many, make_store

NAME = "clean-5.5.0"


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_queue_without_a_middle_file_has_lost_entries(is_cut: bool, tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    file = Path(path, "consumequeue/orders/0/00000000000000002000")
    if is_cut:
        file.write_bytes(file.read_bytes()[:1000])
    else:
        file.unlink()
    rows = objects("lag", path, "--group", "g-slow", expect=1)
    (lost,) = [row for row in rows if row["queueId"] == 0]
    assert (lost["status"], lost["lagBytes"]) == ("LOST_ENTRIES", None)
    assert [row["status"] for row in rows].count("OK") == 3
    assert "rmqstore rebuild lists them" in call("lag", path).stderr


@pytest.mark.parametrize(("name", "behind"), [("786432", 5), ("524288", 4)])
def test_messages_that_wait_in_a_lost_file_of_the_log_are_lost(
    name: str, behind: int, copy: GoldenStore
) -> None:
    next(Path(copy.path, "commitlog").glob(f"*{name}")).unlink()
    rows = objects("lag", copy.path, expect=1)
    lost = [row for row in rows if row["status"] == "LOST_RECORDS"]
    assert len(lost) == behind
    assert all(row["lag"] for row in lost)
    assert {row["status"] for row in rows if row not in lost} == {"OK"}
    totals = objects("lag", copy.path, "--by", "group", expect=1)
    end_lost = behind == 5
    expected = [(4, end_lost), (int(end_lost), end_lost), (0, False)]
    assert [(row["queuesWithLoss"], row["lagMs"] is None) for row in totals] == expected
    with copy.open() as store:
        assert store.table("groups")["status"].to_pylist().count("LOST_RECORDS") == behind


def test_retries_wait_although_their_group_has_no_offset_in_that_topic(copy: GoldenStore) -> None:
    """As where a consumer stopped after it sent messages back. A client begins with the first of them."""
    with copy.open() as store:
        queue = QueueId("%RETRY%g-retry", 0)
        waiting = store.max_offset(*queue)
        assert queue.topic not in store.consumer_offsets()["g-retry"]
    said = f"; {waiting} sent back in retry topics where their groups have no offset"
    for words in ([], ["--group", "g-retry"], ["--topic", queue.topic, "--topic", "retrying"]):
        assert said in call("lag", copy.path, *words).both
    complaint_of = complaint("lag", copy.path, "--group", "g-retry", "--max-lag", "3", expect=1)
    assert f"has no offset there, and {waiting} messages wait" in complaint_of
    for words in (["--group", "g-slow"], ["--topic", "orders"]):
        assert "sent back" not in call("lag", copy.path, *words).both
    path = Path(copy.path, "config", "consumerOffset.json")
    path.write_text(path.read_text("utf-8").replace("g-retry", "g-other"), "utf-8")
    assert "sent back" not in call("lag", copy.path).both


@pytest.mark.parametrize("gone", ["the file", "the folder"])
def test_lag_without_the_file_of_offsets_is_not_known(gone: str, tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    for file in Path(path, "config").glob("consumerOffset.json*" if gone == "the file" else "*"):
        file.unlink()
    for words in ([], ["--max-lag", "10"], ["--json"]):
        said = complaint("lag", path, *words, expect=1)
        assert said.count("there is no consumerOffset.json: how far groups have consumed") == 1
        assert "g-retry" in said


def test_a_store_that_never_had_a_consumer_has_no_unknown_lag(tmp_path: Path) -> None:
    path = unpack("crash-5.3.3", tmp_path).path
    assert not Path(path, "config/consumerOffset.json").exists()
    settings = '{"subscriptionGroupTable":{"TOOLS_CONSUMER":{"groupName":"TOOLS_CONSUMER"}}}'
    Path(path, "config/subscriptionGroup.json").write_text(settings)
    assert "there is no consumerOffset.json" in complaint("lag", path, expect=0)
    for words in (["--max-lag", "10"], ["--group", "TOOLS_CONSUMER"]):
        assert "is not known. Look for the file" in complaint("lag", path, *words, expect=1)


def test_no_offset_is_no_lag_of_nothing(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    words = ("--group", "g-retry", "--group", "g-slow", "--topic", "orders", "--max-lag", "1000")
    said = complaint("lag", path, *words, expect=1)
    assert "group g-retry has no offset of topic orders" in said
    for file in Path(path, "config").glob("consumerOffset.json*"):
        file.write_text('{"offsetTable": {}}')
    assert run("lag", path).startswith("consumerGroup")
    said = complaint("lag", path, "--max-lag", "1000", expect=1)
    assert "no group has an offset, so that how far it is behind is not known" in said


def test_the_day_of_messages_without_a_record_is_not_known(copy: GoldenStore) -> None:
    last = sorted(Path(copy.path, "commitlog").iterdir())[-1]
    last.unlink()
    done = call("usage", copy.path, "--by", "day")
    days = dict(line.split("\t")[:2] for line in done.stdout.splitlines()[1:])
    gone = [one for one in copy.truth if one["commitLogOffset"] >= int(last.name)]
    assert gone
    assert set(days) == {"2026-11-21", "(not known)"}
    assert done.returncode == 1


def test_a_message_that_neither_queue_nor_log_has_is_in_the_table_of_damage(tmp_path: Path) -> None:
    """The queue ends early, as after a crash, and the log has lost one of the records after it."""
    store = unpack("clean-5.5.0", tmp_path)
    Path(store.path, "abort").touch()
    lost = store.by_queue[QueueId("orders", 0)][220]
    files = sorted(Path(store.path, "consumequeue", "orders", "0").iterdir())
    raw = b"".join(file.read_bytes() for file in files)
    kept = raw[: 200 * 20].ljust(len(raw), b"\0")
    for file in files:
        size = file.stat().st_size
        file.write_bytes(kept[:size])
        kept = kept[size:]
    at = lost["commitLogOffset"]
    write_in_log(store, at, bytes(lost["storeSize"]))
    (row,) = [row for row in objects("table", "damage", store.path) if row["queueOffset"] == 220]
    assert row["commitLogOffset"] is None
    assert row["storeSize"] is None
    everything = call("verify", store.path).stdout + call("table", "damage", store.path).stdout
    assert "offset -1" not in everything


def test_a_group_has_read_what_came_after_the_store_was_opened(tmp_path: Path) -> None:
    """Beside a running broker: its consumers commit offsets after the ends that the reader has seen."""
    make_store(tmp_path, 60)
    with MessageStore.open(tmp_path) as store:
        with MessageStore.append_to(tmp_path) as writer:
            append_many(writer, 60, first=60)
            end = writer.max_offset("orders", 0)
        assert end > store.max_offset("orders", 0)
        for offset, status in ((end, "OK"), (end + 1, "ABOVE_MAX")):
            committed = {"offsetTable": {"orders@g": {"0": offset}}}
            (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps(committed))
            (row,) = store.table("groups").to_pylist()
            assert (row["status"], row["maxOffset"], row["lag"]) == (status, end, 0)


def test_offsets_of_a_store_that_took_the_place_of_the_opened_one_are_not_compared(
    tmp_path: Path,
) -> None:
    """Its log is shorter, so that it does not look like the opened one, grown."""
    opened, other = (unpack(name, tmp_path / name) for name in ("crash-4.9.7", "clean-5.5.0"))
    committed = {"offsetTable": {"orders@g": {"0": 10**6}}}
    with MessageStore.open(opened.path) as store:
        end = store.log_range()[1]
        shutil.rmtree(opened.path)
        shutil.copytree(other.path, opened.path)
        config = Path(opened.path, "config")
        config.mkdir(exist_ok=True)
        (config / "consumerOffset.json").write_text(json.dumps(committed))
        with MessageStore.open(opened.path) as now:
            assert now.log_range()[1] < end
        with pytest.raises(OtherStoreError):
            store.table("groups").to_pylist()
