"""Reading every record of a store and writing it again gives the same bytes: log, queues and index.

Records go back from their decoded fields; only body and property string are carried over as they
are. Sizes, offsets, CRCs, blanks, queue entries and index items are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, zip_longest
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore, Record
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.byte_layout import HOST_V6_SIZE
from rmq_store.format.compression import SysFlag
from rmq_store.format.record import decode_utf8, format_host
from rmq_store.writing.store_writer import StoreWriter
from tests.support.golden import Golden, GoldenStore, files_below
from tests.support.running.campaigns import some

# Left out are stores that hold what no single clean run writes: a queue extension (ext), what
# restarts indexed twice (tsp), ghosts (nommap), entries of deleted records (expired).
STORES = (
    "clean-4.9.7",
    "clean-5.1.1",
    "clean-5.2.0",
    "clean-5.3.3",
    "clean-5.4.0",
    "clean-5.5.0",
    "crc-5.5.0",
    "direct-5.5.0",
    "geometry-5.5.0",
    "lmq-5.3.3",
    "multipath-5.5.0",
    "proxy-5.5.0",
)
# These releases leave rubbish of a shared buffer behind the eight bytes of a blank.
RUBBISH_BEHIND_BLANKS = ("clean-4.3.2", "clean-4.9.0")


def as_sent(records: list[Record]) -> Iterator[list[Record]]:
    """Records grouped as they were sent: the members of a MessageBatch are never separated."""
    for _, group in groupby(
        records, lambda r: (r.topic, r.queue_id, r.store_timestamp, r.born_timestamp, r.born_host)
    ):
        yield list(group)


def as_batch(records: list[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": [decode_utf8(r.topic) for r in records],
            "queueId": [r.queue_id for r in records],
            "body": pa.array([r.body for r in records], pa.binary()),
            "rawProperties": pa.array([r.properties for r in records], pa.binary()),
            "flag": [r.flag for r in records],
            "sysFlag": [r.sys_flag for r in records],
            "bornTimestamp": [r.born_timestamp for r in records],
            "bornHost": [format_host(r.born_host) for r in records],
            "storeTimestamp": [r.store_timestamp for r in records],
            "storeHost": [format_host(r.store_host) for r in records],
            "reconsumeTimes": [r.reconsume_times for r in records],
            "preparedTransactionOffset": [r.prepared_transaction_offset for r in records],
        }
    )


Write = Callable[[StoreWriter, Iterator[list[Record]]], None]


def write_by_columns(store: StoreWriter, groups: Iterator[list[Record]]) -> None:
    """As few batches as can be: records that came alone, one after the other, are one."""
    for together, run in groupby(groups, lambda group: len(group) > 1):
        if together:
            for group in run:
                store.append_batch(as_batch(group), keep_together=True)
        else:
            store.append_batch(as_batch([record for (record,) in run]))


def write_one_by_one(store: StoreWriter, groups: Iterator[list[Record]]) -> None:
    for group in groups:
        if len(group) > 1:
            store.append_batch(as_batch(group), keep_together=True)
        else:
            store.append(group[0])


def write_anew(golden: GoldenStore, target: Path, write: Write) -> None:
    with golden.open() as source:
        records = [extent.record for extent in source.scan() if extent.record is not None]
        has_batches = any(queue.topic == "inner" for queue in source.queues())
        config = source.config.with_defaults_of(StoreConfig.read(golden.conf))
    release = golden.name.rpartition("-")[2]
    with MessageStore.create(target, config, release=release) as store:
        if has_batches:
            store.declare_topic("inner", attributes={"queue.type": "BatchCQ"})
        write(store, as_sent(records))


def first_difference(one: bytes, other: bytes) -> int | None:
    """Where two files differ first; None where they are the same."""
    if one == other:
        return None
    return next(at for at, (x, y) in enumerate(zip_longest(one, other)) if x != y)


def check_same(golden: GoldenStore, target: Path, *, log: bool = True) -> None:
    source = Path(golden.path)
    parts = ["consumequeue", "batchconsumequeue"]
    if log:
        parts += [folder.name for folder in source.glob("commitlog*")]
    theirs, ours = files_below(source, *parts), files_below(target, *parts)
    assert sorted(ours) == sorted(theirs)
    assert {n: at for n in ours if (at := first_difference(ours[n], theirs[n])) is not None} == {}
    # Index files are named by the time they were made; only their order can be compared.
    index = files_below(source, "index"), files_below(target, "index")
    assert len(index[0]) == len(index[1]) > 0
    for (name, their), (_, our) in zip(index[0].items(), index[1].items(), strict=True):
        assert first_difference(our, their) is None, name


@pytest.mark.campaign
@pytest.mark.parametrize("write", [write_by_columns, write_one_by_one])
@pytest.mark.parametrize("name", some("written again", STORES, 3))
def test_a_store_written_again_has_the_same_bytes(
    golden: Golden, name: str, write: Write, tmp_path: Path
) -> None:
    write_anew(golden(name), tmp_path / "store", write)
    check_same(golden(name), tmp_path / "store")


@pytest.mark.parametrize("name", RUBBISH_BEHIND_BLANKS)
def test_what_stands_behind_a_blank_is_all_that_may_differ(
    golden: Golden, name: str, tmp_path: Path
) -> None:
    write_anew(golden(name), tmp_path / "store", write_by_columns)
    check_same(golden(name), tmp_path / "store", log=False)
    pair = []
    for root in (golden(name).path, tmp_path / "store"):
        with MessageStore.open(root) as store:
            pair.append([(e.start, e.stop, e.gap, e.record) for e in store.scan()])
    assert pair[0] == pair[1]


def test_the_golden_stores_hold_every_form_of_record(golden: Golden) -> None:
    """Or the tests above would show less than they seem to."""
    seen: set[str] = set()
    for name in ("direct-5.5.0", "clean-5.5.0"):
        with golden(name).open() as store:
            for record in (extent.record for extent in store.scan()):
                if record is None:
                    continue
                seen.add(f"{record.magic:#x}")
                seen.add(f"transaction {record.sys_flag & SysFlag.TRANSACTION_MASK:#x}")
                if record.sys_flag & SysFlag.INNER_BATCH:
                    seen.add("inner batch")
                six = (len(record.born_host), len(record.store_host))
                seen.add("hosts " + " ".join("6" if n == HOST_V6_SIZE else "4" for n in six))
    assert seen >= {
        *("0xdaa320a7", "0xdaa320ab", "inner batch"),
        *(f"transaction {bits:#x}" for bits in (0, 4, 8, 12)),
        *(f"hosts {pair}" for pair in ("4 4", "4 6", "6 4", "6 6")),
    }


def test_a_broker_conf_is_read_as_it_is(golden: Golden) -> None:
    config = StoreConfig.read(golden("geometry-5.5.0").conf)
    assert (config.maxHashSlotNum, config.maxIndexNum) == (7, 13)
