"""Starting after a crash: real brokers' crashed stores, torn files, ghosts, and crashes meanwhile."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Gap, MessageStore, QueueId
from rmq_store.admin.rebuild import rebuild
from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    StoreLockedError,
    UnrecoverableStoreError,
)
from rmq_store.format.queues import QUEUE_ENTRY
from rmq_store.markers import Checkpoint
from rmq_store.recovery import RecoveryReport, plan_recovery, recover
from rmq_store.verify import verify
from tests.support.damage import break_start, flip_in_log, write_at, write_in_log
from tests.support.golden import UNCLEAN, GoldenStore, log_files, unpack
from tests.support.running.campaigns import few, some
from tests.support.running.commands import complaint, run
from tests.support.stores import (
    SMALL,
    append_many,
    contents,
    index_answers,
    make_store,
    one_message,
)


def files_but_lock(store: GoldenStore) -> dict[str, tuple[int, int, int]]:
    """Their fingerprint, without the file that each writer opens."""
    return {file: kept for file, kept in store.fingerprint().items() if Path(file).name != "lock"}


def recovered(store: GoldenStore) -> RecoveryReport:
    return recover(store.path, release=store.name.rpartition("-")[2])


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.3.3"])
def test_a_store_whose_log_has_no_file_is_refused_and_left_as_it_is(
    name: str, tmp_path: Path
) -> None:
    """As where the disk of the log is not mounted."""
    store = unpack(name, tmp_path)
    for file in log_files(store):
        file.unlink()
    before = files_but_lock(store)
    for repair in (plan_recovery, recover):
        with pytest.raises(UnrecoverableStoreError, match="the log has no file"):
            repair(store.path)
    assert files_but_lock(store) == before


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("crashed", UNCLEAN, 3))
def test_a_crashed_broker_s_store_comes_back_with_what_its_broker_recovered(
    name: str, tmp_path: Path
) -> None:
    store = unpack(name, tmp_path)
    report = recovered(store)
    assert not report.clean
    assert not Path(store.path, "abort").exists()
    with store.open() as reader:
        for queue, listed in store.by_queue.items():
            found = reader.get_message(*queue, reader.min_offset(*queue), max_messages=10**6)
            truth = [record["commitLogOffset"] for record in listed]
            assert [m.commit_log_offset for m in found.messages][: len(truth)] == truth
        for record in store.truth[::7]:
            if record["uniqKey"] and record["sysFlag"] & 0xC != 0xC:
                keyed = reader.query_message(record["topic"], record["uniqKey"], 10**6)
                assert record["commitLogOffset"] in [m.commit_log_offset for m in keyed]
    again = recovered(store)
    assert again.clean
    assert (again.files, again.records) == ([], 0)
    assert again.queues == report.queues


@pytest.mark.parametrize("name", ["clean-5.5.0", "clean-4.9.7", "expired-5.5.0", "lmq-5.3.3"])
def test_a_clean_store_is_only_looked_at(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    before = store.fingerprint()
    report = recovered(store)
    assert (report.clean, report.untouched) == (True, True)
    assert "nothing was changed; `rmqstore verify` checks" in str(report)
    assert "recovered" not in str(report)
    changed = {path for path, mark in store.fingerprint().items() if before.get(path) != mark}
    assert changed <= {f"{store.path}/lock", store.path}


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint"])
def test_what_can_be_made_from_the_log_is_made_again(lost: str, tmp_path: Path) -> None:
    store = unpack("crash-5.3.3", tmp_path / "a")
    whole = unpack("crash-5.3.3", tmp_path / "b")
    gone = Path(store.path, lost)
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    recovered(store)
    recovered(whole)
    with store.open() as mine, whole.open() as other:
        assert contents(mine) == contents(other)
        if lost != "index":
            assert index_answers(mine) == index_answers(other)


def test_torn_bytes_behind_the_log_are_cut_and_counted(copy: GoldenStore) -> None:
    with copy.open() as reader:
        before, end = contents(reader), reader.log_range()[1]
    last = max(Path(copy.path, "commitlog").iterdir())
    write_at(last, end - int(last.name) + 40, b"torn")
    report = recovered(copy)
    assert report.clean
    assert (report.log_end, report.bytes_cut) == (end, 44)
    assert str(last) in str(report)
    assert json.loads(report.to_json())["bytes_cut"] == 44
    assert last.read_bytes()[end - int(last.name) :].strip(b"\0") == b""
    with copy.open() as reader:
        assert contents(reader) == before


def test_ghost_entries_are_not_taken_up_when_the_log_grows_past_them(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 40)
    queue = tmp_path / "s/consumequeue/orders/0"
    with MessageStore.open(tmp_path / "s") as reader:
        end, count = reader.log_range()[1], reader.max_offset("orders", 0)
    last = max(queue.iterdir())
    ghost = np.array([(end + 5, 120, 7), (end + 300, 120, 7)], dtype=QUEUE_ENTRY)
    write_at(last, count * QUEUE_ENTRY.itemsize - int(last.name), ghost.tobytes())
    (tmp_path / "s/abort").touch()
    with MessageStore.append_to(tmp_path / "s", SMALL) as store:
        assert store.recovered is not None
        assert store.recovered.entries_cut == 2
        assert store.max_offset("orders", 0) == count
        for _ in range(10):
            store.append({"topic": "other", "queueId": 0, "body": b"y" * 90})
    with MessageStore.open(tmp_path / "s") as reader:
        assert reader.max_offset("orders", 0) == count


def test_a_zero_entry_in_front_is_no_message_and_the_queue_is_made_again(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 60)
    with MessageStore.open(tmp_path / "s") as reader:
        before = contents(reader)
    last = max((tmp_path / "s/consumequeue/orders/1").iterdir())
    write_at(last, 0, bytes(QUEUE_ENTRY.itemsize))
    (tmp_path / "s/abort").touch()
    recover(tmp_path / "s", SMALL)
    with MessageStore.open(tmp_path / "s") as reader:
        assert contents(reader) == before


def test_a_record_at_the_boundary_of_a_lagging_queue_is_not_skipped(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 50)
    with MessageStore.open(tmp_path / "s") as reader:
        before = contents(reader)
    for queue in (0, 1, 2):
        cut_last_units(tmp_path / f"s/consumequeue/orders/{queue}", 3)
    report = recover(tmp_path / "s", SMALL)  # no abort: entries that a stop did not wait for
    assert (report.clean, report.untouched, report.entries_rebuilt) == (True, False, 9)
    with MessageStore.open(tmp_path / "s") as reader:
        assert contents(reader) == before


def cut_last_units(folder: Path, count: int) -> None:
    for path in sorted(folder.iterdir(), reverse=True):
        raw = path.read_bytes()
        used = -(-len(raw.rstrip(b"\0")) // QUEUE_ENTRY.itemsize)
        gone = min(count, used)
        keep = (used - gone) * QUEUE_ENTRY.itemsize
        path.write_bytes(raw[:keep].ljust(len(raw), b"\0"))
        count -= gone
        if not count:
            return


def test_damage_that_had_been_on_the_disk_does_not_end_the_log(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 60)
    with MessageStore.open(tmp_path / "s") as reader:
        end = reader.log_range()[1]
        hurt = reader.get_message("orders", 1, 15, max_messages=1).messages[0]
        last = max(base for base in range(0, end, SMALL["mappedFileSizeCommitLog"]))
        hurt = next(
            message
            for message in (reader.message_at(x.start) for x in reader.scan(last) if x.record)
            if message.commit_log_offset > last
        )
        before = {queue: reader.max_offset(*queue) for queue in reader.queues()}
    path = max((tmp_path / "s/commitlog").iterdir())
    write_at(path, hurt.commit_log_offset - last + 95, b"\xff\xff\xff")
    (tmp_path / "s/abort").touch()
    report = recover(tmp_path / "s", SMALL)
    assert report.damage == [(hurt.commit_log_offset, hurt.commit_log_offset + hurt.store_size)]
    assert report.log_end == end
    assert {queue: ends[1] for queue, ends in report.queues.items()} == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_file_of_the_log_is_reported_as_damage(clean: bool, copy: GoldenStore) -> None:
    path = sorted(Path(copy.path, "commitlog").iterdir())[1]
    start, size = int(path.name), path.stat().st_size
    path.unlink()
    if not clean:
        Path(copy.path, "abort").touch()
        assert plan_recovery(copy.path).damage == [(start, start + size)]
    plan = plan_recovery(copy.path, method="broker", release="5.5.0")
    assert plan.damage == [(start, start + size)]


def test_an_empty_file_of_the_log_gets_its_size_again(copy: GoldenStore) -> None:
    path = sorted(Path(copy.path, "commitlog").iterdir())[1]
    size = path.stat().st_size
    path.write_bytes(b"")
    Path(copy.path, "abort").touch()
    with pytest.raises(UnrecoverableStoreError):
        plan_recovery(copy.path, method="broker", release="5.5.0")
    report = recover(copy.path)
    assert ("extended", size) in [(file.what, file.bytes) for file in report.files]
    Path(copy.path, "abort").touch()
    plan_recovery(copy.path, method="broker", release="5.5.0")


@pytest.mark.parametrize("method", ["strict", "broker"])
@pytest.mark.parametrize("number", [1, 40])
def test_intact_records_that_are_cut_with_a_damaged_one_are_counted(
    method: str, number: int, tmp_path: Path
) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    places = sorted(record["commitLogOffset"] for record in store.truth)
    hurt, behind = places[-number - 1], number
    write_in_log(store, hurt + 4, b"\xff")
    plan = plan_recovery(store.path, method=method, release="5.3.3")
    assert (plan.log_end, plan.records_cut) == (hurt, behind)
    done = "cut" if method == "strict" else "left out"  # as a broker leaves them in the file
    assert f"{behind} intact records after log offset {hurt} would be {done} too" in str(plan)
    if method == "strict":
        before = [path.read_bytes() for path in log_files(store)]
        with pytest.raises(UnrecoverableStoreError, match=f"{behind} intact records are behind"):
            MessageStore.append_to(store.path, release="5.3.3")
        assert [path.read_bytes() for path in log_files(store)] == before
        rebuilt = rebuild(store.path, tmp_path / "target", release="5.3.3")  # which keeps them
        assert rebuilt.recovery.records == len(places) - 1
        assert [start for start, _ in rebuilt.recovery.damage] == [hurt]
        assert not rebuilt.all_well
        report = recover(store.path, release="5.3.3")
        assert (report.log_end, report.records_cut) == (hurt, behind)
        assert "are cut too" in str(report)


@pytest.mark.parametrize("step", few("crashes", range(12), 0, 3, 7))
def test_a_crash_in_the_middle_of_a_recovery_is_recovered_from(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    shutil.rmtree(Path(store.path, "consumequeue/orders"))
    whole = unpack("crash-5.3.3", tmp_path / "other")
    recovered(whole)

    class Killed(BaseException):
        pass

    calls = 0
    real = os.pwrite

    def counted(*args: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > step * 3:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", counted)
        try:
            recovered(store)
        except Killed:
            assert Path(store.path, "abort").exists()
    recovered(store)
    with store.open() as mine, whole.open() as other:
        assert contents(mine) == contents(other)
        assert index_answers(mine) == index_answers(other)


def test_it_holds_the_lock_and_takes_no_other_method(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL), pytest.raises(StoreLockedError):
        recover(tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="strict or broker"):
        plan_recovery(tmp_path / "s", method="lenient")


def test_the_checkpoint_says_afterwards_what_is_there(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 30)
    (tmp_path / "s/abort").touch()
    (tmp_path / "s/checkpoint").write_bytes(b"\x7f" * 39)  # torn
    report = recover(tmp_path / "s", SMALL)
    checkpoint = Checkpoint.read(tmp_path / "s/checkpoint")
    assert checkpoint is not None
    with MessageStore.open(tmp_path / "s") as reader:
        last = reader.message_at(checkpoint.logics_physical_offset)
    assert last.commit_log_offset + last.store_size == report.log_end
    assert checkpoint.physic_msg_timestamp == last.store_timestamp


# --- torn writes ------------------------------------------------------------------------------------

DEPTH = 4096


@pytest.mark.parametrize("there", [8, 12, 14, 19])
def test_an_entry_that_its_file_ends_inside_of_is_written_again(there: int, tmp_path: Path) -> None:
    """With zeros for its rest it would lead to its record, and have another tagsCode."""
    store = unpack("crash-5.5.0", tmp_path)
    path = max(Path(store.path, "consumequeue", "orders", "0").iterdir())
    whole = path.read_bytes()
    cut = len(whole.rstrip(b"\0")) // 20 * 20 - 40 + there
    assert whole[cut : cut - there + 20].strip(b"\0"), "what is cut is not zeros"
    path.write_bytes(whole[:cut])
    recovered(store)
    assert path.read_bytes() == whole


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["cut", "zero"])
@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "checkpoint"])
def test_every_byte_of_the_last_page_cut_or_zeroed(part: str, how: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    config = {**SMALL, "messageIndexEnable": part == "index"}
    with MessageStore.create(root, config) as store:
        for number in range(31):  # few and large: it is all read thousands of times
            plain = one_message(number)
            store.append({**plain, "body": plain["body"] + b"." * (400 + number * 37 % 300)})
    assert len(list((root / "commitlog").iterdir())) == 3
    with MessageStore.open(root) as reader:
        whole, ends = contents(reader), reader.log_range()
        places = [e.stop for e in reader.scan() if e.record]
    assert places[-1] == ends[1] > 2 * SMALL["mappedFileSizeCommitLog"] + DEPTH
    (root / "abort").touch()
    kept = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in kept}
    folder = root / part / ("orders/0" if part == "consumequeue" else "")
    target = max(folder.iterdir()) if folder.is_dir() else folder
    raw = kept[target]
    used = max(len(raw.rstrip(b"\0")), 1)
    for at in some(f"{part} {how}", range(max(0, used - DEPTH), used)):
        for path in root.rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()
        for path, data in kept.items():
            if not path.exists() or path.stat().st_mtime_ns != times[path]:
                path.write_bytes(data)
                times[path] = path.stat().st_mtime_ns
        torn = raw[:at] if how == "cut" else raw[:at] + bytes(len(raw) - at)
        target.write_bytes(torn)
        times[target] = 0
        torn_at = int(target.name) + at if part == "commitlog" else None
        try:
            check_torn(root, config, part, torn_at, places, whole)
        except Exception as error:
            raise AssertionError(f"{part}, {how} at byte {at}") from error
        if at % 64 == 0:  # and it can be gone on with
            with MessageStore.append_to(root, config, recovery="refuse") as store:
                append_many(store, 1)


def check_torn(
    root: Path,
    config: dict[str, Any],
    part: str,
    torn_at: int | None,
    places: list[int],
    whole: dict[QueueId, Any],
) -> None:
    """What is before the tear is there, nothing else is, and the report says how much went."""
    end = places[-1]
    report = recover(root, config)
    if torn_at is not None:
        end = max(place for place in places if place <= torn_at)
        assert report.bytes_cut <= torn_at - end
    assert report.log_end == end
    with MessageStore.open(root) as reader:
        found = contents(reader)
        for queue, messages in whole.items():
            expected = [m for m in messages if m[1] + m[2] <= end]
            assert found.get(queue, []) == expected, (part, torn_at)
        assert all(e.gap in (None, Gap.FILLER, Gap.UNWRITTEN) for e in reader.scan())
        if part == "index":
            assert len(index_answers(reader)) == 2 * len(places)  # keys and tags


def test_intact_records_of_an_only_file_that_begins_with_damage_are_counted(tmp_path: Path) -> None:
    """Nothing says that they were flushed, so a recovery cuts them, and says so."""
    store = unpack("nommap-5.5.0", tmp_path)
    flip_in_log(store, 4)  # the magic code of the first record
    (Path(store.path) / "checkpoint").unlink()
    (Path(store.path) / "abort").touch()
    for method in ("strict", "broker"):
        plan = plan_recovery(store.path, method=method)
        assert (plan.log_end, plan.records_cut) == (0, len(store.truth) - 1)


@pytest.mark.parametrize("method", ["strict", "broker"])
def test_damage_behind_the_end_of_the_log_is_not_left_in_it(copy: GoldenStore, method: str) -> None:
    """The last file begins with damage, and the one before it ends with zeros: nothing was flushed."""
    *_, before, last = sorted((Path(copy.path) / "commitlog").iterdir())
    places = sorted(record["commitLogOffset"] for record in copy.truth)
    cut = [place for place in places if place < int(last.name)][-20]
    raw = before.read_bytes()
    kept = cut - int(before.name)
    before.write_bytes(raw[:kept] + bytes(len(raw) - kept))
    assert break_start(copy, 1) == int(last.name)
    (Path(copy.path) / "checkpoint").unlink()
    (Path(copy.path) / "abort").touch()
    plan = plan_recovery(copy.path, copy.conf, method=method)
    inside = sum(place > int(last.name) for place in places)
    assert (plan.log_end, plan.damage, plan.records_cut) == (cut, [], inside)


@pytest.mark.parametrize("magic", [b"\xff", b"\x5a"])
def test_a_writer_that_is_refused_leaves_the_store_as_it_was(tmp_path: Path, magic: bytes) -> None:
    """Intact records follow the damage at the start of the only file; the store was closed cleanly."""
    store = unpack("nommap-5.5.0", tmp_path)
    write_in_log(store, 4, magic)
    (Path(store.path) / "checkpoint").unlink()
    before = files_but_lock(store)
    behind = f"{len(store.truth) - 1} intact records are behind"
    with pytest.raises(UnrecoverableStoreError, match=behind):
        MessageStore.append_to(store.path, release="5.5.0")
    assert files_but_lock(store) == before


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_messages_that_the_log_has_lost_at_its_end_are_counted_by_queue(
    how: str, copy: GoldenStore
) -> None:
    last = log_files(copy)[-1]
    if how == "missing":
        last.unlink()
    else:
        os.truncate(last, 50_000)
    for repair in (plan_recovery, recover):
        report = repair(copy.path)
        lost = {
            queue: sum(record["commitLogOffset"] >= report.log_end for record in records)
            for queue, records in copy.by_queue.items()
        }
        lost = {queue: count for queue, count in lost.items() if count}
        assert report.clean
        assert report.entries_after_log == lost
        assert sum(lost.values()) == report.entries_cut
        assert f"{report.entries_cut} entries in {len(lost)} queues" in str(report)
    assert recover(copy.path).untouched


def test_a_writer_does_not_cut_what_a_closed_store_lists_after_its_log(copy: GoldenStore) -> None:
    """New messages would take the queue offsets of the lost ones, which consumers may have passed."""
    log_files(copy)[-1].unlink()
    before = files_but_lock(copy)
    with pytest.raises(UnrecoverableStoreError, match="leading after the log's end"):
        MessageStore.append_to(copy.path)
    assert files_but_lock(copy) == before
    recover(copy.path)
    with MessageStore.append_to(copy.path) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b"new"})


def test_entries_that_lead_to_an_intact_record_behind_damage_are_not_lost(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    hit, *behind = store.truth[-60:]
    flip_in_log(store, hit["commitLogOffset"] + 95, 4)
    report = plan_recovery(store.path, method="broker", release="5.5.0")
    assert report.records_cut == len(behind)
    assert report.entries_after_log == {QueueId(hit["topic"], hit["queueId"]): 1}


def test_entries_that_a_broker_leaves_in_the_files_are_named(tmp_path: Path) -> None:
    """The broker passes over them in memory alone; a recovery cuts them."""
    store = unpack("hot-5.5.0", tmp_path)
    plan = plan_recovery(store.path, method="broker")
    assert plan.entries_left == {QueueId("payments", 0): 1}
    assert "would be left in the files" in str(plan)
    assert recover(store.path).entries_cut == 1
    assert "no problems found" in run("verify", store.path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clean-4.3.2", "Each such entry that is not left in a file"),
        ("nommap-5.5.0", "Each such entry"),
    ],
)
def test_entries_that_a_broker_cuts_are_said_to_be_cut(
    name: str, said: str, tmp_path: Path
) -> None:
    store = unpack(name, tmp_path)
    Path(store.path, "abort").touch()
    with store.open() as opened:
        _, end = opened.log_range()
    last = max(path for path in log_files(store) if int(path.name) < end)
    used = end - int(last.name)
    lost = min(used, 20000)
    write_at(last, used - lost, bytes(lost))
    plan = plan_recovery(store.path, method="broker")
    assert sum(plan.entries_after_log.values()) > sum(plan.entries_left.values())
    assert f"{said} would be cut, so put the file back first" in str(plan)


def test_records_from_before_the_log_was_cut_are_counted(tmp_path: Path) -> None:
    """A broker leaves them behind the end, and writes over them."""
    store = unpack("crash-5.5.0", tmp_path)
    hit, *behind = store.truth[-60:]
    flip_in_log(store, hit["commitLogOffset"] + 95, 4)
    end = plan_recovery(store.path, method="broker").log_end
    (file,) = (path for path in log_files(store) if 0 <= end - int(path.name) < path.stat().st_size)
    before = file.read_bytes()
    with MessageStore.append_to(store.path, until=end) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b"new"})
    with store.open() as opened:
        upto = opened.log_range()[1] - int(file.name)
    file.write_bytes(file.read_bytes()[:upto] + before[upto:])
    report = rebuild(store.path, tmp_path / "rebuilt").recovery
    assert (report.records_cut, report.old_records_cut) == (0, len(behind))
    assert f"{len(behind)} intact records after log offset {report.log_end}" in str(report)


@pytest.mark.parametrize(("onto", "checkpoint"), [(0, True), (0, False), (1, True), (1, False)])
def test_records_that_an_overwritten_queue_file_listed_are_listed_again(
    onto: int, checkpoint: bool, tmp_path: Path
) -> None:
    store = unpack("direct-5.5.0", tmp_path)
    with store.open() as opened:
        before = opened.read_batches("payments", columns=["queueId", "body"]).read_all()
    files = sorted(Path(store.path, "consumequeue", "payments", "0").iterdir())
    shutil.copyfile(files[onto + 1], files[onto])
    Path(store.path, "abort").touch()
    if not checkpoint:
        Path(store.path, "checkpoint").unlink()
    recovered(store)
    with store.open() as opened:
        assert not [f for f in verify(opened).findings if f.code.startswith("queue-")]
        assert opened.read_batches("payments", columns=["queueId", "body"]).read_all() == before


@pytest.mark.parametrize(
    ("name", "queue"), [("clean-5.5.0", "payments/0"), ("tsp-5.5.0", "orders/0")]
)
def test_a_missing_file_in_the_middle_of_a_queue_is_made_again(
    name: str, queue: str, tmp_path: Path
) -> None:
    store = unpack(name, tmp_path)
    topic = queue.split("/")[0]
    with store.open() as opened:
        before = opened.read_batches(topic, columns=["queueId", "queueOffset", "body"]).read_all()
    sorted(Path(store.path, "consumequeue", *queue.split("/")).iterdir())[1].unlink()
    Path(store.path, "abort").touch()
    planned = plan_recovery(store.path)
    assert planned.entries_rebuilt == recovered(store).entries_rebuilt > 0
    with store.open() as opened:
        assert not [f for f in verify(opened).findings if f.code.startswith("queue-")]
        found = opened.read_batches(topic, columns=["queueId", "queueOffset", "body"]).read_all()
        assert found == before


def test_an_entry_that_leads_far_after_the_log_hides_no_record_behind_it(copy: GoldenStore) -> None:
    file = sorted(Path(copy.path, "consumequeue/orders/3").iterdir())[-1]
    units = np.fromfile(file, QUEUE_ENTRY)
    units[7] = (5_000_000_000, 500, 1)
    units.tofile(file)
    Path(copy.path, "abort").touch()
    assert recovered(copy).entries_cut == 0
    missing = [f.meaning for f in copy.verified().findings if f.code == "queue-misses-record"]
    assert len(missing) == 1
    assert missing[0].startswith("1 record of queue orders/3")


def test_a_first_entry_of_another_queue_hides_no_record_before_its_own(tmp_path: Path) -> None:
    store = unpack("clean-4.3.2", tmp_path)
    with store.open() as opened:
        before = opened.read_batches("orders", columns=["queueId", "body"]).read_all()
    folder = Path(store.path, "consumequeue/orders")
    (mine,), others = (folder / "2").glob("0" * 20), sorted((folder / "3").iterdir())
    raw = mine.read_bytes()
    mine.write_bytes(others[-1].read_bytes()[:20] + raw[20:])
    Path(store.path, "abort").touch()
    Path(store.path, "checkpoint").unlink()
    recovered(store)
    with store.open() as opened:
        assert opened.read_batches("orders", columns=["queueId", "body"]).read_all() == before
        assert not [f for f in verify(opened).findings if f.code.startswith("queue-")]


def test_what_a_broker_would_do_is_a_plan_alone(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    before = store.fingerprint()
    said = complaint("recover", store.path, "--method", "broker", "--apply", expect=2)
    assert "to have it done, start the broker" in said
    assert "a recovery (broker) would give" in run("recover", store.path, "--method", "broker")
    assert store.fingerprint() == before


def test_a_file_that_is_removed_is_not_said_to_be_extended(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    last = log_files(store)[-1]
    os.truncate(last, 100)
    for report in (plan_recovery(store.path), recover(store.path)):
        assert [one.what for one in report.files if one.path == str(last)] == ["removed"]
    assert not last.exists()


def test_the_command_says_that_a_plan_does_not_look_for_what_queues_still_lack(
    copy: GoldenStore,
) -> None:
    Path(copy.path, "consumequeue/orders/3/00000000000000000000").unlink()
    Path(copy.path, "abort").touch()
    assert "then rmqstore verify says what it still lacks" in complaint(
        "recover", copy.path, expect=0
    )


def test_an_error_after_a_recovery_does_not_hide_that_the_store_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("crash-5.3.3", tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise AccessError(store.path, reason="the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.reading.store_reader.StoreReader.open", fail)
        said = complaint("recover", store.path, "--apply", expect=1)
    assert "warning: the store is repaired; what it still lacks is not known" in said
    assert "RMQSTORE_ACCESS" in said
    assert "no problems found" in run("verify", store.path)


@pytest.mark.parametrize("name", ["crash-5.3.3", "ext-5.5.0", "lmq-5.3.3", "tsp-5.5.0"])
def test_entries_whose_tag_did_not_reach_the_disk_get_it_again(name: str, tmp_path: Path) -> None:
    """A page ends inside of an entry, so that a crash may keep its place and size alone."""
    store = unpack(name, tmp_path)
    Path(store.path, "abort").touch()
    Path(store.path, "checkpoint").unlink()
    torn = plan_recovery(store.path, store.conf).entries_rebuilt
    for file in Path(store.path, "consumequeue").rglob("0*0"):
        units = np.fromfile(file, dtype=QUEUE_ENTRY)
        listed = np.flatnonzero(units["size"] > 0)
        if len(listed) and file.parent.parent.name == "orders":
            torn += int(units["tags_code"][listed[-1]] & 0xFFFFFFFF != 0)
            units["tags_code"][listed[-1]] &= -1 << 32
            units.tofile(file)
    assert [f.code for f in store.verified().findings].count("queue-wrong-tags-code")
    assert plan_recovery(store.path, store.conf).entries_rebuilt == torn
    report = recover(store.path, store.conf)
    assert (report.entries_rebuilt, report.entries_cut) == (torn, 0)
    assert not [f for f in store.verified().findings if f.code.startswith("queue-")]


def test_a_topic_that_was_made_again_does_not_get_the_records_of_the_one_before(
    tmp_path: Path,
) -> None:
    """Their records are in the log, and count from 0 too."""
    make_store(tmp_path / "s", 60)
    (file,) = (tmp_path / "s/consumequeue/orders/1").iterdir()
    units = np.frombuffer(file.read_bytes(), dtype=QUEUE_ENTRY)
    units = units[units["size"] > 0][-3:]
    log = {int(f.name): f for f in (tmp_path / "s/commitlog").iterdir()}
    for number, place in enumerate(units["log_offset"].tolist()):
        base = max(base for base in log if base <= place)
        write_at(log[base], place - base + 20, number.to_bytes(8, "big"))
    file.write_bytes(units.tobytes().ljust(file.stat().st_size, b"\0"))
    (tmp_path / "s/abort").touch()
    recover(tmp_path / "s", SMALL)
    with MessageStore.open(tmp_path / "s") as reader:
        found = contents(reader)[QueueId("orders", 1)]
    assert [row[:2] for row in found] == [
        (n, p) for n, p in enumerate(units["log_offset"].tolist())
    ]


def test_bytes_after_the_last_entry_of_a_queue_are_removed(tmp_path: Path) -> None:
    make_store(tmp_path / "s", 60)
    with MessageStore.open(tmp_path / "s") as reader:
        before = contents(reader)
    file = max((tmp_path / "s/consumequeue/orders/1").iterdir())
    raw = file.read_bytes()
    units = np.frombuffer(raw, dtype=QUEUE_ENTRY)
    end = int(np.count_nonzero(units["size"])) * QUEUE_ENTRY.itemsize
    assert end < len(raw)
    file.write_bytes(raw[:end] + b"\xff" * 8 + raw[end + 8 :])
    (tmp_path / "s/abort").touch()
    planned = plan_recovery(tmp_path / "s", SMALL)
    done = recover(tmp_path / "s", SMALL)
    assert planned.files == done.files
    with MessageStore.open(tmp_path / "s") as reader:
        assert contents(reader) == before
        assert not [f for f in verify(reader).findings if f.code.startswith("queue-")]
