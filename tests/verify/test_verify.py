"""verify: quiet about stores of real brokers, and each kind of damage is found where it was done."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rmq_store import Gap, MessageStore, StoreError
from rmq_store.admin.rebuild import rebuild
from rmq_store.commitlog.walk import SoundRun, walk
from rmq_store.errors import UnrecoverableStoreError
from rmq_store.format.byte_layout import INDEX_HEADER
from rmq_store.format.queues import QUEUE_ENTRY
from rmq_store.questions import answer_by_shares
from rmq_store.questions.answer_by_shares import OpenedStore, ask, processes_for
from rmq_store.recovery import plan_recovery
from rmq_store.verify import Finding, Severity, VerifyReport, verify
from rmq_store.verify.findings import Findings
from rmq_store.verify.verify_store import (
    CheckedPart,
    VerifyQuestion,
    check_log,
    conclude,
    log_parts,
)
from tests.support.damage import DamagedStore, flip, log_file_at, write_at, write_in_log
from tests.support.golden import (
    MODEST,
    STORES,
    UNCLEAN,
    Golden,
    GoldenStore,
    log_files,
    unpack,
    verified,
)
from tests.support.listed import queue_entries, wanted_entries
from tests.support.refusing import refuse
from tests.support.running.campaigns import few, some


def codes(report: VerifyReport) -> dict[str, Severity]:
    return {finding.code: finding.severity for finding in report.findings}


def one(report: VerifyReport, code: str) -> Finding:
    found = [finding for finding in report.findings if finding.code == code]
    assert len(found) == 1, [finding.code for finding in report.findings]
    return found[0]


@pytest.fixture
def clean(tmp_path: Path) -> GoldenStore:
    return unpack("clean-5.3.3", tmp_path)


def pieces_of(store: MessageStore) -> list[tuple[int, Gap | None]]:
    """Every piece that a scan yields: where it starts, and what it is."""
    found: list[tuple[int, Gap | None]] = []
    end = store.log.start
    for piece in walk(store.log):
        assert piece.start == end
        end = piece.stop
        if isinstance(piece, SoundRun):
            found += [(at, None) for at in (piece.headers.at + piece.segment.base).tolist()]
        else:
            found.append((piece.start, piece.gap))
    assert end == store.log.chain.stop
    return found


@pytest.mark.parametrize("name", few("scans", STORES, "clean-5.5.0", "crash-4.9.7", "nommap-5.5.0"))
def test_a_fast_scan_accounts_for_every_byte_as_the_readable_scan_does(
    golden: Golden, name: str
) -> None:
    with golden(name).open() as store:
        assert pieces_of(store) == [(extent.start, extent.gap) for extent in store.scan()]


@pytest.mark.parametrize("seed", range(12))
def test_a_fast_scan_of_a_damaged_log_equals_the_readable_sweep(tmp_path: Path, seed: int) -> None:
    store = unpack(["clean-5.3.3", "clean-5.5.0", "crc-5.5.0"][seed % 3], tmp_path)
    choose = random.Random(seed)
    for path in sorted((Path(store.path) / "commitlog").iterdir()):
        raw = bytearray(path.read_bytes())
        used = max(1, len(raw.rstrip(b"\0")))
        for _ in range(choose.randrange(4)):
            at, width = choose.randrange(used), choose.choice((1, 4, 300))
            raw[at : at + width] = choose.randbytes(width)
        path.write_bytes(raw)
    with store.open() as damaged:
        assert pieces_of(damaged) == [(extent.start, extent.gap) for extent in damaged.scan()]


SOUND = [name for name in STORES if name != "nommap-5.5.0"]
QUICK = [name for name in MODEST if name in SOUND]


@pytest.mark.parametrize("name", few("sound", SOUND, *QUICK, "hours-clean-5.5.0"))
def test_nothing_is_wrong_with_the_stores_of_real_brokers(golden: Golden, name: str) -> None:
    store = golden(name)
    before = store.fingerprint()
    report = store.verified()
    assert report.nothing_wrong, [finding.to_dict() for finding in report.findings]
    assert report.records == len(store.truth) or name in UNCLEAN
    assert report.index
    killed_beside_a_new_file = name == "hours-crash-5.5.0"
    assert ("index-half-written" in codes(report)) is killed_beside_a_new_file
    assert store.fingerprint() == before
    json.dumps(report.to_dict())


def test_stale_records_inside_a_log_are_reported(golden: Golden) -> None:
    with golden("nommap-5.5.0").open() as store:
        report = verify(store)
        ghosts = [extent.start for extent in store.scan() if extent.gap is Gap.GHOST]
    found = [finding for finding in report.findings if finding.code == "log-ghost"]
    assert [finding.start for finding in found] == ghosts
    assert not report.nothing_wrong


def test_a_crashed_store_has_only_notes(golden: Golden) -> None:
    report = golden("crash-5.3.3").verified()
    assert set(codes(report)) == {"not-dispatched", "not-indexed", "not-closed"}
    assert report.lag == 3


def test_a_flipped_bit_in_a_body_is_found_in_its_record(clean: GoldenStore) -> None:
    path = log_files(clean)[2]
    record = next(
        one
        for one in clean.truth
        if len(one["body"] or "") > 40 and one["commitLogOffset"] >= int(path.name)
    )
    at = record["commitLogOffset"] - int(path.name)
    flip(path, at + 90)
    finding = one(verified(clean.path), "log-damaged")
    assert (finding.path, finding.start, finding.stop) == (str(path), at, at + record["storeSize"])
    assert finding.severity is Severity.ERROR
    assert "crc" in finding.meaning.lower()


def test_entries_of_a_damaged_record_name_the_damage(clean: GoldenStore) -> None:
    record = next(one for one in clean.truth if one["topic"] == "orders")
    at = record["commitLogOffset"]
    write_in_log(clean, at, bytes(record["storeSize"]))
    report = verified(clean.path)
    (finding,) = [one for one in report.findings if one.code == "queue-dangling-entry"]
    place = f"queue offset {record['queueOffset']}, in the damage at log offset {at}"
    assert f"1 message lost, {place}" in finding.meaning
    assert finding.count == 1
    assert one(report, "log-damaged").start == at


def queue_file(store: GoldenStore) -> Path:
    with store.open() as opened:
        state = opened.snapshot().queues
        queue = max(state, key=lambda queue: state[queue].max_offset)
    return next((Path(store.path) / "consumequeue" / queue.topic / str(queue.queue_id)).iterdir())


def test_an_entry_that_leads_elsewhere_costs_its_record_and_is_reported_twice(
    clean: GoldenStore,
) -> None:
    path = queue_file(clean)
    entry = np.frombuffer(path.read_bytes()[:40], QUEUE_ENTRY)
    changed = entry[:1].copy()
    changed["log_offset"] = entry["log_offset"][1] + 4
    write_at(path, 0, changed.tobytes())
    report = verified(clean.path)
    assert one(report, "queue-misses-record").count == 1
    assert one(report, "queue-dangling-entry").path == str(path.parent)
    assert not report.nothing_wrong


def test_a_wrong_tags_code_is_a_warning(clean: GoldenStore) -> None:
    path = queue_file(clean)
    write_at(path, 12, (12345).to_bytes(8, "big"))
    assert codes(verified(clean.path)) == {"queue-wrong-tags-code": Severity.WARNING}


def test_a_queue_without_files_is_an_error_while_its_topic_is_configured(
    clean: GoldenStore,
) -> None:
    folder = queue_file(clean).parent
    shutil.rmtree(folder)
    assert one(verified(clean.path), "queue-missing").path == str(folder)
    topics = Path(clean.path) / "config/topics.json"
    topics.write_text("{}", "utf-8")
    topics.with_name("topics.json.bak").unlink(missing_ok=True)
    report = verified(clean.path)
    assert one(report, "queue-deleted").severity is Severity.NOTE
    assert "queue-missing" not in codes(report)


def test_a_topic_without_queues_may_be_lost_where_no_topics_json_says_more(
    clean: GoldenStore,
) -> None:
    topic = queue_file(clean).parent.parent
    shutil.rmtree(topic)
    shutil.rmtree(Path(clean.path) / "config")
    report = verified(clean.path)
    missing = [finding for finding in report.findings if finding.code == "queue-missing"]
    assert {finding.severity for finding in missing} == {Severity.WARNING}
    gone = sum(record["topic"] == topic.name for record in clean.truth)
    assert report.verdict.unlisted == sum(finding.count for finding in missing) == gone
    assert "queue-deleted" not in codes(report)


def test_an_index_with_a_gap_or_none(clean: GoldenStore) -> None:
    folder = Path(clean.path) / "index"
    file = sorted(folder.iterdir())[0]
    geometry = clean.verified().index[0]
    whole = file.read_bytes()
    write_at(file, INDEX_HEADER.itemsize + 4 * geometry.slots, bytes(4000))
    report = codes(verified(clean.path))
    names = ("index-damaged", "index-broken-chain", "index-gap")
    assert report == dict.fromkeys(names, Severity.WARNING)
    file.write_bytes(whole)
    shutil.rmtree(folder)
    # So says the checkpoint.
    assert codes(verified(clean.path)) == {"index-lost": Severity.WARNING}
    write_at(Path(clean.path, "checkpoint"), 16, bytes(8))
    report_without = verified(clean.path)
    assert one(report_without, "index-absent").severity is Severity.NOTE
    assert report_without.nothing_wrong


def test_a_checkpoint_ahead_of_the_log_means_that_its_end_is_lost(clean: GoldenStore) -> None:
    last = max(record["storeTimestamp"] for record in clean.truth)
    path = Path(clean.path) / "checkpoint"
    write_at(path, 0, (last + 60_000).to_bytes(8, "big"))
    assert codes(verified(clean.path)) == {"checkpoint-ahead": Severity.ERROR}
    path.write_bytes(b"short")
    assert codes(verified(clean.path)) == {"checkpoint-unreadable": Severity.WARNING}
    assert "Move it away" in one(verified(clean.path), "checkpoint-unreadable").advice


def test_a_checkpoint_of_a_log_that_is_gone_means_that_it_is_lost(clean: GoldenStore) -> None:
    for path in (Path(clean.path) / "commitlog").iterdir():
        path.unlink()
    finding = one(verified(clean.path), "checkpoint-ahead")
    assert finding.severity is Severity.ERROR
    assert finding.meaning.endswith("the log has none: the log is lost")


def test_a_checkpoint_that_may_not_be_read_is_not_to_be_moved_away(
    clean: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(clean.path) / "checkpoint"
    refuse(monkeypatch, os, "open", path)
    finding = one(verified(clean.path), "checkpoint-unreadable")
    assert "Permission denied" in finding.meaning
    assert finding.advice == "Check the permissions, the disk and the mount"


def test_offsets_of_groups_outside_their_queue_are_reported(clean: GoldenStore) -> None:
    path = Path(clean.path) / "config/consumerOffset.json"
    queue = queue_file(clean).parent
    name = f"{queue.parent.name}@late"
    path.write_text(json.dumps({"offsetTable": {name: {queue.name: 10**6}}}), "utf-8")
    finding = one(verified(clean.path), "consumer-ahead")
    assert "late" in finding.meaning
    path.write_text("{ no json", "utf-8")
    path.with_name("consumerOffset.json.bak").write_text("nor this", "utf-8")
    assert codes(verified(clean.path)) == {"config-unreadable": Severity.ERROR}


def test_files_missing_in_the_middle_are_errors_of_their_bytes(tmp_path: Path) -> None:
    """An empty file is still there, and no broker starts with it; a missing file stops none."""
    store = unpack("hours-clean-5.5.0", tmp_path)
    files = log_files(store)
    gone, empty, size = files[3], files[8], files[8].stat().st_size
    gone.unlink()
    empty.write_bytes(b"")
    missing = [f for f in verified(store.path).findings if f.code == "log-file-missing"]
    assert [
        (f.severity, f.start, f.stop, f"these {size} bytes" in f.meaning, "empty" in f.meaning)
        for f in missing
    ] == [
        (Severity.ERROR, int(file.name), int(file.name) + size, True, file == empty)
        for file in (gone, empty)
    ]


def in_parts(store: MessageStore, parts: Iterable[tuple[int, int]]) -> VerifyReport:
    joined = CheckedPart()
    for start, stop in parts:
        joined.add(check_log(store, start, stop))
    return conclude(store, joined)


@pytest.mark.parametrize("least", [1, 64 << 20], ids=["cut files", "files"])
@pytest.mark.parametrize("name", ["clean-5.5.0", "batches-5.5.0", "multipath-5.5.0"])
def test_the_parts_of_a_log_add_up_to_the_whole(golden: Golden, name: str, least: int) -> None:
    with golden(name).open() as store:
        files = len(store.log.chain.segments)
        parts = log_parts(store, least)
        assert (len(parts) > files) == (least == 1)
        assert files > 1
        assert in_parts(store, reversed(parts)).to_dict() == verify(store).to_dict()


def about(report: VerifyReport) -> tuple[object, ...]:
    """What a report says however the log was cut."""
    counts = Counter[str]()
    for finding in report.findings:
        counts[finding.code] += finding.count
    # An item out of the range of its file is compared with the log where the file has a part of it.
    counts["index-false-item"] = min(1, counts["index-false-item"])
    return report.verdict.to_dict(), counts, report.records, report.lag


def examine_damaged(golden: GoldenStore, target: Path, seeds: Iterable[int]) -> None:
    damaged = DamagedStore.of(golden.path, target)
    for seed in seeds:
        damaged.damage(seed)
        try:
            with MessageStore.open(damaged.path) as store:
                report = verify(store)
                json.dumps(report.to_dict())
                assert about(in_parts(store, log_parts(store, 1))) == about(report)
        except StoreError:
            pass  # it could not be looked at, and says why
        except Exception as error:
            raise AssertionError(f"seed {seed}: {damaged.hit}") from error
        damaged.mend()


@pytest.mark.parametrize("name", ["clean-5.3.3", "ext-5.5.0", "lmq-5.3.3"])
def test_any_damage_ends_in_a_report(golden: Golden, tmp_path: Path, name: str) -> None:
    examine_damaged(golden(name), tmp_path / "damaged", range(4))


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("damaged stores", STORES, 4))
def test_any_damage_ends_in_a_report_at_length(golden: Golden, tmp_path: Path, name: str) -> None:
    examine_damaged(golden(name), tmp_path / "damaged", some(name, range(100, 130), 8))


def test_findings_of_one_kind_are_counted_when_they_are_many() -> None:
    findings = Findings()
    for number in range(1000):
        findings.add(Finding(Severity.ERROR, "many", f"file{number}", "it is wrong", "mend it"))
    reported = list(findings)
    assert len(reported) == 51
    assert sum(finding.count for finding in reported) == 1000


@pytest.mark.parametrize(("number", "size"), [(0, 600), (1, 600), (1, 0), (2, 100)])
def test_a_queue_file_with_which_no_broker_starts(
    clean: GoldenStore, number: int, size: int
) -> None:
    """MappedFileQueue#load refuses each file but the last that has not the full size."""
    assert not [code for code in codes(verified(clean.path)) if code.endswith("refused")]
    path = sorted(Path(clean.path, "consumequeue", "orders", "0").iterdir())[number]
    path.write_bytes(path.read_bytes()[:size])
    finding = one(verified(clean.path), "queue-file-refused")
    assert (finding.severity, finding.path) == (Severity.ERROR, str(path))
    with pytest.raises(UnrecoverableStoreError, match=re.escape(str(path))):
        plan_recovery(clean.path, method="broker", release="5.5.0")


def test_the_first_file_of_a_queue_that_a_broker_makes_while_the_store_is_opened(
    clean: GoldenStore,
) -> None:
    """The file is created empty, and has its size a moment later (DefaultMappedFile#init)."""
    path = Path(clean.path, "consumequeue", "new", "0", "0" * 20)
    path.parent.mkdir(parents=True)
    path.touch()
    with MessageStore.open(clean.path) as store:
        path.write_bytes(bytes(2000))  # as the files of the other queues
        assert not [one for one in verify(store).findings if one.code == "queue-file-refused"]
        path.with_name("2000".zfill(20)).touch()
        path.write_bytes(b"")
        assert one(verify(store), "queue-file-refused").path == str(path)


@pytest.mark.parametrize("kind", ["consumequeue/orders/0", "batchconsumequeue/inner/0"])
def test_a_foreign_file_in_the_folder_of_a_queue(clean: GoldenStore, kind: str) -> None:
    path = Path(clean.path, kind, "notes.txt")
    path.write_bytes(b"x")
    assert one(verified(clean.path), "queue-file-refused").path == str(path)
    with pytest.raises(UnrecoverableStoreError, match=re.escape(str(path))):
        plan_recovery(clean.path, method="broker", release="5.5.0")
    path.unlink()
    assert verified(clean.path).nothing_wrong


def test_two_inner_batches_of_one_queue_offset(clean: GoldenStore, tmp_path: Path) -> None:
    """A broker appends both units to the queue (BatchConsumeQueue), so a rebuild cannot mend it."""
    first, second = [
        one for one in clean.truth if one["topic"] == "inner" and "INNER_BASE" in one["properties"]
    ][4:6]
    was, becomes = (
        f"INNER_BASE\x01{one['properties']['INNER_BASE']}".encode() for one in (second, first)
    )
    at = second["commitLogOffset"]
    path = log_file_at(clean, at)
    assert len(was) == len(becomes)
    place = path.read_bytes().index(was, at - int(path.name))
    assert place < at - int(path.name) + second["storeSize"]
    write_at(path, place, becomes)
    listed = one(verified(clean.path), "queue-lists-too-high")
    assert "of which a rebuild lists the first alone" in (listed.advice or "")
    report = rebuild(clean.path, tmp_path / "rebuilt")
    (said,) = report.recovery.lines_of_left_out()
    assert said.startswith(
        "doubled: 1 record of queue inner/0 with queue offsets that earlier records have"
    )
    assert not report.all_well
    again = one(verified(tmp_path / "rebuilt"), "queue-offset-used-again")
    assert (
        "1 record of queue inner/0 with queue offsets that later records have too" in again.meaning
    )
    dangling = one(verified(tmp_path / "rebuilt"), "queue-dangling-entry")
    assert (
        "lists none (it is lost, or its entry is out of order) at queueOffset " in dangling.meaning
    )
    assert "get queue offsets of their own: rmqstore salvage" in (dangling.advice or "")


def test_a_cut_log_comes_before_what_follows_from_it(copy: GoldenStore) -> None:
    os.truncate(log_files(copy)[-1], 100_000)
    found = list(verified(copy.path).findings)
    cause = ["log-file-refused", "log-end-lost", "checkpoint-ahead"]
    assert [one.code for one in found[:4]] == [*cause, "queue-dangling-entry"]
    assert found[1].path == str(log_files(copy)[-1])
    dangling = [one for one in found if one.code == "queue-dangling-entry"]
    assert all("rebuild" not in one.advice for one in dangling)


def test_a_copied_folder_is_no_topic_to_create(copy: GoldenStore) -> None:
    queues = Path(copy.path) / "consumequeue"
    shutil.copytree(queues / "payments", queues / "strange")
    found = list(verified(copy.path).findings)
    assert [one.code for one in found] == ["queue-dangling-entry"] * 2
    assert "the first to one of payments/0: its folder, or a file in it, was copied" in str(found)
    assert "mqadmin" not in str(found)


def test_a_damaged_last_entry_of_a_queue_is_no_lost_end_of_the_log(tmp_path: Path) -> None:
    path = unpack("clean-5.5.0", tmp_path).path
    file = sorted(Path(path, "consumequeue/orders/3").iterdir())[-1]
    units = np.fromfile(file, QUEUE_ENTRY)
    units[np.flatnonzero(units["size"])[-1]] = (5_000_000_000, 500, 1)
    units.tofile(file)
    found = {finding.code for finding in verified(path).findings}
    assert "log-end-lost" not in found
    assert found >= {"queue-misses-record", "queue-dangling-entry"}


def test_what_waits_is_counted_from_its_first_record(golden: Golden) -> None:
    """Over ten files of the log, of which each is a part of its own."""
    store = golden("hours-crash-5.5.0")
    waiting = [note for note in store.verified().findings if note.code == "not-dispatched"]
    assert [note.path for note in waiting] == sorted(note.path for note in waiting)
    found = {
        (note.count, int(note.meaning.partition("from log offset ")[2].split(" ")[0]))
        for note in waiting
    }
    listed = queue_entries(store.path)
    assert found == {
        (len(wanted) - len(listed[queue]), wanted[len(listed[queue])][0])
        for queue, wanted in wanted_entries(store.truth).items()
    }


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.3.3"])
def test_processes_find_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_by_shares, "_WORTH_IT", 0)
    store = unpack(name, tmp_path)
    log_files(store)[1].write_bytes(bytes(1000) + log_files(store)[1].read_bytes()[1000:])
    with store.open() as opened:
        engine = processes_for(opened, 2)
        assert engine is not None
        assert engine.workers == 2
        found = ask(VerifyQuestion(), OpenedStore(opened), engine)
        assert found == verify(opened)
        assert not found.nothing_wrong
        assert processes_for(opened, 1) is None


_KILLED = """
import os, signal, sys, threading
from rmq_store import MessageStore
from rmq_store.questions import answer_by_shares

signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts the tests may ignore it

class Waits:
    def plan(self, store): return [1, 2, 3, 4, 5, 6]
    def weight(self, share): return 1
    def merge(self, store, parts): return list(parts)
    def work(self, store, share, progress):
        os.write(1, b"working\\n")  # whole, beside that of the other process
        threading.Event().wait()

with MessageStore.open(sys.argv[1]) as store:
    answer_by_shares.ask(
        Waits(), answer_by_shares.OpenedStore(store), answer_by_shares.Processes(2)
    )
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_ctrl_c_ends_all_processes(golden: Golden) -> None:
    """A terminal sends it to each of them."""
    command = [sys.executable, "-c", _KILLED, golden("clean-5.5.0").path]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()]
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert said == ["working\n"] * 2
    assert process.returncode == -signal.SIGINT


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_processes_end_with_the_one_that_started_them(golden: Golden) -> None:
    """They hold its output open: it ends when the last of them has ended."""
    command = [sys.executable, "-c", _KILLED, golden("clean-5.5.0").path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
        process.communicate(timeout=120)
    assert said == "working\n"
