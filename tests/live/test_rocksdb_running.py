"""A broker with queues and configuration in RocksDB is read while it takes messages: those that are in the
database, and those that are only in the log yet. It is killed, and read again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.testing.live_broker.harness import Broker, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import Severity, verify
from tests.support.live_brokers import Acknowledged, Sending, paused

RELEASE = "5.5.0"
TOPICS = ("orders", "payments")
MESSAGES = 1500
SMALL = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
DATABASE = {"storeType": "defaultRocksDB"}
Place = tuple[str, int, int, int]

pytestmark = pytest.mark.live


def places(store: MessageStore) -> list[Place]:
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]
    there = sorted({*TOPICS} & {*store.topics()})
    table = store.read_batches(there, columns=columns).read_all().drop_columns("body")
    return sorted(tuple(row.values()) for row in table.to_pylist())


def read_while_sending(broker: Broker, output: Path, upto: int) -> list[Acknowledged]:
    """What was sent until so many messages were read; no look loses any, or accuses the store."""
    sending, before = Sending(broker, 400, TOPICS, output), 0
    while before < upto:
        # The sizes tell a log file that is being made from one that was cut.
        with MessageStore.open(broker.store, config=SMALL) as store:
            found = len(places(store))
            wrong = [one for one in verify(store).findings if one.severity is not Severity.NOTE]
        assert not wrong, [str(one) for one in wrong]
        assert found >= before
        before = found
    return sending.finish()


def assert_all_of(sent: Sequence[Acknowledged], found: Sequence[Place]) -> None:
    """What was acknowledged is there. A message whose answer came too late was sent again: it is twice."""
    assert {(one.topic, one.queue_id, one.queue_offset) for one in sent} <= {
        place[:3] for place in found
    }


def answered(broker: Broker) -> list[Place]:
    return sorted(
        (row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"])
        for row in read_all(broker, TOPICS)
    )


@pytest.mark.parametrize(
    "conf", [DATABASE, DATABASE | {"configManagerVersion": "v2"}], ids=["v1", "v2"]
)
def test_a_running_broker_is_read_as_it_answers(tmp_path: Path, conf: dict[str, str]) -> None:
    need_jars(RELEASE)
    topics: dict[str, dict[str, object]] = {topic: {} for topic in TOPICS}
    with Broker(RELEASE, tmp_path / "run", topics=topics, conf=SMALL | conf) as broker:
        sent = read_while_sending(broker, tmp_path / "first", MESSAGES)
        broker.stop()
        tables = [path for path in broker.store.rglob("consumequeue/*.sst") if path.stat().st_size]
        assert tables
        with MessageStore.open(broker.store) as store:
            assert_all_of(sent, places(store))
            assert all(state.tail is None for state in store.snapshot().queues.values())
            assert verify(store).nothing_wrong
            assert not any(map(store.is_undeclared, TOPICS))
        broker.start_again()
        sent += read_while_sending(broker, tmp_path / "second", len(sent) + MESSAGES)
        served = answered(broker)
        assert_all_of(sent, served)
        with MessageStore.open(broker.store) as store:
            assert places(store) == served
            assert any(state.tail is not None for state in store.snapshot().queues.values())
            if conf is DATABASE:  # the other broker keeps its topics in memory
                assert {*TOPICS} <= read_topic_configs(broker.store).keys()
            assert store.view.topics.problem is None
        broker.kill()
        with MessageStore.open(broker.store) as store:
            assert places(store) == served
    names = {name for _, _, names in os.walk(broker.store) for name in names}
    assert "rocksdict-config.json" not in names


def marks(store: Path) -> dict[str, tuple[int, int, int]]:
    """Of every file and folder: inode, size and mtime."""
    return dict(_marks(store))


def _marks(store: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for folder, _, names in os.walk(store):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            stat = os.lstat(path)
            size = 0 if path == folder else stat.st_size
            yield path, (stat.st_ino, size, stat.st_mtime_ns)


def test_a_broker_under_load_is_read_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RMQSTORE_LIVE_SECONDS: how long, by default two looks of each kind.

    The test pauses the broker for every other look: of a running one nobody could see whether it or the
    reader changed a file.
    """
    need_jars(RELEASE)
    seconds = float(os.environ.get("RMQSTORE_LIVE_SECONDS", "0"))
    topics: dict[str, dict[str, object]] = {topic: {} for topic in TOPICS}
    looks, compared, rows, seen = 0, 0, 0, set[Place]()
    with Broker(RELEASE, tmp_path / "run", topics=topics, conf=SMALL | DATABASE) as broker:
        sending, until = Sending(broker, 400, TOPICS, tmp_path / "sent"), time.monotonic() + seconds
        while compared < 2 or len(seen) < MESSAGES or time.monotonic() < until:
            looks += 1
            if looks % 2:
                found = look(broker)
            else:
                with paused(broker) as stands_still:
                    before = marks(broker.store)
                    found = look(broker)
                    after = marks(broker.store)
                    if stands_still():
                        assert after == before
                        compared += 1
            assert found >= seen
            rows, seen = rows + len(found), found
        sent = sending.finish()
        served = answered(broker)
        assert_all_of(sent, served)
        with MessageStore.open(broker.store, config=SMALL) as store:
            assert places(store) == served
    with capsys.disabled():
        print(
            f"\n{looks} looks, {compared} compared, {rows} rows read of {len(served)} messages, no error"
        )


def look(broker: Broker) -> set[Place]:
    with MessageStore.open(broker.store, config=SMALL) as store:
        return set(places(store))
