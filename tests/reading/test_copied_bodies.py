"""Bodies are copied beside the check of their CRCs: the same rows, and no thread stays."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore, StoreError
from rmq_store.arrow import column_values, copied_bodies
from rmq_store.commitlog.headers import Headers
from rmq_store.format import crc
from rmq_store.format.array_types import Ints
from rmq_store.reading import slice_reader
from tests.support.golden import GoldenStore, in_a_queue, log_files, unpack

COUNT = 60
BODIES = [np.random.default_rng(number).bytes(100_000 + number) for number in range(COUNT)]
WRONG = 41


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six megabytes of bodies."""
    batch = pa.record_batch(
        {
            "topic": ["orders"] * COUNT,
            "queueId": pa.array([0] * COUNT, pa.int32()),
            "body": pa.array(BODIES, pa.binary()),
        }
    )
    with MessageStore.create(tmp_path / "store") as writer:
        writer.append_batch(batch)
    return tmp_path / "store"


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that copy bodies, by name, one for each copy."""
    copy, names = column_values.stored_bodies, list[str]()

    def noted(headers: Headers) -> pa.Array:
        names.append(threading.current_thread().name)
        return copy(headers)

    monkeypatch.setattr(copied_bodies, "stored_bodies", noted)
    return names


def bodies_of(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [body for batch in batches for body in batch["body"].to_pylist()]


def test_bodies_are_those_of_a_read_without_a_check(store: Path, copies: list[str]) -> None:
    with MessageStore.open(store) as reader:
        checked = list(reader.read_batches())
        assert copies == ["rmqstore-bodies"]
        unchecked = list(reader.read_batches(check_crc=False))
        few = list(reader.read_batches(batch_rows=5))
    assert checked == unchecked
    assert bodies_of(checked) == bodies_of(few) == BODIES
    assert copies == ["rmqstore-bodies"], "nothing to copy beside, or too little for a thread"


def test_short_bodies_of_one_length_are_copied_and_checked_in_one_pass(
    tmp_path: Path, copies: list[str]
) -> None:
    bodies = [body[:1_024] for body in BODIES] * 40  # more than is worth a thread
    damaged = bodies[WRONG]
    queue = pa.array([0] * len(bodies), pa.int32())
    with MessageStore.create(tmp_path / "store") as writer:
        writer.append_batch(
            pa.record_batch({"topic": ["orders"] * len(bodies), "queueId": queue, "body": bodies})
        )
    with MessageStore.open(tmp_path / "store") as reader:
        assert bodies_of(list(reader.read_batches())) == bodies
        assert list(reader.read_batches()) == list(reader.read_batches(check_crc=False))
    (file,) = (tmp_path / "store" / "commitlog").iterdir()
    with file.open("r+b") as raw:
        at = raw.read().index(damaged)
        raw.seek(at + 1_023)
        raw.write(bytes([damaged[1_023] ^ 1]))
    met: list[StoreError] = []
    with MessageStore.open(tmp_path / "store") as reader:
        found = bodies_of(list(reader.read_batches(on_damage=met.append)))
        kept = bodies_of(list(reader.read_batches(check_crc=False)))
    assert found == bodies[:WRONG] + bodies[WRONG + 1 :]
    assert kept[:WRONG] + kept[WRONG + 1 :] == found
    assert [error.entry.queue_offset for error in met if error.entry] == [WRONG]
    assert copies == []


@pytest.mark.parametrize("name", ["clean-4.9.7", "clean-5.5.0", "nommap-5.5.0"])
def test_a_brokers_bodies_are_copied_as_stored_and_a_flipped_bit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Read one by one, each body is of one length; empty ones have no CRC."""
    golden, taken = unpack(name, tmp_path), list[int]()
    checked = copied_bodies.checked_copies

    def noted(headers: Headers) -> tuple[Ints, pa.Array] | None:
        found = checked(headers)
        if found is not None:
            taken.append(headers.base + int(headers.at[0]))
        return found

    monkeypatch.setattr(crc, "_FEW", 1)
    monkeypatch.setattr(slice_reader, "checked_copies", noted)
    stored = {
        record["commitLogOffset"]: base64.b64decode(record["body"] or "")
        for record in golden.truth
        if in_a_queue(record)
    }
    met: list[StoreError] = []
    assert raw_bodies(golden, met) == stored
    assert not met
    assert set(taken) == {at for at, body in stored.items() if 0 < len(body) <= 2_048}

    victim = next(at for at in taken if len(stored[at]) > 4)
    segment = next(file for file in reversed(log_files(golden)) if int(file.name) <= victim)
    with segment.open("r+b") as raw:
        at = raw.read().index(stored[victim], victim - int(segment.name))
        raw.seek(at + 3)
        raw.write(bytes([stored[victim][3] ^ 1]))
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


def test_one_thread_copies_them_if_asked(store: Path, copies: list[str]) -> None:
    with MessageStore.open(store) as reader:
        assert bodies_of(list(reader.read_batches(one_thread=True))) == BODIES
    assert copies == []


@pytest.mark.parametrize("choice", [{"columns": ["queueOffset"]}, {"tags": "odd"}])
def test_nothing_is_copied_that_is_not_read(
    store: Path, copies: list[str], choice: dict[str, object]
) -> None:
    with MessageStore.open(store) as reader:
        list(reader.read_batches(**choice))  # type: ignore[arg-type]
    assert copies == []


def test_a_wrong_crc_leaves_out_its_body_alone(store: Path, copies: list[str]) -> None:
    (file,) = (store / "commitlog").iterdir()
    with file.open("r+b") as raw:
        at = raw.read().index(BODIES[WRONG])
        raw.seek(at + 50_000)
        raw.write(bytes([BODIES[WRONG][50_000] ^ 1]))
    met: list[StoreError] = []
    with MessageStore.open(store) as reader:
        found = bodies_of(list(reader.read_batches(on_damage=met.append)))
    assert found == BODIES[:WRONG] + BODIES[WRONG + 1 :]
    assert [error.entry.queue_offset for error in met if error.entry] == [WRONG]
    assert copies == ["rmqstore-bodies"]


def test_a_copy_that_fails_fails_the_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(headers: Headers) -> pa.Array:
        raise pa.ArrowMemoryError("malloc of size 6000000 failed")

    monkeypatch.setattr(copied_bodies, "stored_bodies", full)
    with MessageStore.open(store) as reader, pytest.raises(MemoryError):
        list(reader.read_batches())


def test_a_read_does_without_a_thread_that_does_not_start(
    store: Path, copies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with MessageStore.open(store) as reader:
        assert bodies_of(list(reader.read_batches())) == BODIES
    assert copies == []


def test_the_thread_has_ended_when_the_check_fails(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It reads mapped files, which the caller may close next.
    released = threading.Event()
    copy = column_values.stored_bodies

    def late(headers: Headers) -> pa.Array:
        assert released.wait(60)
        return copy(headers)

    def fails(headers: Headers) -> None:
        released.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(copied_bodies, "stored_bodies", late)
    monkeypatch.setattr("rmq_store.reading.slice_reader.wrong_crc_rows", fails)
    with MessageStore.open(store) as reader, pytest.raises(KeyboardInterrupt):
        list(reader.read_batches())
    assert "rmqstore-bodies" not in [thread.name for thread in threading.enumerate()]
