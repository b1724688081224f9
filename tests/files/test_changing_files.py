"""Files that vanish, shrink or are missing while they are read or before: named errors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmq_store import Gap, StoreError
from rmq_store.admin.info import store_info
from rmq_store.errors import InvalidArgumentError, MissingFileError
from rmq_store.files.segments import SegmentFile, infer_file_size
from rmq_store.format.byte_layout import segment_name
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, in_a_queue, log_files, offsets, unpack, wanted
from tests.support.running.child import python

# --- a file changes while it is read ---------------------------------------------------------------

READ_WHILE = """
import os, sys
from rmq_store import MessageStore
from rmq_store.errors import StoreError

store_path, victims, verb = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
with MessageStore.open(store_path) as store:
    batches = store.read_batches(include_system_topics=True, batch_rows=20)
    print(next(batches).num_rows, flush=True)
    for victim in victims:
        if verb == "delete":
            os.unlink(victim)
        else:
            os.truncate(victim, int(verb))
    try:
        rest = sum(batch.num_rows for batch in batches)
    except StoreError as error:
        print(type(error).__name__, error.path)
    else:
        print("read", rest)
"""


def read_while(golden: GoldenStore, victims: list[Path], verb: str) -> tuple[str, str]:
    """Read one batch in a process of its own, do `verb` to files, read on; what came of it."""
    names = ",".join(map(str, victims))
    first, second = python(READ_WHILE, golden.path, names, verb).splitlines()
    assert first == "20"
    kind, _, rest = second.partition(" ")
    return kind, rest


@pytest.mark.parametrize("size", ["0", "1", "4097", "60000"])
def test_a_log_cut_between_two_batches_is_our_error_and_kills_nobody(
    tmp_path: Path, size: str
) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    victims = log_files(golden)
    kind, path = read_while(golden, victims, size)
    assert kind == "DataLossError"
    assert path in map(str, victims)


def test_a_log_file_deleted_between_two_batches_is_our_error(tmp_path: Path) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    victims = log_files(golden)[1:]
    kind, path = read_while(golden, victims, "delete")
    assert kind == "MissingFileError"
    assert path in map(str, victims)


@pytest.mark.parametrize("verb", ["delete", "0", "33"])
def test_queue_files_that_go_between_two_batches_are_our_error_or_were_read_before(
    tmp_path: Path, verb: str
) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    victims = sorted(Path(golden.path, "consumequeue").glob("*/*/*"))
    kind, rest = read_while(golden, victims, verb)
    everything = len(wanted(golden)) - 20
    assert kind in ("DataLossError", "MissingFileError") or int(rest) == everything


@pytest.mark.parametrize("verb", ["scan", "get_message", "query_message", "message_at"])
def test_every_other_read_of_a_cut_log_is_our_error_too(tmp_path: Path, verb: str) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    record = next(r for r in golden.truth if r["keys"] and in_a_queue(r))
    code = f"""
import os
from rmq_store import MessageStore
from rmq_store.errors import DataLossError
store = MessageStore.open({golden.path!r})
reads = {{
    "scan": lambda: list(store.scan()),
    "get_message": lambda: store.get_message({record["topic"]!r}, {record["queueId"]}, 0),
    "query_message": lambda: store.query_message({record["topic"]!r}, {record["keys"].split()[0]!r}),
    "message_at": lambda: store.message_at({record["commitLogOffset"]}),
}}
assert reads[{verb!r}]()
for victim in {list(map(str, log_files(golden)))!r}:
    os.truncate(victim, 0)
try:
    reads[{verb!r}]()
except DataLossError as error:
    print(error)
"""
    assert "RMQSTORE_DATA_LOSS" in python(code)


# --- copies that are not whole ---------------------------------------------------------------------


def test_a_last_log_file_cut_short_reads_as_if_zeros_followed(tmp_path: Path) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    with golden.open() as store:
        end, whole = store.log_range()[1], offsets(store)
    last = log_files(golden)[-1]
    os.truncate(last, end - int(last.name))
    with golden.open() as store:
        assert store.log_range()[1] == end
        assert offsets(store) == whole == wanted(golden)
        assert next(store.scan(end)).gap is Gap.UNWRITTEN
    os.truncate(last, end - int(last.name) - 1)
    with golden.open() as store, pytest.raises(StoreError):
        offsets(store)  # it was closed, so the last message is lost
    Path(golden.path, "abort").touch()
    with golden.open() as store:
        extents = list(store.scan())
        assert extents[-1].gap is Gap.TORN
        assert offsets(store) == [offset for offset in whole if offset < extents[-1].start]
        assert store.log_range()[1] == extents[-1].start


def test_info_of_a_last_file_cut_inside_a_record_ends_before_it(copy: GoldenStore) -> None:
    whole = [r for r in copy.truth if r["commitLogOffset"] >= 3 * 262144]
    cut = whole[len(whole) // 2]
    last = next(p for p in log_files(copy) if int(p.name) == 3 * 262144)
    os.truncate(last, cut["commitLogOffset"] + 24 - int(last.name))
    for path in log_files(copy):
        if int(path.name) > int(last.name):
            path.unlink()
    reported = store_info(copy.path)
    assert reported.logEnd == cut["commitLogOffset"]
    before = max(r["storeTimestamp"] for r in copy.truth if r["commitLogOffset"] < reported.logEnd)
    assert reported.lastStoreTimestamp == before


def test_front_files_missing_raise_the_min_offset(tmp_path: Path) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    for path in log_files(golden)[:2]:
        path.unlink()
    start = int(log_files(golden)[0].name)
    with golden.open() as store:
        assert store.log_range()[0] == start
        assert offsets(store) == [offset for offset in wanted(golden) if offset >= start]
        for queue in store.queues():
            low = store.min_offset(*queue)
            got = store.get_message(*queue, low, 10**6).messages
            truth = golden.by_queue.get(queue, [])
            assert [message.commit_log_offset for message in got] == [
                record["commitLogOffset"] for record in truth if record["commitLogOffset"] >= start
            ]
        with pytest.raises(MissingFileError):
            store.message_at(0)


def test_a_hole_in_the_log_is_named(tmp_path: Path) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    gone = log_files(golden)[1]
    base = int(gone.name)
    gone.unlink()
    with golden.open() as store:
        missing = [extent for extent in store.scan() if extent.gap is Gap.MISSING]
        assert [extent.start for extent in missing] == [base]
        damage: list[StoreError] = []
        found = offsets(store, on_damage=damage.append)
        lost = set(wanted(golden)) - set(found)
        assert len(damage) == len(lost) > 0
        assert {type(error) for error in damage} == {MissingFileError}
        with pytest.raises(MissingFileError):
            offsets(store)


def test_a_queue_that_a_torn_log_ends_before_does_not_count(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    last = golden.truth[-1]
    for path in log_files(golden):
        if int(path.name) <= last["commitLogOffset"] < int(path.name) + path.stat().st_size:
            at = last["commitLogOffset"] - int(path.name) + 50  # the record was half written
            write_at(path, at, bytes(path.stat().st_size - at))
    with golden.open() as store, pytest.raises(StoreError):
        offsets(store)  # it was closed, so the last message is lost
    Path(golden.path, "abort").touch()
    with golden.open() as store:
        assert offsets(store) == wanted(golden)[:-1]
        assert store.log_range()[1] == last["commitLogOffset"]


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ([], 0),
        ([(0, 100)], 100),
        ([(0, 100), (100, 100)], 100),
        ([(0, 100), (100, 30)], 100),
        ([(500, 100), (600, 30)], 100),
        ([(500, 30)], 30),
        ([(0, 30), (100, 20)], 100),
        ([(0, 100), (100, 20), (300, 100)], 100),
        ([(0, 100), (50, 100)], 100),
        ([(0, 100), (2**62 + 1, 100)], 100),
        ([(0, 30), (100, 20), (200, 20)], 100),
        ([(0, 100), (100, 2**31 - 1)], 100),
        ([(0, 100), (100, 100), (200, 2**31 - 1)], 100),
        ([(0, 100), (100, 2**31 - 1), (200, 100)], 100),
        ([(0, 2**31 - 1), (100, 100), (200, 30)], 100),
        ([(300, 100), (400, 30), (600, 101)], 100),
        ([(0, 100), (100, 100), (250, 100), (300, 100), (400, 30)], 100),
    ],
)
def test_the_file_size_follows_from_sizes_and_names(
    files: list[tuple[int, int]], size: int
) -> None:
    assert infer_file_size([SegmentFile("x", base, length) for base, length in files]) == size


def test_a_file_under_a_wrong_name_does_not_hide_the_one_behind_it(tmp_path: Path) -> None:
    golden = unpack("clean-5.3.3", tmp_path)
    files = log_files(golden)
    size = files[0].stat().st_size
    files[1].rename(files[1].with_name(segment_name(size + 7)))
    reported: list[StoreError] = []
    with golden.open() as store:
        found = offsets(store, on_damage=reported.append)
    assert found == [at for at in wanted(golden) if not size <= at < 2 * size]
    assert reported
    assert all(isinstance(error, MissingFileError) for error in reported)


def test_names_that_cannot_be_are_passed_over(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    first = log_files(golden)[0]
    for name in ("9" * 20, "00000000000000000007", "1", "x" * 20, segment_name(10) + ".bak"):
        shutil.copy(first, first.with_name(name))
    with golden.open() as store:
        assert offsets(store) == wanted(golden)


@pytest.mark.parametrize("name", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_a_size_that_the_files_do_not_have_is_refused(golden: Golden, name: str) -> None:
    store = golden("geometry-5.5.0")
    with pytest.raises(InvalidArgumentError, match=f"larger than {name}"):
        store.open(config={name: 100})
    with pytest.raises(InvalidArgumentError, match=f"smaller than {name}"):
        store.open(config={name: 1 << 30})
