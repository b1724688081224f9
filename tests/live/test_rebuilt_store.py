"""What rebuild and salvage make, held against the real store classes, and a broker that starts on it."""

from __future__ import annotations

import shutil
import struct
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.javabench import run_bench
from rmq_store import MessageStore
from rmq_store.admin.rebuild import DATABASE, FILES, rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.testing.live_broker.broker_files import DISK_GUARD, copy_store
from rmq_store.testing.live_broker.harness import Broker, boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from tests.admin.test_rebuild import index_of, queues_of, rebuilt, settings_of
from tests.support.golden import Golden, GoldenStore, unpack, unpack_field, unpack_kind, user_topic
from tests.support.live_brokers import golden_conf
from tests.support.renumbered import renumber
from tests.support.rocksdb import read_database
from tests.support.running.campaigns import some

pytestmark = pytest.mark.live

RELEASE = "5.5.0"
LOG_FILE = 262144  # bytes of a log file of the golden stores
TOPICS = ["orders", "payments", "documents", "retrying"]


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    need_jars(RELEASE)


@pytest.mark.parametrize("name", ["expired-5.5.0", "tsp-5.5.0"])
def test_rebuild_makes_what_the_real_classes_make_of_the_same_log(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    rebuilt(store, tmp_path / "ours")
    theirs = tmp_path / "theirs"
    shutil.copytree(store.path, theirs)
    # Paced, because the store classes write into one index file if two begin in the same millisecond.
    run_bench("redispatch-paced", theirs, warmups=0, passes=1, settings=settings_of(store))
    assert queues_of(tmp_path / "ours") == queues_of(theirs)
    assert index_of(tmp_path / "ours") == index_of(theirs)


@pytest.mark.parametrize(
    "offset_of",
    some(
        "offsets",
        [
            pytest.param(lambda n: n - (n >= 11), id="an offset twice"),
            pytest.param(lambda n: n - 2 * (n >= 33), id="two offsets twice"),
            pytest.param(lambda n: n + 7 * (n >= 50), id="a gap"),
        ],
        3,
    ),
)
def test_rebuild_lists_what_the_real_classes_list_where_queue_offsets_do_not_ascend(
    tmp_path: Path, offset_of: Callable[[int], int]
) -> None:
    store = unpack("tsp-5.5.0", tmp_path)
    renumber(store, "orders", 0, offset_of)
    rebuilt(store, tmp_path / "ours")
    theirs = tmp_path / "theirs"
    shutil.copytree(store.path, theirs)
    run_bench("redispatch", theirs, warmups=0, passes=1, settings=settings_of(store))
    assert queues_of(tmp_path / "ours") == queues_of(theirs)


@pytest.mark.parametrize(
    "base_of",
    some(
        "bases",
        [
            pytest.param({}, id="as it was"),
            pytest.param({11: 10}, id="the base of the batch before, 50"),
            pytest.param({9: 3, 10: 4}, id="bases of earlier batches, 11 and 18"),
            pytest.param({5: 17}, id="the base of a later batch, 89"),
        ],
        4,
    ),
)
def test_rebuild_lists_what_a_real_batch_queue_lists_where_bases_do_not_ascend(
    tmp_path: Path, base_of: Mapping[int, int]
) -> None:
    """Records of `inner` with several messages get the base and queue offset of another record."""
    store = unpack("clean-5.5.0", tmp_path)
    rebase(store, base_of)
    rebuilt(store, tmp_path / "ours")
    theirs = tmp_path / "theirs"
    shutil.copytree(store.path, theirs)
    run_bench(
        "redispatch",
        theirs,
        warmups=0,
        passes=1,
        settings=settings_of(store),
        batch_topics=["inner"],
    )
    assert queues_of(tmp_path / "ours") == queues_of(theirs)


def rebase(store: GoldenStore, base_of: Mapping[int, int]) -> None:
    """Give record n of the queue inner/0 the INNER_BASE, and queue offset, of record `base_of[n]`."""
    queue = Path(store.path, "batchconsumequeue/inner/0", "0" * 20).read_bytes()
    units = [struct.unpack_from(">qiqqqh", queue, at) for at in range(0, len(queue), 46)]
    for number, other in base_of.items():
        place, size, *_, base, _ = units[number]
        wanted = units[other][4]
        path = Path(store.path, "commitlog", f"{place // LOG_FILE * LOG_FILE:020d}")
        log = bytearray(path.read_bytes())
        at = place % LOG_FILE
        struct.pack_into(">q", log, at + 20, wanted)
        named = f"INNER_BASE\x01{base:02d}\x02".encode()
        found = log.find(named, at, at + size)
        if found >= 0:  # a record with one message has none
            log[found : found + len(named)] = f"INNER_BASE\x01{wanted:02d}\x02".encode()
        path.write_bytes(log)


def served(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, int, int], tuple[str, dict[str, str]]]:
    return {
        (row["topic"], row["queueId"], row["queueOffset"]): (
            row.get("bodyDecompressed") or row["body"] or "",
            row["properties"],
        )
        for row in rows
    }


def test_a_broker_serves_a_rebuilt_store(golden: Golden, tmp_path: Path) -> None:
    store = golden("clean-5.5.0")
    settings = settings_of(store)
    rebuild(store.path, tmp_path / "target", log="link", release=RELEASE, config=settings)
    with boot_copy(tmp_path / "target", tmp_path / "run", RELEASE, settings) as broker:
        rows = read_all(broker, TOPICS)
    check_served(rows, store)


@pytest.mark.parametrize(
    ("stage", "store_type"),
    some(
        "lives",
        [("c2-created-again", FILES), ("c2-created-again", DATABASE), ("run-lost/store", FILES)],
        3,
    ),
)
def test_a_broker_serves_the_last_life_of_a_topic_that_was_created_again(
    tmp_path: Path, stage: str, store_type: str
) -> None:
    """Each of the new messages at its queue offset, and none of the deleted ones; also where a broker has
    listed those again."""
    unpack_field("deleted-topic-5.5.0", tmp_path)
    target = tmp_path / "target"
    rebuild(tmp_path / "deleted-topic" / stage, target, store_type=store_type, release=RELEASE)
    copy_store(target, tmp_path / "run" / "store")
    with MessageStore.open(target) as new:
        sizes = {name: size for name, size in asdict(new.geometry()).items() if size is not None}
    conf = {**sizes, "storeType": store_type, **DISK_GUARD}
    with Broker(RELEASE, tmp_path / "run", conf=conf) as broker:
        rows = read_all(broker, ["again"])
    found = {row["queueOffset"]: b64decode(row["body"]) for row in rows}
    assert len(found) == len(rows)
    assert {at: found.get(at) for at in range(10)} == {at: b"new%d" % at for at in range(10)}
    assert not [body for body in found.values() if body.startswith(b"old")]


@pytest.mark.parametrize("name", ["clean-5.5.0", "rocksdb-5.5.0"])
def test_a_broker_serves_a_store_rebuilt_into_rocksdb(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """Every message by its queue offset, and each group goes on where it was. It dispatches nothing again:
    what was rebuilt is what is served."""
    in_files = name == "clean-5.5.0"
    store = golden(name) if in_files else unpack_kind(name, tmp_path)
    settings = {**golden_conf(Path(store.conf)), "storeType": DATABASE}
    target = tmp_path / "target"
    rebuild(store.path, target, store_type=DATABASE, release=RELEASE, config=store.conf)
    copy_store(target, tmp_path / "run" / "store")
    with Broker(RELEASE, tmp_path / "run", conf={**settings, **DISK_GUARD}) as broker:
        rows = read_all(broker, TOPICS)
        broker.stop()
        offsets = read_consumer_offsets(broker.store)
    if in_files:
        check_served(rows, store)
    else:
        lines = [line for line in store.lines("served") if line["topic"] in TOPICS]
        check_places(
            rows, {(one["topic"], one["queue"], one["offset"], one["phy"]) for one in lines}
        )
    for group, of_group in read_consumer_offsets(store.path).items():
        if not group.startswith("CID_"):
            assert offsets[group] == of_group


@pytest.mark.parametrize("name", some("first messages", ["expired-5.5.0", "direct-5.5.0"], 2))
def test_a_broker_finds_the_first_messages_of_queues_that_it_did_not_write(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """The database has no least offsets: the broker looks for them."""
    store, target = golden(name), tmp_path / "target"
    settings = {**golden_conf(Path(store.conf)), "storeType": DATABASE}
    rebuild(store.path, target, store_type=DATABASE, release=RELEASE, config=store.conf)
    copy_store(target, tmp_path / "run" / "store")
    with MessageStore.open(target) as new:
        topics = [name for name in new.topics(include_system=False) if not name.startswith("%")]
        columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]
        wanted = new.read_batches(topics, columns=columns).read_all().drop_columns("body")
    with Broker(RELEASE, tmp_path / "run", conf={**settings, **DISK_GUARD}) as broker:
        found = read_all(broker, topics)
    check_places(found, {place_of(row) for row in wanted.to_pylist()})


@pytest.mark.parametrize("name", some("dispatched", ["clean-5.5.0", "lmq-5.3.3"], 2))
def test_the_database_is_that_of_a_broker_that_dispatches_the_same_log(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """Key by key; what the broker has beyond leads to messages that it delivered after its start.

    When it dispatches a log again it passes over the record at log offset 0, which the databases of golden
    stores have.
    """
    store, target, theirs = golden(name), tmp_path / "target", tmp_path / "run" / "store"
    rebuild(store.path, target, store_type=DATABASE, release=RELEASE, config=store.conf)
    copy_store(target, theirs)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(theirs / folder)
    (theirs / "checkpoint").unlink()
    with MessageStore.open(target) as new:
        end = new.log_range()[1]
    settings = {**golden_conf(Path(store.conf)), "storeType": DATABASE, "enableLmq": True}
    conf = {**settings, **DISK_GUARD, "enableMultiDispatch": True}
    with Broker(RELEASE, tmp_path / "run", conf=conf) as broker:
        broker.stop()
    every = read_database(target / "consumequeue", tmp_path / "mine")["default"]
    mine = {key: value for key, value in every.items() if any(value[:8])}
    assert len(mine) == len(every) - 1
    found = read_database(theirs / "consumequeue", tmp_path / "theirs")["default"]
    assert {key: found.get(key) for key in mine} == mine
    assert all(struct.unpack_from(">q", found[key])[0] >= end for key in found.keys() - mine.keys())


def place_of(row: Mapping[str, Any]) -> tuple[str, int, int, int]:
    return (row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"])


def check_places(rows: Sequence[Mapping[str, Any]], wanted: set[tuple[str, int, int, int]]) -> None:
    """All wanted messages, each where it is; behind them may stand what the broker delivers at its start."""
    found = set(map(place_of, rows))
    assert wanted
    assert found >= wanted
    ends = {(topic, queue): offset for topic, queue, offset, _ in sorted(wanted)}
    assert all(offset > ends[topic, queue] for topic, queue, offset, _ in found - wanted)


def check_served(rows: Sequence[Mapping[str, Any]], store: GoldenStore) -> None:
    """All of the truth, each once; behind it may stand what the broker delivers when it starts."""
    truth = served([one for one in store.truth if user_topic(one) and one["topic"] in TOPICS])
    found = served(rows)
    assert len(found) == len(rows)
    assert {place: body for place, (body, _) in found.items() if place in truth} == {
        place: body for place, (body, _) in truth.items()
    }
    ends = Counter((topic, queue) for topic, queue, _ in truth)
    assert all(offset >= ends[topic, queue] for topic, queue, offset in set(found) - set(truth))


def test_a_broker_serves_a_salvaged_store(golden: Golden, tmp_path: Path) -> None:
    store = golden("clean-5.3.3")
    report = salvage(store.path, tmp_path / "target", release=RELEASE)
    with boot_copy(tmp_path / "target", tmp_path / "run", RELEASE, settings_of(store)) as broker:
        rows = read_all(broker, TOPICS)
    assert report.messages + report.ended.total() == len(store.truth)
    check_served(rows, store)
