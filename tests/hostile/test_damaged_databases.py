"""Damaged copies of a store whose queues and configuration are in RocksDB: the rows that are right, what is
missing reported, or an error of ours."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import (
    CorruptConfigError,
    CorruptQueueError,
    StoreError,
    UnsupportedStoreError,
)
from rmq_store.recovery import recover
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, unpack_kind

STORE = "rocksdb-5.5.0"
COLUMNS = ["topic", "queueId", "queueOffset", "commitLogOffset", "bodyCrc", "body"]
Damage = Callable[[random.Random, bytearray], None]


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(STORE, tmp_path)


def flip(chance: random.Random, raw: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 3, 20))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)


def cut(chance: random.Random, raw: bytearray) -> None:
    del raw[chance.randrange(len(raw)) :]


def zero(chance: random.Random, raw: bytearray) -> None:
    at = chance.randrange(len(raw))
    raw[at : at + chance.randrange(1, 4096)] = bytes(min(len(raw) - at, 500))


def noise(chance: random.Random, raw: bytearray) -> None:
    at = chance.randrange(len(raw))
    raw[at : at + 40] = chance.randbytes(len(raw[at : at + 40]))


def append(chance: random.Random, raw: bytearray) -> None:
    raw += chance.randbytes(chance.randrange(1, 600))


DAMAGES = (flip, flip, cut, zero, noise, append)


def read(golden: GoldenStore, truth: dict[tuple[str, int, int], tuple[int, int]]) -> str:
    """Read all messages; how that ended. Each row is one of the truth."""
    damage: list[Exception] = []
    with MessageStore.open(golden.path) as store:
        topics = {topic for topic, _, _ in truth} & set(store.topics())
        rows = store.read_batches(sorted(topics), columns=COLUMNS, on_damage=damage.append)
        found = rows.read_all().drop_columns("body").to_pylist()
    for topic, queue, offset, place, crc in (tuple(row.values()) for row in found):
        assert truth[topic, queue, offset] == (place, crc)
    assert len(found) == len(truth) or damage
    return "rows" if len(found) == len(truth) else "damage"


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_damaged_queues_give_no_wrong_row(tmp_path: Path, seed: int) -> None:
    golden, chance = unpack_kind(STORE, tmp_path), random.Random(seed)
    truth = {
        (line["topic"], line["queue"], line["offset"]): (line["phy"], line["bodyCrc"])
        for line in golden.lines("served")
    }
    ends = Counter[str]()
    folder = Path(golden.path, "consumequeue")
    files = [path for path in sorted(folder.iterdir()) if path.stat().st_size]
    files += 4 * [path for path in files if path.suffix == ".sst" or "MANIFEST" in path.name]
    for _ in range(150):
        path, damage = chance.choice(files), chance.choice(DAMAGES)
        before = path.read_bytes()
        raw = bytearray(before)
        damage(chance, raw)
        path.write_bytes(raw)
        try:
            ends[read(golden, truth)] += 1
        except CorruptQueueError as error:
            ends["error" if error.path == str(folder) else "elsewhere"] += 1
        finally:
            path.write_bytes(before)
    assert {"rows", "error"} <= set(ends) <= {"rows", "error", "damage"}


@pytest.mark.campaign
def test_damaged_configuration_is_right_or_an_error(tmp_path: Path) -> None:
    """Tables and logs have sums. A manifest that ends early is one of an earlier time: of it RocksDB says
    nothing, and its tables are there no more, or are right."""
    golden, chance = unpack_kind(STORE, tmp_path), random.Random(5)
    topics, offsets = read_topic_configs(golden.path), read_consumer_offsets(golden.path)
    ends = Counter[str]()
    for folder in (Path(golden.path, "config", name) for name in ("topics", "consumerOffsets")):
        for _ in range(150):
            path = chance.choice([p for p in sorted(folder.iterdir()) if p.stat().st_size])
            damage = chance.choice([one for one in DAMAGES if one is not cut])
            before = path.read_bytes()
            raw = bytearray(before)
            damage(chance, raw)
            path.write_bytes(raw)
            try:
                found = read_topic_configs(golden.path), read_consumer_offsets(golden.path)
                same = found == (topics, offsets)
                assert same or path.name.startswith("MANIFEST")
                ends["same" if same else "earlier"] += 1
            except CorruptConfigError as error:
                ends["error" if error.path == str(folder) else "elsewhere"] += 1
            finally:
                path.write_bytes(before)
    assert {"same", "error"} <= set(ends) <= {"same", "error", "earlier"}


def test_a_record_of_a_kind_that_rocksdb_reads_for_ever_is_refused(golden: GoldenStore) -> None:
    (path,) = Path(golden.path, "consumequeue").glob("MANIFEST-*")
    assert path.read_bytes()[7 + 6] == 1  # a full record
    write_at(path, 7 + 6, b"\5")
    with pytest.raises(CorruptQueueError, match="at byte 7 of MANIFEST"):
        MessageStore.open(golden.path)


def test_a_pipe_in_place_of_a_table_makes_nobody_wait(golden: GoldenStore) -> None:
    (path, *_) = sorted(Path(golden.path, "consumequeue").glob("*.sst"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError):
        MessageStore.open(golden.path)


def test_a_configuration_without_its_mark_is_not_passed_over(golden: GoldenStore) -> None:
    Path(golden.path, "config", "topics", "CURRENT").unlink()
    with pytest.raises(CorruptConfigError):
        read_topic_configs(golden.path)


@pytest.mark.parametrize("lost", [["CURRENT"], ["CURRENT", "MANIFEST-*"], ["CURRENT", "LOCK"]])
def test_queues_without_their_mark_are_not_passed_over(tmp_path: Path, lost: list[str]) -> None:
    golden = unpack_kind(STORE, tmp_path)
    for pattern in lost:
        for path in Path(golden.path, "consumequeue").glob(pattern):
            path.unlink()
    Path(golden.path, "abort").touch()
    before = golden.fingerprint()
    with pytest.raises(CorruptQueueError, match="RocksDB database with the queues"):
        MessageStore.open(golden.path)
    for write in (recover, MessageStore.append_to):
        with pytest.raises(UnsupportedStoreError, match="RocksDB"):
            write(golden.path)
    assert golden.fingerprint() == before
