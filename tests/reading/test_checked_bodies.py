"""Bodies are checked while they are copied: the same rows as without a check, and no wrong one."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore, StoreError
from tests.support.damage import flip, log_file_at
from tests.support.golden import GoldenStore, in_a_queue, unpack
from tests.support.stores import store_of

COUNT = 60
BODIES = [np.random.default_rng(number).bytes(100_000 + number) for number in range(COUNT)]
WRONG = 41


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six megabytes of bodies."""
    return store_of(tmp_path / "store", BODIES)


def bodies_of(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [body for batch in batches for body in batch["body"].to_pylist()]


def test_bodies_are_those_of_a_read_without_a_check(store: Path) -> None:
    with MessageStore.open(store) as reader:
        checked = list(reader.read_batches())
        unchecked = list(reader.read_batches(check_crc=False))
        few = list(reader.read_batches(batch_rows=5))
    assert checked == unchecked
    assert bodies_of(checked) == bodies_of(few) == BODIES


def test_short_bodies(tmp_path: Path) -> None:
    bodies = [body[:1_024] for body in BODIES] * 40
    damaged = bodies[WRONG]
    path = store_of(tmp_path / "store", bodies)
    with MessageStore.open(path) as reader:
        assert bodies_of(list(reader.read_batches())) == bodies
        assert list(reader.read_batches()) == list(reader.read_batches(check_crc=False))
    (file,) = (path / "commitlog").iterdir()
    flip(file, file.read_bytes().index(damaged) + 1_023)
    met: list[StoreError] = []
    with MessageStore.open(path) as reader:
        found = bodies_of(list(reader.read_batches(on_damage=met.append)))
        kept = bodies_of(list(reader.read_batches(check_crc=False)))
    assert found == bodies[:WRONG] + bodies[WRONG + 1 :]
    assert kept[:WRONG] + kept[WRONG + 1 :] == found
    assert [error.entry.queue_offset for error in met if error.entry] == [WRONG]


@pytest.mark.parametrize("name", ["clean-4.9.7", "clean-5.5.0", "nommap-5.5.0"])
def test_a_brokers_bodies_are_copied_as_stored_and_a_flipped_bit_is_found(
    tmp_path: Path, name: str
) -> None:
    """Read one by one; empty ones have no CRC."""
    golden = unpack(name, tmp_path)
    stored = {
        record["commitLogOffset"]: base64.b64decode(record["body"] or "")
        for record in golden.truth
        if in_a_queue(record)
    }
    met: list[StoreError] = []
    assert raw_bodies(golden, met) == stored
    assert not met

    victim = next(at for at, body in stored.items() if len(body) > 4)
    segment = log_file_at(golden, victim)
    place = victim - int(segment.name)
    flip(segment, segment.read_bytes().index(stored[victim], place) + 3)
    assert set(stored) - set(raw_bodies(golden, met)) == {victim}
    assert len(met) == 1


def raw_bodies(golden: GoldenStore, met: list[StoreError]) -> dict[int, bytes]:
    """The stored body of each message by its place in the log, read one by one."""
    columns = ["commitLogOffset", "body", "rawBody"]
    with golden.open() as store:
        batches = store.read_batches(
            columns=columns, batch_rows=1, include_system_topics=True, on_damage=met.append
        )
        return {row["commitLogOffset"]: row["rawBody"] for b in batches for row in b.to_pylist()}


def test_a_wrong_crc_leaves_out_its_body_alone(store: Path) -> None:
    (file,) = (store / "commitlog").iterdir()
    flip(file, file.read_bytes().index(BODIES[WRONG]) + 50_000)
    met: list[StoreError] = []
    with MessageStore.open(store) as reader:
        found = bodies_of(list(reader.read_batches(on_damage=met.append)))
    assert found == BODIES[:WRONG] + BODIES[WRONG + 1 :]
    assert [error.entry.queue_offset for error in met if error.entry] == [WRONG]
