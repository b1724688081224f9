"""What a replay's journal has as done is on the disk: after a power failure it would be missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmqstore_jobs.replay import run
from rmqstore_jobs.replay_targets import to_broker
from rmqstore_jobs.replay_targets.to_broker import REFUSED, SendResult
from rmqstore_jobs.replaying.plan import ReplayJournal
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.support.golden import Golden

NAME = "clean-5.5.0"


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], set[str]]:
    """`unflushed(folder)`: the Parquet files in it that were not flushed when the journal was saved last
    before a wave was done."""
    flushed: set[int] = set()
    sync, save = os.fsync, ReplayJournal.save
    known: list[set[int]] = []

    def noted(fd: int) -> None:
        sync(fd)
        flushed.add(os.fstat(fd).st_ino)

    def saved(self: ReplayJournal, begun: Any, *done: Any) -> None:
        known.append(set(flushed))
        save(self, begun, *done)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(ReplayJournal, "save", saved)

    def left(folder: Path) -> set[str]:
        before_end = known[-2]  # the last one says that the replay is done
        files = [folder, *folder.glob("*.parquet")]
        assert len(files) > 1
        return {path.name for path in files if path.stat().st_ino not in before_end}

    return left


def test_parquet_is_flushed_before_it_is_done(
    golden: Golden, tmp_path: Path, unflushed: Callable[[Path], set[str]]
) -> None:
    asked = ReplaySpec(golden(NAME).path, to_parquet=str(tmp_path / "p"), topics=("orders",))
    assert run(None, asked).ok
    assert not unflushed(tmp_path / "p")


def test_refused_messages_are_flushed_before_their_wave_is_done(
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unflushed: Callable[[Path], set[str]],
) -> None:
    def refuse(
        spec: Any, access: Any, tasks: int, _: MessageStore, n: int, rows: Iterator[pa.RecordBatch]
    ) -> SendResult:
        found = [row for batch in rows for row in batch.to_pylist()]
        kept = [{"reason": "no", **{k: row[k] for k in ("topic", "queueOffset")}} for row in found]
        return SendResult(0, 0, None, pa.Table.from_pylist(kept, schema=REFUSED))

    monkeypatch.setattr(to_broker, "_send_rows", refuse)
    asked = ReplaySpec(
        golden(NAME).path,
        to_broker="127.0.0.1:1",
        failed=str(tmp_path / "failed"),
        topics=("orders",),
    )
    report = run(None, asked, lambda: True)  # a stop after the last wave stops nothing
    assert (report.ok, report.stopped_by) == (False, None)
    assert not unflushed(tmp_path / "failed")
