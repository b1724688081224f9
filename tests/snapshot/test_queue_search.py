"""Where a queue goes on behind a place in the log: the searches against the truth, entry by entry."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rmq_store import QueueId
from rmq_store.consumequeue.queue_files import QueueFiles
from rmq_store.format.queues import QUEUE_ENTRY
from tests.support.golden import CLEAN, Golden, GoldenStore, in_a_queue


def places_by_queue(store: GoldenStore) -> dict[QueueId, dict[int, int]]:
    """Log offset by queue offset, of messages in the queue that their record names."""
    found: dict[QueueId, dict[int, int]] = defaultdict(dict)
    for record in store.truth:
        if in_a_queue(record):
            queue = QueueId(record["topic"], record["queueId"])
            found[queue][record["queueOffset"]] = record["commitLogOffset"]
    return found


@pytest.mark.parametrize("name", CLEAN)
def test_a_queue_goes_on_where_the_truth_says(golden: Golden, name: str) -> None:
    store = golden(name)
    asked = 0
    with store.open() as opened:
        listed = set(opened.queues())
        for queue, places in places_by_queue(store).items():
            first, stop = opened.min_offset(*queue), opened.max_offset(*queue)
            if queue not in listed or list(places) != list(range(first, stop)):
                continue  # with batches, or records that no queue lists any more
            known = [places[offset] for offset in range(first, stop)]
            for position in sorted({p + more for p in known for more in (-1, 0, 1)})[::3]:
                expected = first + bisect_left(known, position)
                assert opened.view.offset_at_log(queue, position) == expected, (queue, position)
                asked += 1
    assert asked


PLACES = [100, 250, 400, 550, 700, 850, 1000, 1150]


@pytest.mark.parametrize("lost", [None, 3, 6], ids=["whole", "second file", "last file"])
def test_it_is_found_across_files_and_in_parts_of_a_queue(tmp_path: Path, lost: int | None) -> None:
    """Files of three entries each, as their bytes: the answer is that of a look at every entry.

    `lost`: a file whose first entry never reached the disk, and reads as one before all others.
    """
    places = [0 if unit == lost else place for unit, place in enumerate(PLACES)]
    folder = tmp_path / "consumequeue" / "orders" / "0"
    folder.mkdir(parents=True)
    entries = [place.to_bytes(8, "big") + (150).to_bytes(4, "big") + bytes(8) for place in places]
    for number in range(3):
        held = b"".join(entries[3 * number : 3 * number + 3])
        (folder / f"{60 * number:020d}").write_bytes(held.ljust(60, b"\0"))
    files = QueueFiles(str(folder), file_size=60)
    for start in range(len(places)):
        for stop in range(start, len(places) + 1):
            if lost is not None and stop - 1 == lost:
                continue  # nothing behind it says where it belongs
            units = [unit for unit in range(start, stop) if unit != lost]
            for position in range(25, 1300, 25):
                expected = next((unit for unit in units if places[unit] >= position), stop)
                found = files.first_pointing_at_or_after(position, start, stop)
                assert found == expected, (start, stop, position)


HARMS = {"low": (5, 100), "high": (2**40, 100), "empty": (0, 0)}  # log offset, size


@pytest.mark.parametrize("harm", HARMS)
def test_no_damaged_entry_leads_the_search_astray(copy: GoldenStore, harm: str) -> None:
    """Every third entry in turn is damaged: what is found is at most that one entry off.

    Not the two at each end, where nothing shows which of the two is wrong.
    """
    folder = Path(copy.path) / "consumequeue" / "orders" / "1"
    places = sorted(places_by_queue(copy)[QueueId("orders", 1)].values())
    count = len(places)
    asked = [*places[::9], places[-1], places[-1] + 1]
    for number in range(2, count - 2, 3):
        path = max(p for p in folder.iterdir() if int(p.name) <= number * 20)
        whole = path.read_bytes()
        raw = bytearray(whole)
        entry = np.frombuffer(raw, QUEUE_ENTRY)[number - int(path.name) // 20 :][:1]
        entry["log_offset"], entry["size"] = HARMS[harm]
        path.write_bytes(raw)
        files = QueueFiles(str(folder))
        for place in asked:
            right = bisect_left(places, place)
            found = files.first_pointing_at_or_after(place, 0, count)
            assert found == right or {found, right} == {number, number + 1}, (number, place)
            behind = files.find_unit_at_log(place, 0, count)
            assert behind == right or {behind, right} == {number, number + 1}, (number, place)
        path.write_bytes(whole)
