"""Retention: the broker's rules, its order, and the groups that would lose messages."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmq_store import QueueId
from rmq_store.admin.retention import (
    LAST_FILE,
    RetentionPlan,
    RetentionPolicy,
    apply_retention,
    plan_retention,
    why_oldest_file_is_kept,
)
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError, StoreError, StoreLockedError
from rmq_store.markers import StoreLock
from rmq_store.verify import verify
from tests.support.golden import Golden, GoldenStore, log_files, offsets, unpack
from tests.support.listed import index_items, wanted_items
from tests.support.running.commands import call, complaint, objects, run

HOUR = 3_600_000
NOW = 1_790_000_000_000
# A policy that asks for deletion at any hour, so that the clock of the machine does not matter.
ALWAYS = RetentionPolicy(deleteWhen=";".join(map(str, range(24))))


@pytest.fixture
def aged(tmp_path: Path) -> GoldenStore:
    """A store of several log files, of which the first two were last written 100 hours ago."""
    store = unpack("crash-5.5.0", tmp_path)
    for number, path in enumerate(log_files(store)):
        hours = 100 if number < 2 else 1
        os.utime(path, ns=((NOW - hours * HOUR) * 1_000_000,) * 2)
    return store


def hour_of(ms: int) -> int:
    return time.localtime(ms / 1000).tm_hour


def planned(aged: GoldenStore) -> RetentionPlan:
    with aged.open() as store:
        return plan_retention(store, ALWAYS, now_ms=NOW, disk_used_percent=10)


def test_unread_messages_are_deleted_from_when_a_plan_takes_their_file(copy: GoldenStore) -> None:
    now = time.time_ns()
    for number, path in enumerate(log_files(copy)):
        os.utime(path, ns=(now + 30 * number * HOUR * 1_000_000,) * 2)
    with copy.open() as store:
        rows = store.table("groups").to_pylist()
        unread = [row for row in rows if row["lag"] and row["deletedFrom"] is not None]
        for row in unread:
            at = store.log_offset_of(QueueId(row["topic"], row["queueId"]), row["consumerOffset"])
            moment = int(row["deletedFrom"].timestamp() * 1000)
            for now, goes in ((moment - 1, False), (moment, True)):
                plan = plan_retention(store, now_ms=now, disk_used_percent=0)
                assert (plan.log_start_after > at) is goes
        assert unread
        assert all(row["deletedFrom"] is None for row in rows if not row["lag"])


def test_two_looks_in_an_hour_of_deletion_say_the_same() -> None:
    """Whatever the time of the day is: else an answer would differ from itself."""
    quarter = NOW - NOW % (HOUR // 4)
    looks = {ALWAYS.goes_at(NOW - 100 * HOUR, quarter + ms) for ms in (0, 1, HOUR // 4 - 1)}
    assert looks == {quarter}
    due = NOW - ALWAYS.fileReservedTime * HOUR
    assert ALWAYS.goes_at(due, NOW - 1) == ALWAYS.goes_at(due, NOW) == NOW


def test_files_that_are_never_deleted_have_no_time_of_it(copy: GoldenStore, tmp_path: Path) -> None:
    conf = tmp_path / "never.conf"
    conf.write_text("fileReservedTime=99999999\n")
    rows = objects("lag", copy.path, "--broker-conf", str(conf))
    assert {row["deletedFrom"] for row in rows} == {None}
    assert call("lag", copy.path, "--broker-conf", str(conf)).returncode == 0


def test_files_older_than_the_reserved_time_go_from_the_front(aged: GoldenStore) -> None:
    plan = planned(aged)
    assert [one.path for one in plan.log] == [str(path) for path in log_files(aged)[:2]]
    assert plan.trigger == "time"
    assert plan.log_start_after == int(log_files(aged)[2].name)
    json.dumps(plan.to_dict())


def test_a_younger_file_stops_the_deletion_before_older_ones(aged: GoldenStore) -> None:
    os.utime(log_files(aged)[0], ns=((NOW - HOUR) * 1_000_000,) * 2)
    assert planned(aged).log == ()


def test_neither_hour_nor_disk_asks_for_it(aged: GoldenStore) -> None:
    policy = RetentionPolicy(deleteWhen=str((hour_of(NOW) + 2) % 24))
    with aged.open() as store:
        assert plan_retention(store, policy, now_ms=NOW, disk_used_percent=75).trigger is None
        by_disk = plan_retention(store, policy, now_ms=NOW, disk_used_percent=76)
        by_hand = plan_retention(store, policy, now_ms=NOW, disk_used_percent=10, manual=True)
        forced = plan_retention(store, policy, now_ms=NOW, disk_used_percent=86)
        files = len(store.log.chain.segments)
    assert (by_disk.trigger, len(by_disk.log)) == ("disk", 2)
    assert (by_hand.trigger, len(by_hand.log)) == ("manual", 2)
    # The last file was created in advance; the log ends in the one before it.
    assert (forced.trigger, len(forced.log)) == ("forced", files - 2)


def test_above_the_share_that_forces_it_deletion_is_due_whatever_the_other_share_is(
    aged: GoldenStore,
) -> None:
    """CleanCommitLogService#isSpaceToDelete looks at the higher shares first."""
    hour = str((hour_of(NOW) + 2) % 24)
    policy = RetentionPolicy(deleteWhen=hour, diskMaxUsedSpaceRatio=88)
    unforced = replace(policy, cleanFileForciblyEnable=False)
    with aged.open() as store:
        for rules, used, trigger in (
            (policy, 85, None),
            (policy, 86, "forced"),
            (unforced, 86, "disk"),
            (replace(policy, diskSpaceCleanForciblyRatio=40), 41, "forced"),
        ):
            plan = plan_retention(store, rules, now_ms=NOW, disk_used_percent=used)
            assert plan.trigger == trigger
            oldest = why_oldest_file_is_kept(store, rules, now_ms=NOW, disk_used_percent=used)
            assert oldest is not None
            assert (oldest.kept_by is None) == bool(plan.log)


def test_rounds_follow_each_other_in_an_hour_of_deletion_and_by_hand(tmp_path: Path) -> None:
    store, later = unpack("days-crash-5.5.0", tmp_path), str((hour_of(NOW) + 2) % 24)
    for path in log_files(store):
        os.utime(path, ns=((NOW - 100 * HOUR) * 1_000_000,) * 2)
    rules = replace(ALWAYS, deleteFileBatchMax=1)
    with store.open() as opened:
        may_go = len(opened.log.files_that_may_go(opened.log_range()[1]))
        assert may_go > 20
        for policy, manual, used, files in (
            (rules, False, 10, may_go),
            (replace(rules, deleteWhen=later), True, 10, 20),
            (replace(rules, deleteWhen=later), False, 80, 1),  # the disk decides after each
        ):
            plan = plan_retention(opened, policy, manual=manual, now_ms=NOW, disk_used_percent=used)
            assert len(plan.log) == files


def test_files_of_any_age_go_in_one_round_alone(tmp_path: Path) -> None:
    """After it the disk may be full no more; files that are old enough go on in the hour of deletion."""
    store = unpack("days-crash-5.5.0", tmp_path)
    for number, path in enumerate(log_files(store)):
        os.utime(path, ns=((NOW - (100 if number < 5 else 1) * HOUR) * 1_000_000,) * 2)
    with store.open() as opened:
        for batch, manual, files in ((1, False, 5), (3, True, 5), (8, False, 8)):
            rules = replace(ALWAYS, deleteFileBatchMax=batch)
            plan = plan_retention(opened, rules, manual=manual, now_ms=NOW, disk_used_percent=86)
            assert (plan.trigger, len(plan.log)) == ("forced", files)
            assert len([f for f in plan.log if f.why == "the disk is full"]) == max(0, files - 5)


def test_by_hand_all_files_before_a_time_go(aged: GoldenStore) -> None:
    with aged.open() as store:
        bases = [segment.base for segment in store.log.chain.segments]
        third = store.message_at(bases[3]).store_timestamp
        plan = plan_retention(store, keep_from=third + 1)
        assert plan.log_start_after in bases[3:]
        before = store.message_at(plan.log_start_after).store_timestamp
        assert before <= third + 1
        assert plan_retention(store, keep_from=0).log == ()


def test_by_hand_no_file_with_a_newer_message_goes(aged: GoldenStore) -> None:
    """As where the clock was set back behind the message: the next file begins with an older one."""
    first, second, third = log_files(aged)[:3]
    newer = next(r for r in aged.truth if r["commitLogOffset"] > int(second.name))
    with second.open("r+b") as file:
        file.seek(newer["commitLogOffset"] - int(second.name) + 56)  # storeTimestamp
        file.write((newer["storeTimestamp"] + HOUR).to_bytes(8, "big"))
    with aged.open() as store:
        moment = store.message_at(int(third.name)).store_timestamp + 1
        assert [file.path for file in plan_retention(store, keep_from=moment).log] == [str(first)]
        later = plan_retention(store, keep_from=moment + 2 * HOUR)
        assert later.log_start_after > int(third.name)


def test_what_is_left_is_a_sound_store(aged: GoldenStore) -> None:
    with aged.open() as store:
        plan = plan_retention(store, ALWAYS, now_ms=NOW, disk_used_percent=10)
        wanted = {
            queue: (store.view.offset_at_log(queue, plan.log_start_after), store.max_offset(*queue))
            for queue in store.queues()
        }
    assert apply_retention(plan) == plan.bytes
    with aged.open() as store:
        assert store.log.start == plan.log_start_after
        for queue, (low, high) in wanted.items():
            if low < high:
                assert (store.min_offset(*queue), store.max_offset(*queue)) == (low, high)
        assert verify(store).nothing_wrong
        rows = sum(b.num_rows for b in store.read_batches(include_system_topics=True))
        assert rows == sum(high - low for low, high in wanted.values())


def test_queue_and_index_files_go_with_their_last_entry(aged: GoldenStore) -> None:
    with aged.open() as store:
        bases = [segment.base for segment in store.log.chain.segments]
        plan = plan_retention(store, ALWAYS, now_ms=NOW + 400 * HOUR, disk_used_percent=10)
        assert (
            plan.log_start_after == bases[-2]
        )  # the log ends there; the last was created in advance
        left = [r["commitLogOffset"] for r in aged.truth if r["commitLogOffset"] >= bases[-2]]
        gone = {one.path for one in plan.queues}
        for queue in store.queues():
            files = store.view.files(queue)
            for segment in files.chain.segments:
                last = files.unit(files.chain.segment_end(segment) // 20 - 1)[0]
                is_last = segment is files.chain.segments[-1]
                assert (segment.path in gone) == (not is_last and last < plan.log_start_after)
        index = sorted((Path(aged.path) / "index").iterdir())
        assert 0 < len(plan.index) < len(index)
        assert [one.path for one in plan.index] == [str(p) for p in index[: len(plan.index)]]
    apply_retention(plan)
    assert aged.verified().nothing_wrong
    with aged.open() as store:
        assert offsets(store) == left != []


def test_groups_that_lose_messages_are_named_before(aged: GoldenStore) -> None:
    path = Path(aged.path) / "config/consumerOffset.json"
    with aged.open() as store:
        queue = max(store.queues("orders"), key=lambda q: store.max_offset(*q))
        key = f"{queue.topic}@slow"
        table = {"offsetTable": {key: {str(queue.queue_id): 1}}}
        path.write_text(json.dumps(table), "utf-8")
        plan = plan_retention(store, ALWAYS, now_ms=NOW, disk_used_percent=10)
        first = store.view.offset_at_log(queue, plan.log_start_after)
    assert [(risk.group, risk.messages) for risk in plan.risks] == [("slow", first - 1)]


def test_the_last_file_never_goes(golden: Golden) -> None:
    with golden("clean-5.3.3").open() as store:
        plan = plan_retention(store, ALWAYS, now_ms=2 * NOW, disk_used_percent=99)
        last = store.log.chain.segments[-1].path
    assert last not in [one.path for one in plan.log]


def test_nothing_is_deleted_while_the_store_is_locked_or_changed(aged: GoldenStore) -> None:
    plan = planned(aged)
    lock = StoreLock(Path(aged.path))
    try:
        with pytest.raises(StoreLockedError):
            apply_retention(plan)
    finally:
        lock.release()
    assert all(os.path.exists(one.path) for one in plan.log)
    first, size = Path(plan.log[0].path), plan.log[0].size
    os.truncate(first, size - 1)
    with pytest.raises(StoreError, match=f"{size} bytes.*{size - 1} bytes"):
        apply_retention(plan)
    first.unlink()
    with pytest.raises(StoreError, match="deleting") as gone:
        apply_retention(plan)
    assert gone.value.path == str(first)


def test_files_of_any_age_go_only_where_the_broker_may_force_it(aged: GoldenStore) -> None:
    with aged.open() as store:
        for may in (True, False):
            policy = replace(ALWAYS, cleanFileForciblyEnable=may, diskSpaceCleanForciblyRatio=99)
            plan = plan_retention(store, policy, now_ms=NOW, disk_used_percent=86)
            assert (plan.trigger, len(plan.log) > 2) == ("forced" if may else "time", may)


@pytest.mark.parametrize(
    ("log", "queues", "trigger"),
    [
        ((74, 99), 10, None),  # the emptiest disk of the log decides
        ((76, 99), 10, "disk"),
        ((10, 10), 76, "disk"),
        ((10, 10), 75, None),
    ],
)
def test_the_disks_decide_as_they_do_for_the_broker(
    log: tuple[int, int],
    queues: int,
    trigger: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 1,000 GB, 50 are reserved for root."""
    golden = unpack("multipath-5.5.0", tmp_path)
    hour = (hour_of(NOW) + 2) % 24
    with golden.open() as store:
        folders = store.log.chain.folders
        assert len(folders) == 2
        percent = {**dict(zip(folders, log, strict=True)), f"{store.path}/consumequeue": queues}

        def usage(folder: str | Path) -> SimpleNamespace:
            used = percent[str(folder)] * 95 // 10
            return SimpleNamespace(total=1000, used=used, free=950 - used)

        monkeypatch.setattr(shutil, "disk_usage", usage)
        policy = RetentionPolicy(deleteWhen=str(hour))
        assert plan_retention(store, policy, now_ms=NOW).trigger == trigger
    # A folder that the broker only reads does not count (CleanCommitLogService#isSpaceToDelete).
    settings = {"storePathCommitLog": folders[1], "readOnlyCommitLogStorePaths": folders[0]}
    with golden.open(config=settings) as store:
        plan = plan_retention(store, policy, now_ms=NOW)
        assert plan.disk_used_percent == max(log[1], queues)


def test_a_disk_that_is_not_full_says_when_the_next_deletion_is(
    aged: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, hour = tmp_path / "half.conf", (time.localtime().tm_hour + 12) % 24
    conf.write_text(f"deleteWhen={hour:02}\ndiskMaxUsedSpaceRatio=60\n", "utf-8")
    for used, due in ((600, False), (601, True)):
        disk = SimpleNamespace(total=1000, used=used, free=1000 - used)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, disk=disk: disk)
        said = run("retention", aged.path, "--broker-conf", str(conf))
        waits = (
            f"nothing is due: disk 60 %, limit 60 %; next deletion in hour {hour:02} (deleteWhen)"
        )
        assert (waits in said, "--apply deletes them" in said) == (not due, due), said


def test_hours_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="is not a list of hours"):
        RetentionPolicy.of(StoreConfig(deleteWhen="25"))
    policy = RetentionPolicy.of(StoreConfig(deleteWhen="02;14", fileReservedTime=48))
    assert (policy.hours(), policy.fileReservedTime) == ({2, 14}, 48)


def test_why_the_oldest_file_is_still_there(aged: GoldenStore) -> None:
    """Each setting keeps it alone; and then the plan of that moment deletes it."""
    later = RetentionPolicy(deleteWhen=str((hour_of(NOW) + 2) % 24))
    young = RetentionPolicy(fileReservedTime=101, deleteWhen=ALWAYS.deleteWhen)
    unforced = replace(young, cleanFileForciblyEnable=False)
    first = str(log_files(aged)[0])
    with aged.open() as store:
        for policy, used, kept_by in (
            (ALWAYS, 10, None),
            (later, 10, "deleteWhen"),
            (young, 10, "fileReservedTime"),
            (later, 76, None),
            (young, 80, "fileReservedTime"),
            (young, 85, "fileReservedTime"),
            (young, 90, None),
            (unforced, 90, "fileReservedTime"),
            (later, 75, "deleteWhen"),
            (RetentionPolicy(deleteWhen=""), 10, "deleteWhen"),
        ):
            found = why_oldest_file_is_kept(store, policy, now_ms=NOW, disk_used_percent=used)
            assert found is not None
            assert (found.path, found.kept_by) == (first, kept_by)
            assert found.old_enough_at == NOW - (100 - policy.fileReservedTime) * HOUR
            if found.goes_at is None:
                assert policy.deleteWhen == ""
                continue

            def log_at(
                moment: int, policy: RetentionPolicy = policy, used: int = used
            ) -> list[str]:
                plan = plan_retention(store, policy, now_ms=moment, disk_used_percent=used)
                return [one.path for one in plan.log]

            assert log_at(found.goes_at)[0] == first
            assert kept_by is None or log_at(found.goes_at - 1) == []


def test_the_last_file_stays(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    for path in log_files(store)[:-1]:
        path.unlink()
    with store.open() as opened:
        found = why_oldest_file_is_kept(opened, ALWAYS, now_ms=NOW, disk_used_percent=99)
    assert found is not None
    assert (found.kept_by, found.goes_at) == (LAST_FILE, None)


def test_why_is_a_table_of_settings(aged: GoldenStore) -> None:
    said = run("retention", aged.path, "--why")
    assert [line.split("  ")[0] for line in said.splitlines()] == [
        *("oldest file", "fileReservedTime", "deleteWhen", "disk", "kept by", "it goes")
    ]
    (line,) = call("retention", aged.path, "--why", "--json").stdout.splitlines()
    assert json.loads(line)["path"] == str(log_files(aged)[0])
    assert "--why only shows" in complaint("retention", aged.path, "--why", "--apply", expect=2)


@pytest.mark.parametrize(
    ("name", "kept_hours"), [("hours-clean-5.5.0", 4), ("days-crash-5.5.0", 30)]
)
def test_files_of_hours_ago_go_and_the_messages_of_the_others_stay(
    name: str, kept_hours: int, tmp_path: Path
) -> None:
    """Log files have the time of their last message; queues and index follow the log."""
    golden = unpack(name, tmp_path)
    files = log_files(golden)
    first, size = int(files[0].name), files[0].stat().st_size
    now: int = golden.truth[-1]["storeTimestamp"]
    written: dict[int, int] = {}
    for record in golden.truth:
        written[(record["commitLogOffset"] - first) // size] = record["storeTimestamp"]
    for number, path in enumerate(files):
        os.utime(path, ns=(written.get(number, now) * 1_000_000,) * 2)
    old = sum(time <= now - kept_hours * HOUR for time in written.values())
    start = int(files[min(old, len(files) - 1)].name)
    rules = replace(ALWAYS, fileReservedTime=kept_hours)
    with golden.open() as store:
        plan = plan_retention(store, rules, now_ms=now, disk_used_percent=10)
    assert plan.log_start_after == start
    apply_retention(plan)
    left = [record for record in golden.truth if record["commitLogOffset"] >= start]
    assert 0 < len(left) < len(golden.truth)
    with golden.open() as store:
        assert offsets(store) == [record["commitLogOffset"] for record in left]
        assert verify(store).nothing_wrong
    items = index_items(golden.path)
    assert not wanted_items(left, of_tags=True) - items
    gone = [record for record in golden.truth if record["commitLogOffset"] < start]
    assert (wanted_items(gone, of_tags=True) & items).total() < 400  # of one file at most
