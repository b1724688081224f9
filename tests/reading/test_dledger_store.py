"""Stores of brokers in DLedger mode read as any other: held against what a client was served."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId, QueueSlice
from rmq_store.admin.info import store_info, summary_of
from rmq_store.errors import MissingFileError, StoreError, UnsupportedStoreError
from rmq_store.reading.log_reader import LogEndFinder, LogPlace
from rmq_store.verify import Severity, verify
from tests.support.damage import flip, write_at
from tests.support.dledger import HEAD, Log, entries_of, record_at
from tests.support.golden import GoldenStore, unpack_field, unpack_kind, verified
from tests.support.golden_rows import as_served
from tests.support.running.commands import objects, run

NAME = "dledger-5.5.0"
THERE, EXPIRED = "mixed-dledger-old-log-there", "mixed-dledger-old-log-expired"


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(NAME, tmp_path)


def data_of(golden: GoldenStore) -> Path:
    return Path(golden.path, "dledger-n0", "data")


def opened(golden: GoldenStore) -> MessageStore:
    return MessageStore.open(golden.path, broker_conf=golden.conf)


def about_the_log(root: Path) -> set[str]:
    """Codes of the findings of verify about the log."""
    codes = {finding.code for finding in verified(root).findings}
    return {code for code in codes if code.startswith(("log-", "dledger-"))}


def by_queue(lines: list[dict[str, Any]]) -> dict[QueueId, list[dict[str, Any]]]:
    found: dict[QueueId, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(QueueId(line["topic"], line["queue"]), []).append(line)
    return found


def test_messages_by_queue_offset_are_those_that_a_client_was_served(golden: GoldenStore) -> None:
    with opened(golden) as store:
        for queue, lines in by_queue(golden.lines("served")).items():
            assert store.max_offset(*queue) - store.min_offset(*queue) == len(lines)
            for line in lines:
                found = as_served(store.get_message(*queue, line["offset"]).messages[0])
                body = found.pop("body")
                assert found == {name: line[name] for name in found}
                assert base64.b64decode(line["body"]) == body


def test_the_log_gives_the_rows_of_the_queues(golden: GoldenStore) -> None:
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "body"]
    with opened(golden) as store:
        queues = store.read_batches(columns=columns, include_system_topics=True).read_all()
        log = store.read_log(columns=columns).read_all()
        places = [entry.place + HEAD.size for entry in entries_of(data_of(golden))]
        assert len(places) == 760
        assert log.column("commitLogOffset").to_pylist() == places
        assert log.num_rows == queues.num_rows
        assert log.sort_by("commitLogOffset") == queues.sort_by("commitLogOffset")
        # A cut is anywhere: each record is in one of two adjacent ranges.
        for cut in [1, 47, 48, 49, places[7], places[7] + 1, places[8] - 48, places[8] - 1]:
            before = store.read_log(None, cut, columns=columns[3:4]).read_all().num_rows
            behind = store.read_log(cut, None, columns=columns[3:4]).read_all().num_rows
            assert before == sum(place < cut for place in places)
            assert before + behind == len(places)


def test_messages_are_found_by_key_and_by_id(golden: GoldenStore) -> None:
    orders = [line for line in golden.lines("served") if line["topic"] == "orders"]
    lines = [line for line in orders if "KEYS" in line["props"]]
    with opened(golden) as store:
        for line in lines[::20]:
            key = line["props"]["KEYS"].split(" ")[0]
            wanted = {one["phy"] for one in lines if key in one["props"].get("KEYS", "").split(" ")}
            found = {one.commit_log_offset for one in store.query_message("orders", key)}
            assert found == wanted
            assert store.message_at(line["phy"]).queue_offset == line["offset"]
        assert store.key_index().gaps()[0][0] > 48  # nothing before the first record


def test_verify_has_nothing_to_say(golden: GoldenStore) -> None:
    with opened(golden) as store:
        report = verify(store)
        assert (list(report.findings), report.records, report.lag) == ([], 760, 0)


def test_commands_read_it(golden: GoldenStore) -> None:
    lines = [line for line in golden.lines("served") if line["topic"] == "payments"]
    conf = ("--broker-conf", golden.conf)
    rows = objects("cat", golden.path, "--topic", "payments", *conf)
    assert sorted((row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in rows) == (
        sorted((line["queue"], line["offset"], line["phy"]) for line in lines)
    )
    assert "dledger-n0" in run("info", golden.path, *conf)


# --- mixed stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "first", "count"), [(THERE, 0, 3000), (EXPIRED, 1_228_848, 1000)])
def test_the_log_before_and_the_dledger_log_are_one(
    tmp_path: Path, name: str, first: int, count: int
) -> None:
    root = unpack_field(name, tmp_path)
    (queue,) = (root / "consumequeue").glob("*/0")
    raw = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    listed = [unit[:2] for unit in struct.iter_unpack(">qiq", raw[: len(raw) // 20 * 20])]
    start = 0 if name == THERE else 1_228_800  # the older files have expired
    places = [(at, size) for at, size in listed if 0 < size < 0x7FFFFFFF and at >= start]
    assert (places[0][0], len(places)) == (first, count)
    columns = ["commitLogOffset", "storeSize"]
    with MessageStore.open(root) as store:
        for table in (
            store.read_batches(columns=columns).read_all(),
            store.read_log(columns=columns).read_all(),
        ):
            assert list(zip(*table.to_pydict().values(), strict=True)) == places
        assert list(verify(store).findings) == []
        for cut in (1_228_799, 1_228_800, 1_228_848, 1_228_849):
            rows = store.read_log(cut, None, columns=columns).read_all()
            assert rows.num_rows == sum(at >= cut for at, _ in places)


# --- more than one file, crashed ends -------------------------------------------------------------


def relaid(golden: GoldenStore, file_size: int, **how: Any) -> tuple[Path, Log, list[bytes]]:
    """The entries of the golden store in small files; its queues and index, which lead elsewhere, go."""
    root = Path(golden.path)
    bodies = [entry.body for entry in entries_of(data_of(golden))]
    (root / "dledger-n0").rename(root.parent / "before")
    for part in ("consumequeue", "index"):
        (root / part).rename(root.parent / part)
    (root / "consumequeue").mkdir()
    log = Log(root / "dledger-n0", file_size, **how)
    return root, log, bodies


def rows_of(root: Path) -> list[tuple[int, int]]:
    with MessageStore.open(root) as store:
        table = store.read_batches(
            columns=["commitLogOffset", "storeSize"], include_system_topics=True
        ).read_all()
        return sorted(zip(*table.to_pydict().values(), strict=True))


def test_a_log_of_many_files_with_other_entries_and_terms(golden: GoldenStore) -> None:
    root, log, bodies = relaid(golden, 1 << 17)
    places, index, term = [], 0, 0
    for number, body in enumerate(bodies):
        if number % 100 == 50:  # a leader of a new term
            term += 2
            log.add(index, term, b"", magic=2)
            index += 1
        places.append((log.add(index, term, body) + HEAD.size, len(body)))
        index += 1
    log.close()
    assert len(list((log.folder / "data").iterdir())) == 4
    assert rows_of(root) == places
    assert about_the_log(root) == set()


def test_a_log_that_begins_inside_of_a_file(golden: GoldenStore) -> None:
    """What a member gives up before its first entry is a blank (MmapFileList#resetOffset)."""
    root, log, bodies = relaid(golden, 1 << 17)
    log._write(struct.pack(">ii", -1, 5000))
    log.at = 5000
    places = [(log.add(9 + n, 3, body) + HEAD.size, len(body)) for n, body in enumerate(bodies)]
    log.close()
    assert rows_of(root) == places
    assert about_the_log(root) == set()


@pytest.mark.parametrize("kept", [0, 1, 8, 47, 48, 60, 100, 140])
def test_half_an_entry_at_the_end_is_no_message(golden: GoldenStore, kept: int) -> None:
    root, log, bodies = relaid(golden, 1 << 20)
    places = [(log.add(n, 0, body) + HEAD.size, len(body)) for n, body in enumerate(bodies)]
    log.close()
    (root / "abort").touch()
    place, _ = places.pop()
    (path,) = (log.folder / "data").iterdir()
    start = place - HEAD.size + kept
    write_at(path, start, bytes(path.stat().st_size - start))
    assert rows_of(root) == places
    with MessageStore.open(root) as store:
        assert store.log_range()[1] == place - HEAD.size
    said = about_the_log(root)
    assert said <= {"log-torn-tail", "log-stale-bytes", "dledger-index-ahead"}
    assert (said & {"log-torn-tail", "log-stale-bytes"} != set()) == (kept > 1)


def test_entries_that_a_later_leader_had_cut_off_are_no_messages(golden: GoldenStore) -> None:
    root, log, bodies = relaid(golden, 1 << 20)
    places = []
    # Entries of one size, so that those that were cut off begin where one that was written later ends.
    body = max(bodies[:50], key=len)
    for number in range(20):
        stored = bytearray(body)
        struct.pack_into(">q", stored, 20, number)
        places.append((log.add(number, 1, bytes(stored)) + HEAD.size, len(body)))
    log.cut(places[12][0] - HEAD.size)
    newer = bytearray(body)
    struct.pack_into(">q", newer, 20, 12)
    (stamp,) = struct.unpack_from(">q", body, 56)
    struct.pack_into(">q", newer, 56, stamp + 5)
    log.add(12, 2, bytes(newer))
    log.close()
    assert rows_of(root) == places[:13]


def test_a_damaged_head_hides_no_record(golden: GoldenStore) -> None:
    (path,) = data_of(golden).iterdir()
    place = [entry.place for entry in entries_of(data_of(golden))][300]
    hurt = {"head": (0, 5, 31, 47), "order": (10, 15, 17, 23), "unused": (36, 40)}
    for what, at in ((what, at) for what, places in hurt.items() for at in places):
        flip(path, place + at)
        with opened(golden) as store:
            assert store.read_log(columns=["flag"]).read_all().num_rows == 760
            codes = {finding.code for finding in verify(store).findings}
        assert f"dledger-entry-{what}" in codes
        flip(path, place + at)


def test_verify_compares_the_index_of_the_dledger_log(golden: GoldenStore) -> None:
    index = Path(golden.path, "dledger-n0", "index", "0" * 20)
    write_at(index, 32 * 100 + 6, b"\x01")
    write_at(index, 32 * 200, bytes(64))
    write_at(index, 32 * 760, struct.pack(">iqiqq", 1, 488_549, 200, 760, 0))
    with opened(golden) as store:
        found = [(one.code, one.start, one.count) for one in verify(store).findings]
    assert found == [
        ("dledger-index", 3200, 1),
        ("dledger-index", 6400, 2),
        ("dledger-index-ahead", None, 1),
    ]


@pytest.mark.parametrize("closed", [True, False])
def test_an_index_ahead_of_its_log_is_normal_after_a_crash_alone(
    golden: GoldenStore, closed: bool
) -> None:
    index = Path(golden.path, "dledger-n0", "index", "0" * 20)
    write_at(index, 32 * 760, struct.pack(">iqiqq", 1, 488_549, 200, 760, 0))
    if not closed:
        Path(golden.path, "abort").touch()
    with opened(golden) as store:
        (ahead,) = (one for one in verify(store).findings if one.code == "dledger-index-ahead")
    assert ahead.severity is (Severity.WARNING if closed else Severity.NOTE)


# --- several members ------------------------------------------------------------------------------


def test_the_member_that_is_furthest_is_read_unless_another_is_asked_for(
    golden: GoldenStore,
) -> None:
    root = Path(golden.path)
    (root / "checkpoint").unlink()  # it is of one member
    entries = list(entries_of(data_of(golden)))
    for name, count, term in (("n1", 500, 0), ("n2", 400, 1)):
        log = Log(root / f"dledger-{name}", 1 << 20)
        for entry in entries[:count]:
            log.add(entry.number, term, entry.body)
        log.close()
    said = dict(summary_of(store_info(root)))["DLedger log"]
    assert said == (
        "dledger-n2 (up to entry 399 of term 1); not read: dledger-n0 (up to entry 759 of term 0), "
        "dledger-n1 (up to entry 499 of term 0)"
    )
    for asked, count in ((None, 400), ("n0", 760), ("n1", 500), ("n2", 400)):
        config = None if asked is None else {"dLegerSelfId": asked}
        with MessageStore.open(root, config=config, queues=False) as store:
            assert store.read_log(columns=["flag"]).read_all().num_rows == count
    with pytest.raises(MissingFileError, match="dLegerSelfId=n7"):
        MessageStore.open(root, config={"dLegerSelfId": "n7"})


def test_a_log_that_lies_elsewhere_is_read_there(golden: GoldenStore) -> None:
    elsewhere = Path(golden.path).parent / "other-disk"
    data_of(golden).rename(elsewhere)
    with pytest.raises(UnsupportedStoreError, match="not here"):
        MessageStore.open(golden.path)
    config = {"storePathDLedgerCommitLog": str(elsewhere)}
    with MessageStore.open(golden.path, config=config) as store:
        assert store.read_log(columns=["flag"]).read_all().num_rows == 760
        assert verify(store).nothing_wrong


def test_two_logs_that_overlap_are_refused(golden: GoldenStore) -> None:
    log = Path(golden.path, "commitlog")
    log.mkdir()
    first = next(entries_of(data_of(golden))).body
    (log / f"{0:020d}").write_bytes(record_at(first, 0).ljust(1 << 20, b"\0"))
    with pytest.raises(StoreError, match="belongs to another store"):
        MessageStore.open(golden.path)


def test_zeros_before_a_damaged_record_are_one_piece_of_damage(golden: GoldenStore) -> None:
    (path,) = data_of(golden).iterdir()
    entry = list(entries_of(data_of(golden)))[300]
    write_at(path, entry.place, bytes(HEAD.size))
    flip(path, entry.place + HEAD.size + 90)  # in the body
    damage: list[StoreError] = []
    with opened(golden) as store:
        rows = store.read_log(columns=["flag"], on_damage=damage.append).read_all()
        assert (rows.num_rows, [error.offset for error in damage]) == (759, [entry.place])
        codes = [finding.code for finding in verify(store).findings]
    assert "log-damaged" in codes


def test_a_store_that_grows_is_followed(golden: GoldenStore) -> None:
    """A member appends; a follower comes to the end of the last whole entry each time."""
    root, log, bodies = relaid(golden, 1 << 17)
    (root / "abort").touch()  # its broker runs
    follower, place, seen = LogEndFinder(lambda: 0), LogPlace(0), 0
    for first in range(0, 700, 100):
        for number in range(first, first + 100):
            log.add(number, 0, bodies[number])
        with MessageStore.open(root, queues=False) as store:
            end = follower.end_after(store.log, place, str(root))
            assert end == log.at
            seen += store.read_log(place.offset, end, columns=["flag"]).read_all().num_rows
            assert seen == first + 100
            place = LogPlace.at(store.log, end)


@pytest.mark.parametrize("lost", ["end", "start", "middle"])
def test_messages_that_their_queue_has_lost_are_reported(golden: GoldenStore, lost: str) -> None:
    queue = Path(golden.path, "consumequeue", "payments", "0", "0" * 20)
    raw = queue.read_bytes()
    used = [at for at in range(0, len(raw), 20) if int.from_bytes(raw[at + 8 : at + 12], "big")]
    gone = {"end": used[-3:], "start": used[:3], "middle": used[50:53]}[lost]
    for at in gone:
        write_at(queue, at, bytes(20))
    damage: list[StoreError] = []
    with opened(golden) as store:
        rows = store.read_batches(
            ["payments"], columns=["queueOffset", "queueId"], on_damage=damage.append
        ).read_all()
        codes = {finding.code for finding in verify(store).findings}
    found = [row["queueOffset"] for row in rows.to_pylist() if row["queueId"] == 0]
    assert found == [at // 20 for at in used if at not in gone]
    assert bool(damage) == (lost == "middle")
    assert "queue-misses-record" in codes


def test_nothing_is_missing_in_a_range_of_the_log(golden: GoldenStore) -> None:
    """A selection of all messages between two places is held against every byte of the log there."""
    lines = [line for line in golden.lines("served") if line["topic"] in ("orders", "payments")]
    times = sorted(line["storeTs"] for line in lines)
    since, until = times[100], times[300]
    wanted = {line["phy"] for line in lines if since <= line["storeTs"] < until}
    damage: list[StoreError] = []
    with opened(golden) as store:
        queues = [queue for queue in store.queues() if queue.topic in ("orders", "payments")]
        parts = [
            QueueSlice(queue, store.first_since(queue, since), store.first_since(queue, until))
            for queue in queues
        ]
        rows = store.read_slices(
            parts, columns=["commitLogOffset"], on_damage=damage.append
        ).read_all()
    assert set(rows.column(0).to_pylist()) == wanted
    assert damage == []
