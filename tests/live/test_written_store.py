"""Real brokers boot on stores that we wrote, and hand out every message by offset and by key."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.testing.live_broker.harness import Broker, Row, boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.live_brokers import read_by_key
from tests.support.running.campaigns import some

MESSAGES = 100_000
KEYS_ASKED = 5_000
QUEUES = 4
SEED = 20261121
CONF = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3000,
    "maxHashSlotNum": 10_007,
    "maxIndexNum": 40_000,
}

pytestmark = pytest.mark.live


@dataclass
class Written:
    """A store of ours, what we put into it, and the broker that runs on a copy of it."""

    topics: list[str]
    batch: pa.Table
    queue_offset: list[int]
    log_offset: list[int]
    broker: Broker


def messages(topics: list[str], *, ipv6: bool, seed: int) -> pa.Table:
    """Messages of all topics and queues with keys, tags, user properties and mixed hosts."""
    chance = np.random.default_rng(seed)
    number = np.arange(MESSAGES)
    rows = {
        "topic": [topics[i % len(topics)] for i in number],
        "queueId": pa.array(number // len(topics) % QUEUES, pa.int32()),
        "body": [chance.bytes(int(size)) for size in chance.integers(1, 700, MESSAGES)],
        "properties": pa.array(
            [
                [
                    ("KEYS", f"ORDER_{i} 客户{i % 97}"),
                    ("TAGS", f"Tag{i % 5}"),
                    ("UNIQ_KEY", f"U{i:031d}"),
                ]
                + ([("region", "東京")] if i % 7 == 0 else [])
                for i in number
            ],
            pa.map_(pa.string(), pa.string()),
        ),
        "bornTimestamp": pa.array(1_700_000_000_000 + number, pa.int64()),
        "bornHost": [
            ("[2001:db8:0:0:0:0:0:1]" if ipv6 and i % 3 == 0 else "10.1.2.3") + f":{i % 60000}"
            for i in number
        ],
        "storeHost": [
            "[2001:db8:0:0:0:0:0:2]:10911" if ipv6 and i % 5 == 0 else "127.0.0.1:10911"
            for i in number
        ],
        "flag": pa.array(chance.integers(-9, 9, MESSAGES), pa.int32()),
    }
    return pa.table(rows)


@pytest.fixture(scope="module", params=some("written", ["5.5.0", "4.9.7"], 2))
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    release: str = request.param
    need_jars(release)
    print(f"seed {SEED}")
    work = tmp_path_factory.mktemp("written")
    long_name = "%RETRY%" + "g" * 130  # stored with magic V2, which 4.9.7 does not know
    topics = ["orders", "payments", long_name if release == "5.5.0" else "%RETRY%group"]
    table = messages(topics, ipv6=True, seed=SEED)
    queue_offset: list[int] = []
    log_offset: list[int] = []
    with MessageStore.create(work / "store", CONF, release=release) as store:
        for batch in table.to_batches(max_chunksize=7000):
            result = store.append_batch(batch)
            queue_offset += result.queue_offset.tolist()
            log_offset += result.commit_log_offset.tolist()
    assert len(list((work / "store/commitlog").iterdir())) > 10
    with boot_copy(work / "store", work / "run", release, CONF) as broker:
        yield Written(topics, table, queue_offset, log_offset, broker)


def by_place(rows: list[Row]) -> dict[int, Row]:
    assert max(Counter(row["commitLogOffset"] for row in rows).values()) == 1
    return {row["commitLogOffset"]: row for row in rows}


def test_a_broker_hands_out_every_message_by_offset(written: Written) -> None:
    rows = by_place(read_all(written.broker, written.topics))
    assert len(rows) == MESSAGES
    for number, message in enumerate(written.batch.to_pylist()):
        row = rows[written.log_offset[number]]
        assert row["queueOffset"] == written.queue_offset[number]
        assert base64.b64decode(row["body"]) == message["body"]
        assert row["properties"] == dict(message["properties"])
        for name in ("topic", "queueId", "bornTimestamp", "bornHost", "storeHost", "flag"):
            assert row[name] == message[name], name


def test_a_broker_finds_messages_by_key(written: Written) -> None:
    mine = [i for i in range(MESSAGES) if i % len(written.topics) == 0]
    asked = random.Random(SEED).sample(mine, KEYS_ASKED)
    rows = read_by_key(written.broker, written.topics[0], [f"ORDER_{i}" for i in asked])
    found = {row["foundBy"]: row["commitLogOffset"] for row in rows}
    assert found == {f"ORDER_{i}": written.log_offset[i] for i in asked}
