"""A queue, or the log, that lost its end says so; a store that lost nothing is read as before."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.admin.info import store_info
from rmq_store.errors import CorruptQueueError, DataLossError
from rmq_store.format.queue_entries import QUEUE_ENTRY
from rmq_store.snapshot.store_warnings import warnings
from tests.support.golden import STORES, GoldenStore, Truth, log_files, offsets, unpack, wanted
from tests.support.running.commands import call
from tests.support.short_looks import look_at

WIDTH = QUEUE_ENTRY.itemsize


def hurt_log(golden: GoldenStore, log_offset: int, raw: bytes) -> None:
    """Write bytes over the log."""
    path = [path for path in log_files(golden) if int(path.name) <= log_offset][-1]
    with path.open("r+b") as file:
        file.seek(log_offset - int(path.name))
        file.write(raw)


def hurt_queue(golden: GoldenStore, queue: QueueId, offset: int, raw: bytes, at: int = 0) -> None:
    """Write bytes over a queue's first file, from the entry of a queue offset on."""
    path = Path(golden.path, "consumequeue", queue.topic, str(queue.queue_id), "0" * 20)
    with path.open("r+b") as file:
        file.seek(offset * WIDTH + at)
        file.write(raw)


def met_by(store: MessageStore, **how: Any) -> tuple[list[int], list[StoreError]]:
    """What a read of all queues gives, and the errors of what it left out."""
    met: list[StoreError] = []
    return offsets(store, on_damage=met.append, **how), met


def last_of(golden: GoldenStore, queue: QueueId) -> tuple[int, list[Truth]]:
    """The number of messages of a queue, and its records."""
    records = golden.by_queue[queue]
    return len(records), records


@pytest.mark.parametrize("name", STORES)
def test_a_sound_store_is_read_without_an_error(
    name: str, golden: Callable[[str], GoldenStore]
) -> None:
    store = golden(name)
    with store.open() as opened:
        assert set(offsets(opened)) == set(wanted(store))
        slices = opened.view.ranges_of(opened.topics())
        for _ in opened.read_slices(slices, columns=["queueOffset"], verify_queue=True):
            pass
    if name != "multipath-5.5.0":  # its log is elsewhere
        assert not store_info(store.path).damage


# --- the end of the log ----------------------------------------------------------------------------


def two_injuries(golden: GoldenStore) -> tuple[list[int], list[int]]:
    """200 bytes of 0xff, then 4,096 zeros 1.5 KiB later, near the end of the log.

    Returns the log offsets of the messages that were hit, and of those that were not.
    """
    end = golden.truth[-1]["commitLogOffset"] + golden.truth[-1]["storeSize"]
    second = end - 4096
    first = [r["commitLogOffset"] for r in golden.truth if r["commitLogOffset"] < second - 1700][-1]
    hurt_log(golden, first, b"\xff" * 200)
    hurt_log(golden, second, bytes(4096))
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
    assert any("records follow" in what for what in store_info(golden.path).damage)


def test_the_checkpoint_proves_a_lost_end_that_no_entry_lists(tmp_path: Path) -> None:
    golden = unpack("clean-5.3.3", tmp_path)
    last = golden.truth[-20:]
    stored = golden.truth[-21]["storeTimestamp"]
    assert stored < last[-1]["storeTimestamp"]
    hurt_log(golden, last[0]["commitLogOffset"], bytes(sum(r["storeSize"] for r in last)))
    for record in last:  # the entries are lost as well
        if record in golden.by_queue[QueueId(record["topic"], record["queueId"])]:
            queue = QueueId(record["topic"], record["queueId"])
            hurt_queue(golden, queue, record["queueOffset"], bytes(WIDTH))
    with golden.open() as store:
        (error,) = met_by(store)[1]
        assert isinstance(error, DataLossError)
        (warning,) = warnings(store.view)
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
        hurt_log(golden, record["commitLogOffset"], bytes(record["storeSize"]))
    whole = {offset for offset in listed if offset not in lasts}
    assert max(whole) > min(lasts)
    with golden.open() as store:
        found, met = met_by(store)
        named = {error.entry.log_offset for error in met if error.entry is not None}
    assert set(found) >= whole
    assert named >= {offset for offset in lasts if offset < max(whole)}


# --- the end of a queue ----------------------------------------------------------------------------

ORDERS = QueueId("orders", 0)


@pytest.mark.parametrize("lost", [1, 5, "all"])
def test_a_queue_whose_last_entries_are_zeros_is_reported(lost: int | str, tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    count, _ = last_of(golden, ORDERS)
    gone = count if lost == "all" else int(lost)
    hurt_queue(golden, ORDERS, count - gone, bytes(gone * WIDTH))
    with golden.open() as store:
        _, met = met_by(store)
        assert [error.entry and error.entry[:3] for error in met] == [(*ORDERS, count - gone)]
        assert isinstance(met[0], CorruptQueueError)
        assert f"the log has at least {gone} whole record" in str(met[0])
        with pytest.raises(CorruptQueueError):
            list(store.read_batches("orders"))
        assert list(store.read_batches("orders", queue_ids=[1])), "its queue is sound"


def test_a_flipped_bit_in_the_last_entry_is_reported(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    count, records = last_of(golden, ORDERS)
    entry = records[-1]["commitLogOffset"].to_bytes(8, "big") + records[-1]["storeSize"].to_bytes(
        4, "big"
    )
    for bit in range(12 * 8):
        raw = bytearray(entry)
        raw[bit // 8] ^= 1 << bit % 8
        hurt_queue(golden, ORDERS, count - 1, bytes(raw))
        with golden.open() as store:
            found, met = met_by(store, topics="orders", queue_ids=[0])
        assert len(met) == 1, bit
        assert len(found) == count - 1


def test_a_queue_without_its_first_file_is_reported(tmp_path: Path) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    count, _ = last_of(golden, ORDERS)
    folder = Path(golden.path, "consumequeue", "orders", "0")
    min(folder.iterdir()).unlink()
    with golden.open() as store:
        low = store.min_offset(*ORDERS)
        assert 0 < low < count
        _, met = met_by(store)
        assert [error.entry and error.entry[:3] for error in met] == [(*ORDERS, 0)]


def forget_consumers(golden: GoldenStore) -> None:
    """Remove the offsets of consumers, which prove where a queue ended."""
    for path in Path(golden.path, "config").glob("consumerOffset.json*"):
        path.unlink()


def far_from_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read compare no bytes of the log with the queues: the log is long and the queue idle."""
    look_at(monkeypatch, 0, 0)


def test_a_consumer_beyond_the_end_of_an_idle_queue_proves_that_it_lost_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_from_the_ends(monkeypatch)
    golden = unpack("clean-5.2.0", tmp_path)
    queue = QueueId("retrying", 1)
    count, _ = last_of(golden, queue)
    with golden.open() as store:
        assert store.consumer_offsets()["g-retry"]["retrying"][1] == count
    hurt_queue(golden, queue, count - 3, bytes(3 * WIDTH))
    delayed = QueueId("SCHEDULE_TOPIC_XXXX", 2)
    hurt_queue(golden, delayed, last_of(golden, delayed)[0] - 1, bytes(WIDTH))
    with golden.open() as store:
        _, met = met_by(store)
        named = [error.entry and error.entry[:3] for error in met]
    assert named == [(*delayed, last_of(golden, delayed)[0] - 1), (*queue, count - 3)]


def test_an_offset_left_from_a_deleted_topic_raises_nothing(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    count, _ = last_of(golden, ORDERS)
    table = {"offsetTable": {"orders@old-group": {"0": count + 100}, "gone@old-group": {"0": 7}}}
    Path(golden.path, "config", "consumerOffset.json").write_text(json.dumps(table), "utf-8")
    levels = {"offsetTable": {"1": 1000}}
    Path(golden.path, "config", "delayOffset.json").write_text(json.dumps(levels), "utf-8")
    with golden.open() as store:
        assert offsets(store) == wanted(golden)


def test_a_store_written_since_it_was_opened_has_lost_nothing(tmp_path: Path) -> None:
    from tests.support.stores import append_many, make_store

    make_store(tmp_path / "store", 50)
    with MessageStore.open(tmp_path / "store") as store:
        with MessageStore.append_to(tmp_path / "store") as writer:
            append_many(writer, 20, 50)
        assert len(offsets(store)) == 50
    with MessageStore.open(tmp_path / "store") as store:
        assert len(offsets(store)) == 70


def test_verify_queue_finds_the_lost_end_that_no_other_file_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_from_the_ends(monkeypatch)
    golden = unpack("clean-5.2.0", tmp_path)
    queue = QueueId("documents", 0)
    count, _ = last_of(golden, queue)
    hurt_queue(golden, queue, count - 2, bytes(2 * WIDTH))
    forget_consumers(golden)
    with golden.open() as store:
        ranges = store.view.ranges_of(["documents"])
        assert sum(batch.num_rows for batch in store.read_slices(ranges)) == count - 2
        met: list[StoreError] = []
        for _ in store.read_slices(ranges, verify_queue=True, on_damage=met.append):
            pass
    assert [error.entry and error.entry[:3] for error in met] == [(*queue, count - 2)]


# --- Spark and the shell ---------------------------------------------------------------------------


def test_the_spark_source_reports_a_lost_end_in_a_share_of_its_own(tmp_path: Path) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema

    golden = unpack("clean-5.2.0", tmp_path)
    count, _ = last_of(golden, ORDERS)
    hurt_queue(golden, ORDERS, count - 3, bytes(3 * WIDTH))
    for verifies in ("false", "true"):
        options = {"path": golden.path, "topic": "orders", "verifyQueue": verifies}
        rows = {}
        for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
            asked = parse_options({**options, "mode": mode})
            schema = spark_schema(permissive=mode == "PERMISSIVE")
            reader = RmqStoreReader(pin_all(asked), schema)
            parts = reader.partitions()
            if mode == "FAILFAST":
                with pytest.raises(CorruptQueueError):
                    [list(reader.read(part)) for part in parts]
                continue
            batches = [batch for part in parts for batch in reader.read(part)]
            rows[mode] = sum(batch.num_rows for batch in batches)
        assert rows["PERMISSIVE"] == rows["DROPMALFORMED"] + 1


def test_damage_that_another_topic_lists_concerns_no_other_query(tmp_path: Path) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.partitions import missing_shares
    from spark_source.planning.pinned_plan import pin_all

    golden = unpack("clean-5.2.0", tmp_path)
    hit = [record for record in golden.truth if record["topic"] == "orders"][-3]
    hurt_log(golden, hit["commitLogOffset"], bytes(hit["storeSize"]))
    with golden.open() as store:
        assert list(store.read_batches("documents"))
        assert len(met_by(store)[1]) == 1, "its entry says so"
    options = {"path": golden.path, "topic": "documents"}
    plan = pin_all(parse_options(options))
    assert missing_shares(plan) == []
    queue = QueueId(hit["topic"], hit["queueId"])
    hurt_queue(golden, queue, hit["queueOffset"], bytes(2 * WIDTH))  # now nothing lists it
    with golden.open() as store, pytest.raises(StoreError, match="no queue lists all"):
        list(store.read_batches("documents"))
    plan = pin_all(parse_options(options))
    (share,) = missing_shares(plan)
    assert "no queue lists all" in str(share.lost[0])


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
    swapped = full.with_name("swapped")
    full.rename(swapped)
    preallocated.rename(full)
    swapped.rename(preallocated)
    start = int(full.name)
    with golden.open() as store:
        lost = Counter(
            queue
            for queue, state in store.snapshot().queues.items()
            for record in golden.by_queue[queue][: state.file_stop + state.after_log]
            if record["commitLogOffset"] >= start
        )
        assert store.view.health.log_end.entries_after_log == lost
        assert lost.total() > 400
        found, met = met_by(store)
        assert sorted(found) == [offset for offset in wanted(golden) if offset < start]
        assert met == []
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 2, "each once, whatever is read"
        assert f"lacks the messages of {lost.total()} entries in {len(lost)} queues" in said[0]
        assert f"{preallocated.name} has a wrong name" in said[1]
        assert full.name in said[1]
        assert [f"{golden.path}: {line}" for line in warnings(store.view)] == said


def test_an_entry_of_a_file_that_came_after_the_log_was_listed_is_no_loss(tmp_path: Path) -> None:
    golden = unpack("crash-5.5.0", tmp_path)
    *_, last, preallocated = log_files(golden)
    preallocated.unlink()
    aside = tmp_path / "aside"
    last.rename(aside)
    with golden.open() as store:
        assert any(state.after_log for state in store.snapshot().queues.values())
        aside.rename(last)
        assert store.view.health.log_end.entries_after_log == {}
        assert list(warnings(store.view)) == []
    last.unlink()
    with golden.open() as store:
        assert len(list(warnings(store.view))) == 1


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


@pytest.mark.parametrize("name", ["clean-4.3.2", "clean-4.9.7", "clean-5.5.0"])
def test_items_of_the_index_prove_that_a_queue_lost_a_long_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_from_the_ends(monkeypatch)
    golden = unpack(name, tmp_path)
    forget_consumers(golden)
    files = sorted(Path(golden.path, "consumequeue", "orders", "2").iterdir())
    assert len(files) > 1
    for path in files[1:]:
        path.unlink()
    with golden.open() as store:
        with pytest.raises(CorruptQueueError, match="queue orders/2 ends before its messages"):
            list(store.read_batches("orders"))
        list(store.read_batches("documents"))
        list(store.read_batches("orders", stop=store.max_offset("orders", 2) - 1))
    shutil.rmtree(Path(golden.path, "index"))
    with golden.open() as store:
        list(store.read_batches("orders"))


@pytest.mark.parametrize(("name", "of"), [("lmq-5.3.3", "%LMQ%*"), ("clean-5.5.0", "orders")])
def test_single_records_are_compared_with_their_queues_as_runs_are(
    name: str, of: str, tmp_path: Path
) -> None:
    """Also with the queues of consumers that a message names in a property."""
    golden = unpack(name, tmp_path)
    for topic in Path(golden.path, "consumequeue").glob(of):
        for first in topic.glob(f"*/{'0' * 20}"):
            entries = first.read_bytes().rstrip(b"\0")
            keep = len(entries) // WIDTH // 2 * WIDTH
            first.write_bytes(entries[:keep].ljust(first.stat().st_size, b"\0"))
            for later in sorted(first.parent.iterdir())[1:]:
                later.unlink()
    with golden.open() as store:
        records = store.view.health.records
        places = np.array([record["commitLogOffset"] for record in golden.truth])
        missing = records.search_at(places)
        snapshot = store.snapshot()
        assert missing == records.search(snapshot.queues, snapshot.log_start, snapshot.log_end)
    assert missing.ends
    assert any(queue.topic.startswith("%LMQ%") for queue in missing.ends) is name.startswith("lmq")


NOT_COMPARED = "were not compared with the queues"
LIGHT_NOT_COMPARED = "were not compared with the light queues"


@pytest.mark.parametrize(
    ("name", "topics", "most", "looked_at", "verify_queue", "said"),
    [
        ("clean-5.5.0", ["orders"], 0, 4096, False, NOT_COMPARED),
        ("clean-5.5.0", ["orders"], 0, 4096, True, None),
        ("clean-5.5.0", ["orders"], 250_000, 4096, False, None),  # the whole log was looked at
        ("clean-5.5.0", ["orders"], 0, 1 << 20, False, None),  # and so it was here, from both ends
        ("clean-5.5.0", None, 0, 4096, False, None),  # all topics account for every byte
        ("lmq-5.3.3", ["%LMQ%all"], 250_000, 4096, False, LIGHT_NOT_COMPARED),
        ("lmq-5.3.3", ["orders"], 250_000, 4096, False, None),
        ("lmq-5.3.3", None, 0, 4096, False, None),  # light queues are not read then
    ],
)
def test_a_read_says_once_which_part_of_the_log_it_did_not_compare(
    name: str,
    topics: list[str] | None,
    most: int,
    looked_at: int,
    verify_queue: bool,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    look_at(monkeypatch, looked_at, most)
    golden = unpack(name, tmp_path)
    for _ in range(2):
        with golden.open() as store:
            parts = store.view.ranges_of(topics or store.topics())
            how = {"verify_queue": verify_queue, "columns": ["flag"]}
            if topics is None:
                list(store.read_batches(columns=["flag"]))
            else:
                list(store.read_slices(parts, **how))  # type: ignore[arg-type]
            start, end = store.log_range()
    lines = [one.message for one in caplog.records if "were not compared" in one.message]
    assert len(lines) == (said is not None)
    if said is not None:
        assert said in lines[0]
        assert f"{(end - start - 2 * looked_at) / 1024:.1f} KiB of the log" in lines[0]


def test_cat_says_it_on_stderr_and_gives_all_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(monkeypatch, 4096, 0)
    golden = unpack("clean-5.5.0", tmp_path)
    done = call("cat", golden.path, "--topic", "payments")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 418)
    assert done.stderr.count(NOT_COMPARED) == 1
    assert "were not compared" not in call("cat", golden.path, "--topic", "payments").stderr


@pytest.mark.parametrize("lost", [2, 8])
@pytest.mark.parametrize("topics", [None, "parent"])
def test_a_lost_end_is_reported_though_a_light_queue_lists_its_records(
    lost: int, topics: str | None, tmp_path: Path
) -> None:
    golden = unpack("lmq-5.3.3", tmp_path)
    queue = QueueId("parent", 1)
    count, records = last_of(golden, queue)
    forget_consumers(golden)
    hurt_queue(golden, queue, count - lost, bytes(lost * WIDTH))
    with golden.open() as store:
        met: list[StoreError] = []
        for _ in store.read_batches(topics, on_damage=met.append):
            pass
    first = records[count - lost]["commitLogOffset"]
    found = [error.entry and (*error.entry[:3], error.entry.log_offset) for error in met]
    assert found == [(*queue, count - lost, first)]


@pytest.mark.parametrize("longer", [False, True])
def test_a_lost_end_is_reported_though_an_entry_of_another_queue_lists_its_bytes(
    longer: bool, tmp_path: Path
) -> None:
    """The entry leads to the record, or its size is too large and so goes over it."""
    golden = unpack("clean-5.3.3", tmp_path)
    queue, other = QueueId("orders", 1), QueueId("documents", 0)
    count, records = last_of(golden, queue)
    last = records[-1]
    end = last["commitLogOffset"] + last["storeSize"]
    before = [r for r in golden.by_queue[other] if r["commitLogOffset"] < last["commitLogOffset"]]
    start = before[-1]["commitLogOffset"] if longer else last["commitLogOffset"]
    hurt_queue(golden, other, len(before) - 1, start.to_bytes(8, "big"))
    hurt_queue(golden, other, len(before) - 1, (end - start).to_bytes(4, "big"), at=8)
    forget_consumers(golden)
    per_file = 100
    path = Path(golden.path, "consumequeue", "orders", "1")
    file = sorted(path.iterdir())[(count - 1) // per_file]
    with file.open("r+b") as opened:
        opened.seek((count - 1) % per_file * WIDTH)
        opened.write(bytes(WIDTH))
    with golden.open() as store:
        met: list[StoreError] = []
        for _ in store.read_batches("orders", on_damage=met.append):
            pass
    found = [error.entry and (*error.entry[:3], error.entry.log_offset) for error in met]
    assert found == [(*queue, count - 1, last["commitLogOffset"])]


@pytest.mark.parametrize("lost", [2, 8])
@pytest.mark.parametrize("topic", [{}, {"topic": "parent"}])
def test_the_spark_source_reports_it_though_a_light_queue_lists_its_records(
    lost: int, topic: dict[str, str], tmp_path: Path
) -> None:
    from spark_source.options.parse import parse_options
    from spark_source.planning.pinned_plan import pin_all
    from spark_source.spark_reader import RmqStoreReader
    from spark_source.spark_types import spark_schema

    golden = unpack("lmq-5.3.3", tmp_path)
    queue = QueueId("parent", 1)
    asked = parse_options({"path": golden.path, "mode": "FAILFAST", **topic})

    def read() -> int:
        reader = RmqStoreReader(pin_all(asked), spark_schema())
        batches = (batch for part in reader.partitions() for batch in reader.read(part))
        return sum(batch.num_rows for batch in batches)

    assert read() > 0
    hurt_queue(golden, queue, last_of(golden, queue)[0] - lost, bytes(lost * WIDTH))
    with pytest.raises(CorruptQueueError, match=f"parent/1 ends before.* at least {lost} whole"):
        read()
