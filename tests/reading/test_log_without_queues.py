"""Reads of the log alone: damage at the start of its last file hides nothing behind it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import CorruptRecordError, DataLossError, MissingFileError, StoreError
from tests.support.damage import break_start, write_at, write_in_log
from tests.support.golden import GoldenStore, in_a_queue, unpack


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.5.0", "nommap-5.5.0", "expired-5.5.0"])
@pytest.mark.parametrize("width", [1, 200, 5000])
def test_records_behind_damage_at_the_start_of_the_last_file(
    tmp_path: Path, name: str, width: int
) -> None:
    store = unpack(name, tmp_path)
    listed = [r["commitLogOffset"] for r in store.truth if in_a_queue(r)]
    start = break_start(store, width)
    hurt = {
        r["commitLogOffset"]
        for r in store.truth
        if start <= r["commitLogOffset"] < start + 4 + width
    }
    met: list[StoreError] = []
    with MessageStore.open(store.path, broker_conf=store.conf, queues=False) as opened:
        with pytest.raises(CorruptRecordError, match=f"at log offset {start}"):
            opened.read_log().read_all()
        found = opened.read_log(columns=["commitLogOffset"], on_damage=met.append).read_all()
    assert sorted(found.column(0).to_pylist()) == sorted(set(listed) - hurt)
    assert met


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", ["clean-5.5.0", "nommap-5.5.0"])
def test_a_snapshot_has_them_too_though_no_queue_lists_them(
    tmp_path: Path, name: str, closed: bool
) -> None:
    store = unpack(name, tmp_path)
    start = break_start(store, 1)
    for queues in Path(store.path).glob("*consumequeue"):
        shutil.rmtree(queues)
        queues.mkdir()
    if not closed:
        Path(store.path, "abort").touch()
    met: list[StoreError] = []
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        found = opened.read_batches(
            include_system_topics=True, columns=["commitLogOffset", "body"], on_damage=met.append
        ).read_all()
    listed = {r["commitLogOffset"] for r in store.truth if in_a_queue(r)}
    assert set(found.column(0).to_pylist()) - {None} == listed - {start}
    assert any(error.offset == start for error in met)


def test_a_file_made_ahead_is_no_damage(copy: GoldenStore) -> None:
    files = sorted(Path(copy.path, "commitlog").iterdir())
    size = files[0].stat().st_size
    (files[-1].parent / f"{int(files[-1].name) + size:020}").write_bytes(bytes(size))
    with MessageStore.open(copy.path, queues=False) as opened:
        rows = opened.read_log(columns=["commitLogOffset"]).read_all().num_rows
    assert rows == sum(map(in_a_queue, copy.truth))


@pytest.mark.parametrize("queues", [True, False])
def test_a_lost_end_of_the_log_is_an_error_where_the_read_reaches_it(
    copy: GoldenStore, queues: bool
) -> None:
    last = sorted(Path(copy.path, "commitlog").iterdir())[-1]
    write_at(last, 100_000, bytes(last.stat().st_size - 100_000))
    met: list[StoreError] = []
    with MessageStore.open(copy.path, queues=queues) as opened:
        with pytest.raises(DataLossError, match="the end of the log is lost"):
            opened.read_log().read_all()
        end = opened.log_range()[1]
        rows = opened.read_log(on_damage=met.append).read_all().num_rows
        assert opened.read_log(stop=end - 1).read_all().num_rows == rows
    assert rows == sum(in_a_queue(r) and r["commitLogOffset"] < end for r in copy.truth)
    assert [error.offset for error in met] == [end]


def test_entries_after_the_log_of_a_closed_store_prove_that_its_end_is_lost(tmp_path: Path) -> None:
    """The checkpoint of this one is older than its last messages."""
    store = unpack("ext-5.5.0", tmp_path)
    last = max(r["commitLogOffset"] for r in store.truth if in_a_queue(r))
    file = max(Path(store.path, "commitlog").iterdir())
    at = last - int(file.name)
    write_at(file, at, bytes(file.stat().st_size - at))
    lost = pytest.raises(DataLossError, match="queues list messages after it")
    with store.open() as opened, lost:
        opened.read_log().read_all()


def test_a_hole_where_a_crashed_log_ends_is_an_error(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    last_used, _ = sorted(Path(store.path, "commitlog").iterdir())[-2:]  # then one made ahead
    last_used.unlink()
    name = last_used.name.lstrip("0")
    with (
        MessageStore.open(store.path, broker_conf=store.conf) as opened,
        pytest.raises(MissingFileError, match=name),
    ):
        opened.read_log().read_all()


def test_entries_after_the_log_of_a_crashed_store_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    last_used, ahead = sorted(Path(store.path, "commitlog").iterdir())[-2:]
    os.truncate(last_used, 0)
    ahead.unlink()
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        opened.read_log().read_all()
    assert "leading after the log's end" in caplog.text


def test_a_record_that_names_another_place_is_left_out_with_a_warning(
    copy: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    listed = [r for r in copy.truth if in_a_queue(r)]
    hurt = listed[700]
    write_in_log(copy, hurt["commitLogOffset"] + 28, bytes(8))  # physicalOffset
    with MessageStore.open(copy.path) as opened:
        assert opened.read_log().read_all().num_rows == len(listed) - 1
    assert f"the first at log offset {hurt['commitLogOffset']})" in caplog.text


def test_a_record_of_a_deleted_topic_is_in_no_queue(copy: GoldenStore) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue/orders"))
    topics = Path(copy.path, "config/topics.json")
    topics.write_text(topics.read_text().replace('"orders"', '"orders-before"'))
    record = copy.by_queue[QueueId("orders", 0)][0]
    with copy.open() as store:
        message = store.message_at(record["commitLogOffset"])
    assert (message.msg_id, message.queue_offset) == (record["offsetMsgId"], None)
