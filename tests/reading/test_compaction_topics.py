"""get_message of compaction topics, held against real brokers: what a client was served, and what the
store classes of 5.5.0 answered.

In `compact-timer-5.5.0` no file is full yet; in `compacted-5.5.0` files were compacted several times.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import GetMessageStatus, MessageStore
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    MissingFileError,
    ReadOnlyStoreError,
    StoreError,
)
from rmq_store.format.record import record_crc_of
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, unpack, unpack_kind
from tests.support.golden_rows import as_served, assert_answered

NAME = "compacted-5.5.0"
TOPIC = "state"
UNIT, LOG_FILE = 46, 4140


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(NAME, tmp_path)


def opened(golden: GoldenStore, **config: object) -> MessageStore:
    return MessageStore.open(golden.path, config=config or None)


def entries_of(golden: GoldenStore, queue_id: int, base: int) -> Path:
    return Path(golden.path, f"compaction/compactionCq/{TOPIC}/{queue_id}/{base:020d}")


def log_of(golden: GoldenStore, queue_id: int, base: int) -> Path:
    return Path(golden.path, f"compaction/compactionLog/{TOPIC}/{queue_id}/{base:020d}")


def places(
    store: MessageStore, queue_id: int, *, as_broker: bool = False
) -> list[tuple[int | None, int]]:
    """Queue offset and place of all messages of a queue, from answer to answer."""
    found: list[tuple[int | None, int]] = []
    at = 0
    while True:
        answer = store.get_message(TOPIC, queue_id, at, as_broker=as_broker)
        found += [(one.queue_offset, one.commit_log_offset) for one in answer.messages]
        if answer.next_begin_offset <= at:
            return found
        at = answer.next_begin_offset


def served_places(golden: GoldenStore, queue_id: int) -> list[tuple[int, int]]:
    lines = golden.lines("served")
    return [
        (line["offset"], line["phy"])
        for line in lines
        if (line["topic"], line["queue"]) == (TOPIC, queue_id)
    ]


@pytest.mark.parametrize("name", [NAME, "compact-timer-5.5.0"])
@pytest.mark.parametrize("as_broker", [False, True])
def test_messages_are_those_that_a_client_was_served(
    tmp_path: Path, name: str, as_broker: bool
) -> None:
    golden = unpack_kind(name, tmp_path)
    before = golden.fingerprint()
    with opened(golden) as store:
        lines = [line for line in golden.lines("served") if line["topic"] == TOPIC]
        for line in lines:
            answer = store.get_message(TOPIC, line["queue"], line["offset"], 1, as_broker=as_broker)
            found = as_served(answer.messages[0])
            body = found.pop("body")
            assert found == {name: line[name] for name in found}
            assert answer.messages[0].msg_id == line["offsetMsgId"]
            assert base64.b64decode(line["body"]) == body
            # The client adds the range that the broker answers.
            assert answer.min_offset == int(line["props"]["MIN_OFFSET"])
            assert answer.max_offset == int(line["props"]["MAX_OFFSET"])
        for queue_id in {line["queue"] for line in lines}:
            found_places = places(store, queue_id, as_broker=as_broker)
            assert found_places == served_places(golden, queue_id)
    assert golden.fingerprint() == before


def test_as_broker_is_the_answer_of_the_store_classes(golden: GoldenStore) -> None:
    answers = golden.answers("getMessage")
    assert {answer["status"] for answer in answers} == {
        "FOUND",
        "OFFSET_OVERFLOW_ONE",
        "OFFSET_OVERFLOW_BADLY",
        "NO_MATCHED_LOGIC_QUEUE",
    }
    with opened(golden) as store:
        for answer in answers:
            messages = assert_answered(store, TOPIC, answer)
            assert [one.queue_offset for one in messages] == answer["recordQueueOffsets"], answer


def test_one_answer_crosses_files_and_compares_tags_as_text(golden: GoldenStore) -> None:
    lines = [one for one in golden.lines("served") if (one["topic"], one["queue"]) == (TOPIC, 1)]
    with opened(golden) as store:
        every = store.get_message(TOPIC, 1, 0, 1000)
        assert [one.queue_offset for one in every.messages] == [line["offset"] for line in lines]
        assert (every.status, every.next_begin_offset) == (GetMessageStatus.FOUND, every.max_offset)
        for tag in ("Aa", "BB"):  # of one hash
            found = store.get_message(TOPIC, 1, 0, 1000, tag).messages
            wanted = [line["offset"] for line in lines if line["props"].get("TAGS") == tag]
            assert [one.queue_offset for one in found] == wanted
            assert wanted
        none = store.get_message(TOPIC, 1, 0, 1000, "nosuchtag")
        assert (none.status, none.messages) == (GetMessageStatus.NO_MATCHED_MESSAGE, [])
        some = store.get_message(TOPIC, 1, 0, 10).messages
        assert [one.queue_offset for one in some] == [line["offset"] for line in lines[:10]]


def test_without_compaction_the_queue_and_the_log_answer(golden: GoldenStore) -> None:
    """A broker with enableCompaction=false, or one that never had it, answers as for any topic."""
    answers = [one for one in golden.answers("minMax") if one["queueId"] in (0, 1, 3)]
    with opened(golden, enableCompaction=False) as store:
        for answer in answers:
            assert len(places(store, answer["queueId"])) == answer["max"]
    shutil.rmtree(Path(golden.path, "compaction"))
    with opened(golden) as store:
        for answer in answers:
            found = store.get_message(TOPIC, answer["queueId"], 0, 1000)
            assert len(found.messages) == answer["max"]
            last = found.messages[-1]
            assert store.message_at(last.commit_log_offset) == last
        assert store.get_message("other", 0, 0).messages


def test_other_topics_are_answered_from_their_queues(golden: GoldenStore) -> None:
    wanted = [line["phy"] for line in golden.lines("served") if line["topic"] == "other"]
    with opened(golden) as store:
        assert [
            one.commit_log_offset for one in store.get_message("other", 0, 0).messages
        ] == wanted


def test_a_closed_store_does_not_answer(golden: GoldenStore) -> None:
    store = opened(golden)
    store.get_message(TOPIC, 1, 0)
    store.close()
    with pytest.raises(ReadOnlyStoreError):
        store.get_message(TOPIC, 1, 0)


def test_files_that_were_released_are_opened_again(golden: GoldenStore) -> None:
    with opened(golden) as store:
        before = places(store, 1)
        store.release_files()
        assert places(store, 1) == before == served_places(golden, 1)


def zero(path: Path) -> int:
    return path.write_bytes(bytes(path.stat().st_size))


def lose_files(golden: GoldenStore) -> None:
    for base in (0, 4140, 8280, 16560):
        entries_of(golden, 1, base).unlink()
        log_of(golden, 1, base).unlink()


def lose_queue(golden: GoldenStore) -> None:
    shutil.rmtree(entries_of(golden, 1, 0).parent)
    shutil.rmtree(log_of(golden, 1, 0).parent)


def lose_topic(golden: GoldenStore) -> None:
    shutil.rmtree(entries_of(golden, 1, 0).parent.parent)
    shutil.rmtree(log_of(golden, 1, 0).parent.parent)


# What the store classes of 5.5.0 answer on a copy that was damaged so.
NO_QUEUE = GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
NO_MESSAGE = GetMessageStatus.NO_MESSAGE_IN_QUEUE
AS_BROKERS: dict[str, tuple[Callable[[GoldenStore], None], tuple[GetMessageStatus, int, int]]] = {
    "queue": (lose_queue, (NO_QUEUE, 0, 0)),
    "topic": (lose_topic, (NO_QUEUE, 0, 0)),
    "all files": (lose_files, (NO_MESSAGE, -1, 0)),
}


@pytest.mark.parametrize("missing", AS_BROKERS)
@pytest.mark.parametrize("as_broker", [False, True])
def test_what_is_missing_as_a_whole_has_the_status_of_the_broker(
    golden: GoldenStore, missing: str, as_broker: bool
) -> None:
    lose, (status, low, high) = AS_BROKERS[missing]
    lose(golden)
    with opened(golden) as store:
        answer = store.get_message(TOPIC, 1, 5, as_broker=as_broker)
        assert (answer.status, answer.next_begin_offset) == (status, 0)
        assert (answer.min_offset, answer.max_offset, answer.messages) == (low, high, [])


def test_a_last_file_without_a_message_ends_the_queue_before_it(golden: GoldenStore) -> None:
    zero(entries_of(golden, 1, 16560))
    zero(log_of(golden, 1, 16560))
    left = [(offset, place) for offset, place in served_places(golden, 1) if place < 16560]
    with opened(golden) as store:
        assert places(store, 1) == left
        assert store.get_message(TOPIC, 1, 0).max_offset == left[-1][0] + 1


DAMAGES: dict[str, tuple[Callable[[GoldenStore], object], type[StoreError], str]] = {
    "no file of the log": (
        lambda golden: log_of(golden, 1, 4140).unlink(),
        MissingFileError,
        r"compactionLog/state/1/0{16}4140: the file is missing",
    ),
    "an empty file of the log": (
        lambda golden: os.truncate(log_of(golden, 1, 4140), 0),
        MissingFileError,
        r"compactionLog/state/1/0{16}4140: the file is missing or empty",
    ),
    "no file of entries": (
        lambda golden: entries_of(golden, 1, 4140).unlink(),
        MissingFileError,
        r"compactionCq/state/1/0{16}4140: the file is missing",
    ),
    "no folder of entries": (
        lambda golden: shutil.rmtree(entries_of(golden, 1, 0).parent),
        MissingFileError,
        r"compactionCq/state/1/0{20}: the file is missing",
    ),
    "no folder of the log": (
        lambda golden: shutil.rmtree(log_of(golden, 1, 0).parent),
        MissingFileError,
        r"compactionLog/state/1/0{20}: the file is missing",
    ),
    "a cut log": (
        lambda golden: os.truncate(log_of(golden, 1, 4140), 2000),
        CorruptRecordError,
        r"compactionLog/state/1/0{16}4140: the file ends before the record",
    ),
    "a cut file of entries": (
        lambda golden: os.truncate(entries_of(golden, 1, 4140), 5 * UNIT),
        CorruptQueueError,
        r"compactionCq/state/1/0{16}4140: the file was cut .*expected 460 bytes, found 230 bytes",
    ),
    "zeros for the last entries": (
        lambda golden: zero(entries_of(golden, 1, 16560)),
        CorruptQueueError,
        r"compactionCq/state/1/0{15}16560: the compaction log has a record that no entry lists",
    ),
    "zeros for entries in the middle": (
        lambda golden: [zero(path(golden, 1, 4140)) for path in (entries_of, log_of)],
        CorruptQueueError,
        r"compactionCq/state/1/0{16}4140: the file has no entry, and others follow",
    ),
    "zeros for records": (
        lambda golden: zero(log_of(golden, 1, 4140)),
        CorruptRecordError,
        r"compactionLog/state/1/0{16}4140: no record starts here",
    ),
    "files in another order": (
        lambda golden: entries_of(golden, 1, 0).write_bytes(
            entries_of(golden, 1, 4140).read_bytes()
        ),
        CorruptRecordError,
        r"compactionLog/state/1/0{20}: the file ends before the record",
    ),
    "the files of another queue": (
        lambda golden: [
            path(golden, 1, base).write_bytes(path(golden, 0, base).read_bytes())
            for base in (0, 4140)
            for path in (entries_of, log_of)
        ],
        CorruptQueueError,
        r"compactionCq/state/1/0{16}\d{4}: the queue offset does not follow",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("as_broker", [False, True])
def test_damage_is_an_error_that_names_the_file(
    golden: GoldenStore, damage: str, as_broker: bool
) -> None:
    hurt, kind, message = DAMAGES[damage]
    hurt(golden)
    with opened(golden) as store:
        with pytest.raises(kind, match=message):
            places(store, 1, as_broker=as_broker)
        # The other queues are as they were.
        assert places(store, 0, as_broker=as_broker) == served_places(golden, 0)


def test_the_only_file_of_entries_that_was_cut_inside_of_one_says_what_fits(
    golden: GoldenStore,
) -> None:
    (only,) = entries_of(golden, 3, 0).parent.glob("0*")
    os.truncate(only, 2 * UNIT + 8)
    with (
        opened(golden) as store,
        pytest.raises(CorruptQueueError, match="46 bytes, found 100 bytes"),
    ):
        places(store, 3)


def test_a_record_whose_entry_came_after_the_look_is_read(
    golden: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker writes the record first. One that has just done so is no damage."""
    path = entries_of(golden, 1, 16560)
    whole = path.read_bytes()
    rows = served_places(golden, 1)
    last = sum(place >= 16560 for _, place in rows) - 1
    path.write_bytes(whole[: last * UNIT] + bytes(len(whole) - last * UNIT))
    looked = CommitLog.is_record

    def look_and_append(log: CommitLog, *place: int) -> bool:
        found = looked(log, *place)
        if found:
            write_at(path, 0, whole)
        return found

    monkeypatch.setattr(CommitLog, "is_record", look_and_append)
    with opened(golden) as store:
        assert places(store, 1) == rows


def test_a_record_crc_of_the_commit_log_does_not_count_in_a_copy(tmp_path: Path) -> None:
    """The broker copies it, and it was computed with the place that the record had before."""
    golden = unpack("crc-5.5.0", tmp_path)
    truth = next(one for one in golden.truth if one["commitLogOffset"] and one["body"])
    with golden.open() as store:
        record = store.log.record_at(truth["commitLogOffset"])
        place, size = record.physical_offset, record.total_size
        raw = store.log.chain.read(place, place + size).tobytes()
    assert record_crc_of(record.properties) is not None
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = raw[:28] + (0).to_bytes(8, "big") + raw[36:]
    (folder / f"{0:020d}").write_bytes(copy + bytes(100))
    with pytest.raises(CorruptRecordError, match="__CRC32#"):
        CommitLog([folder]).record_at(0)
    assert CommitLog([folder], copied=True).record_at(0) == replace(record, physical_offset=0)
