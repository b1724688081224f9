"""verify beside a writer: what arrives after the store was opened is no finding but a note."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.verify import Severity, verify
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, verified

MESSAGES = 1_000


def grown(store: MessageStore, path: Path, count: int) -> None:
    """Append to a store after it was opened to read."""
    with MessageStore.append_to(path, store.config) as writer:
        for number in range(count):
            message = {"topic": "orders", "queueId": number % 4, "body": b"x" * 200}
            writer.append({**message, "keys": f"NEW_{number}"})


@pytest.mark.parametrize("count", [1, MESSAGES])  # into the last file, and into further ones
def test_records_that_arrive_meanwhile_are_no_error(copy: GoldenStore, count: int) -> None:
    path = Path(copy.path)
    with MessageStore.open(path, broker_conf=copy.conf) as store:
        before = verify(store)
        grown(store, path, count)
        with MessageStore.open(path, broker_conf=copy.conf) as later:
            new_files = len(later.log.chain.segments) - len(store.log.chain.segments)
        assert (new_files > 0) == (count > 1)
        report = verify(store)
    codes = {finding.code for finding in report.findings}
    assert codes - {finding.code for finding in before.findings} <= {"log-grew"}
    assert report.nothing_wrong == before.nothing_wrong
    assert (report.records, report.log_end) == (before.records, before.log_end)
    (grew,) = (f for f in report.findings if f.code == "log-grew")
    assert grew.severity is Severity.NOTE
    assert (report.verdict.starts, report.verdict.help) == (None, None)
    whole = verified(path, broker_conf=copy.conf)
    assert whole.nothing_wrong
    assert whole.records == before.records + count


def test_records_after_damage_are_still_out_of_reach(copy: GoldenStore) -> None:
    """Sound records that do not continue the log were cut off from it."""
    last = max(Path(copy.path, "commitlog").iterdir())
    base = int(last.name)
    records = [r for r in copy.truth if r["commitLogOffset"] >= base]
    cut = records[len(records) // 2]["commitLogOffset"] - base
    write_at(last, cut, b"\xff" * 88)
    for kind in ("consumequeue", "index"):  # nothing else proves where the log ended
        shutil.rmtree(Path(copy.path, kind))
    codes = {
        finding.code
        for finding in verified(copy.path, broker_conf=copy.conf, queues=False).findings
    }
    assert "log-grew" not in codes
