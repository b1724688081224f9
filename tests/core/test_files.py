"""Files that vanish, shrink, lie elsewhere or are of another kind: named errors, and no file touched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Gap, MessageStore, StoreError
from rmq_store.config import read_consumer_offsets, read_topic_configs
from rmq_store.errors import (
    AccessError,
    BodyError,
    CorruptConfigError,
    CorruptRecordError,
    IndexGeometryError,
    InvalidArgumentError,
    MissingFileError,
    NotAStoreError,
    ReadOnlyStoreError,
    TruncatedFileError,
    UnknownQueueError,
    UnsupportedStoreError,
)
from rmq_store.files import SegmentFile, infer_file_size
from rmq_store.layout import segment_name
from tests.support.golden import GoldenStore, in_a_queue, unpack

CHECKOUT = Path(__file__).parents[2]


def offsets(store: MessageStore, **how: Any) -> list[int]:
    """CommitLog offsets of all messages in queues."""
    batches = store.read_batches(
        columns=["commitLogOffset", "flag"], include_system_topics=True, **how
    )
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def wanted(golden: GoldenStore) -> list[int]:
    return [record["commitLogOffset"] for record in golden.truth if in_a_queue(record)]


def log_files(golden: GoldenStore) -> list[Path]:
    return sorted(Path(golden.path, "commitlog").iterdir())


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
    done = subprocess.run(
        [sys.executable, "-c", READ_WHILE, golden.path, names, verb],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"died of {done.returncode}: {done.stderr}"
    first, second = done.stdout.splitlines()
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
    assert kind == "TruncatedFileError"
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
    assert kind in ("TruncatedFileError", "MissingFileError") or int(rest) == everything


@pytest.mark.parametrize("verb", ["scan", "get_message", "query_message", "message_at"])
def test_every_other_read_of_a_cut_log_is_our_error_too(tmp_path: Path, verb: str) -> None:
    golden = unpack("geometry-5.5.0", tmp_path)
    record = next(r for r in golden.truth if r["keys"] and in_a_queue(r))
    code = f"""
import os
from rmq_store import MessageStore
from rmq_store.errors import TruncatedFileError
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
except TruncatedFileError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"died of {done.returncode}: {done.stderr}"
    assert "RMQSTORE_TRUNCATED_FILE" in done.stdout


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
    with golden.open() as store:
        extents = list(store.scan())
        assert extents[-1].gap is Gap.TORN
        assert offsets(store) == [offset for offset in whole if offset < extents[-1].start]
        assert store.log_range()[1] == extents[-1].start


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


def test_a_store_without_queues_is_read_from_its_log(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    for name in ("consumequeue", "index", "checkpoint", "config"):
        path = Path(golden.path, name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with golden.open() as store:
        assert offsets(store) == wanted(golden)
        assert store.consumer_offsets() == {}
        record = next(record for record in golden.truth if record["keys"])
        found = store.query_message(record["topic"], record["keys"].split(" ")[0])
        assert record["commitLogOffset"] in [message.commit_log_offset for message in found]


def test_a_queue_that_a_torn_log_ends_before_does_not_count(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    last = golden.truth[-1]
    for path in log_files(golden):
        if int(path.name) <= last["commitLogOffset"] < int(path.name) + path.stat().st_size:
            raw = bytearray(path.read_bytes())
            at = last["commitLogOffset"] - int(path.name)
            raw[at + 50 :] = bytes(len(raw) - at - 50)  # the record was half written
            path.write_bytes(raw)
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
    ],
)
def test_the_file_size_is_told_by_sizes_and_names(files: list[tuple[int, int]], size: int) -> None:
    assert infer_file_size([SegmentFile("x", base, length) for base, length in files]) == size


def test_names_that_cannot_be_are_passed_over(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    first = log_files(golden)[0]
    for name in ("9" * 20, "00000000000000000007", "1", "x" * 20, segment_name(10) + ".bak"):
        shutil.copy(first, first.with_name(name))
    with golden.open() as store:
        assert offsets(store) == wanted(golden)


@pytest.mark.parametrize("name", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_a_size_that_the_files_do_not_have_is_refused(
    golden: Callable[[str], GoldenStore], name: str
) -> None:
    store = golden("geometry-5.5.0")
    with pytest.raises(InvalidArgumentError, match=f"larger than {name}"):
        store.open(config={name: 100})
    with pytest.raises(InvalidArgumentError, match=f"smaller than {name}"):
        store.open(config={name: 1 << 30})


# --- is it a store? --------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["commitlog", "consumequeue", "index", "config", "checkpoint"])
def test_one_level_too_deep_names_the_store(
    golden: Callable[[str], GoldenStore], inside: str
) -> None:
    store = golden("clean-5.3.3").path
    with pytest.raises(NotAStoreError) as caught:
        MessageStore.open(os.path.join(store, inside))
    assert caught.value.advice == f"Did you mean {store}?"


@pytest.mark.parametrize("levels", [1, 2])
def test_levels_too_high_name_the_store(tmp_path: Path, levels: int) -> None:
    golden = unpack("crc-5.5.0", tmp_path / "a")
    with pytest.raises(NotAStoreError) as caught:
        MessageStore.open(Path(golden.path).parents[levels - 1])
    assert caught.value.advice == f"Did you mean {golden.path}?"


def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    with pytest.raises(NotAStoreError, match="no such folder") as caught:
        MessageStore.open(f"{golden.path}s")
    assert caught.value.advice == f"Did you mean {golden.path}?"
    with pytest.raises(NotAStoreError):
        MessageStore.open(tmp_path / "nothing" / "at" / "all")


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("dledger-n0/data/00000000000000000000", "DLedger"),
        ("commitlog/x", None),
        ("tieredstore/broker/x", "tiered"),
    ],
)
def test_other_kinds_of_store_are_refused_by_name(
    tmp_path: Path, mark: str, words: str | None
) -> None:
    path = tmp_path / mark
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    if words is None:
        with MessageStore.open(tmp_path) as store:
            assert (store.topics(), list(store.scan())) == ([], [])
        return
    with pytest.raises(UnsupportedStoreError, match=words):
        MessageStore.open(tmp_path)


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_rocksdb"])
def test_queues_in_rocksdb_are_refused_and_never_read_as_empty(tmp_path: Path, folder: str) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    mark = Path(golden.path, folder, "CURRENT")
    mark.parent.mkdir(exist_ok=True)
    mark.write_text("MANIFEST-000004\n")
    with pytest.raises(UnsupportedStoreError, match="RocksDB") as caught:
        golden.open()
    assert caught.value.path == str(mark.parent)


# --- names and geometry ----------------------------------------------------------------------------


def test_unknown_names_are_refused_with_the_nearest(golden: Callable[[str], GoldenStore]) -> None:
    store = golden("crc-5.5.0")
    with pytest.raises(InvalidArgumentError, match="Did you mean 'mappedFileSizeCommitLog'"):
        store.open(config={"mapedFileSizeComitLog": 1})
    with store.open() as opened:
        with pytest.raises(InvalidArgumentError, match="Did you mean 'queueOffset'"):
            list(opened.read_batches(columns=["queueOfset"]))
        with pytest.raises(InvalidArgumentError, match="named twice"):
            list(opened.read_batches(columns=["topic", "topic"]))
        topic = opened.topics(include_system=False)[0]
        with pytest.raises(UnknownQueueError, match=f"Did you mean '{topic}'"):
            opened.max_offset(f"{topic}x", 0)
        with pytest.raises(UnknownQueueError, match=f"Did you mean '{topic}'"):
            list(opened.read_batches(f"{topic}x"))
        with pytest.raises(InvalidArgumentError, match="Did you mean 'LOWER'"):
            opened.offset_by_time(topic, 0, 0, "LOWR")


@pytest.mark.parametrize(
    "wrong", [{"maxHashSlotNum": 8}, {"maxIndexNum": 14}, {"maxHashSlotNum": 2}]
)
def test_a_wrong_index_geometry_is_refused(
    golden: Callable[[str], GoldenStore], wrong: dict[str, int]
) -> None:
    store = golden("geometry-5.5.0")
    record = next(record for record in store.truth if record["keys"])
    with store.open(config=wrong) as opened, pytest.raises(IndexGeometryError):
        opened.query_message(record["topic"], record["keys"])
    right = {"maxHashSlotNum": 7, "maxIndexNum": 13}
    with store.open(config=right) as opened:
        assert opened.query_message(record["topic"], record["keys"].split(" ")[0])


def test_a_geometry_of_the_same_file_size_is_refused_too(
    golden: Callable[[str], GoldenStore],
) -> None:
    # Five slots take the place of one item: 7 + 5 slots and 13 - 1 items make the same size.
    store = golden("geometry-5.5.0")
    record = next(record for record in store.truth if record["keys"])
    shifted = {"maxHashSlotNum": 12, "maxIndexNum": 12}
    with store.open(config=shifted) as opened, pytest.raises(IndexGeometryError):
        opened.query_message(record["topic"], record["keys"])


# --- config/ ---------------------------------------------------------------------------------------

FASTJSON_1 = (
    '{\n\t"offsetTable":{\n\t\t"T@g":{0:25,1:26\n\t\t},\n\t\t"%RETRY%g@g":{0:3\n\t\t}\n\t}\n}'
)
FASTJSON_2 = (
    '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:25,\n\t\t\t1:26\n\t\t},'
    '\n\t\t"%RETRY%g@g":{\n\t\t\t0:3\n\t\t}\n\t}\n}'
)
COMMITTED = {"g": {"T": {0: 25, 1: 26}, "%RETRY%g": {0: 3}}}


def put_config(store: Path, **files: str) -> None:
    (store / "config").mkdir(exist_ok=True)
    for name, text in files.items():
        (store / "config" / name.replace("_", ".")).write_text(text, "utf-8")


@pytest.mark.parametrize("text", [FASTJSON_1, FASTJSON_2], ids=["fastjson", "fastjson2"])
def test_integer_keys_without_quotes_are_read_in_both_layouts(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)  # the standard parser does not take it
    put_config(tmp_path, consumerOffset_json=text)
    assert read_consumer_offsets(tmp_path) == COMMITTED


def test_digits_and_braces_inside_strings_are_left_alone(tmp_path: Path) -> None:
    attributes = {"x": ',5:"{6:', "y": "\\"}
    config = {"topicConfigTable": {"a": {"topicName": "{1:2,3:4}", "attributes": attributes}}}
    tricky = json.dumps(config, separators=(",", ":"))
    put_config(tmp_path, topics_json=tricky)
    settings = read_topic_configs(tmp_path)["a"]
    assert settings == {"topicName": "{1:2,3:4}", "attributes": attributes}


@pytest.mark.parametrize("broken", [None, "", "{", '{"offsetTable":{"T@g":{0:2'])
def test_the_bak_is_read_where_a_config_file_is_missing_empty_or_cut(
    tmp_path: Path, broken: str | None
) -> None:
    put_config(tmp_path, consumerOffset_json_bak=FASTJSON_1)
    if broken is not None:
        put_config(tmp_path, consumerOffset_json=broken)
    assert read_consumer_offsets(tmp_path) == COMMITTED


def test_config_files_that_are_all_broken_are_our_error(tmp_path: Path) -> None:
    put_config(tmp_path, consumerOffset_json="{", consumerOffset_json_bak="")
    with pytest.raises(CorruptConfigError) as caught:
        read_consumer_offsets(tmp_path)
    assert caught.value.path == str(tmp_path / "config" / "consumerOffset.json")


def test_lmq_offsets_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    text = '{"lmqOffsetTable":{"%LMQ%device@g":7},"offsetTable":{"T@g":{0:25,1:26}}}'
    put_config(tmp_path, lmqConsumerOffset_json=text)
    assert read_consumer_offsets(tmp_path) == {"g": {"T": {0: 25, 1: 26}, "%LMQ%device": {0: 7}}}


# --- nothing is written ----------------------------------------------------------------------------

WATCH = """
import os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.chmod",
           "os.link", "os.symlink", "shutil.rmtree"}
opened = []

def watch(event, args):
    if event == "open":
        path, mode, flags = args
        if str(path).startswith(STORE):
            opened.append(path)
            assert not (flags or 0) & WRITES, (path, mode, flags)
    elif event in CHANGES and str(args[0]).startswith(STORE):
        raise AssertionError((event, args))

STORE = sys.argv[1]
from rmq_store import MessageStore
sys.addaudithook(watch)
with MessageStore.open(STORE) as store:
    list(store.scan())
    rows = sum(batch.num_rows for batch in store.read_batches(include_system_topics=True))
    for queue in store.queues():
        store.get_message(*queue, store.min_offset(*queue))
        store.get_message(*queue, store.min_offset(*queue), as_broker=True)
        store.offset_by_time(*queue, 0)
        store.query_message(queue.topic, "key")
    store.consumer_offsets()
    store.messages_by_id("0" * 32)
print(rows, len(opened))
"""


def test_no_file_is_opened_with_a_write_flag(golden: Callable[[str], GoldenStore]) -> None:
    store = golden("clean-5.3.3")
    done = subprocess.run(
        [sys.executable, "-c", WATCH, store.path],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, opened = map(int, done.stdout.split())
    assert rows == len(wanted(store))
    assert opened > 20


# Root may read and write everything, so a mode of 0 refuses it nothing.
@pytest.mark.skipif(os.geteuid() == 0, reason="run by root, whom no mode keeps out")
def test_a_folder_that_may_not_be_read_is_our_error(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    folder = Path(golden.path, "commitlog")
    folder.chmod(0)
    try:
        with pytest.raises(AccessError):
            golden.open()
    finally:
        folder.chmod(0o755)


def test_a_store_in_a_read_only_folder_is_read(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    folders = [path for path in Path(golden.path).rglob("*") if path.is_dir()]
    for folder in [*folders, Path(golden.path)]:
        folder.chmod(0o555)
    try:
        with golden.open() as store:
            assert offsets(store) == wanted(golden)
    finally:
        for folder in [Path(golden.path), *folders]:
            folder.chmod(0o755)


def test_a_closed_store_says_so(golden: Callable[[str], GoldenStore]) -> None:
    store = golden("crc-5.5.0").open()
    store.close()
    store.close()
    for read in (store.scan, lambda: store.message_at(0), lambda: store.get_message("a", 0, 0)):
        with pytest.raises(ReadOnlyStoreError, match="closed"):
            read()
    with pytest.raises(TypeError, match="not picklable"):
        pickle.dumps(store)


# --- errors ----------------------------------------------------------------------------------------


def kinds_of(error: type[StoreError]) -> list[type[StoreError]]:
    below = error.__subclasses__()
    return below + [kind for one in below for kind in kinds_of(one)]


@pytest.mark.parametrize("kind", [StoreError, *kinds_of(StoreError)])
def test_errors_say_where_what_and_what_to_do_and_survive_pickling(kind: type[StoreError]) -> None:
    error = kind(
        Path("/a/store"), reason="bodyCRC", offset=1234, expected=17, actual=18, advice="Look there"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    for part in ("/a/store", "bodyCRC", "1234", "17", "18", "Look there", kind.code):
        assert part in str(error)
    assert error.path == "/a/store"


def test_every_kind_of_error_has_a_code_of_its_own() -> None:
    kinds: list[type[StoreError]] = [StoreError, *kinds_of(StoreError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.code.startswith("RMQSTORE_") for kind in kinds)


def test_damage_is_reported_with_its_place_and_both_sides(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    record = next(r for r in golden.truth if r["body"] and in_a_queue(r) and not r["sysFlag"])
    path = next(p for p in reversed(log_files(golden)) if int(p.name) <= record["commitLogOffset"])
    raw = bytearray(path.read_bytes())
    raw[record["commitLogOffset"] - int(path.name) + 88] ^= 1  # the first byte of the body
    path.write_bytes(raw)
    with golden.open() as store:
        with pytest.raises(CorruptRecordError, match="bodyCRC") as caught:
            store.message_at(record["commitLogOffset"])
        error = caught.value
        assert (error.path, error.offset) == (str(path), record["commitLogOffset"])
        assert error.expected == record["bodyCrc"] != error.actual
        with pytest.raises(CorruptRecordError, match="bodyCRC"):
            offsets(store, topics=record["topic"])
        damage: list[StoreError] = []
        found = [
            row
            for batch in store.read_batches(
                record["topic"], columns=["commitLogOffset", "body"], on_damage=damage.append
            )
            for row in batch.column(0).to_pylist()
        ]
        assert [error.offset for error in damage] == [record["commitLogOffset"]]
        assert record["commitLogOffset"] not in found


def test_a_body_that_does_not_open_is_damage_like_any_other(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    record = next(r for r in golden.truth if r["body"] and in_a_queue(r) and not r["sysFlag"])
    path = next(p for p in reversed(log_files(golden)) if int(p.name) <= record["commitLogOffset"])
    raw = bytearray(path.read_bytes())
    raw[record["commitLogOffset"] - int(path.name) + 39] |= 1  # sysFlag: compressed
    path.write_bytes(raw)
    with golden.open() as store:
        with pytest.raises(BodyError):
            list(store.read_batches(record["topic"]))
        damage: list[StoreError] = []
        batches = list(store.read_batches(record["topic"], on_damage=damage.append))
        found = [at for batch in batches for at in batch.column("commitLogOffset").to_pylist()]
        assert [(type(error), error.offset) for error in damage] == [
            (BodyError, record["commitLogOffset"])
        ]
        others = [r for r in golden.truth if r["topic"] == record["topic"] and in_a_queue(r)]
        assert len(found) == len(others) - 1
        raw_rows = store.read_batches(record["topic"], columns=["rawBody"])
        assert sum(batch.num_rows for batch in raw_rows) == len(others)


def test_a_bomb_in_a_body_is_stopped(golden: Callable[[str], GoldenStore]) -> None:
    store = golden("clean-5.3.3")
    packed = max(
        (r for r in store.truth if r["sysFlag"] & 1 and in_a_queue(r)),
        key=lambda r: len(r["bodyDecompressed"]),
    )
    with store.open() as opened, pytest.raises(BodyError, match="grows over the limit"):
        list(opened.read_batches(packed["topic"], max_body_bytes=100))


def test_a_file_cut_before_it_is_mapped_is_our_error(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    with golden.open() as store:
        store.close()
    store = golden.open()
    last = log_files(golden)[0]
    store._log.chain.close()
    os.truncate(last, 100)
    with pytest.raises(TruncatedFileError, match="was cut while") as caught:
        store.message_at(0)
    assert (caught.value.path, caught.value.offset) == (str(last), 100)
