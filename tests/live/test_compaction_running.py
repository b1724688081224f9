"""A broker that compacts a topic all the time is read while it takes messages.

No look accuses the store, but of what the broker itself has lost: when it takes the compacted files into
use while messages arrive, it may leave one or two out of them for ever (CompactionLog). And where it goes on
to another file it may write a message into the full one, list one at the offset of another, or make one file
of a pair: its files stay so, the read refuses them, and the test starts over with another broker.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptQueueError, DataLossError, MissingFileError, StoreError
from rmq_store.testing.live_broker.harness import Broker, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import Severity, verify
from tests.support.live_brokers import Sending

RELEASE, TOPIC = "5.5.0", "state"
PLACE = ["queueId", "queueOffset"]
LEFT_OUT = ("compaction-lost", "compaction-unlisted")
LOOKS, MESSAGES = 60, 2500
UNIT = 46  # bytes of an entry
ATTEMPTS = 5
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
    for attempt in range(ATTEMPTS):
        try:
            return read_while_it_compacts(tmp_path / str(attempt))
        except (CorruptQueueError, MissingFileError) as error:
            if not is_between_files(error):
                raise
    pytest.fail(f"{ATTEMPTS} brokers left a queue broken between two files")


def is_between_files(error: StoreError) -> bool:
    """Whether an error is of where a broker went on to another file of a queue, by the bytes there."""
    path, at = Path(str(error.path)), int(error.offset or 0)
    if not path.exists():  # one of a pair
        return path.name.isdigit()
    if "compactionLog" in path.parts:
        return at == int(path.name)
    mark, behind = (path.read_bytes()[start:] for start in (at, at + UNIT))
    return mark[:12] == b"\xff" * 8 + b"\0" * 4 and int.from_bytes(behind[:8], "big") > 0


def read_while_it_compacts(work: Path) -> None:
    topics: dict[str, dict[str, object]] = {TOPIC: {"attributes": {"cleanup.policy": "COMPACTION"}}}
    read, before = 0, 0
    with Broker(RELEASE, work / "run", topics=topics, conf=CONF) as broker, ExitStack() as stack:
        sending = Sending(broker, 300, (TOPIC,), work / "sent")
        stack.callback(sending.kill)
        while read < LOOKS or before < MESSAGES:
            with MessageStore.open(broker.store) as store:
                if TOPIC not in store.topics():
                    continue
                try:
                    found = store.read_batches(TOPIC).read_all().num_rows
                except DataLossError:  # the broker has exchanged files, and the read says so
                    continue
                assert found >= before  # each message has a key of its own
                read, before = read + 1, found
                wrong = [one for one in verify(store).findings if one.severity is not Severity.NOTE]
            assert not [one for one in wrong if one.code not in LEFT_OUT], wrong
        sent = sending.finish()
        broker.stop()
        broker.start_again()
        served = sorted((row["queueId"], row["queueOffset"]) for row in read_all(broker, [TOPIC]))
        with MessageStore.open(broker.store) as store:
            assert places(store.read_batches(TOPIC, columns=PLACE)) == served
            # Each message has a key of its own, so that a compaction removes none.
            stored = places(store.read_batches(TOPIC, columns=PLACE, compacted=False))
            lost = [one.count for one in verify(store).findings if one.code == "compaction-lost"]
        assert {(one.queue_id, one.queue_offset) for one in sent} <= set(stored)
        assert set(served) <= set(stored)
        assert len(served) + sum(lost) == len(stored)
        names = {path.name for path in broker.store.glob(f"compaction/compactionLog/{TOPIC}/*/*")}
        assert len(names) > 1, "no file was full, so nothing was compacted"


def places(batches: pa.RecordBatchReader) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in batches.read_all().to_pylist())
