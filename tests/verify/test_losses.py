"""A queue loses entries, and no read meets the loss: `verify` counts it, and verifyQueue reports it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import StoreError
from rmq_store.format.queues import QUEUE_ENTRY
from rmq_store.verify import Finding, Severity, verify
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, Truth, log_files, unpack, wanted

WIDTH = QUEUE_ENTRY.itemsize
ORDERS, LIGHT = QueueId("orders", 0), QueueId("%LMQ%all", 0)


def folder_of(golden: GoldenStore, queue: QueueId) -> Path:
    return Path(golden.path, "consumequeue", queue.topic, str(queue.queue_id))


def zero_end(queue: QueueId, lost: int) -> Callable[[GoldenStore], list[Truth]]:
    """Zeros over the last entries of a queue, which then looks like a shorter one."""

    def injure(golden: GoldenStore) -> list[Truth]:
        (file,) = folder_of(golden, queue).iterdir()
        content = file.read_bytes()
        used = len(content.rstrip(b"\0"))
        used += -used % WIDTH
        first = used - lost * WIDTH
        assert first >= 0
        file.write_bytes(content[:first] + bytes(len(content) - first))
        return golden.by_queue[queue][-lost:]

    return injure


def lose_first_file(queue: QueueId) -> Callable[[GoldenStore], list[Truth]]:
    def injure(golden: GoldenStore) -> list[Truth]:
        first, second, *_ = sorted(folder_of(golden, queue).iterdir())
        first.unlink()
        return golden.by_queue[queue][: int(second.name) // WIDTH]

    return injure


def lose_folder(queue: QueueId) -> Callable[[GoldenStore], list[Truth]]:
    def injure(golden: GoldenStore) -> list[Truth]:
        shutil.rmtree(folder_of(golden, queue))
        return golden.by_queue[queue]

    return injure


CASES = {
    "one entry": ("clean-5.2.0", zero_end(ORDERS, 1)),
    "an idle queue": ("clean-5.2.0", zero_end(QueueId("documents", 0), 2)),
    "a queue of retries": ("clean-5.2.0", zero_end(QueueId("retrying", 1), 3)),
    "a queue beside light ones": ("lmq-5.3.3", zero_end(QueueId("parent", 1), 8)),
    "a light queue": ("lmq-5.3.3", zero_end(LIGHT, 4)),
    "the first file": ("geometry-5.5.0", lose_first_file(ORDERS)),
    "a folder": ("clean-5.5.0", lose_folder(ORDERS)),
}


def count_of(findings: list[Finding], *codes: str) -> int:
    return sum(one.count for one in findings if one.code in codes)


@pytest.mark.parametrize("case", CASES)
def test_verify_counts_what_a_queue_has_lost(case: str, tmp_path: Path) -> None:
    name, injure = CASES[case]
    golden = unpack(name, tmp_path)
    before = list(golden.verified().findings)
    lost = injure(golden)
    with golden.open() as store:
        queues = [one for one in store.queues() if not one.topic.startswith("%LMQ%")]
        rows = [
            place
            for batch in store.read_slices(store.view.ranges_of(sorted({q.topic for q in queues})))
            for place in batch["commitLogOffset"].to_pylist()
        ]
        report = verify(store)
    findings = list(report.findings)
    gone = (
        {one["commitLogOffset"] for one in lost}
        if "light" not in case or "beside" in case
        else set()
    )
    assert set(wanted(golden)) - set(rows) == gone & set(wanted(golden))
    assert count_of(findings, "queue-misses-record", "queue-missing") == len(lost)
    assert not count_of(before, "queue-misses-record", "queue-missing")
    assert any(one.severity is Severity.ERROR for one in findings)
    assert report.verdict.unlisted == len(lost)


def test_verify_names_a_copied_folder(tmp_path: Path) -> None:
    golden = unpack("clean-5.3.3", tmp_path)
    shutil.copytree(
        folder_of(golden, ORDERS).parent, folder_of(golden, ORDERS).parent.with_name("copied")
    )
    findings = golden.verified().findings
    named = [one for one in findings if "was copied, renamed or exchanged" in one.meaning]
    with MessageStore.open(golden.path) as store:
        copies = [one for one in store.queues() if one.topic == "copied"]
        assert len(named) == len(copies) > 1
        assert sum(one.count for one in named) == sum(store.max_offset(*one) for one in copies)
        with pytest.raises(StoreError, match="copied"):
            list(store.read_batches("copied"))


def test_verify_names_exchanged_files(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    one, other = (folder_of(golden, QueueId("orders", n)) / ("0" * 20) for n in (0, 1))
    mine, its = one.read_bytes(), other.read_bytes()
    one.write_bytes(its)
    other.write_bytes(mine)
    named = [
        f for f in golden.verified().findings if "was copied, renamed or exchanged" in f.meaning
    ]
    assert {Path(finding.path).name for finding in named} == {"0", "1"}


@pytest.mark.parametrize("named", [-1, 5])
def test_a_listed_record_that_names_an_expired_place_is_lost(named: int, tmp_path: Path) -> None:
    """What a file had before it was used again has such places too, and no queue lists it there."""
    golden = unpack("expired-5.5.0", tmp_path)
    record = next(r for r in golden.by_queue[ORDERS] if r["commitLogOffset"] in kept_of(golden))
    write_in_log(golden, record["commitLogOffset"] + 28, named.to_bytes(8, "big", signed=True))
    report = golden.verified()
    assert (report.verdict.lost.messages, report.verdict.lost.queues) == (1, 1)


def kept_of(golden: GoldenStore) -> set[int]:
    """The log offsets of records in files that are left."""
    first = min(int(file.name) for file in log_files(golden))
    return {r["commitLogOffset"] for r in golden.truth if r["commitLogOffset"] >= first}
