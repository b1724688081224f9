"""Where a range of the log begins and ends: at the first record at or after its edge, found once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rmq_store import MessageStore
from rmq_store.commitlog import walk as log_walk
from rmq_store.commitlog.log import CommitLog
from rmq_store.files.segments import SegmentFile
from tests.support.golden import Golden

Walk = tuple[int, int | None]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which a walk to the next record was made."""
    walk, made = log_walk.next_record_or_gap, list[int]()

    def noted(log: CommitLog, segment: SegmentFile, offset: int) -> Walk:
        made.append(offset)
        return walk(log, segment, offset)

    monkeypatch.setattr(log_walk, "next_record_or_gap", noted)
    return made


def test_each_edge_is_searched_once(untouched: Golden, walks: list[int]) -> None:
    golden = untouched("clean-5.5.0")
    starts = sorted(record["commitLogOffset"] for record in golden.truth)[1:40]
    with MessageStore.open(golden.path) as store:
        end = store.log_range()[1]
        for _ in range(2):
            for start in starts:
                assert log_walk.first_record_from(store.log, start - 1, end) == start
                assert log_walk.first_record_from(store.log, start, end) == start
    assert sorted(walks) == sorted(cut for start in starts for cut in (start - 1, start))


def test_an_edge_that_a_broker_may_still_write_is_searched_again(
    untouched: Golden, walks: list[int]
) -> None:
    golden = untouched("clean-5.5.0")
    starts = sorted(record["commitLogOffset"] for record in golden.truth)[:3]
    with MessageStore.open(golden.path) as store:
        for log_end in (starts[1], starts[1], starts[2]):
            found = log_walk.first_record_from(store.log, starts[1] + 1, log_end)
            assert found == starts[2]
    assert len(walks) == 3


@pytest.mark.parametrize("look_back", [0, 100, 1 << 20])
def test_the_next_record_is_the_same_however_far_before_it_a_walk_begins(
    untouched: Golden, monkeypatch: pytest.MonkeyPatch, look_back: int
) -> None:
    """In a file of default size it begins some megabytes before."""
    monkeypatch.setattr(log_walk, "_LOOK_BACK", look_back)
    golden = untouched("clean-5.5.0")
    starts = sorted(record["commitLogOffset"] for record in golden.truth)
    with MessageStore.open(golden.path) as store:
        for before, start in pairwise(starts[300:341]):
            segment = store.log.chain.segment_at(start)
            assert segment is not None
            if segment.base <= before:
                assert log_walk.next_record_or_gap(store.log, segment, before + 1)[0] == start
                assert log_walk.next_record_or_gap(store.log, segment, start - 1)[0] == start
