"""rmqstore usage on damaged stores: it says what its numbers lack, and ends with 1."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import QueueId
from rmq_store.questions import usage as question
from tests.support.golden import GoldenStore, unpack
from tests.support.log_records import parts, records
from tests.support.running.commands import call, objects

SECOND_FILE = 262144


def damaged_records(store: GoldenStore) -> int:
    """Change a byte in the bodies of some records; how many of them a user's queue lists."""
    chosen = [one for one in records(store.path) if parts(one[2])[2] == b"orders"][50:90:8]
    for file, at, raw in chosen:
        wide = 12 * bin(raw[39] & 0x30).count("1")
        with file.open("r+b") as log:
            log.seek(at + 88 + wide)
            log.write(bytes([raw[88 + wide] ^ 1]))
    return len(chosen)


def damaged_entries(store: GoldenStore) -> int:
    file = sorted(Path(store.path, "consumequeue", "payments", "0").iterdir())[0]
    with file.open("r+b") as queue:
        queue.seek(20 * 7)
        queue.write(bytes(20 * 3))
    return 3


def missing_file(store: GoldenStore) -> int:
    Path(store.path, "commitlog", f"{SECOND_FILE:020d}").unlink()
    count = 0
    for path in Path(store.path, "consumequeue").rglob("0*"):
        if path.is_file():
            raw = path.read_bytes()
            for at in range(0, len(raw), 20):
                where, size = struct.unpack_from(">qi", raw, at)
                count += 0 < size < 0x7FFFFFFF and SECOND_FILE <= where < 2 * SECOND_FILE
    return count + inner_messages(store)


def inner_messages(store: GoldenStore) -> int:
    """The messages of inner batches in the second file of the log."""
    found = 0
    for record in store.truth:
        if record["sysFlag"] & 0x80 and SECOND_FILE <= record["commitLogOffset"] < 2 * SECOND_FILE:
            found += int(record["properties"]["INNER_NUM"])
    return found


def lost_queue(store: GoldenStore) -> int:
    shutil.rmtree(Path(store.path, "consumequeue", "payments", "1"))
    return 0


def lost_end(store: GoldenStore) -> int:
    """The last entries of a queue are zeros, which reads as a shorter queue."""
    file = sorted(Path(store.path, "consumequeue", "orders", "1").iterdir())[-1]
    raw = file.read_bytes()
    used = len(raw.rstrip(b"\0")) // 20 * 20
    file.write_bytes(raw[: used - 80] + bytes(len(raw) - used + 80))
    return 0


CASES = [damaged_records, damaged_entries, missing_file, lost_queue, lost_end]


@pytest.mark.parametrize("damage", CASES)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
def test_usage_says_what_it_does_not_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[GoldenStore], int],
    large: bool,
    as_json: bool,
) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    if large:  # as a log of more than RECORDS_READ bytes
        monkeypatch.setattr(question, "RECORDS_READ", 0)
    words = ("usage", store.path, *(["--json"] if as_json else []))
    healthy = call(*words)
    assert healthy.returncode == 0
    assert ("records of this log were not read" in healthy.stderr) is large
    assert "damaged places" not in healthy.stderr
    unreadable = damage(store)
    done = call(*words)
    if damage is damaged_records and large:  # the records were not read, and it says so
        assert (done.returncode, done.stderr) == (0, healthy.stderr)
        return
    assert done.returncode == 1
    assert f"messages that are counted and cannot be read: {unreadable};" in done.stderr
    assert "not counted, or not readable: [RMQSTORE_" in done.stderr
    assert done.stdout.count("\n") >= healthy.stdout.count("\n")


def test_damage_counts_in_what_was_asked_for(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    words = ("usage", store.path, "--topic", "payments")
    assert call(*words).returncode == 0
    count = damaged_entries(store)
    done = call(*words)
    assert done.returncode == 1
    assert f"messages that are counted and cannot be read: {count};" in done.stderr
    assert call("usage", store.path, "--topic", "orders").returncode == 0


def test_the_day_of_messages_without_a_record_is_not_known(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    last = sorted(Path(store.path, "commitlog").iterdir())[-1]
    last.unlink()
    done = call("usage", store.path, "--by", "day")
    days = dict(line.split("\t")[:2] for line in done.stdout.splitlines()[1:])
    gone = [one for one in store.truth if one["commitLogOffset"] >= int(last.name)]
    assert gone
    assert set(days) == {"2026-11-21", "(not known)"}
    assert done.returncode == 1


@pytest.mark.parametrize("large", [False, True])
def test_a_missing_file_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    if large:
        monkeypatch.setattr(question, "RECORDS_READ", 0)
    lost = missing_file(store)
    damaged_entries(store)
    said = call("usage", store.path).stderr
    missing = f"files of the CommitLog from {SECOND_FILE} to {2 * SECOND_FILE} are missing"
    assert lost > 1
    assert said.count(missing) == 1
    assert "payments/0" in said  # other damage is not crowded out


def test_a_message_that_neither_queue_nor_log_has_is_said_to_be_lost(tmp_path: Path) -> None:
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
    with Path(store.path, "commitlog", f"{at // SECOND_FILE * SECOND_FILE:020d}").open(
        "r+b"
    ) as log:
        log.seek(at % SECOND_FILE)
        log.write(bytes(lost["storeSize"]))
    said = call("usage", store.path).stderr
    assert "queue orders/0, which has later messages, lists none (it is lost, or" in said
    assert "at queueOffset 220" in said
    (row,) = [row for row in objects("table", "damage", store.path) if row["queueOffset"] == 220]
    assert row["commitLogOffset"] is None
    assert row["storeSize"] is None
    everything = (
        said + call("verify", store.path).stdout + call("table", "damage", store.path).stdout
    )
    assert "offset -1" not in everything
