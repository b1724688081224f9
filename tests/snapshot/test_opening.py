"""What opening a store sees: a log that lost its end, and entries after it. A sound store says nothing."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.admin.info import store_info
from rmq_store.errors import DataLossError
from rmq_store.format.queues import QUEUE_ENTRY
from rmq_store.snapshot import opening
from tests.support.damage import exchange, write_at, write_in_log
from tests.support.golden import STORES, Golden, GoldenStore, log_files, offsets, unpack, wanted

WIDTH = QUEUE_ENTRY.itemsize


def hurt_queue(golden: GoldenStore, queue: QueueId, offset: int, raw: bytes, at: int = 0) -> None:
    """Write bytes over a queue's first file, from the entry of a queue offset on."""
    path = Path(golden.path, "consumequeue", queue.topic, str(queue.queue_id), "0" * 20)
    write_at(path, offset * WIDTH + at, raw)


def met_by(store: MessageStore, **how: Any) -> tuple[list[int], list[StoreError]]:
    """What a read of all queues gives, and the errors of what it left out."""
    met: list[StoreError] = []
    return offsets(store, on_damage=met.append, **how), met


@pytest.mark.parametrize("name", STORES)
def test_a_sound_store_is_read_without_an_error(
    name: str, golden: Golden, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_SAID", set())
    store = golden(name)
    with store.open() as opened:
        assert set(offsets(opened)) == set(wanted(store))
        slices = opened.view.ranges_of(opened.topics())
        for _ in opened.read_slices(slices, columns=["queueOffset"], verify_queue=True):
            pass
        assert not opened.opening.has_losses
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    # A copy of a running broker, whose queues are newer than its log; and one without topics.json.
    assert len(said) == (name in ("hot-5.5.0", "multipath-5.5.0"))
    if name != "multipath-5.5.0":  # its log is elsewhere
        assert not store_info(store.path).damage


def two_injuries(golden: GoldenStore) -> tuple[list[int], list[int]]:
    """200 bytes of 0xff, then 4,096 zeros 1.5 KiB later, near the end of the log.

    Returns the log offsets of the messages that were hit, and of those that were not.
    """
    end = golden.truth[-1]["commitLogOffset"] + golden.truth[-1]["storeSize"]
    second = end - 4096
    first = [r["commitLogOffset"] for r in golden.truth if r["commitLogOffset"] < second - 1700][-1]
    write_in_log(golden, first, b"\xff" * 200)
    write_in_log(golden, second, bytes(4096))
    hit: list[int] = []
    whole: list[int] = []
    for record in golden.truth:
        start, stop = record["commitLogOffset"], record["commitLogOffset"] + record["storeSize"]
        is_hit = (start < first + 200 and stop > first) or stop > second
        if start in set(wanted(golden)):
            (hit if is_hit else whole).append(start)
    return hit, whole


def test_messages_between_two_injuries_are_rows_and_the_others_are_reported(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    hit, whole = two_injuries(golden)
    between = [offset for offset in whole if offset > min(hit)]
    assert len(between) >= 2
    with golden.open() as store:
        found, met = met_by(store)
        assert set(found) >= set(whole)
        named = {error.entry.log_offset for error in met if error.entry is not None}
        assert set(found) | named == {*whole, *hit}
        assert len(named) >= 8
        with pytest.raises(StoreError):
            offsets(store)


def test_the_checkpoint_proves_a_lost_end_that_no_entry_lists(tmp_path: Path) -> None:
    golden = unpack("clean-5.3.3", tmp_path)
    last = golden.truth[-20:]
    stored = golden.truth[-21]["storeTimestamp"]
    assert stored < last[-1]["storeTimestamp"]
    write_in_log(golden, last[0]["commitLogOffset"], bytes(sum(r["storeSize"] for r in last)))
    for record in last:  # the entries are lost as well
        if record in golden.by_queue[QueueId(record["topic"], record["queueId"])]:
            queue = QueueId(record["topic"], record["queueId"])
            hurt_queue(golden, queue, record["queueOffset"], bytes(WIDTH))
    with golden.open() as store:
        (error,) = met_by(store)[1]
        assert isinstance(error, DataLossError)
        (warning,) = store.opening.losses()
        for text in (str(error), warning):  # nothing but the checkpoint proves it
            assert "lost, unless a clock was set back: the checkpoint has a later time" in text
            assert "if a clock was set back, move the checkpoint away" in text
        part = store.view.ranges_of(["orders"])[0]
        half = type(part)(part.queue, part.start, part.stop - 1)
        assert len(list(store.read_slices([half]))) >= 1, "no end was asked for"
    assert any("end of the log is lost" in what for what in store_info(golden.path).damage)
    Path(golden.path, "abort").touch()  # a crash: the end is torn, and nothing was promised
    with golden.open() as store:
        assert met_by(store)[1] == []


def test_a_record_after_damage_in_a_crashed_store_is_a_row_if_a_queue_lists_it(
    tmp_path: Path,
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    with golden.open() as store:  # the last record that each queue lists
        states = store.snapshot().queues
        lasts = {store.log_offset_of(q, state.file_stop - 1) for q, state in states.items()}
        listed = {o for q, s in states.items() for o in store.entries(q, 0, s.file_stop).log_offset}
    hit = [record for record in golden.truth if record["commitLogOffset"] in lasts]
    assert len(hit) == len(states) > 3
    for record in hit:
        write_in_log(golden, record["commitLogOffset"], bytes(record["storeSize"]))
    whole = {offset for offset in listed if offset not in lasts}
    assert max(whole) > min(lasts)
    with golden.open() as store:
        found, met = met_by(store)
        named = {error.entry.log_offset for error in met if error.entry is not None}
    assert set(found) >= whole
    assert named >= {offset for offset in lasts if offset < max(whole)}


def test_a_store_written_since_it_was_opened_has_lost_nothing(tmp_path: Path) -> None:
    from tests.support.stores import append_many, make_store

    make_store(tmp_path / "store", 50)
    with MessageStore.open(tmp_path / "store") as store:
        with MessageStore.append_to(tmp_path / "store") as writer:
            append_many(writer, 20, 50)
        assert len(offsets(store)) == 50
    with MessageStore.open(tmp_path / "store") as store:
        assert len(offsets(store)) == 70


def test_a_crashed_store_whose_log_lost_the_file_that_it_ended_in_is_reported(
    tmp_path: Path,
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    files = log_files(golden)
    files[-2].unlink()  # the last one is preallocated zeros
    start = int(files[-2].name)
    with golden.open() as store:
        found, met = met_by(store)
        lost = [offset for offset in wanted(golden) if offset >= start]
        assert sorted(found) == [offset for offset in wanted(golden) if offset < start]
        assert len(met) >= len(lost) - 6, "six messages are not dispatched"


def test_a_crashed_store_says_which_entries_lead_after_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    *_, full, preallocated = log_files(golden)
    exchange(full, preallocated)
    start = int(full.name)
    with golden.open() as store:
        lost = Counter(
            queue
            for queue, state in store.snapshot().queues.items()
            for record in golden.by_queue[queue][: state.file_stop + state.after_log]
            if record["commitLogOffset"] >= start
        )
        assert store.opening.after_log == lost
        assert lost.total() > 400
        found, met = met_by(store)
        assert sorted(found) == [offset for offset in wanted(golden) if offset < start]
        assert met == []
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1, "once, whatever is read"
        assert f"{lost.total()} entries in {len(lost)} queues" in said[0]
        assert [f"{golden.path}: {line}" for line in store.opening.notes()] == said


def test_an_entry_of_a_file_that_came_after_the_log_was_listed_is_no_loss(tmp_path: Path) -> None:
    golden = unpack("crash-5.5.0", tmp_path)
    *_, last, preallocated = log_files(golden)
    preallocated.unlink()
    aside = tmp_path / "aside"
    last.rename(aside)
    with golden.open() as store:
        assert any(state.after_log for state in store.snapshot().queues.values())
        aside.rename(last)
        assert store.opening.after_log == {}
        assert list(store.opening.notes()) == []
    last.unlink()
    with golden.open() as store:
        assert len(list(store.opening.notes())) == 1


def test_a_file_that_expires_during_the_read_is_reported_by_its_entries_alone(
    tmp_path: Path,
) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    files = log_files(golden)
    with golden.open() as store:
        files[1].unlink()
        found, met = met_by(store)
    start, stop = int(files[1].name), int(files[2].name)
    assert found == [offset for offset in wanted(golden) if not start <= offset < stop]
    lost = [offset for offset in wanted(golden) if start <= offset < stop]
    assert sorted(error.entry.log_offset for error in met if error.entry) == lost
