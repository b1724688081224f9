"""Opening costs no more with more messages: what is mapped and decoded is counted, not timed."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import MessageStore, QueueId, Record
from rmq_store.commitlog import headers as walk
from rmq_store.commitlog import log as commitlog
from rmq_store.files import segment_chain as files
from rmq_store.files import segments as segments
from rmq_store.files import source as sources
from rmq_store.files.source import Window
from rmq_store.format import record as message
from rmq_store.format.byte_layout import DEFAULT_COMMITLOG_FILE_SIZE, Bytes, segment_name
from rmq_store.format.queues import DEFAULT_QUEUE_FILE_SIZE, QUEUE_ENTRY
from tests.support.encode_record import encode_record

TOPICS, QUEUES_A_TOPIC = 100, 100
LOG_FILES = 1024  # of 1 GiB: 1 TiB
GIB = DEFAULT_COMMITLOG_FILE_SIZE
QUEUE_FILE = DEFAULT_QUEUE_FILE_SIZE
UNITS = QUEUE_FILE // QUEUE_ENTRY.itemsize
UNITS_A_PAGE = 4096 // QUEUE_ENTRY.itemsize
OPENS_IN_S = 3.0  # what is promised; printed beside what it took


@dataclass
class Counts:
    """How much work was done, by what is dear."""

    seen: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Counts mapped files, windows and decoded records from here on."""
    looks = Counts()
    map_file, window, decode = sources.LocalFile._map, sources.Sources.window, message._split
    read = files.SegmentChain.read

    def counting_map(self: sources.LocalFile) -> Bytes:
        looks.seen["mapped"] += 1
        return map_file(self)

    def counting_window(
        self: sources.Sources,
        file: segments.SegmentFile,
        start: int,
        stop: int,
        *,
        fetch: bool = True,
    ) -> Window:
        looks.seen["windows"] += 1
        if stop - start < GIB:  # a whole log file is only walked from where it is asked
            looks.seen["window bytes"] += stop - start
        return window(self, file, start, stop, fetch=fetch)

    def counting_split(raw: bytes, magic: int, log_offset: int, path: str | None) -> Record:
        looks.seen["decoded"] += 1
        return decode(raw, magic, log_offset, path)

    monkeypatch.setattr(sources.LocalFile, "_map", counting_map)
    monkeypatch.setattr(sources.Sources, "window", counting_window)

    def counting_read(
        self: files.SegmentChain, start: int, stop: int, *, counted: bool = False
    ) -> Bytes:
        looks.seen["read"] += 1
        looks.seen["read bytes"] += stop - start
        return read(self, start, stop, counted=counted)

    monkeypatch.setattr(files.SegmentChain, "read", counting_read)
    monkeypatch.setattr(message, "_split", counting_split)
    return looks


def sparse(path: Path, size: int) -> None:
    """A file of `size` bytes, all of them a hole."""
    with open(path, "wb") as file:
        file.truncate(size)


def record(queue: QueueId, queue_offset: int, log_offset: int) -> bytes:
    return encode_record(
        Record(
            queue_id=queue.queue_id,
            flag=0,
            queue_offset=queue_offset,
            physical_offset=log_offset,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            born_host=bytes(8),
            store_timestamp=1_700_000_000_000 + log_offset // GIB,
            store_host=bytes(8),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"x" * 20,
            topic=queue.topic.encode(),
            properties=b"TAGS\x01a\x02",
        )
    )


def write_units(fd: int, first_unit: int, units: list[tuple[int, int]]) -> None:
    raw = np.zeros(len(units), dtype=QUEUE_ENTRY)
    raw["log_offset"], raw["size"] = zip(*units, strict=True)
    os.pwrite(fd, raw.tobytes(), first_unit * QUEUE_ENTRY.itemsize)


class SparseStore:
    """Queues of `files_a_queue` files, the last of them full but for `short` entries.

    The first entries of each queue lie in the first log file, the last in the last one, and their
    records really stand there. What lies between is a hole; entries there lead nowhere.
    """

    def __init__(
        self, root: Path, topics: int, queues: int, files_a_queue: int, short: int
    ) -> None:
        self.root = root
        self.queues = [QueueId(f"topic-{t:03d}", q) for t in range(topics) for q in range(queues)]
        self.first = 300_000 * 7 if files_a_queue > 1 else 0
        self.stop = self.first + files_a_queue * UNITS - short
        self.files_a_queue = files_a_queue
        self.log_at = {0: 0, LOG_FILES - 1: (LOG_FILES - 1) * GIB}
        (root / "commitlog").mkdir(parents=True)
        for number in range(LOG_FILES):
            sparse(root / "commitlog" / segment_name(number * GIB), GIB)
        self.log: dict[int, list[bytes]] = {number: [] for number in self.log_at}
        for queue in self.queues:
            self._write_queue(queue)
        for number, pieces in self.log.items():
            with open(root / "commitlog" / segment_name(number * GIB), "r+b") as file:
                file.write(b"".join(pieces))

    def _put(self, number: int, queue: QueueId, queue_offset: int) -> tuple[int, int]:
        at = self.log_at[number]
        raw = record(queue, queue_offset, at)
        self.log[number].append(raw)
        self.log_at[number] += len(raw)
        return at, len(raw)

    def _write_queue(self, queue: QueueId) -> None:
        folder = self.root / "consumequeue" / queue.topic / str(queue.queue_id)
        folder.mkdir(parents=True)
        for number in range(self.files_a_queue):
            start = self.first + number * UNITS
            path = folder / segment_name(start * QUEUE_ENTRY.itemsize)
            sparse(path, QUEUE_FILE)
            with open(path, "r+b") as file:
                self._fill(file.fileno(), queue, start, number)

    def _fill(self, fd: int, queue: QueueId, start: int, number: int) -> None:
        """Entries in the first and last page; the first and last of the queue lead to records."""
        last = number == self.files_a_queue - 1
        stop = self.stop - start if last else UNITS
        self._fill_between(fd, stop)
        if number == 0:
            write_units(fd, 0, [self._put(0, queue, start)])
        if last:
            write_units(fd, stop - 1, [self._put(LOG_FILES - 1, queue, start + stop - 1)])

    def _fill_between(self, fd: int, stop: int) -> None:
        if UNITS - stop >= UNITS_A_PAGE:  # ends within the file: then it has no holes before
            write_units(fd, 0, [(GIB + unit, 100) for unit in range(stop)])
            return
        width = min(stop, UNITS_A_PAGE)
        for front in (0, stop - width):
            write_units(fd, front, [(GIB + front + unit, 100) for unit in range(width)])


def open_and_ask(store: SparseStore, counts: Counts) -> MessageStore:
    begun = time.perf_counter()
    opened = MessageStore.open(store.root)
    topics = opened.topics()
    ranges = {(opened.min_offset(*queue), opened.max_offset(*queue)) for queue in opened.queues()}
    took = time.perf_counter() - begun
    print(
        f"\nopen, topics, min and max of {len(store.queues)} queues: {took:.2f} s"
        f" (promised: {OPENS_IN_S} s); {dict(counts.seen)}"
    )
    assert topics == sorted({queue.topic for queue in store.queues})
    assert opened.queues() == sorted(store.queues)
    assert ranges == {(store.first, store.stop)}
    return opened


@pytest.mark.campaign
@pytest.mark.parametrize("short", [0, 5])
def test_ten_thousand_queues_over_a_tebibyte_of_log_open_at_once(
    tmp_path: Path, counts: Counts, short: int
) -> None:
    store = SparseStore(tmp_path / "store", TOPICS, QUEUES_A_TOPIC, 1, short)
    with open_and_ask(store, counts) as opened:
        assert opened.log_range() == (0, store.log_at[LOG_FILES - 1])
        queues = len(store.queues)
        # Two looks at each queue, and next to nothing of the log.
        assert counts.seen["mapped"] <= 8
        assert counts.seen["read"] <= 2 * queues
        assert counts.seen["read bytes"] <= 8192 * queues
        assert counts.seen["windows"] <= 64
        assert counts.seen["decoded"] <= 64
        for queue in store.queues[::2499]:
            for offset in (store.first, store.stop - 1):
                (found,) = opened.get_message(*queue, offset, 1).messages
                assert (found.topic, found.queue_id, found.queue_offset) == (*queue, offset)


@pytest.mark.parametrize("short", [1, UNITS_A_PAGE, UNITS // 2 + 3, UNITS - 1])
def test_long_queues_whose_last_file_is_partly_filled(
    tmp_path: Path, counts: Counts, short: int
) -> None:
    store = SparseStore(tmp_path / "store", 2, 2, 5, short)
    with open_and_ask(store, counts) as opened:
        assert counts.seen["decoded"] <= 64
        assert counts.seen["windows"] <= 80 * len(store.queues)
        for queue in store.queues:
            (found,) = opened.get_message(*queue, store.stop - 1, 1).messages
            assert found.queue_offset == store.stop - 1
            assert opened.get_message(*queue, store.stop).messages == []


def test_a_thousand_messages_cost_no_more_to_open_than_a_hundred(
    tmp_path: Path, counts: Counts
) -> None:
    few = SparseStore(tmp_path / "few", 1, 2, 1, short=UNITS - 100)
    open_and_ask(few, counts).close()
    with_few = Counter(counts.seen)
    counts.seen.clear()
    many = SparseStore(tmp_path / "many", 1, 2, 1, short=UNITS - 250_000)
    open_and_ask(many, counts).close()
    assert counts.seen["mapped"] == with_few["mapped"]
    assert counts.seen["decoded"] <= with_few["decoded"] + 2
    assert counts.seen["windows"] <= with_few["windows"] + 2 * 2 * 20  # bisection: log2 of it


def test_the_log_is_not_walked_from_its_start(tmp_path: Path, counts: Counts) -> None:
    store = SparseStore(tmp_path / "store", 1, 1, 1, short=10)
    walked: list[int] = []
    follow = walk.follow_records

    def counting(window: Bytes, base: int, start: int, *how: Any) -> walk.RecordRun:
        walked.append(base + start)
        return follow(window, base, start, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commitlog, "follow_records", counting)
        open_and_ask(store, counts).close()
    assert walked
    assert min(walked) >= (LOG_FILES - 1) * GIB
