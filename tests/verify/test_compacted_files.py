"""verify of `compaction/`: quiet about stores of real brokers, and each damage is found where it was done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.verify import Finding, Severity
from tests.support.damage import flip
from tests.support.golden import GoldenStore, unpack_kind, verified

NAME, TOPIC, UNIT = "compacted-5.5.0", "state", 46


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(NAME, tmp_path)


def findings(golden: GoldenStore) -> list[Finding]:
    return list(verified(golden.path).findings)


def about_compaction(golden: GoldenStore) -> list[Finding]:
    found = findings(golden)
    assert all(one.code.startswith("compaction-") for one in found), found
    return found


def file_of(golden: GoldenStore, kind: str, queue_id: int, base: int) -> Path:
    return Path(golden.path, f"compaction/compaction{kind}/{TOPIC}/{queue_id}/{base:020d}")


def served(golden: GoldenStore, queue_id: int) -> list[dict[str, int]]:
    lines = golden.lines("served")
    return [one for one in lines if (one["topic"], one["queue"]) == (TOPIC, queue_id)]


@pytest.mark.parametrize("name", [NAME, "compact-timer-5.5.0"])
def test_a_healthy_store_has_no_finding(tmp_path: Path, name: str) -> None:
    golden = unpack_kind(name, tmp_path)
    before = golden.fingerprint()
    assert [one for one in findings(golden) if one.code.startswith("compaction")] == []
    assert golden.fingerprint() == before
    if name == NAME:
        assert findings(golden) == []


def test_a_body_that_is_damaged(golden: GoldenStore) -> None:
    message = served(golden, 0)[2]
    flip(file_of(golden, "Log", 0, 0), message["phy"] + message["size"] // 3)
    (one,) = about_compaction(golden)
    assert (one.code, one.severity, one.count) == ("compaction-dangling-entry", Severity.ERROR, 1)
    assert one.path == os.fspath(file_of(golden, "Cq", 0, 0).parent)
    assert "the first" in one.meaning
    assert "compactionLog/state/0" in one.meaning


@pytest.mark.parametrize(
    "field", [range(12, 20), range(20, 28)], ids=["tagsCode", "storeTimestamp"]
)
def test_a_field_of_an_entry_that_nothing_reads(golden: GoldenStore, field: range) -> None:
    path = file_of(golden, "Cq", 1, 4140)
    for at in field:
        flip(path, 2 * UNIT + at)
        (one,) = about_compaction(golden)
        assert (one.code, one.severity) == ("compaction-entry-differs", Severity.WARNING)
        assert (one.path, one.start, one.stop) == (os.fspath(path), 2 * UNIT, 3 * UNIT)
        flip(path, 2 * UNIT + at)
    assert findings(golden) == []


@pytest.mark.parametrize("at", [*range(12), *range(28, 38)])
def test_a_field_of_an_entry_that_leads_to_its_message(golden: GoldenStore, at: int) -> None:
    path = file_of(golden, "Cq", 1, 4140)
    flip(path, 2 * UNIT + at, 2)
    found = about_compaction(golden)
    assert found
    assert {one.severity for one in found} <= {Severity.ERROR, Severity.WARNING}
    assert {one.code for one in found} & {"compaction-damaged", "compaction-dangling-entry"}
    assert all("/state/1" in one.path for one in found)


Hurt = Callable[[GoldenStore], object]
WHOLE: dict[str, tuple[Hurt, str]] = {
    "no file of the log": (lambda g: file_of(g, "Log", 1, 4140).unlink(), "Log/state/1"),
    "no file of entries": (lambda g: file_of(g, "Cq", 1, 4140).unlink(), "Cq/state/1"),
    "a cut log": (lambda g: os.truncate(file_of(g, "Log", 1, 4140), 2000), "Log/state/1"),
    "a cut file of entries": (lambda g: os.truncate(file_of(g, "Cq", 1, 0), 200), "Cq/state/1"),
}


@pytest.mark.parametrize("what", WHOLE)
def test_files_that_do_not_fit_each_other(golden: GoldenStore, what: str) -> None:
    hurt, path = WHOLE[what]
    hurt(golden)
    (one,) = about_compaction(golden)
    assert (one.code, one.severity) == ("compaction-damaged", Severity.ERROR)
    assert path in one.path


def test_a_pair_of_files_that_is_gone(golden: GoldenStore) -> None:
    """Nothing in the files shows it; the queue and the log have what a compaction would have kept."""
    for kind in ("Cq", "Log"):
        file_of(golden, kind, 1, 4140).unlink()
    gone = [one for one in served(golden, 1) if 4140 <= one["phy"] < 8280]
    keys = {one["props"]["KEYS"] for one in served(golden, 1) if one not in gone}  # type: ignore[index]
    last = [one for one in gone if one["props"]["KEYS"] not in keys]  # type: ignore[index]
    (one,) = about_compaction(golden)
    assert (one.code, one.severity) == ("compaction-lost", Severity.WARNING)
    assert one.count == len(last) > 0
    assert f"queue offset {last[0]['offset']}:" in one.meaning


def test_an_entry_that_is_left_out(golden: GoldenStore) -> None:
    """The entries behind it moved up, so that its record is listed nowhere."""
    path = file_of(golden, "Cq", 1, 4140)
    raw = path.read_bytes()
    path.write_bytes(raw[: 2 * UNIT] + raw[3 * UNIT :] + bytes(UNIT))
    left_out = [one for one in served(golden, 1) if one["phy"] >= 4140][2]
    found = {one.code: one for one in about_compaction(golden)}
    one = found["compaction-unlisted"]
    start = left_out["phy"] - 4140
    assert (one.start, one.stop) == (start, start + left_out["size"])
    assert one.path == os.fspath(file_of(golden, "Log", 1, 4140))


def test_a_store_that_is_answered_without_compaction_has_no_finding(golden: GoldenStore) -> None:
    file_of(golden, "Cq", 1, 4140).unlink()
    assert list(verified(golden.path, config={"enableCompaction": False}).findings) == []


def last_of_keys(golden: GoldenStore, queue_id: int) -> set[int]:
    """The queue offsets of a queue with the last message of a key, as the log has them."""
    with MessageStore.open(golden.path) as store:
        every = store.read_batches(
            TOPIC, [queue_id], columns=["queueOffset", "keys", "body"], compacted=False
        )
        rows = every.read_all().to_pylist()
    last = {row["keys"]: row for row in rows if row["keys"]}
    return {row["queueOffset"] for row in last.values() if row["body"]}


def test_the_last_pair_of_files_is_gone(golden: GoldenStore) -> None:
    base = 70380
    for kind in ("Log", "Cq"):
        file_of(golden, kind, 0, base).unlink()
    with MessageStore.open(golden.path) as store:
        found = store.get_message(TOPIC, 0, 0, 1000)
    there = {message.queue_offset for message in found.messages}
    (one,) = about_compaction(golden)
    assert (one.code, one.severity) == ("compaction-lost", Severity.WARNING)
    first = min(offset for offset in there if offset is not None)
    lost = {o for o in last_of_keys(golden, 0) if o >= first} - there
    assert one.count == len(lost) > 0
    assert f"the first of queue offset {min(lost)}" in one.meaning


@pytest.mark.parametrize("left", ["folders", "one folder", "files"])
def test_all_messages_of_a_queue_are_gone(golden: GoldenStore, left: str) -> None:
    for kind, size in (("Log", 1 << 16), ("Cq", 4600)):
        for path in list(file_of(golden, kind, 0, 0).parent.iterdir()):
            path.unlink()
        if left == "files":
            file_of(golden, kind, 0, 0).write_bytes(bytes(size))
    if left == "one folder":
        file_of(golden, "Log", 0, 0).parent.rmdir()
    (one,) = about_compaction(golden)
    assert (one.code, one.severity) == ("compaction-lost", Severity.WARNING)
    assert one.path == os.fspath(file_of(golden, "Cq", 0, 0).parent)
    assert "all 109 messages of queue state/0" in one.meaning
