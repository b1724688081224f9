"""All messages of compaction topics at once, held against what a client was served by a real broker.

In `compact-timer-5.5.0` no file is full yet; in `compacted-5.5.0` files were compacted several times.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

from rmq_store import MessageStore, QueueId, QueueSlice
from rmq_store.consumequeue.compacted_queue import CompactionFolders
from rmq_store.errors import (
    CorruptConfigError,
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    MissingFileError,
    StoreError,
)
from rmq_store.search.selection import Search, ranges_in_store
from rmq_store.testing.store_checks import StoreChecks
from tests.support.damage import flip, write_at
from tests.support.golden import GoldenStore, unpack_kind

NAME, OTHER = "compacted-5.5.0", "compact-timer-5.5.0"
TOPIC = "state"
FIELDS = {
    "topic": "topic",
    "queueId": "queue",
    "queueOffset": "offset",
    "commitLogOffset": "phy",
    "storeSize": "size",
    "msgId": "offsetMsgId",
    "flag": "flag",
    "bornTimestamp": "bornTs",
    "storeTimestamp": "storeTs",
    "bodyCrc": "bodyCrc",
    "reconsumeTimes": "reconsume",
    "preparedTransactionOffset": "prepared",
    "uniqKey": "msgId",
    "body": "body",
}
MODULE = "rmq_store.consumequeue.compacted_queue"  # alone: other threads of the tests sleep too
_TIMES = ("bornTimestamp", "storeTimestamp")
_ADDED = {"MIN_OFFSET", "MAX_OFFSET"}  # by the client
Rows = list[tuple[Any, ...]]


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(NAME, tmp_path)


def served(golden: GoldenStore, topic: str = TOPIC) -> Rows:
    lines = [line for line in golden.lines("served") if line["topic"] == topic]
    return sorted(
        tuple(
            base64.b64decode(line[name]) if name == "body" else line[name]
            for name in FIELDS.values()
        )
        for line in lines
    )


def rows_of(batches: Any) -> Rows:
    table = batches.read_all() if hasattr(batches, "read_all") else batches
    columns = [
        table.column(name).cast("int64") if name in _TIMES else table.column(name)
        for name in FIELDS
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def places(rows: Rows) -> list[tuple[int, int, int]]:
    return [row[1:4] for row in rows]


@pytest.mark.parametrize("name", [NAME, OTHER])
def test_rows_are_what_a_client_was_served(tmp_path: Path, name: str) -> None:
    golden = unpack_kind(name, tmp_path)
    before = golden.fingerprint()
    topics = {line["topic"] for line in golden.lines("served")}
    with MessageStore.open(golden.path) as store:
        for topic in topics:
            found = store.read_batches(topic).read_all()
            assert sorted(rows_of(found)) == served(golden, topic)
        every = store.read_batches(sorted(topics)).read_all()
        assert sorted(rows_of(every)) == sorted(r for t in topics for r in served(golden, t))
        assert sorted(rows_of(store.messages(TOPIC).to_table())) == served(golden)
        props = {
            (row["queueId"], row["queueOffset"]): dict(row["properties"])
            for row in store.read_batches(TOPIC).read_all().to_pylist()
        }
    for line in golden.lines("served"):
        if line["topic"] == TOPIC:
            of_client = {k: v for k, v in line["props"].items() if k not in _ADDED}
            assert props[line["queue"], line["offset"]] == of_client
    assert golden.fingerprint() == before


def test_rows_are_those_of_get_message(golden: GoldenStore) -> None:
    with MessageStore.open(golden.path) as store:
        wanted = [
            (message.queue_id, message.queue_offset, message.commit_log_offset)
            for queue in store.queues(TOPIC)
            for message in store.get_message(*queue, 0, 1000).messages
        ]
        assert places(rows_of(store.read_batches(TOPIC))) == wanted


def test_queues_come_one_after_the_other_and_before_those_of_the_log(golden: GoldenStore) -> None:
    with MessageStore.open(golden.path) as store:
        rows = rows_of(store.read_batches())
    topics = [row[0] for row in rows]
    assert topics == sorted(topics, key=lambda topic: topic != TOPIC)
    first = [row for row in rows if row[0] == TOPIC]
    assert first == sorted(first)


def test_all_messages_are_there_without_the_view(golden: GoldenStore) -> None:
    count = sum(one["max"] for one in golden.answers("minMax") if one["queueId"] in (0, 1, 3))
    with MessageStore.open(golden.path) as store:
        whole = store.read_batches(TOPIC, compacted=False).read_all()
        assert whole.num_rows == count > len(served(golden))
        assert store.messages(TOPIC, compacted=False).count_rows() == count
        log = store.read_log(limits=None).read_all()
        assert log.filter(pc.field("topic") == TOPIC).num_rows == count
        offsets = whole.column("commitLogOffset").to_pylist()
        assert offsets == sorted(offsets)
        last = {
            (queue, key): offset
            for queue, key, offset in zip(
                *(whole.column(c).to_pylist() for c in ("queueId", "keys", "queueOffset")),
                strict=True,
            )
        }
    seen = {(row[1], row[2]) for row in served(golden)}
    assert {(queue, offset) for (queue, _), offset in last.items()} <= seen
    with MessageStore.open(golden.path, config={"enableCompaction": False}) as store:
        assert store.read_batches(TOPIC).read_all().equals(whole)


def test_what_counts_a_queue_counts_all_of_it(golden: GoldenStore) -> None:
    with MessageStore.open(golden.path) as store:
        queues = {
            row["queueId"]: row
            for row in store.table("queues").to_pylist()
            if row["topic"] == TOPIC
        }
        for number, row in queues.items():
            limits = store.min_offset(TOPIC, number), store.max_offset(TOPIC, number)
            assert (row["minOffset"], row["maxOffset"]) == limits
            assert limits[0] == 0
        assert store.table("damage").num_rows == 0
        sizes = {r["topic"]: r["messages"] for r in store.table("topics").to_pylist()}
        assert sizes[TOPIC] == sum(store.max_offset(*queue) for queue in store.queues(TOPIC))
        slices = ranges_in_store(store, Search([TOPIC]))
        assert {part.stop - part.start for part in slices} == {
            store.max_offset(*queue) for queue in store.queues(TOPIC)
        }


@pytest.mark.parametrize("name", [NAME, OTHER])
def test_a_healthy_store_lacks_nothing(tmp_path: Path, name: str) -> None:
    """Also with every entry compared, and for a part of the offsets."""
    golden = unpack_kind(name, tmp_path)
    rows = served(golden)
    with MessageStore.open(golden.path) as store:
        ranges = store.served.ranges_of([TOPIC])
        found = store.read_slices(ranges, verify_queue=True).read_all()
        assert sorted(rows_of(found)) == rows
        for queue in store.queues(TOPIC):
            offsets = [row[2] for row in rows if row[1] == queue.queue_id]
            for start, stop in ((0, 20), (offsets[1] + 1, offsets[-1]), (41, 2**62), (7, 7)):
                part = rows_of(store.read_slices([QueueSlice(queue, start, stop)]))
                assert [row[2] for row in part] == [o for o in offsets if start <= o < stop]


def test_filters_of_a_dataset_choose_among_the_rows(golden: GoldenStore) -> None:
    rows = served(golden)
    some = rows[len(rows) // 3]
    keys = {(r["queue"], r["offset"]): r["props"]["KEYS"] for r in golden.lines("served")}
    with MessageStore.open(golden.path) as store:
        dataset = store.messages(TOPIC)
        assert dataset.count_rows() == len(rows)

        def offsets(condition: Any) -> list[tuple[int, int, int]]:
            return sorted(places(rows_of(dataset.to_table(filter=condition))))

        field = pc.field
        for name, at in (("queueOffset", 2), ("commitLogOffset", 3), ("storeTimestamp", 8)):
            value = some[at]
            column = field(name).cast("int64") if name in _TIMES else field(name)
            assert offsets(column >= value) == sorted(places([r for r in rows if r[at] >= value]))
            assert offsets(column == value) == sorted(places([r for r in rows if r[at] == value]))
        wanted = [row for row in rows if keys[row[1], row[2]] == keys[some[1], some[2]]]
        assert offsets(field("keys") == keys[some[1], some[2]]) == sorted(places(wanted))
        assert offsets(field("uniqKey") == some[12]) == [some[1:4]]
        assert offsets(field("msgId") == some[5]) == sorted(
            places([row for row in rows if row[5] == some[5]])
        )
        pieces = [row for one in dataset.get_fragments() for row in places(rows_of(one.to_table()))]
        assert sorted(pieces) == sorted(places(rows))


def test_times_and_words_and_tags_choose_among_the_rows(golden: GoldenStore) -> None:
    rows = served(golden)
    times = sorted(row[8] for row in rows)
    lines = {(r["queue"], r["offset"]): r["props"] for r in golden.lines("served")}
    since, until = times[len(times) // 3], times[-3]
    with MessageStore.open(golden.path) as store:
        found = store.messages(TOPIC, since=since, until=until).to_table()
        assert sorted(rows_of(found)) == [row for row in rows if since <= row[8] < until]
        for queue in store.queues(TOPIC):
            own = [row for row in rows if row[1] == queue.queue_id]
            for row in own:
                at = store.served.first_since(queue, row[8])
                before = [one[2] for one in own if one[8] < row[8]]
                assert max(before, default=-1) < at <= min(o[2] for o in own if o[8] >= row[8])
            assert store.served.first_since(queue, times[-1] + 1) == own[-1][2] + 1
        for tag in ("Aa", "BB"):  # of one hash
            wanted = [row for row in rows if lines[row[1], row[2]].get("TAGS") == tag]
            assert sorted(rows_of(store.read_batches(TOPIC, tags=tag))) == wanted
            assert wanted
        word = lines[rows[0][1], rows[0][2]]["KEYS"]
        wanted = [row for row in rows if lines[row[1], row[2]]["KEYS"] == word]
        assert sorted(rows_of(store.read_batches(TOPIC, keys=[word]))) == wanted
        assert sorted(rows_of(store.messages(TOPIC, keys=[word]).to_table())) == wanted


def without_old_log_files(golden: GoldenStore, path: Path) -> MessageStore:
    """The same messages in a log of small files, of which the first have expired."""
    sizes = {"mappedFileSizeCommitLog": 1 << 14, "mappedFileSizeConsumeQueue": 6000}
    with MessageStore.open(golden.path) as store:
        whole = store.read_batches(TOPIC, compacted=False).read_all()
    with MessageStore.create(path, config=sizes) as writer:
        for row in whole.select(["topic", "queueId", "properties", "body"]).to_pylist():
            writer.append({**row, "properties": dict(row["properties"])})
    shutil.copytree(Path(golden.path, "compaction"), path / "compaction")
    shutil.copy(Path(golden.path, "config", "topics.json"), path / "config" / "topics.json")
    for file in sorted((path / "commitlog").iterdir())[:-1]:
        file.unlink()
    return MessageStore.open(path)


def test_messages_outlive_those_of_the_log(golden: GoldenStore, tmp_path: Path) -> None:
    rows = served(golden)
    with without_old_log_files(golden, tmp_path / "old") as store:
        behind = [
            q for q in store.queues(TOPIC) if store.view.limits(q)[0] > store.served.limits(q)[0]
        ]
        assert behind, "no message expired that is still served"
        assert sorted(rows_of(store.read_batches(TOPIC))) == rows
        assert sorted(rows_of(store.messages(TOPIC).to_table())) == rows
        lost = store.read_batches(TOPIC, compacted=False).read_all()
        assert not {row[1:3] for row in rows} <= set(
            zip(*(lost.column(c).to_pylist() for c in ("queueId", "queueOffset")), strict=True)
        )


def test_a_snapshot_shows_the_same_messages_elsewhere(golden: GoldenStore) -> None:
    """The rest of the queue came after it."""
    last = Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{16560:020d}")
    log = Path(golden.path, f"compaction/compactionLog/{TOPIC}/1/{16560:020d}")
    whole, records = last.read_bytes(), log.read_bytes()
    rows = served(golden)
    before = [row for row in rows if row[1] != 1 or row[3] < 16560]
    for path in (last, log):
        path.write_bytes(bytes(path.stat().st_size))
    with MessageStore.open(golden.path) as store:
        assert sorted(rows_of(store.read_batches(TOPIC))) == before
        last.write_bytes(whole)
        log.write_bytes(records)
        with store.reopen() as other:
            assert sorted(rows_of(other.read_batches(TOPIC))) == before
        with MessageStore.open(golden.path, snapshot=store.snapshot()) as other:
            end = max(row[2] for row in before if row[1] == 1) + 1
            assert other.served.limits(QueueId(TOPIC, 1))[1] == end
    with MessageStore.open(golden.path) as store:
        assert sorted(rows_of(store.read_batches(TOPIC))) == rows


def test_a_queue_that_was_compacted_since_is_no_shorter_answer(golden: GoldenStore) -> None:
    """Of a key whose old message is gone, the new one may lie behind what the snapshot shows."""
    with MessageStore.open(golden.path) as store:
        store.read_batches(TOPIC).read_all()
        for kind in ("compactionCq", "compactionLog"):
            Path(golden.path, f"compaction/{kind}/{TOPIC}/1/{4140:020d}").unlink()
        with store.reopen() as other:
            with pytest.raises(DataLossError, match="has compacted the queue since"):
                other.read_batches(TOPIC).read_all()
            with pytest.raises(DataLossError):
                other.get_message(TOPIC, 1, 0)
            assert other.read_batches(TOPIC, [0]).read_all().num_rows
            assert other.read_batches("other").read_all().num_rows


LEFT = ["no folder", "empty folders", "files without bytes", "files without messages"]


@pytest.mark.parametrize("left", LEFT)
def test_a_queue_without_files_for_compaction_is_read_whole(golden: GoldenStore, left: str) -> None:
    """Its topic may have become one of compaction later, or a broker is about to copy the first message."""
    for kind in ("compactionCq", "compactionLog"):
        folder = Path(golden.path, "compaction", kind, TOPIC, "0")
        names = [path.name for path in folder.iterdir()]
        shutil.rmtree(folder)
        if left != "no folder":
            folder.mkdir()
        if left == "files without bytes":
            for name in names:
                (folder / name).touch()
        if left == "files without messages":
            (folder / f"{0:020d}").write_bytes(bytes(1 << 16 if kind == "compactionLog" else 4600))
    with MessageStore.open(golden.path) as store:
        rows = Counter(row[1] for row in rows_of(store.read_batches(TOPIC)))
        assert rows[0] == store.max_offset(TOPIC, 0)
        assert rows[1] == sum(row[1] == 1 for row in served(golden))
        with store.reopen() as other:
            assert Counter(row[1] for row in rows_of(other.read_batches(TOPIC))) == rows


def test_files_that_a_broker_makes_later_change_no_snapshot(golden: GoldenStore) -> None:
    folders = [Path(golden.path, "compaction", f"compaction{k}", TOPIC, "0") for k in ("Cq", "Log")]
    for folder in folders:
        folder.rename(folder.parent / "away")
    with MessageStore.open(golden.path) as store:
        whole = rows_of(store.read_batches(TOPIC, [0]))
        for folder in folders:
            (folder.parent / "away").rename(folder)
        with store.reopen() as other:
            assert rows_of(other.read_batches(TOPIC, [0])) == whole
    with MessageStore.open(golden.path) as store:
        assert len(rows_of(store.read_batches(TOPIC, [0]))) < len(whole)


@pytest.mark.parametrize("folder", ["compactionLog", "compactionCq"])
def test_files_that_are_damaged_as_a_whole_are_one_error(golden: GoldenStore, folder: str) -> None:
    Path(golden.path, f"compaction/{folder}/{TOPIC}/1/{4140:020d}").unlink()
    left = [row for row in served(golden) if row[1] != 1]
    with MessageStore.open(golden.path) as store:
        with pytest.raises(MissingFileError, match=folder):
            store.read_batches(TOPIC).read_all()
        met: list[StoreError] = []
        assert sorted(rows_of(store.read_batches(TOPIC, on_damage=met.append))) == left
        (error,) = met
        assert isinstance(error, MissingFileError)
        assert error.entry is not None
        assert error.entry[:2] == (TOPIC, 1)
        timed = store.messages(TOPIC, since=0, on_damage=met.append).to_table()
        assert sorted(rows_of(timed)) == left
        assert len(met) == 2
        rows = store.read_batches(TOPIC, on_damage="permissive").read_all()
        assert rows.filter(pc.field("corruptRecord").is_valid()).num_rows == 1
        assert rows.num_rows == len(left) + 1
        assert store.read_batches(TOPIC, compacted=False).read_all().num_rows == 156


def test_a_record_that_is_damaged_is_left_out_and_named(golden: GoldenStore) -> None:
    rows = served(golden)
    hurt = rows[3]
    path = Path(golden.path, f"compaction/compactionLog/{TOPIC}/0/{0:020d}")
    flip(path, path.read_bytes().index(hurt[-1]) + 5, 4)
    met: list[StoreError] = []
    with MessageStore.open(golden.path) as store:
        found = rows_of(store.read_batches(TOPIC, on_damage=met.append))
        assert sorted(found) == [row for row in rows if row != hurt]
        (error,) = met
        assert isinstance(error, CorruptRecordError)
        assert error.path == os.fspath(path)
        assert error.entry is not None
        assert (error.entry.queue_id, error.entry.queue_offset) == hurt[1:3]


def test_an_entry_of_another_record_gives_no_row_even_where_no_record_is_needed(
    golden: GoldenStore,
) -> None:
    path = Path(golden.path, f"compaction/compactionCq/{TOPIC}/0/{0:020d}")
    offset = int.from_bytes(path.read_bytes()[46 + 28 : 46 + 36], "big")
    write_at(path, 46 + 28, (offset + 1).to_bytes(8, "big"))
    with (
        MessageStore.open(golden.path) as store,
        pytest.raises((CorruptQueueError, CorruptRecordError)),
    ):
        store.read_batches(TOPIC, columns=["queueOffset"]).read_all()


def damage_topics(config: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (config / name).write_text('{"topicConfigTable":[', "ascii")


def lose_topics(config: Path) -> None:
    for path in config.glob("topics.json*"):
        path.unlink()


def damage_database(config: Path) -> None:
    lose_topics(config)
    (config / "topics").mkdir()
    (config / "topics" / "CURRENT").write_text("MANIFEST-000005\n", "ascii")


@pytest.mark.parametrize("change", [damage_topics, damage_database])
def test_a_damaged_topics_json_is_no_reason_for_other_rows(
    golden: GoldenStore, change: Callable[[Path], None]
) -> None:
    change(Path(golden.path, "config"))
    with MessageStore.open(golden.path) as store:
        said = r"config/topics.*nothing says.*compacted=False"
        with pytest.raises(CorruptConfigError, match=said):
            store.read_batches(TOPIC).read_all()
        with pytest.raises(CorruptConfigError, match=said):
            store.get_message(TOPIC, 1, 0)
        assert store.get_message("other", 0, 0).messages
        assert store.read_batches("other").read_all().num_rows == len(served(golden, "other"))
        assert store.read_batches(TOPIC, compacted=False).read_all().num_rows == 156


@pytest.mark.parametrize("change", [lose_topics, shutil.rmtree])
def test_without_topics_json_every_message_is_read_with_a_warning(
    golden: GoldenStore, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """`multipath-5.5.0` has no such file, and the store classes answered from the CommitLog."""
    change(Path(golden.path, "config"))
    with MessageStore.open(golden.path) as store:
        store.read_batches("other").read_all()
        assert not caplog.messages
        whole = store.read_batches(TOPIC, compacted=False).read_all()
        assert store.read_batches(TOPIC).read_all() == whole
        assert [one.queue_offset for one in store.get_message(TOPIC, 1, 0, 3).messages] == [0, 1, 2]
    (warning,) = caplog.messages
    assert warning.startswith(f"there is no topics.json, so every message of {TOPIC}")


def test_checks_of_an_application_see_every_message_that_was_sent(golden: GoldenStore) -> None:
    with MessageStore.open(golden.path) as store:
        whole = store.read_batches(TOPIC, compacted=False).read_all().num_rows
    assert len(StoreChecks(Path(golden.path)).messages(TOPIC)) == whole


# --- a broker that compacts meanwhile -------------------------------------------------------------


def files_of(golden: GoldenStore, base: int) -> list[Path]:
    return [
        Path(golden.path, f"compaction/compaction{kind}/{TOPIC}/1/{base:020d}")
        for kind in ("Log", "Cq")
    ]


def test_an_exchange_of_files_is_waited_for(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files have other names already, and the new ones are not there yet."""
    Path(golden.path, "abort").write_bytes(b"1")
    paths = files_of(golden, 4140)
    for path in paths:
        path.rename(path.with_name(f"{path.name}.delete"))
    waits = []

    def exchange(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            for path in paths:
                path.with_name(f"{path.name}.delete").rename(path)

    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(sleep=exchange))
    with MessageStore.open(golden.path) as store:
        assert sorted(rows_of(store.read_batches(TOPIC))) == served(golden)
    assert len(waits) == 2


def test_an_exchange_between_log_and_entries_is_waited_for(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(golden.path, "abort").write_bytes(b"1")
    _, entries = files_of(golden, 4140)
    new = entries.parent / "compacting"
    new.mkdir()
    entries.rename(new / entries.name)

    def exchange(_: float) -> None:
        if not entries.exists():
            (new / entries.name).rename(entries)

    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(sleep=exchange))
    with MessageStore.open(golden.path) as store:
        assert sorted(rows_of(store.read_batches(TOPIC))) == served(golden)


def test_damage_of_a_store_that_crashed_is_not_waited_for_long(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(golden.path, "abort").write_bytes(b"1")
    files_of(golden, 4140)[0].unlink()
    waits: list[float] = []
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(sleep=waits.append))
    with (
        MessageStore.open(golden.path) as store,
        pytest.raises(MissingFileError, match="compactionLog"),
    ):
        store.read_batches(TOPIC).read_all()
    assert sum(waits) < 2.5


def test_interrupted_exchanges_of_many_queues_are_waited_for_together(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(golden.path, "abort").write_bytes(b"1")
    folders = sorted(Path(golden.path, "compaction").glob("compaction*/*/*"))
    for folder in folders:
        for number in range(50, 60):
            shutil.copytree(folder, folder.parent / f"{number}{folder.name}")
    for folder in Path(golden.path, "compaction").glob("compactionCq/*/*"):
        new = folder / "compacting"
        new.mkdir()
        (new / "00000000000000000000").touch()
    waits: list[float] = []
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(sleep=waits.append))
    found = CompactionFolders(Path(golden.path))
    queues = found.queues()
    assert all(found.queue(queue) is not None for queue in queues)
    assert len(queues) > 10
    assert 1.5 < sum(waits) < 2.5


@pytest.mark.parametrize("written", [0, 12, 28, 36])
def test_a_message_that_is_half_written_ends_the_queue(
    golden: GoldenStore, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store that a broker writes, or was killed in; where it was closed, that is damage."""
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(sleep=lambda _: None))
    _, path = files_of(golden, 16560)
    rows = served(golden)
    last = [row for row in rows if row[1] == 1 and row[3] >= 16560]
    at = (len(last) - 1) * 46
    write_at(path, at + written, bytes(46 - written))
    with MessageStore.open(golden.path) as store, pytest.raises(CorruptQueueError):
        store.read_batches(TOPIC).read_all()
    Path(golden.path, "abort").write_bytes(b"1")
    with MessageStore.open(golden.path) as store:
        assert sorted(rows_of(store.read_batches(TOPIC))) == [r for r in rows if r != last[-1]]
    write_at(path, at - 46, bytes(46))  # more than one message is none that is being written
    with MessageStore.open(golden.path) as store, pytest.raises(CorruptQueueError):
        store.read_batches(TOPIC).read_all()


def replace_file(path: Path) -> None:
    """Another file under its name, as after a compaction: of other messages."""
    raw = path.read_bytes()
    path.unlink()
    path.with_name("other").write_bytes(b"")  # so that the inode is not used again
    path.write_bytes(bytes(len(raw)))


@pytest.mark.parametrize("kind", [0, 1], ids=["log", "entries"])
def test_files_that_were_exchanged_since_are_no_damage(golden: GoldenStore, kind: int) -> None:
    met: list[StoreError] = []
    with MessageStore.open(golden.path) as store:
        store.served.limits(QueueId(TOPIC, 1))
        store.release_files()
        replace_file(files_of(golden, 4140)[kind])
        with pytest.raises(DataLossError, match="compacted the queue since"):
            store.read_batches(TOPIC).read_all()
        with pytest.raises(DataLossError, match="compacted the queue since"):
            store.get_message(TOPIC, 1, 0, 1000)
        left = rows_of(store.read_batches(TOPIC, on_damage=met.append))
        assert {row for row in left if row[1] != 1} == {r for r in served(golden) if r[1] != 1}
        assert {row for row in left if row[1] == 1} <= set(served(golden))
    assert met
    assert {type(error) for error in met} == {DataLossError}
