"""The fast path gives what the readable path gives, over every kind of record and over any bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rmq_store import QueueId, Record
from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.arrow.column_values import (
    BatchBuilder,
    numbered_topics,
    opened_bodies,
    stored_bodies,
    stored_topics,
)
from rmq_store.arrow.property_columns import buffers
from rmq_store.commitlog import headers as walk
from rmq_store.commitlog.headers import Headers, wrong_crc_rows
from rmq_store.consumequeue.entry_of_record import compare_with_records
from rmq_store.errors import CorruptRecordError, StoreError
from rmq_store.format.byte_layout import (
    CRC_ITEM_SIZE,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    Ints,
)
from rmq_store.format.compression import decompress
from rmq_store.format.hashes import crc32, index_key_hash, java_string_hash, java_string_hashes
from rmq_store.format.queues import ListedEntries, Queues
from rmq_store.format.record import decode_record, decode_utf8, to_message
from rmq_store.loops.queue_entries import OTHER_OFFSET, OTHER_QUEUE, OTHER_RECORD, SAME
from tests.support.encode_record import encode_record
from tests.support.records import as_log, records
from tests.support.running.campaigns import some
from tests.support.running.examples import campaign, fast


def row_by_the_readable_path(record: Record, topic: str, queue_offset: int) -> dict[str, Any]:
    message = to_message(
        record,
        broker_name="b",
        body=decompress(record.body, record.sys_flag),
        topic=topic,
        queue_offset=None if queue_offset < 0 else queue_offset,
        tags_code=7,
    )
    return {
        "brokerName": "b",
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "tags": message.tags,
        "keys": message.keys,
        "uniqKey": message.uniq_key,
        "msgId": message.msg_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCrc": message.body_crc,
        "body": message.body,
        "properties": message.properties,
        "rawBody": message.raw_body,
        "rawProperties": message.raw_properties,
        "tagsCode": message.tags_code,
        "recordQueueOffset": message.record_queue_offset,
        "corruptRecord": None,
    }


def raised(row: int, error: StoreError) -> None:
    """Let a body that does not open fail the read."""
    raise error


def rows_by_the_fast_path(
    headers: Headers, topics: list[str], queue_offsets: Sequence[int]
) -> list[dict[str, Any]]:
    rows = ListedEntries(
        np.array(queue_offsets, dtype=np.int64),
        headers.at + headers.base,
        headers.total,
        np.full(len(topics), 7, dtype=np.int64),
        np.ones(len(topics), dtype=np.int64),
        Queues(map(QueueId, topics, headers.queue_id.tolist())),
        np.arange(len(topics)),
    )
    ((_, bodies),) = opened_bodies(
        headers,
        stored_bodies(headers),
        np.ones(len(rows), bool),
        max_body_bytes=1 << 28,
        path=None,
        failed=raised,
    )
    batch = BatchBuilder("b", list(BY_NAME)).build(rows, headers, bodies=bodies)
    batch.validate(full=True)
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        columns[name] = column.to_pylist()
    columns["properties"] = [dict(items) for items in columns["properties"]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def check_columns(found: list[Record], base: int, written: list[bool]) -> None:
    window, at, placed = as_log(found, base)
    headers = Headers(window, at, base)
    assert headers.valid.all()
    assert not len(wrong_crc_rows(headers))
    topics = [decode_utf8(record.topic) for record in placed]
    assert stored_topics(headers).to_pylist() == topics
    names, codes = numbered_topics(headers)
    assert len(set(names)) == len(names)
    assert [names[code] for code in codes] == topics
    # The offset by the queue: sometimes the record's own, sometimes another, sometimes none.
    offsets = [
        record.queue_offset if same else (-1 if record.flag % 2 else 17)
        for record, same in zip(placed, written, strict=True)
    ]
    fast_rows = rows_by_the_fast_path(headers, topics, offsets)
    for record, row, topic, offset in zip(placed, fast_rows, topics, offsets, strict=True):
        decoded = decode_record(window.data, record.physical_offset - base, record.physical_offset)
        assert decoded == record
        wanted = row_by_the_readable_path(record, topic, offset)
        if offset < 0:
            wanted["recordQueueOffset"] = row["recordQueueOffset"]  # nothing to differ from
        assert row == wanted


LISTS_OF_RECORDS = st.lists(records(), min_size=1, max_size=6)


@fast(100)
@given(LISTS_OF_RECORDS, st.integers(0, 2**62), st.lists(st.booleans(), min_size=6, max_size=6))
def test_columns_equal_messages(found: list[Record], base: int, written: list[bool]) -> None:
    check_columns(found, base, written[: len(found)])


@pytest.mark.campaign
@campaign(4000)
@given(LISTS_OF_RECORDS, st.integers(0, 2**62), st.lists(st.booleans(), min_size=6, max_size=6))
def test_columns_equal_messages_at_length(
    found: list[Record], base: int, written: list[bool]
) -> None:
    check_columns(found, base, written[: len(found)])


def test_columns_equal_messages_where_the_upper_half_of_the_offset_changes() -> None:
    plain = Record(3, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", b"orders", b"")
    plain = replace(plain, body_crc=0)
    base = (7 << 32) - 250
    assert as_log([plain] * 4, base)[2][-1].physical_offset > 7 << 32
    check_columns([plain] * 4, base, [True] * 4)


def test_a_record_of_another_queue_place_or_size_is_noticed_row_by_row() -> None:
    plain = Record(3, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"x", b"orders", b"")
    others = [plain, replace(plain, topic=b"order"), replace(plain, queue_id=4)]
    others += [replace(plain, topic=b"or\xff"), plain, plain, plain]
    window, at, placed = as_log(others)
    headers = Headers(window, at, 0)
    nothing = np.zeros(len(placed), dtype=np.int64)
    offset, size = headers.queue_offset.copy(), headers.total.copy()
    offset[4], offset[5], size[6] = offset[4] + 1, -1, size[6] - 1
    rows = ListedEntries(
        offset, at, size, nothing, nothing, Queues([QueueId("orders", 3)]), nothing
    )
    assert compare_with_records(rows, headers).tolist() == [
        *(SAME, OTHER_QUEUE, OTHER_QUEUE, OTHER_QUEUE),
        *(OTHER_OFFSET, SAME, OTHER_RECORD),
    ]


# --- which bytes are a record ----------------------------------------------------------------------


def check_validity(window: np.ndarray[Any, Any], at: Ints, base: int) -> None:
    """The fast path takes for records exactly what the readable one does, CRCs apart and included."""
    headers = Headers(window, at, base)
    wrong = set(at[wrong_crc_rows(headers)].tolist()) if headers.valid.all() else set()
    for row, place in enumerate(at.tolist()):
        verdict = verdict_of(window, place, base)
        assert bool(headers.valid[row]) is (verdict in ("record", "wrong CRC")), verdict
        if headers.valid.all():
            assert (place in wrong) is (verdict == "wrong CRC")


def verdict_of(window: np.ndarray[Any, Any], place: int, base: int) -> str:
    if place < 0:
        return "outside"
    try:
        found = decode_record(window.data, place, base + place)
    except CorruptRecordError as error:
        physical = int.from_bytes(window[place + 28 : place + 36].tobytes(), "big", signed=True)
        here = physical == base + place  # else a ghost, of which no more is asked
        return "wrong CRC" if here and "CRC" in error.reason else error.reason
    return "record" if isinstance(found, Record) else found.value


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], Ints, int]:
    """Records, some bytes of which were overwritten, maybe cut short; and places to look at."""
    window, at, _ = as_log(draw(st.lists(records(), max_size=4)), 1000)
    raw = bytearray(window.tobytes() + draw(st.binary(max_size=120)))
    for _ in range(draw(st.integers(0, 4))):
        if not raw:
            break
        place = draw(st.integers(0, len(raw) - 1))
        if draw(st.booleans()):
            raw[place] ^= 1 << draw(st.integers(0, 7))
        else:
            piece = draw(st.binary(min_size=1, max_size=4))
            raw[place : place + len(piece)] = piece
    if draw(st.booleans()):
        del raw[draw(st.integers(0, len(raw))) :]
    more = draw(st.lists(st.integers(-5, len(raw) + 5), max_size=4))
    places = np.array(sorted({*at.tolist(), *more}), dtype=np.int64)
    return np.frombuffer(bytes(raw), dtype=np.uint8), places, 1000


@fast(120)
@given(damaged_logs())
def test_damage_is_noticed_by_both_paths(log: tuple[np.ndarray[Any, Any], Ints, int]) -> None:
    check_validity(*log)


@pytest.mark.campaign
@campaign(4000)
@given(damaged_logs())
def test_damage_is_noticed_by_both_paths_at_length(
    log: tuple[np.ndarray[Any, Any], Ints, int],
) -> None:
    check_validity(*log)


@fast(100)
@given(st.binary(max_size=300), st.lists(st.integers(-10, 310), max_size=8))
def test_random_bytes_are_no_record_to_both_paths(raw: bytes, places: list[int]) -> None:
    check_validity(np.frombuffer(raw, dtype=np.uint8), np.array(places, dtype=np.int64), 0)


@fast(100)
@given(records(), st.integers(0, 10**6), st.booleans())
def test_a_record_crc_covers_the_whole_record_for_both_paths(
    record: Record, bit: int, regular: bool
) -> None:
    front = b"a\x01b\x02" if regular else b""
    roomy = replace(record, physical_offset=0, properties=front + bytes(CRC_ITEM_SIZE))
    raw = bytearray(encode_record(roomy, with_record_crc=True))
    check_validity(np.frombuffer(bytes(raw), dtype=np.uint8), np.zeros(1, dtype=np.int64), 0)
    covered = len(raw) - CRC_ITEM_SIZE
    before = crc32(raw[:covered])
    at = bit % (8 * covered)
    raw[at // 8] ^= 1 << at % 8
    # The broker keeps 31 bits of the CRC: a change of the last one alone is not to be seen.
    assume((before ^ crc32(raw[:covered])) & CRC_MASK)
    window = np.frombuffer(bytes(raw), dtype=np.uint8)
    assert verdict_of(window, 0, 0) != "record"
    check_validity(window, np.zeros(1, dtype=np.int64), 0)


# --- hashes ----------------------------------------------------------------------------------------


@fast(100)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)))
@example(["TagA", "TagB", "A||B", "😀emoji", "polygenelubricants", ""])
def test_hashes_of_a_column_equal_single_hashes(words: list[str]) -> None:
    ends, raw = buffers(pa.array(words, pa.string()))
    hashes = java_string_hashes(raw, ends)
    assert hashes.tolist() == [java_string_hash(word) for word in words]


def test_hashes_are_javas() -> None:
    known = {
        "TagA": 2598919,
        "TagB": 2598920,
        "A||B": 2059489,
        "😀emoji": -1233692477,
        "TopicA#k1": -1903240649,
        "polygenelubricants": -2147483648,
    }
    assert {word: java_string_hash(word) for word in known} == known
    assert index_key_hash("polygenelubricants") == 0


# --- from record to record -------------------------------------------------------------------------


def decoy(base: int, at: int, size: int) -> bytes:
    """A body that holds what looks like a record standing in its place."""
    plain = Record(0, 0, 0, base + at, 0, 0, bytes(8), 0, bytes(8), 0, 0, bytes(size), b"t", b"")
    return encode_record(plain)


def log_with_decoys(seed: int) -> tuple[np.ndarray[Any, Any], int]:
    random_ = random.Random(seed)
    base = random_.choice((0, 4096, 2**40))
    plain = Record(0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", b"t", b"")
    pieces: list[bytes] = []
    at = 0
    for _ in range(random_.randrange(2, 120)):
        body = random_.randbytes(random_.randrange(300))
        if random_.random() < 0.3:
            body += decoy(base, at + 88 + len(body), random_.randrange(200))
        raw = encode_record(replace(plain, physical_offset=base + at, body=body))
        if random_.random() < 0.02:
            raw = random_.randbytes(len(raw))  # the run ends, though more stands behind
        pieces.append(raw)
        at += len(raw)
    if random_.random() < 0.5:
        pieces.append(bytes(random_.randrange(500)))
    raw = b"".join(pieces)
    if random_.random() < 0.3:
        raw = raw[: random_.randrange(len(raw))]
    return np.frombuffer(raw, dtype=np.uint8), base


def readable_run(window: bytes, base: int, stop: int) -> tuple[list[int], int]:
    """The run from the start of the window, from what each record says of itself."""
    at, places = 0, []
    while at < stop and at + 36 <= len(window):
        size, magic, physical = struct.unpack_from(">iI20xq", window, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or physical != base + at:
            break
        if not MIN_RECORD_SIZE <= size <= len(window) - at:
            break
        places.append(at)
        at += size
    return places, at


def check_runs(monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int]) -> None:
    monkeypatch.setattr(walk, "_ROWS", 7)
    longest = 0
    for seed in seeds:
        window, base = log_with_decoys(seed)
        stop = len(window) - seed % 50 if seed % 3 == 0 else len(window)
        places, end = readable_run(window.tobytes(), base, stop)
        run = walk.follow_records(window, base, 0, stop)
        assert (run.at.tolist(), run.stop) == (places, end), f"seed {seed}"
        longest = max(longest, len(places))
    assert longest > 7


def test_following_records(monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs(monkeypatch, range(300))


@pytest.mark.campaign
def test_following_records_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs(monkeypatch, some("lanes", range(300, 4000)))
