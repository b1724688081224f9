"""Zeros from the middle of a log file to its end are damage if a later file has records."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import Gap, MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import CorruptRecordError
from rmq_store.files.segments import SegmentFile
from rmq_store.verify import verify
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, unpack, verified
from tests.support.growing import Growing

NAME = "clean-5.5.0"
SECOND = 262_144  # where the second file of the log begins


def zeroed(tmp_path: Path, start: int) -> tuple[GoldenStore, int]:
    """A store whose second file is zeros from the first record at or after an offset; and that record."""
    store = unpack(NAME, tmp_path)
    offset = min(r["commitLogOffset"] for r in store.truth if r["commitLogOffset"] >= start)
    file = Path(store.path) / "commitlog" / f"{SECOND:020}"
    raw = file.read_bytes()
    kept = raw[: offset - SECOND]
    file.write_bytes(kept + bytes(len(raw) - len(kept)))
    return store, offset


@pytest.mark.parametrize("start", [SECOND, SECOND + 131_072])
def test_zeros_before_a_later_file_are_damage(tmp_path: Path, start: int) -> None:
    store, offset = zeroed(tmp_path, start)
    lost = [r for r in store.truth if offset <= r["commitLogOffset"] < 2 * SECOND]
    with store.open() as opened:
        gaps = [e for e in opened.scan() if e.gap not in (None, Gap.FILLER, Gap.UNWRITTEN)]
        assert [(gap.start, gap.stop, gap.gap) for gap in gaps] == [
            (offset, 2 * SECOND, Gap.DAMAGED)
        ]
        findings = [f for f in verify(opened).findings if f.code == "log-damaged"]
        assert len(findings) == 1
        with pytest.raises(CorruptRecordError, match="a later file has records"):
            list(opened.read_log())
    report = salvage(store.path, tmp_path / "salvaged")
    assert report.messages + report.ended.total() == len(store.truth) - len(lost)
    assert [(part.start, part.stop) for part in report.skipped] == [(offset, 2 * SECOND)]


def test_what_a_broker_writes_meanwhile_is_no_damage(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker fills a file and begins the next one between two looks of a reader."""
    store = Growing(golden(NAME), tmp_path)
    store.show(SECOND + 100_000)
    looks: list[int] = []

    def goes_on(log: CommitLog, segment: SegmentFile) -> bool:
        looks.append(segment.base)
        for base, file in store.files.items():
            if file.exists():
                write_at(file, 0, store.bytes[base])
        return True

    monkeypatch.setattr("rmq_store.commitlog.walk._goes_on", goes_on)
    with MessageStore.open(store.path) as opened:
        found = list(opened.scan())
    assert looks
    assert not [piece for piece in found if piece.gap is Gap.DAMAGED]
    written = [r for r in golden(NAME).truth if r["commitLogOffset"] < 2 * SECOND]
    assert len([piece for piece in found if piece.record]) == len(written)


def test_verify_of_a_rebuilt_store_says_that_messages_moved(tmp_path: Path) -> None:
    """A rebuild leaves no gap in a queue, so that later messages get smaller queue offsets."""
    store, _ = zeroed(tmp_path, SECOND + 131_072)
    rebuild(store.path, tmp_path / "rebuilt")
    moved = [f for f in verified(tmp_path / "rebuilt").findings if f.code == "queue-lists-too-low"]
    assert moved
    for finding in moved:
        assert "listed at another queue offset" in finding.meaning
        assert "No consumer gets them" not in finding.meaning
        assert "rmqstore rebuild" not in finding.advice
