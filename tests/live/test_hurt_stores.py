"""Stores as operators meet them: a real broker does what the verdict says, and all fronts repeat it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.info import info_of
from rmq_store.admin.retention import apply_retention, plan_retention
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError, StoreError
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery import plan_recovery, recover
from rmq_store.recovery.recover_store import broker_start
from rmq_store.report.store_report import store_report
from rmq_store.testing.live_broker.broker_files import DISK_GUARD, topics_on_disk
from rmq_store.testing.live_broker.harness import Broker, BrokerFailed, boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import verify
from rmq_store.verify.verdict import SOUND
from tests.admin.test_rebuild import settings_of
from tests.support.golden import KINDS, GoldenStore, in_a_queue, log_files, unpack, unpack_kind
from tests.support.injured_stores import INJURIES, REFUSED_FILES, resize
from tests.support.running.campaigns import some

pytestmark = pytest.mark.live

RELEASE = "5.5.0"
TOPICS = ("orders", "payments", "documents")
COLUMNS = ("topic", "queueId", "queueOffset")
HURT = (
    "baseline",
    "abort",
    "log last cut to 100k",
    "log last empty",
    "log middle cut to 100k+abort",
    "log middle missing",
    "log first missing",
    "log last missing",
    "log last missing+abort",
    "log junk file name foo",
    "queue last cut",
    "queue middle missing",
    "queue last missing",
    "queue last missing+abort",
    "consumequeue missing",
    "index last cut",
    "index missing+abort",
    "checkpoint missing",
    "delayOffset bad, bak bad",
    "consumerOffset bad, bak bad",
)


def expected_of(store: GoldenStore) -> Counter[tuple[str, int]]:
    """Messages of each queue of the users' topics that a broker serves, by the ranges of its plan."""
    plan = broker_start(Path(store.path), StoreConfig.of(store.conf)).plan
    served: Counter[tuple[str, int]] = Counter()
    if plan is None:
        return served
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        topics = [topic for topic in TOPICS if topic in opened.topics()]
        batches = opened.read_batches(topics, columns=COLUMNS, on_damage=lambda error: None)
        rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        low, high = plan.queues.get(QueueId(row["topic"], row["queueId"]), (0, 0))
        served[row["topic"], row["queueId"]] += low <= row["queueOffset"] < high
    return +served


@pytest.mark.parametrize("case", some("hurt stores", HURT, 4))
def test_a_broker_does_what_the_verdict_says(case: str, tmp_path: Path) -> None:
    need_jars(RELEASE)
    store = unpack(f"clean-{RELEASE}", tmp_path)
    INJURIES[case](Path(store.path))
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        verdict, losses = verify(opened).verdict, list(opened.opening.losses())
        assert list(info_of(opened).damage) == losses
    assert not losses or verdict.lacks_messages
    page = store_report(store.path, broker_conf=store.conf, verify=True)
    assert page.verdict == list(verdict.lines())
    try:
        assert not plan_recovery(store.path, store.conf).records_cut or verdict.lacks_messages
    except StoreError:
        assert verdict.state != SOUND
    expected = expected_of(store)
    broker = boot_copy(Path(store.path), tmp_path / "run", RELEASE, settings_of(store))
    if not verdict.starts:
        with pytest.raises(BrokerFailed):
            broker.start(tries=1)
        return
    with broker:
        rows = read_all(broker, TOPICS)
    # Behind the truth may stand what the broker delivers when it starts.
    ends = {queue: len(records) for queue, records in store.by_queue.items()}
    served = [(row["topic"], row["queueId"], row["queueOffset"]) for row in rows]
    assert Counter(row[:2] for row in served if row[2] < ends[QueueId(*row[:2])]) == expected


def test_a_consumer_stops_at_a_file_of_zeros_until_a_recovery_deletes_it(tmp_path: Path) -> None:
    need_jars(RELEASE)
    store = unpack(f"clean-{RELEASE}", tmp_path)
    INJURIES["queue last of zeros"](Path(store.path))
    broker = boot_copy(Path(store.path), tmp_path / "hurt", RELEASE, settings_of(store))
    with broker, pytest.raises(BrokerFailed):
        read_all(broker, ["orders"])
    recover(store.path, store.conf)
    with boot_copy(Path(store.path), tmp_path / "run", RELEASE, settings_of(store)) as broker:
        rows = read_all(broker, ["orders"])
    expected = [r for r in store.truth if r["topic"] == "orders" and in_a_queue(r)]
    assert {(row["queueId"], row["queueOffset"]) for row in rows} == {
        (record["queueId"], record["queueOffset"]) for record in expected
    }


@pytest.mark.parametrize(
    ("name", "file", "size"), some("refused files", [case[:3] for case in REFUSED_FILES], 3)
)
def test_no_broker_starts_with_a_file_of_a_wrong_size(
    name: str, file: str, size: int, tmp_path: Path
) -> None:
    """`boot_copy` leaves the timer wheel out, so the broker starts on the store itself."""
    need_jars(RELEASE)
    store = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    resize(Path(store.path, file), size)
    conf = {} if name in KINDS else settings_of(store)
    broker = Broker(
        RELEASE,
        tmp_path / "run",
        store=Path(store.path),
        conf={**conf, **DISK_GUARD},
        topics=topics_on_disk(Path(store.path)),
    )
    with pytest.raises(BrokerFailed):
        broker.start(tries=1)


@pytest.mark.parametrize("name", ["delayOffset.json", "consumerOffset.json"])
def test_a_broker_that_refuses_a_file_leaves_an_empty_one(name: str, tmp_path: Path) -> None:
    """As `LEAVES_EMPTY` says; so a second start succeeds."""
    need_jars(RELEASE)
    store = unpack(f"clean-{RELEASE}", tmp_path)
    INJURIES[f"{name.removesuffix('.json')} bad, bak bad"](Path(store.path))
    broker = boot_copy(Path(store.path), tmp_path / "run", RELEASE, settings_of(store))
    with pytest.raises(BrokerFailed):
        broker.start(tries=1)
    assert json.loads((broker.store / "config" / name).read_text())["offsetTable"] == {}
    with broker:
        assert broker.running


def test_a_broker_goes_on_with_what_retention_keeps(tmp_path: Path) -> None:
    """It serves each message of the files that are left, and delivers none that it has delivered."""
    need_jars(RELEASE)
    store = unpack(f"clean-{RELEASE}", tmp_path)
    first = log_files(store)[2]
    kept = [r for r in store.truth if r["commitLogOffset"] >= int(first.name) and in_a_queue(r)]
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        plan = plan_retention(opened, keep_from=kept[0]["storeTimestamp"] + 1)
    with pytest.raises(InvalidArgumentError, match="has not read"):
        apply_retention(plan)
    apply_retention(plan, lose_unread=True)
    assert log_files(store)[0] == first
    with boot_copy(Path(store.path), tmp_path / "run", RELEASE, settings_of(store)) as broker:
        rows = read_all(broker, TOPICS)
    ends = {queue: len(records) for queue, records in store.by_queue.items()}
    served = [
        row for row in rows if row["queueOffset"] < ends[QueueId(row["topic"], row["queueId"])]
    ]
    assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in served} == {
        (record["topic"], record["queueId"], record["queueOffset"])
        for record in kept
        if record["topic"] in TOPICS
    }
    late = Counter(row["properties"]["UNIQ_KEY"] for row in rows if row not in served)
    waiting = [r["uniqKey"] for r in kept if r["topic"] == SCHEDULE_TOPIC and r["queueId"] == 17]
    assert late.keys() <= set(waiting)
    assert set(late.values()) <= {1}
