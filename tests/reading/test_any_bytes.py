"""Whatever the bytes: a read ends with records, a named gap or our error, and never with a lie."""

from __future__ import annotations

import base64
import faulthandler
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import Gap, Message, MessageStore, QueueId, Record, StoreError
from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.format.hashes import body_crc
from rmq_store.format.record import decode_record
from tests.support.damage import DamagedStore, log_bytes, same_bytes
from tests.support.golden import Golden, GoldenStore, bodies_of, columns_of, unpack
from tests.support.records import as_log, records
from tests.support.running.campaigns import some
from tests.support.running.examples import campaign, fast

BASES = ("crc-5.5.0", "direct-5.5.0", "geometry-5.5.0", "ext-5.5.0", "lmq-5.3.3", "clean-5.2.0")
FAST_EXAMPLES = 5  # of each store
CAMPAIGN_EXAMPLES = 300
HANGS_AFTER_S = 120


# --- one record ------------------------------------------------------------------------------------


def decode_anything(raw: bytes, at: int, log_offset: int) -> Record | Gap | StoreError:
    try:
        return decode_record(raw, at, log_offset)
    except StoreError as error:
        return error


@fast(150)
@given(st.binary(max_size=400), st.integers(0, 2**62))
def test_any_bytes_give_a_record_a_gap_or_our_error(raw: bytes, log_offset: int) -> None:
    for at in (0, len(raw) // 2, len(raw)):
        assert isinstance(decode_anything(raw, at, log_offset), Record | Gap | StoreError)


def check_flips(record: Record, seed: int) -> None:
    """Flip every kind of bit in a record: what still reads as one differs where no check reaches."""
    window, _, (placed,) = as_log([record])
    whole = window.tobytes()
    random_ = random.Random(seed)
    for _ in range(12):
        raw = bytearray(whole)
        at = random_.randrange(len(raw))
        raw[at] ^= 1 << random_.randrange(8)
        found = decode_anything(bytes(raw), 0, 0)
        assert isinstance(found, Record | Gap | StoreError)
        if isinstance(found, Record):
            assert found != placed, "the flip shows"
            assert body_crc(found.body) == (found.body_crc if found.body else 0)


@fast(80)
@given(records(), st.integers(0, 2**32))
def test_a_flipped_bit_never_brings_an_exception_or_a_body_with_a_wrong_crc(
    record: Record, seed: int
) -> None:
    check_flips(record, seed)


@pytest.mark.campaign
@campaign(3000)
@given(records(), st.integers(0, 2**32))
def test_flipped_bits_at_length(record: Record, seed: int) -> None:
    check_flips(record, seed)


# --- whole stores ----------------------------------------------------------------------------------


class Judge:
    """Holds every message that a read of a damaged store returns against the truth."""

    def __init__(self, golden: GoldenStore, damaged: DamagedStore) -> None:
        self.truth = golden.by_log_offset
        self.columns = {at: columns_of(record) for at, record in self.truth.items()}
        self.before = log_bytes(Path(golden.path))
        self.after = log_bytes(damaged.path)

    def row(self, row: dict[str, Any], *, by_queue: bool) -> None:
        """A row, or a message as one."""
        at, size = row["commitLogOffset"], row["storeSize"]
        assert body_crc(row["rawBody"]) == (row["bodyCrc"] if row["rawBody"] else 0)
        if not same_bytes(self.before, self.after, at, size):
            return  # hit itself; its body has its CRC all the same
        assert at in self.truth, f"a record at {at} that never was"
        expected = self.columns[at]
        assert {name: row[name] for name in expected} == expected
        if not by_queue or row["topic"].startswith("%LMQ%"):
            return
        record = self.truth[at]
        listed = (row["topic"], row["queueId"])
        assert listed == (record["topic"], record["queueId"]) or listed[0] in record[
            "properties"
        ].get("INNER_MULTI_DISPATCH", "")

    def message(self, message: Message, *, by_queue: bool) -> None:
        whole = self.truth.get(message.commit_log_offset, {})
        if "INNER_NUM" in whole.get("properties", ()) and message.raw_body != base64.b64decode(
            whole["body"] or ""
        ):
            return  # a member: its record has the CRC of all members together
        row = {name: getattr(message, _SNAKE[name]) for name in _SNAKE}
        self.row(row, by_queue=by_queue)

    def record(self, at: int, record: Record) -> None:
        """A record of a scan: the bytes say the same as before."""
        assert record.physical_offset == at
        assert body_crc(record.body) == (record.body_crc if record.body else 0)
        if same_bytes(self.before, self.after, at, record.total_size):
            assert bodies_of(self.truth[at])[1] == record.body
            assert self.truth[at]["storeTimestamp"] == record.store_timestamp


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


_SNAKE = {name: _snake(name) for name in BY_NAME}


def tolerant(verb: Callable[[], Any]) -> Any:
    """What `verb` gives; None where it ends with our error. Any other exception is a failure."""
    try:
        return verb()
    except StoreError:
        return None


def judge_scan(store: MessageStore, judge: Judge) -> None:
    at = None
    for extent in store.scan():
        assert at is None or extent.start == at
        assert extent.stop > extent.start
        at = extent.stop
        if extent.record is None:
            assert extent.gap is not None
        else:
            judge.record(extent.start, extent.record)


def rows_of(store: MessageStore, **how: Any) -> Iterator[dict[str, Any]]:
    for batch in store.read_batches(columns=list(BY_NAME), include_system_topics=True, **how):
        batch.validate(full=True)
        rows = batch.drop_columns(["bornTimestamp", "storeTimestamp"]).to_pylist()
        born = batch.column("bornTimestamp").cast("int64").to_pylist()
        stored = batch.column("storeTimestamp").cast("int64").to_pylist()
        for row, born_at, stored_at in zip(rows, born, stored, strict=True):
            yield {
                **row,
                "bornTimestamp": born_at,
                "storeTimestamp": stored_at,
                "properties": dict(row["properties"]),
            }


def judge_batches(store: MessageStore, judge: Judge, **how: Any) -> int:
    count = 0
    for row in rows_of(store, **how):
        judge.row(row, by_queue=True)
        count += 1
    return count


def judge_queue(store: MessageStore, judge: Judge, queue: QueueId, random_: random.Random) -> None:
    low, high = store.min_offset(*queue), store.max_offset(*queue)
    assert low <= high
    tolerant(lambda: store.min_offset(*queue, as_broker=True))
    starts = [low, (low + high) // 2, high - 1, high, random_.randrange(-2, 2**40)]
    for offset, as_broker in product(starts, (False, True)):
        read = partial(store.get_message, *queue, offset, 5, as_broker=as_broker)
        result = tolerant(read)
        for message in result.messages if result is not None else ():
            judge.message(message, by_queue=not as_broker)
    stamps = [record["storeTimestamp"] for record in list(judge.truth.values())[::97]]
    times = (0, 2**62, random_.choice(stamps))
    for stamp, boundary in product(times, ("LOWER", "UPPER")):
        found = tolerant(partial(store.offset_by_time, *queue, stamp, boundary))
        assert found is None or isinstance(found, int)


def judge_keys(store: MessageStore, judge: Judge, random_: random.Random) -> None:
    keyed = [record for record in judge.truth.values() if record["keys"]]
    for record in random_.sample(keyed, 3):
        key = record["keys"].split(" ")[0]
        if not key:
            continue
        for message in tolerant(partial(store.query_message, record["topic"], key)) or ():
            judge.message(message, by_queue=False)
            assert key in (message.keys or "").split(" ") or key == message.uniq_key
    for message in tolerant(lambda: store.messages_by_id(keyed[0]["offsetMsgId"])) or ():
        judge.message(message, by_queue=False)


def judge_all_reads(
    damaged: DamagedStore, golden: GoldenStore, struck: set[str], seed: int
) -> None:
    random_ = random.Random(seed)
    judge = Judge(golden, damaged)
    store = tolerant(lambda: MessageStore.open(damaged.path))
    if store is None:
        return
    with store:
        judge_scan(store, judge)
        tolerant(lambda: judge_batches(store, judge))
        count = judge_batches(store, judge, on_damage=lambda error: None)
        if struck <= {"index", "checkpoint", "config", "consumequeue_ext"}:
            with golden.open() as whole:
                assert count == sum(1 for _ in rows_of(whole)), "nothing of this holds messages"
        queues = store.queues()
        for queue in random_.sample(queues, min(5, len(queues))):
            judge_queue(store, judge, queue, random_)
        judge_keys(store, judge, random_)
        offsets = tolerant(store.consumer_offsets)
        assert offsets is None or isinstance(offsets, dict)


def run_damage(name: str, tmp_path: Path, seeds: Iterable[int]) -> None:
    golden = unpack(name, tmp_path)
    damaged = DamagedStore.of(golden.path, tmp_path / "damaged")
    for seed in seeds:
        struck = damaged.damage(seed)
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        try:
            judge_all_reads(damaged, golden, struck, seed)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {damaged.hit}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        damaged.mend()


@pytest.mark.parametrize("name", BASES)
def test_a_damaged_store_gives_records_named_gaps_or_our_errors(name: str, tmp_path: Path) -> None:
    run_damage(name, tmp_path, range(FAST_EXAMPLES))


@pytest.mark.campaign
@pytest.mark.parametrize("name", BASES)
def test_damaged_stores_at_length(name: str, tmp_path: Path) -> None:
    seeds = range(FAST_EXAMPLES, FAST_EXAMPLES + CAMPAIGN_EXAMPLES)
    run_damage(name, tmp_path, some(name, seeds))


def test_the_judge_notices_a_wrong_message(golden: Golden) -> None:
    store = golden("crc-5.5.0")
    judge = Judge(store, DamagedStore(Path(store.path)))
    with store.open() as opened:
        row = next(rows_of(opened))
    judge.row(row, by_queue=True)
    for wrong in ({"keys": "other"}, {"rawBody": b"other"}, {"topic": "other"}, {"storeSize": 91}):
        with pytest.raises(AssertionError):
            judge.row({**row, **wrong}, by_queue=True)
