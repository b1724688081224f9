"""Entries of a BatchConsumeQueue whose queue offsets are damaged: the same whichever range is read first."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.reading import slice_entries
from tests.support.golden import Golden, GoldenStore

UNIT, BASE_AT = 46, 28  # bytes of a unit, and where its first queue offset is
QUEUE = QueueId("inner", 0)


def units(golden: GoldenStore) -> Path:
    folder = Path(golden.path, "batchconsumequeue", *map(str, QUEUE))
    return sorted(folder.iterdir())[0]


def given(golden: GoldenStore, ranges: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Queue offset and log offset of the units in some ranges, read one after the other."""
    found = []
    with MessageStore.open(golden.path) as store:
        files = store._folders.files(QUEUE, batch=True)
        for start, stop in ranges:
            entries = files.entries(start, stop)
            found.append(
                list(zip(entries.offset.tolist(), entries.log_offset.tolist(), strict=True))
            )
    return found


@pytest.mark.parametrize(
    ("hurt", "inside", "by"),
    [
        *(((2, 4), (2, 4), 1000), ((3, 10), (5, 8), 1000), ((0, 6), (1, 3), 1000)),
        *(((20, 30), (22, 27), 1000), ((39, 40), (38, 40), -100)),
    ],
)
def test_the_order_of_reads_does_not_matter(
    hurt: tuple[int, int], inside: tuple[int, int], by: int, copy: GoldenStore
) -> None:
    path = units(copy)
    raw = bytearray(path.read_bytes())
    count = next(n for n in range(len(raw) // UNIT) if not any(raw[n * UNIT : n * UNIT + UNIT]))
    assert count == 40
    for number in range(*hurt):
        at = number * UNIT + BASE_AT
        offset = int.from_bytes(raw[at : at + 8], "big") + by
        raw[at : at + 8] = offset.to_bytes(8, "big")
    path.write_bytes(raw)
    whole = 0, count
    first = given(copy, [inside, whole])
    last = given(copy, [whole, inside])
    assert first == last[::-1]
    assert first[0] == first[1][inside[0] : inside[1]]
    places = [log_offset for _, log_offset in first[1]]
    assert [n for n, place in enumerate(places) if place < 0] == list(range(*hurt))


def test_an_entry_that_claims_too_many_messages_is_damage(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is opened, so its count alone decides how many rows there are."""
    most = 4
    monkeypatch.setattr(slice_entries, "_MOST_MESSAGES", most)
    with golden("clean-5.5.0").open() as store:
        (part,) = store.view.ranges_of(["inner"])
        entries = store.entries(part.queue, part.start, part.stop)
        met: list[StoreError] = []
        rows = store.read_batches(
            "inner", columns=["queueOffset"], unwrap_batches=True, on_damage=met.append
        ).read_all()
    large = entries.count > most
    assert 0 < large.sum() < len(entries)
    assert rows.num_rows == entries.count[~large].sum()
    assert [error.entry.messages for error in met if error.entry] == entries.count[large].tolist()
