"""From the log to queue and index: inline and by a thread, with failures and light queues."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import CorruptRecordError, ReadOnlyStoreError
from rmq_store.format.record import decode_properties
from rmq_store.writing.dispatcher import Reput
from tests.support.stores import (
    SMALL,
    append_many,
    batch_of,
    contents,
    index_answers,
    make_store,
    one_message,
)


def check_alike(one: Path, other: Path) -> None:
    with MessageStore.open(one) as first, MessageStore.open(other) as second:
        assert contents(first) == contents(second)
        assert index_answers(first) == index_answers(second)


def test_a_thread_that_follows_leaves_what_writing_inline_leaves(tmp_path: Path) -> None:
    make_store(tmp_path / "inline", 400)
    before = set(threading.enumerate())
    with MessageStore.create(tmp_path / "thread", SMALL) as store:
        store.follow_in_background()
        append_many(store, 400)
        threads = set(threading.enumerate()) - before
    # A flush that takes place just now has some for a moment.
    threads = {thread for thread in threads if not thread.name.startswith("rmqstore-fetch")}
    assert {thread.name for thread in threads} == {"rmqstore-flush", "rmqstore-reput"}
    assert (len(threads), [thread for thread in threads if thread.is_alive()]) == (2, [])
    check_alike(tmp_path / "inline", tmp_path / "thread")
    assert not (tmp_path / "thread/abort").exists()


@pytest.mark.parametrize("background", [False, True])
def test_dispatched_messages_are_in_the_files_of_their_queues(
    background: bool, tmp_path: Path
) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        if background:
            store.follow_in_background()
        append_many(store, 10)
        store.dispatch()
        with MessageStore.open(tmp_path / "s") as reader:
            state = reader.snapshot().queues[QueueId("orders", 1)]
        assert (state.file_stop, state.tail) == (store.max_offset("orders", 1), None)


def test_entries_that_fail_are_tried_again_and_never_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = os.pwrite, iter([False, False, True, False, True, True] + [False] * 10**5)

    def flaky(fd: int, data: Any, at: int) -> int:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}") and next(failures):
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", flaky)
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store.follow_in_background(retry_seconds=0)
        append_many(store, 200)
    monkeypatch.undo()
    make_store(tmp_path / "whole", 200)
    check_alike(tmp_path / "s", tmp_path / "whole")


def test_after_all_retries_the_store_takes_no_more_and_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def broken(fd: int, data: Any, at: int) -> int:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, at)

    store = MessageStore.create(tmp_path / "s", SMALL)
    store.follow_in_background(retries=2, retry_seconds=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        store.append(one_message(0))
        with pytest.raises(ReadOnlyStoreError, match="recovers"):
            store.dispatch()
        with pytest.raises(ReadOnlyStoreError):
            store.append(one_message(1))
        store.close()
    assert (tmp_path / "s/abort").exists()
    with MessageStore.append_to(tmp_path / "s", SMALL) as again:
        assert again.max_offset("orders", 0) == 1


def test_an_unexpected_error_ends_the_dispatch_visibly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, found: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("rmq_store.consumequeue.queue_files.QueueWriter.add_entries", broken)
    store = MessageStore.create(tmp_path / "s", SMALL)
    store.follow_in_background(retries=2, retry_seconds=0)
    store.append(one_message(0))
    with pytest.raises(ReadOnlyStoreError, match="recovers"):
        store.dispatch()
    store.close()
    assert (tmp_path / "s/abort").exists()


def follow(root: Path, position: int, end: int, *, start: int = 0) -> tuple[Reput, list[int]]:
    seen: list[int] = []

    def sink(headers: Headers) -> None:
        seen.extend((headers.at + headers.base).tolist())

    def failed(error: BaseException) -> None:
        raise AssertionError(error)

    log = [root / "commitlog"]
    return Reput(position, lambda: CommitLog(log), lambda: (start, end), sink, failed), seen


def test_a_position_before_the_log_s_start_jumps_forward(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 200)
    with MessageStore.open(tmp_path / "s") as reader:
        start, end = SMALL["mappedFileSizeCommitLog"], reader.log_range()[1]
        expected = [extent.start for extent in reader.scan(start) if extent.record]
    (tmp_path / "s/commitlog/00000000000000000000").unlink()
    reput, seen = follow(tmp_path / "s", 17, end, start=start)
    while reput.dispatch_some():
        pass
    assert seen == expected
    assert reput.position == end


def test_a_log_that_breaks_off_is_not_passed_over(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 20)
    with MessageStore.open(tmp_path / "s") as reader:
        end = reader.log_range()[1]
    reput, seen = follow(tmp_path / "s", 0, end + 500)
    while len(seen) < 20:
        assert reput.dispatch_some()
    with pytest.raises(CorruptRecordError, match="preallocated zeros"):
        reput.dispatch_some()


# --- offsets that the store sets --------------------------------------------------------------------


LIGHT = {**SMALL, "enableLmq": True, "enableMultiDispatch": True}


def light(number: int, queues: str) -> dict[str, Any]:
    plain = {name: one_message(number)[name] for name in ("topic", "queueId", "body")}
    return {**plain, "properties": {"INNER_MULTI_DISPATCH": queues}}


@pytest.mark.parametrize("together", [False, True])
def test_light_queues_get_their_offsets_as_the_message_is_appended(
    together: bool, tmp_path: Path
) -> None:
    rows = [light(0, "%LMQ%a,%LMQ%b"), one_message(1), light(2, "%LMQ%a"), light(3, "%LMQ%b,plain")]
    with MessageStore.create(tmp_path / "s", LIGHT) as store:
        if together:
            columns = ("topic", "queueId", "body", "properties")
            store.append_batch(
                batch_of([{name: row.get(name) for name in columns} for row in rows])
            )
        else:
            for row in rows:
                store.append(row)
        assert store.max_offset("%LMQ%a", 0) == 2
        assert store.max_offset("%LMQ%b", 0) == 2
    with MessageStore.open(tmp_path / "s") as reader:
        said = [decode_properties(e.record.properties) for e in reader.scan() if e.record]
        offsets = [found.get("INNER_MULTI_QUEUE_OFFSET") for found in said]
        assert offsets == ["0,0", None, "1", "1,"]
        listed = reader.get_message("%LMQ%a", 0, 0).messages
        assert [m.body for m in listed] == [rows[0]["body"], rows[2]["body"]]


def test_an_inner_batch_learns_its_first_queue_offset(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store.declare_topic("inner", attributes={"queue.type": "BatchCQ"})
        for count in (3, 2):
            row = {"topic": "inner", "queueId": 0, "body": b"members", "sysFlag": 0xC0}
            store.append({**row, "properties": {"INNER_NUM": str(count)}})
        assert store.max_offset("inner", 0) == 5
    with MessageStore.open(tmp_path / "s") as reader:
        said = [decode_properties(e.record.properties) for e in reader.scan() if e.record]
        assert [found["INNER_BASE"] for found in said] == ["0", "3"]


@pytest.mark.parametrize(("count", "files"), [(4, 1), (5, 2), (8, 2), (9, 3)])
def test_an_index_file_is_begun_by_the_record_after_a_full_one(
    count: int, files: int, tmp_path: Path
) -> None:
    """As by a broker, which looks for room at each record."""
    with MessageStore.create(tmp_path / "s", {**SMALL, "maxIndexNum": 5}, release="5.3.3") as store:
        for number in range(count):
            store.append({"topic": "orders", "queueId": 0, "keys": f"k{number}", "body": b"x"})
    assert len(list((tmp_path / "s/index").iterdir())) == files


def test_settings_of_a_topic_are_replaced_when_it_is_declared_again(tmp_path: Path) -> None:
    for count in (3, 9):
        how = MessageStore.create if count == 3 else MessageStore.append_to
        with how(tmp_path / "s", SMALL) as store:
            store.declare_topic("orders", readQueueNums=count, order=count == 9)
            store.append({"topic": "orders", "queueId": 0, "body": b"x"})
    table = json.loads((tmp_path / "s/config/topics.json").read_text("utf-8"))["topicConfigTable"]
    assert (table["orders"]["readQueueNums"], table["orders"]["order"]) == (9, True)
