"""Bytes after the last record: the rest of a page, a record that was begun, or a record cut later."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.salvage import salvage
from rmq_store.recovery import plan_recovery, recover
from rmq_store.verify import Finding
from tests.support.damage import write_at
from tests.support.golden import unpack_field, verified
from tests.support.stores import make_store

NO_MMAP = "without-mmap-clean-torn-tail-note"
# Of that store, by its bytes: ten records, then the end of an older, longer one.
END, REST = 1765, 29


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack_field(NO_MMAP, tmp_path)


def log_file(root: Path) -> Path:
    return max((root / "commitlog").iterdir())


def about_log(root: Path) -> list[Finding]:
    return [one for one in verified(root).findings if one.code.startswith("log-")]


def test_the_bytes_are_those_that_an_older_record_left_in_the_buffer(root: Path) -> None:
    """The buffer began with the first record, of 191 bytes; a later one of 162 left its end."""
    raw = log_file(root).read_bytes()
    sizes, at = [], 0
    while struct.unpack_from(">I", raw, at + 4)[0] == 0xDAA320A7:
        sizes.append(struct.unpack_from(">i", raw, at)[0])
        at += sizes[-1]
    assert (at, sizes) == (END, [191] * 5 + [162] * 5)
    assert raw[END : END + REST] == raw[162:191]
    assert not any(raw[END + REST :])


def test_the_rest_of_a_page_in_a_closed_store_is_no_torn_record(root: Path, tmp_path: Path) -> None:
    (finding,) = about_log(root)
    assert (finding.code, finding.severity.value) == ("log-page-rest", "note")
    assert (finding.start, finding.stop) == (END, END + REST)
    assert "stopped inside" not in finding.meaning
    assert plan_recovery(root).untouched
    report = salvage(root, tmp_path / "new")
    assert (report.messages, report.skipped_ranges) == (10, 0)


def test_the_rest_may_begin_with_zeros_that_the_buffer_held(root: Path) -> None:
    """Another part of an older record: its producer's address and the time before it have zeros."""
    raw = log_file(root).read_bytes()
    rest = raw[12:191]  # from the queue id on, which is 0
    assert not any(rest[:4])
    write_at(log_file(root), END, rest)
    (finding,) = about_log(root)
    assert (finding.code, finding.stop) == ("log-page-rest", END + len(rest.rstrip(b"\0")))
    assert plan_recovery(root).untouched


def test_without_a_clean_stop_both_are_possible(root: Path) -> None:
    (root / "abort").touch()
    (finding,) = about_log(root)
    assert finding.code == "log-torn-tail"
    assert "stopped inside one, or they are the rest of a page" in finding.meaning
    assert recover(root).bytes_cut == REST


@pytest.mark.parametrize("closed", [True, False])
def test_a_record_that_was_begun_is_said_to_be_one(root: Path, closed: bool) -> None:
    head = struct.pack(">iIIiiqq", 162, 0xDAA320A7, 1, 0, 0, 10, END)
    write_at(log_file(root), END, head)
    if not closed:
        (root / "abort").touch()
    (finding,) = about_log(root)
    assert finding.code == "log-torn-tail"
    assert ("although the store was closed cleanly" in finding.meaning) is closed
    assert ("the writer stopped inside a record" in finding.meaning) is not closed
    assert not plan_recovery(root).untouched


def test_a_record_that_a_queue_lists_is_no_rest_of_a_page(root: Path) -> None:
    write_at(log_file(root), END - 162, b"\x7f" * 162)  # the last record, whose queue entry stays
    lost, finding = about_log(root)
    assert (lost.code, finding.code) == ("log-end-lost", "log-torn-tail")
    assert "although the store was closed cleanly" in finding.meaning
    assert not plan_recovery(root).untouched


def test_bytes_beyond_the_page_are_no_rest_of_it(root: Path) -> None:
    write_at(log_file(root), 4096, b"\x01")
    (finding,) = about_log(root)
    assert finding.code == "log-torn-tail"
    assert not plan_recovery(root).untouched


def test_an_append_leaves_nothing_of_the_rest_behind_it(root: Path) -> None:
    with MessageStore.append_to(root, recovery="refuse") as writer:
        writer.append({"topic": "FooBar", "queueId": 0, "body": b""})
    with MessageStore.open(root) as store:
        end = store.log_range()[1]
        assert sum(map(len, store.read_batches(columns=["body"]))) == 11
    assert end > END
    assert not any(log_file(root).read_bytes()[end:])
    assert about_log(root) == []


def test_records_from_before_a_cut_are_reported_in_each_file(tmp_path: Path) -> None:
    """A log of 100 messages was cut to its start, and 40 were written over it."""
    old, new = tmp_path / "old", tmp_path / "new"
    make_store(old, 100)
    make_store(new, 40)
    with MessageStore.open(new) as store:
        end = store.log_range()[1]
    for file in sorted((old / "commitlog").iterdir()):
        now = new / "commitlog" / file.name
        kept = now.read_bytes()[:end] + bytes(8) if now.exists() else b""  # the next record is torn
        now.write_bytes(kept + file.read_bytes()[len(kept) :])
    behind = [finding for finding in about_log(new) if finding.code == "log-records-behind-end"]
    assert [Path(finding.path).name for finding in behind] == [f"{0:020}", f"{8192:020}"]
    assert sum(finding.count for finding in behind) == 100 - 40 - 1
