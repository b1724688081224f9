"""A broker that compacts a topic all the time is read while it takes messages: no look accuses the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import DataLossError
from rmq_store.testing.live_broker.harness import Broker, Sending, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import Severity, verify

RELEASE, TOPIC = "5.5.0", "state"
LOOKS, MESSAGES = 60, 2500
CONF = {
    "compactionMappedFileSize": str(1 << 16),
    "compactionCqMappedFileSize": "4600",
    "compactionScheduleInternal": "1500",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
}

pytestmark = pytest.mark.live


def test_a_broker_that_compacts_is_read_as_it_answers(tmp_path: Path) -> None:
    need_jars(RELEASE)
    topics: dict[str, dict[str, object]] = {TOPIC: {"attributes": {"cleanup.policy": "COMPACTION"}}}
    read, exchanged, before = 0, 0, 0
    with Broker(RELEASE, tmp_path / "run", topics=topics, conf=CONF) as broker:
        sending = Sending(broker, 300, (TOPIC,), tmp_path / "sent")
        while read < LOOKS or before < MESSAGES:
            with MessageStore.open(broker.store) as store:
                if TOPIC not in store.topics():
                    continue
                try:
                    found = store.read_batches(TOPIC).read_all().num_rows
                except DataLossError:  # the broker has exchanged files, and the read says so
                    exchanged += 1
                    continue
                assert found >= before  # each message has a key of its own
                read, before = read + 1, found
                wrong = [one for one in verify(store).findings if one.severity is not Severity.NOTE]
            assert not wrong, [str(one) for one in wrong]
        sent = sending.finish()
        broker.stop()
        broker.start_again()
        served = sorted((row["queueId"], row["queueOffset"]) for row in read_all(broker, [TOPIC]))
        assert len(served) == len(sent)
        with MessageStore.open(broker.store) as store:
            table = store.read_batches(TOPIC, columns=["queueId", "queueOffset"]).read_all()
            assert sorted(tuple(row.values()) for row in table.to_pylist()) == served
        names = {path.name for path in broker.store.glob(f"compaction/compactionLog/{TOPIC}/*/*")}
        assert len(names) > 1, "no file was full, so nothing was compacted"
