"""Files of the log that are short or empty, before and at the end of the log."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.rebuild import rebuild
from rmq_store.errors import InvalidArgumentError, UnrecoverableStoreError
from rmq_store.recovery import plan_recovery, recover
from rmq_store.verify import verify
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, log_files, unpack
from tests.support.running.commands import call, complaint, run

NAME = "clean-5.5.0"


def crashed(tmp_path: Path, number: int, size: int) -> tuple[GoldenStore, Path, int]:
    """A store that was not closed, whose file `number` of the log is cut to `size`; its full size."""
    store = unpack(NAME, tmp_path)
    Path(store.path, "abort").touch()
    path = log_files(store)[number]
    full = path.stat().st_size
    os.truncate(path, size)
    return store, path, full


@pytest.mark.parametrize(
    ("number", "size"), [(0, 100_000), (0, 4096), (1, 100_000), (1, 4096), (1, 0), (2, 0)]
)
def test_what_a_short_file_lost_is_damage_although_it_gets_its_size_again(
    number: int, size: int, tmp_path: Path
) -> None:
    store, path, full = crashed(tmp_path, number, size)
    lost = (int(path.name) + size, int(path.name) + full)
    plan = plan_recovery(store.path)
    assert lost in plan.damage
    assert recover(store.path).damage == plan.damage
    assert path.stat().st_size == full


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_recovery_counts_what_a_short_file_lost_and_it_stays_known(
    is_closed: bool, tmp_path: Path
) -> None:
    store, path, full = crashed(tmp_path, 1, 100_000)
    if is_closed:
        Path(store.path, "abort").unlink()
    begin, end = int(path.name) + 100_000, int(path.name) + full
    places = Counter(
        QueueId(one["topic"], one["queueId"])
        for one in store.truth
        if begin < one["commitLogOffset"] + one["storeSize"] and one["commitLogOffset"] < end
    )
    plan, report = plan_recovery(store.path), recover(store.path)
    assert plan.entries_in_damage == report.entries_in_damage == places
    assert f"lost in it: the messages of {places.total()} entries in 6 queues" in str(plan)
    assert sum(row["entries"] for row in plan.to_dict()["entries_in_damage"]) == places.total()
    assert call("cat", store.path, "--topic", "orders").returncode == 2
    said = run("verify", store.path, expect=1)
    assert f"damaged: {places.total()} messages of 6 queues lost" in said


@pytest.mark.parametrize(("number", "size"), [(0, 0), (0, 100_000), (1, 100_000), (2, 0)])
def test_a_short_file_of_a_store_that_was_closed_is_recovered_as_verify_says(
    number: int, size: int, tmp_path: Path
) -> None:
    store, path, full = crashed(tmp_path, number, size)
    Path(store.path, "abort").unlink()
    (finding,) = (one for one in store.verified().findings if one.code == "log-file-refused")
    assert "rmqstore recover gives a short file of the log its size again" in finding.advice
    plan = plan_recovery(store.path)
    assert not plan.untouched
    report = recover(store.path)
    assert report.damage == plan.damage
    assert not path.exists() or path.stat().st_size == full
    if path.exists():
        assert (int(path.name) + size, int(path.name) + full) in report.damage
    assert "log-file-refused" not in {one.code for one in store.verified().findings}
    plan_recovery(store.path, method="broker", release="5.5.0")  # a broker starts on it


@pytest.mark.parametrize("count", [1, 2])
def test_empty_files_before_the_log_are_removed(count: int, copy: GoldenStore) -> None:
    Path(copy.path, "abort").touch()
    empty, kept = log_files(copy)[:count], log_files(copy)[count:]
    for path in empty:
        path.write_bytes(b"")
    with pytest.raises(UnrecoverableStoreError):
        plan_recovery(copy.path, method="broker", release="5.5.0")
    plan, report = plan_recovery(copy.path), recover(copy.path)
    assert plan.damage == report.damage == []
    assert (plan.log_start, report.log_start) == (int(kept[0].name), int(kept[0].name))
    assert log_files(copy) == kept
    assert not [f for f in copy.verified().findings if f.code.startswith("log-")]
    Path(copy.path, "abort").touch()
    plan_recovery(copy.path, method="broker", release="5.5.0")


def test_an_empty_file_behind_the_end_of_the_log_is_removed(copy: GoldenStore) -> None:
    """A later file is there, as a broker allocates it ahead, and has no record."""
    Path(copy.path, "abort").touch()
    first, *later = log_files(copy)
    for path in later:
        path.write_bytes(bytes(path.stat().st_size))
    later[0].write_bytes(b"")
    plan = plan_recovery(copy.path)
    assert log_files(copy) == [first, *later]
    report = recover(copy.path)
    assert plan.files == report.files
    assert {(file.path, file.what) for file in plan.files} >= {(str(p), "removed") for p in later}
    assert log_files(copy) == [first]


def test_a_record_that_the_last_file_ends_inside_of_is_not_counted_as_intact(
    tmp_path: Path,
) -> None:
    source = unpack(NAME, tmp_path / "source")
    last = int(log_files(source)[-1].name)
    records = [one for one in source.truth if one["commitLogOffset"] >= last]
    for number in (5, 100, 300):
        cut = records[number]
        # The body is there as a whole: only bytes of the properties are not.
        size = cut["commitLogOffset"] + cut["storeSize"] - 24 - last
        shutil.rmtree(tmp_path / NAME, ignore_errors=True)
        store, _, _ = crashed(tmp_path, -1, size)
        plan = plan_recovery(store.path)
        assert (plan.log_end, plan.records_cut) == (cut["commitLogOffset"], 0)


@pytest.mark.parametrize("zeros", [1, 10, 60])
def test_a_half_written_last_record_is_cut_and_not_called_intact(
    zeros: int, copy: GoldenStore, tmp_path: Path
) -> None:
    """Its lengths and the CRC of its body are right: the end of its properties was not written."""
    Path(copy.path, "abort").touch()
    last = copy.truth[-1]
    end = last["commitLogOffset"] + last["storeSize"]
    write_in_log(copy, end - zeros, bytes(zeros))
    plan = plan_recovery(copy.path)
    assert (plan.log_end, plan.records_cut) == (last["commitLogOffset"], 0)
    lost = {QueueId(last["topic"], last["queueId"]): 1}
    assert plan.entries_after_log == lost
    report = rebuild(copy.path, tmp_path / "new")
    assert (report.recovery.entries_after_log, report.all_well) == (lost, False)
    with MessageStore.append_to(copy.path) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b"next"})
    with MessageStore.open(copy.path) as opened:
        assert opened.log_range()[1] > last["commitLogOffset"]
        assert not [f for f in verify(opened).findings if f.code.startswith("log-")]


def test_verify_does_not_say_that_a_broker_starts_with_an_empty_file(tmp_path: Path) -> None:
    store, path, _ = crashed(tmp_path, 1, 0)
    found = {f.code: f for f in store.verified().findings}
    assert "No broker starts" in found["log-file-missing"].meaning
    assert found["log-file-refused"].path == str(path)
    path.unlink()
    found = {f.code: f for f in store.verified().findings}
    assert "A broker starts all the same" in found["log-file-missing"].meaning
    assert "log-file-refused" not in found


def test_the_report_gives_the_range_of_a_queue_whose_last_entries_lead_into_damage(
    tmp_path: Path,
) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    Path(store.path, "abort").touch()
    os.truncate(log_files(store)[0], 689)
    plan, report = plan_recovery(store.path, store.conf), recover(store.path, store.conf)
    with store.open() as opened:
        ranges = {q: (opened.min_offset(*q), opened.max_offset(*q)) for q in opened.queues()}
    assert (0, 1) in ranges.values()
    assert plan.queues == report.queues == ranges


def test_a_refused_recovery_leaves_a_store_as_it_was(tmp_path: Path) -> None:
    """`abort` would say that the store was not closed."""
    store = unpack("lmq-5.3.3", tmp_path)
    (path,) = log_files(store)
    os.truncate(path, 170_157)
    before = store.fingerprint()
    with pytest.raises(InvalidArgumentError, match="smaller than the configured size"):
        recover(store.path, store.conf)
    after = store.fingerprint()
    lock = str(Path(store.path, "lock"))
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert names <= {lock, store.path}


@pytest.fixture
def cut_short(tmp_path: Path) -> GoldenStore:
    """A broker's store whose only file of the log ends in the middle of its records."""
    store = unpack("crc-5.5.0", tmp_path)
    (path,) = log_files(store)
    assert path.stat().st_size == 262_144
    os.truncate(path, 131_072)
    return store


def test_the_only_file_of_the_log_gets_its_size_by_the_brokers_configuration(
    cut_short: GoldenStore,
) -> None:
    (path,) = log_files(cut_short)
    assert "log-file-refused" in {
        one.code for one in cut_short.verified(config=cut_short.conf).findings
    }
    report = recover(cut_short.path, cut_short.conf)
    assert path.stat().st_size == 262_144
    whole = [r for r in cut_short.truth if r["commitLogOffset"] + r["storeSize"] <= 131_072]
    assert (report.records, report.log_end) == (
        len(whole),
        max(r["commitLogOffset"] + r["storeSize"] for r in whole),
    )
    # A broker starts: its own recovery accepts every file, and finds the same end.
    assert plan_recovery(cut_short.path, cut_short.conf, method="broker").log_end == report.log_end


@pytest.mark.parametrize("how", ["strict", "broker", "rebuild", "salvage"])
def test_without_a_configuration_the_size_of_the_only_file_is_not_guessed(
    cut_short: GoldenStore, tmp_path: Path, how: str
) -> None:
    """What is made with a file size of 131,072 bytes is of no use to its broker."""
    before = cut_short.fingerprint()
    words = {
        "strict": ["recover", cut_short.path, "--apply"],
        "broker": ["recover", cut_short.path, "--method", "broker"],
        "rebuild": ["rebuild", cut_short.path, "--to", str(tmp_path / "new")],
        "salvage": ["salvage", cut_short.path, "--to", str(tmp_path / "new")],
    }[how]
    said = complaint(*words, expect=2)
    assert f"{log_files(cut_short)[0]}: the only file of the log was cut short" in said
    assert "--broker-conf" in said
    assert "Omit" not in said
    lock = str(Path(cut_short.path, "lock"))  # it is taken meanwhile
    files = {name: found[2] for name, found in cut_short.fingerprint().items() if name != lock}
    assert files == {name: found[2] for name, found in before.items() if name != lock}
    assert not (tmp_path / "new" / "commitlog").exists()
    (finding,) = [one for one in cut_short.verified().findings if one.code == "log-file-refused"]
    assert "No broker starts on it" in finding.meaning
    if how in ("rebuild", "salvage"):
        call(*words, "--broker-conf", cut_short.conf)
        (made,) = (tmp_path / "new" / "commitlog").iterdir()
        assert made.stat().st_size == 262_144


@pytest.mark.parametrize("size", [4096, 20_000, 65_536])
def test_a_file_that_is_not_evidently_cut_is_not_said_to_be(tmp_path: Path, size: int) -> None:
    """Zeros after the last record may be missing in a copy: they show no size."""
    store = unpack("lmq-5.3.3", tmp_path)
    (path,) = log_files(store)
    used = len(path.read_bytes().rstrip(b"\0"))
    os.truncate(path, used + size)
    with pytest.raises(InvalidArgumentError, match="smaller than the configured size") as refused:
        recover(store.path, {"mappedFileSizeCommitLog": used + size + 1})
    assert f"truncate -s {used + size + 1} FILE" in str(refused.value)
    recover(store.path)


def test_a_record_that_lacks_a_sector_of_its_properties_is_cut(tmp_path: Path) -> None:
    """Its first and its last bytes reached the disk, and its CRC is of its body alone."""
    root, long = tmp_path / "s", {"long": "y" * 2000}
    message = {"topic": "orders", "queueId": 0, "body": b"x", "properties": long}
    with MessageStore.create(root, {"mappedFileSizeCommitLog": 1 << 16}) as writer:
        places = [writer.append(message).commit_log_offset for _ in range(3)]
    (root / "abort").touch()
    (root / "checkpoint").unlink()  # which would say that it was flushed
    path = root / "commitlog" / ("0" * 20)
    raw = bytearray(path.read_bytes())
    sector = -(-raw.rindex(b"long") // 512) * 512
    assert set(raw[sector : sector + 512]) == set(b"y")
    raw[sector : sector + 512] = bytes(512)
    path.write_bytes(raw)
    assert recover(root).log_end == places[2]
