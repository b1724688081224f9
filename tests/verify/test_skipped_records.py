"""Two records of one queue with one queue offset: the broker lists the first, and verify counts the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.admin.rebuild import rebuild
from rmq_store.recovery import recover
from rmq_store.verify import Severity, verify
from tests.support.damage import log_file_at, write_at
from tests.support.golden import GoldenStore, offsets, unpack
from tests.support.renumbered import renumber, units_of, write_units

ORDERS = QueueId("orders", 0)


def twice(tmp_path: Path, first: int, more: int = 1) -> tuple[GoldenStore, list[int]]:
    """Record `first` of orders/0 and the next ones claim the queue offsets of `more` earlier ones.

    The queue is as a broker makes it. Returns the log offsets of the records that it skips.
    """
    golden = unpack("clean-5.5.0", tmp_path)
    units = units_of(golden, *ORDERS)
    places = renumber(golden, *ORDERS, lambda n: n if n < first else n - more)
    write_units(golden, *ORDERS, units[:first] + units[first + more :])
    return golden, places[first : first + more]


def listed_places(golden: GoldenStore) -> list[int]:
    return [int.from_bytes(unit[:8], "big") for unit in units_of(golden, *ORDERS)]


def test_the_table_damage_of_one_topic_lists_the_record(tmp_path: Path) -> None:
    from rmq_store.scan.parse_options import parse_options
    from rmq_store.scan.scan import Scan
    from rmq_store.tables import TABLES
    from spark_source.table_reader import TableReader, table_schema

    golden, skipped = twice(tmp_path, 11)
    plan = Scan.of(parse_options({"path": golden.path, "topic": "orders", "table": "damage"}))
    table = TableReader(plan, "damage", table_schema("damage"))
    batches = [batch for part in table.partitions() for batch in table.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    with golden.open() as store:
        found = TABLES["damage"].of(store, store.view.ranges_of(["orders"])).to_pylist()
        none = TABLES["damage"].of(store, store.view.ranges_of(["payments"]))
    for listed in (rows, found):
        assert [(row["queueOffset"], row["commitLogOffset"]) for row in listed] == [
            (10, skipped[0])
        ]
    assert none.num_rows == 0


@pytest.mark.parametrize(("first", "more"), [(11, 1), (200, 3)])
def test_rebuild_and_recovery_list_what_a_broker_lists_and_count_the_rest(
    tmp_path: Path, first: int, more: int
) -> None:
    golden, skipped = twice(tmp_path, first, more)
    report = rebuild(golden.path, tmp_path / "rebuilt")
    assert not report.all_well
    left = report.recovery.left_out[ORDERS]
    assert (left.count, left.queue_offset, left.log_offset) == (more, first - more, skipped[0])
    with MessageStore.open(tmp_path / "rebuilt") as rebuilt:
        entries = rebuilt.entries(ORDERS, 0, rebuilt.max_offset(*ORDERS))
    assert entries.log_offset.tolist() == listed_places(golden)
    wanted = listed_places(golden)
    for path in (Path(golden.path) / "consumequeue/orders/0").iterdir():
        path.unlink()
    Path(golden.path, "abort").touch()
    assert recover(golden.path).left_out[ORDERS].count == more
    assert listed_places(golden) == wanted


def test_verify_says_that_a_broker_skips_the_record_and_that_rebuild_does_not_help(
    tmp_path: Path,
) -> None:
    golden, _ = twice(tmp_path, 11)
    (finding,) = golden.verified().findings
    assert (finding.severity, finding.code, finding.count) == (
        Severity.ERROR,
        "queue-misses-record",
        1,
    )
    assert "queue offset 10;" in finding.meaning
    assert "rebuild skips them too" in finding.advice


@pytest.mark.parametrize(
    ("name", "queue", "first", "stop"),
    [
        ("clean-5.5.0", ORDERS, 100, 146),
        ("clean-5.5.0", QueueId("payments", 1), 1, 190),
        ("lmq-5.3.3", QueueId("%LMQ%all", 0), 4, 9),
    ],
)
def test_verify_says_which_offsets_are_in_no_entry_and_how_far_later_ones_moved(
    name: str, queue: QueueId, first: int, stop: int, tmp_path: Path
) -> None:
    golden = unpack(name, tmp_path)
    units = units_of(golden, *queue)
    write_units(golden, *queue, units[:first] + units[stop:])
    lost, moved = golden.verified().findings
    assert (lost.code, moved.code) == ("queue-misses-record", "queue-lists-too-low")
    assert (lost.count, moved.count) == (stop - first, len(units) - stop)
    assert f"queue offsets {first} to {stop - 1};" in lost.meaning
    assert f"queue offsets {stop} to {len(units) - 1}," in moved.meaning
    assert f"{stop - first} places too low" in moved.meaning


def test_the_older_record_of_a_topic_that_was_created_again_is_no_damage(copy: GoldenStore) -> None:
    units = units_of(copy, *ORDERS)
    renumber(copy, *ORDERS, lambda n: n if n < 100 else n - 100)
    write_units(copy, *ORDERS, units[100:])
    with copy.open() as store:
        met: list[StoreError] = []
        offsets(store, on_damage=met.append)
        report = verify(store)
    assert met == []
    assert {f.code for f in report.findings if f.severity is not Severity.NOTE} <= {
        "consumer-ahead"
    }
    (earlier,) = [f for f in report.findings if f.code == "queue-earlier-life"]
    assert (earlier.severity, earlier.count) == (Severity.NOTE, 100)
    assert "queue offsets 0 to 99:" in earlier.meaning


@pytest.mark.parametrize("queue", [ORDERS, QueueId("payments", 1)])
def test_a_queue_that_a_broker_made_of_two_lives_of_a_topic_is_one_that_a_rebuild_mends(
    queue: QueueId, copy: GoldenStore
) -> None:
    """A broker lists both records with queue offset 0 (ConsumeQueue#putMessagePositionInfo), and the one
    with offset 1 finds its place taken."""
    units = units_of(copy, *queue)
    places = renumber(copy, *queue, lambda n: max(0, n - 1))
    write_units(copy, *queue, units[:2] + units[3:])
    moved, lost = copy.verified().findings
    assert (moved.count, lost.count) == (1, 1)
    assert "1 places too high" in moved.meaning
    assert moved.advice == lost.advice
    assert "rmqstore rebuild lists the new ones" in moved.advice
    assert f"queue offset 1; the first: log offset {places[2]}" in lost.meaning


def test_a_rebuild_lists_the_last_life_of_a_queue_that_lists_an_earlier_one(tmp_path: Path) -> None:
    golden, skipped = twice(tmp_path, 1)
    (finding,) = golden.verified().findings
    assert f"queue offset 0; the first: log offset {skipped[0]}" in finding.meaning
    assert "a broker skips" not in finding.meaning
    assert "rmqstore rebuild lists the new ones" in finding.advice
    report = rebuild(golden.path, tmp_path / "rebuilt")
    assert (report.all_well, report.recovery.earlier_lives) == (True, {ORDERS: 1})
    with MessageStore.open(tmp_path / "rebuilt") as rebuilt:
        entries = rebuilt.entries(ORDERS, 0, rebuilt.max_offset(*ORDERS))
        assert verify(rebuilt).nothing_wrong
    assert entries.log_offset[0] == skipped[0]


def test_an_entry_too_many_is_not_called_normal_after_a_rebuild(copy: GoldenStore) -> None:
    units = units_of(copy, *ORDERS)
    write_units(copy, *ORDERS, [*units[:50], units[49], *units[50:]])
    (finding,) = copy.verified().findings
    assert (finding.count, "1 places too high" in finding.meaning) == (len(units) - 50, True)
    assert finding.advice.startswith("The queue repeats an entry")


GAPS = [
    ("clean-5.5.0", ORDERS, [(50, 60), (150, 170)], "50 to 59, 150 to 169", "10 to 30"),
    ("clean-5.5.0", ORDERS, [(7, 8), (20, 22)], "7, 20 to 21", "1 to 3"),
    ("lmq-5.3.3", QueueId("%LMQ%all", 0), [(2, 5), (8, 9)], "2 to 4, 8", "3 to 4"),
]


@pytest.mark.parametrize(("name", "queue", "gaps", "offsets", "places"), GAPS)
def test_several_gaps_of_a_queue_are_one_finding(
    name: str,
    queue: QueueId,
    gaps: list[tuple[int, int]],
    offsets: str,
    places: str,
    tmp_path: Path,
) -> None:
    golden = unpack(name, tmp_path)
    units = units_of(golden, *queue)
    kept = [n for n in range(len(units)) if not any(a <= n < b for a, b in gaps)]
    write_units(golden, *queue, [units[n] for n in kept])
    with golden.open() as store:
        lost, moved = verify(store).findings
        parts = [part for part in store.view.ranges_of([queue.topic]) if part.queue == queue]
        rows = store.read_slices(parts, columns=["commitLogOffset", "flag"]).read_all()
    given = sorted(rows["commitLogOffset"].to_pylist())
    assert given == [int.from_bytes(units[n][:8], "big") for n in kept]
    assert lost.count == len(units) - len(kept)
    assert f"in no entry, queue offsets {offsets}; the first" in lost.meaning
    assert moved.count == len(kept) - gaps[0][0]
    assert f"{places} places too low" in moved.meaning


def test_a_gap_in_a_queue_of_batches_is_counted(copy: GoldenStore) -> None:
    queue, width = QueueId("inner", 0), 46
    (path,) = Path(copy.path, "batchconsumequeue", "inner", "0").iterdir()
    raw = path.read_bytes()
    path.write_bytes((raw[: 5 * width] + raw[8 * width :]).ljust(len(raw), b"\0"))
    lost = [int.from_bytes(raw[n * width : n * width + 8], "big") for n in (5, 6, 7)]
    with copy.open() as store:
        rows = store.read_batches(["inner"], columns=["commitLogOffset", "flag"]).read_all()
        (finding,) = verify(store).findings
    given = set(rows["commitLogOffset"].to_pylist())
    truth = {record["commitLogOffset"] for record in copy.by_queue[queue]}
    assert given == truth - set(lost)
    assert (finding.code, finding.count) == ("queue-misses-record", 3)
    assert f"log offset {lost[0]}" in finding.meaning


def test_entries_that_changed_places_are_not_said_to_be_lost(copy: GoldenStore) -> None:
    units = units_of(copy, *ORDERS)
    units[10], units[20] = units[20], units[10]
    write_units(copy, *ORDERS, units)
    found = [finding.meaning for finding in copy.verified().findings]
    assert len(found) == 2
    for one, offset, side in zip(found, (20, 10), ("low", "high"), strict=True):
        assert f"queue offset {offset}, listed at another queue offset" in one
        assert f"10 places too {side}" in one


def test_a_queue_id_whose_bits_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The CRC of a body does not cover it: the record is sound, and of a queue that nobody reads."""
    golden = unpack("clean-5.5.0", tmp_path)
    (record,) = (
        r for r in golden.truth if (r["topic"], r["queueId"], r["queueOffset"]) == (*ORDERS, 40)
    )
    write_at(log_file_at(golden, 0), record["commitLogOffset"] + 15, b"\x40")
    rebuild(golden.path, tmp_path / "rebuilt")
    moved = len(units_of(golden, *ORDERS)) - 41
    assert (
        "orders/0 get smaller queue offsets than their own, from 40 instead of 41 on" in caplog.text
    )
    with MessageStore.open(tmp_path / "rebuilt") as rebuilt:
        verdict = verify(rebuilt).verdict
    assert (verdict.unlisted, verdict.moved, verdict.lacks_messages) == (0, moved, False)
    assert verdict.help is None  # a rebuild of it would be the same


def test_a_queue_offset_whose_bits_changed(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    (record,) = (
        r for r in golden.truth if (r["topic"], r["queueId"], r["queueOffset"]) == (*ORDERS, 40)
    )
    write_at(log_file_at(golden, 0), record["commitLogOffset"] + 20, b"\x10")
    verdict = golden.verified().verdict
    assert verdict.sentence() == "flawed: 1 message at another queue offset than their own"
    assert verdict.help is None
