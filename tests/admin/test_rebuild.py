"""rebuild: the bytes that a broker makes of the same log, in a new store; the source untouched."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.rebuild import STATE_FILE, RebuildReport, rebuild
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import AccessError, InvalidArgumentError, TargetExistsError, UndispatchedError
from rmq_store.format.compression import SysFlag
from rmq_store.verify import verify
from tests.support.damage import flip, flip_in_log, write_at, write_in_log
from tests.support.golden import (
    CLEAN,
    Golden,
    GoldenStore,
    files_below,
    in_a_queue,
    log_files,
    unpack,
)
from tests.support.golden import queues_of as queues_of_record
from tests.support.running.campaigns import few
from tests.support.running.child import killed

# Stores whose queues or index hold what dispatching the log once does not make: entries of deleted
# records (expired), addresses of a queue extension (ext), items of records indexed again after
# restarts (tsp).
UNLIKE = {"expired-5.5.0": ("queues", "index"), "ext-5.5.0": ("queues",), "tsp-5.5.0": ("index",)}


def settings_of(store: GoldenStore) -> dict[str, Any]:
    """The broker's own settings, without paths of its machine."""
    config = StoreConfig.read(store.conf)
    said = {field.name: getattr(config, field.name) for field in fields(config)}
    found = {k: v for k, v in said.items() if v is not None and not k.startswith("storePath")}
    return {**found, **store.log_folders}


def rebuilt(store: GoldenStore, target: Path, **how: Any) -> RebuildReport:
    release = store.name.rpartition("-")[2]
    return rebuild(store.path, target, release=release, config=settings_of(store), **how)


def queues_of(root: str | Path) -> dict[str, bytes]:
    return files_below(Path(root), "consumequeue", "batchconsumequeue")


def index_of(root: str | Path) -> list[bytes]:
    return list(files_below(Path(root), "index").values())


@pytest.mark.parametrize("log", ["copy", "link"])
@pytest.mark.parametrize("name", few("rebuilt", CLEAN, *UNLIKE, "clean-4.3.2", "clean-5.5.0"))
def test_queues_and_index_are_those_of_the_broker(
    golden: Golden, tmp_path: Path, name: str, log: str
) -> None:
    store = golden(name)
    before = store.fingerprint()
    report = rebuilt(store, tmp_path / "target", log=log)
    assert report.all_well
    assert store.fingerprint() == before
    if "queues" not in UNLIKE.get(name, ()):
        assert queues_of(tmp_path / "target") == queues_of(store.path)
    if "index" not in UNLIKE.get(name, ()):
        assert index_of(tmp_path / "target") == index_of(store.path)
    left = {path.name for path in (tmp_path / "target").iterdir()}
    assert not {STATE_FILE, "abort"} & left
    with MessageStore.open(tmp_path / "target") as target, store.open() as source:
        if name != "nommap-5.5.0":
            assert verify(target).nothing_wrong
        assert target.consumer_offsets() == source.consumer_offsets()
        for queue in target.queues():
            assert target.max_offset(*queue) == source.max_offset(*queue)


def test_records_of_a_store_without_anything_but_its_log_are_all_there(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    wanted = queues_of(store.path)
    for folder in ("consumequeue", "index", "config"):
        for path in sorted((Path(store.path) / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (Path(store.path) / "checkpoint").unlink()
    rebuilt(store, tmp_path / "target")
    assert queues_of(tmp_path / "target") == wanted
    topics = json.loads((tmp_path / "target/config/topics.json").read_text("utf-8"))
    users = {r["topic"] for r in store.truth if in_a_queue(r) and not r["topic"].isupper()}
    assert {"orders", "payments"} <= users
    assert {"orders", "payments"} <= set(topics["topicConfigTable"])


def test_queues_that_are_lost_altogether_are_refused_where_they_do_not_fit_into_memory(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.snapshot.undispatched_records.MOST_UNDISPATCHED", 500)
    store = unpack("clean-5.3.3", tmp_path)
    for folder in ("consumequeue", "batchconsumequeue"):
        for path in sorted((Path(store.path) / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(UndispatchedError, match="rmqstore rebuild"):
        store.open()
    rebuilt(store, tmp_path / "target")
    assert queues_of(tmp_path / "target") == queues_of(golden("clean-5.3.3").path)


def test_a_crashed_store_is_made_whole(golden: Golden, tmp_path: Path) -> None:
    store = golden("crash-5.3.3")
    rebuilt(store, tmp_path / "target")
    with MessageStore.open(tmp_path / "target") as target, store.open() as source:
        assert verify(target).nothing_wrong
        assert target.log_range() == source.log_range()
        for queue in source.queues():
            assert target.max_offset(*queue) == source.max_offset(*queue)


def test_damage_is_reported_and_the_records_after_it_are_dispatched(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    listed = [r for r in store.truth if r["sysFlag"] & SysFlag.TRANSACTION_MASK == 0]
    lost = next(r for r in listed if r["topic"] == "orders" and len(r["body"] or "") > 100)
    flip_in_log(store, lost["commitLogOffset"] + 95)
    file = log_files(store)[0]
    damaged = file.read_bytes()
    report = rebuilt(store, tmp_path / "target", log="link")
    assert [tuple(one) for one in report.recovery.damage] == [
        (lost["commitLogOffset"], lost["commitLogOffset"] + lost["storeSize"])
    ]
    assert not report.all_well
    assert file.read_bytes() == damaged
    json.dumps(report.to_dict())


@pytest.mark.parametrize("file", [0, -1])
def test_no_whole_record_behind_damage_is_dropped(tmp_path: Path, file: int) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    path = log_files(store)[file]
    inside = [r for r in store.truth if r["commitLogOffset"] >= int(path.name)]
    lost = inside[len(inside) // 3 if file else 100]
    write_in_log(store, lost["commitLogOffset"], bytes(lost["storeSize"]))
    report = rebuilt(store, tmp_path / "target")
    assert report.recovery.records == len(store.truth) - 1
    assert not report.all_well


def test_records_behind_many_lost_pages_are_not_left_out(tmp_path: Path) -> None:
    """Pages of the first 2 MiB of the last file did not reach the disk, later ones did."""
    size, lost = 4 << 20, 2 << 20
    with MessageStore.create(tmp_path / "s", config={"mappedFileSizeCommitLog": size}) as writer:
        for number in range(1600):
            writer.append({"topic": "t", "queueId": 0, "body": b"%04d" % number * 1000})
    (_, last) = sorted((tmp_path / "s" / "commitlog").iterdir())
    with MessageStore.open(tmp_path / "s") as store:
        places = store.read_batches(columns=["commitLogOffset"]).read_all().column(0).to_pylist()
    write_at(last, 0, bytes(lost))
    (tmp_path / "s" / "checkpoint").unlink()
    kept = [place for place in places if not size <= place < size + lost]
    report = rebuild(tmp_path / "s", tmp_path / "t")
    assert report.recovery.records == len(kept) < len(places)
    assert [start for start, _ in report.recovery.damage] == [size]
    assert not report.all_well
    with MessageStore.open(tmp_path / "t") as store:
        found = store.read_batches(columns=["commitLogOffset"], on_damage=lambda _: None).read_all()
    assert found.column(0).to_pylist() == kept


@pytest.mark.parametrize(
    ("name", "file", "set_back"),
    [("clean-5.5.0", -1, 0), ("clean-5.5.0", -1, 600_000), ("nommap-5.5.0", 0, 0)],
)
def test_a_file_that_begins_with_damage_is_not_left_out(
    tmp_path: Path, name: str, file: int, set_back: int
) -> None:
    """The last file, and the only one: no record stands at its start. `set_back`: milliseconds by which
    the broker's clock was set back before it wrote the file."""
    store = unpack(name, tmp_path)
    path = log_files(store)[file]
    records = {r["commitLogOffset"]: r for r in store.truth}
    lost = records[int(path.name)]
    for place, record in records.items():
        if place >= int(path.name) and set_back:
            earlier = (record["storeTimestamp"] - set_back).to_bytes(8, "big")
            write_in_log(store, place + 56, earlier)  # the hosts are IPv4
    flip(path, 4)  # the magic code
    report = rebuilt(store, tmp_path / "target")
    assert report.recovery.records == len(records) - 1
    assert [tuple(one) for one in report.recovery.damage] == [
        (lost["commitLogOffset"], lost["commitLogOffset"] + lost["storeSize"])
    ]
    assert not report.all_well


def test_a_log_file_that_is_a_symbolic_link_is_linked_itself(
    copy: GoldenStore, tmp_path: Path
) -> None:
    """Not the name of it, which leads into another store, or nowhere from another folder."""
    first, *_ = sorted(Path(copy.path, "commitlog").iterdir())
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(os.path.relpath(tmp_path / "elsewhere", first.parent))
    rebuilt(copy, tmp_path / "deep" / "target", log="link")
    made = tmp_path / "deep" / "target" / "commitlog" / first.name
    assert not made.is_symlink()
    assert made.samefile(tmp_path / "elsewhere")


def test_a_linked_file_is_never_written_through(copy: GoldenStore, tmp_path: Path) -> None:
    """Where the whole last file is damaged, the log ends in one that the source has too."""
    for record in copy.truth:
        if record["commitLogOffset"] >= int(log_files(copy)[-1].name):
            flip_in_log(copy, record["commitLogOffset"] + 90)
    before = copy.fingerprint()
    rebuilt(copy, tmp_path / "target", log="link")
    with MessageStore.append_to(tmp_path / "target") as writer:
        for _ in range(50):
            writer.append({"topic": "orders", "queueId": 0, "body": b"new" * 1000})
    assert copy.fingerprint() == before


KILLED = """
import os, signal, sys
from rmq_store.admin import rebuild as module
from rmq_store.recovery import strict_recovery
strict_recovery._BYTES_BETWEEN_MARKS = 100_000
left = int(sys.argv[3])
def progress(done):
    global left
    left -= done
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
import json
config = json.loads(sys.argv[4])
module.rebuild(sys.argv[1], sys.argv[2], release="5.3.3", config=config, progress=progress)
"""


def kill_in_rebuild(script: str, store: GoldenStore, target: Path, at: int) -> None:
    words = (store.path, str(target), str(at), json.dumps(settings_of(store)))
    killed(script, *words, timeout=120)


@pytest.mark.parametrize("at", [1, 900_000, 2_100_000])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    golden: Golden, tmp_path: Path, at: int
) -> None:
    store = golden("clean-5.3.3")
    kill_in_rebuild(KILLED, store, tmp_path / "target", at)
    assert (tmp_path / "target" / STATE_FILE).exists()
    report = rebuilt(store, tmp_path / "target")
    assert report.resumed
    assert queues_of(tmp_path / "target") == queues_of(store.path)
    assert index_of(tmp_path / "target") == index_of(store.path)


def test_a_target_with_content_or_of_another_rebuild_is_refused(
    golden: Golden, tmp_path: Path
) -> None:
    store = golden("clean-5.3.3")
    target = tmp_path / "target"
    target.mkdir()
    (target / "some").write_text("file", "utf-8")
    with pytest.raises(TargetExistsError, match="never rebuilt in place"):
        rebuild(store.path, target)
    (target / STATE_FILE).write_text(json.dumps({"source": "other"}), "utf-8")
    with pytest.raises(InvalidArgumentError, match="other options"):
        rebuild(store.path, target)
    with pytest.raises(InvalidArgumentError, match="copy or link"):
        rebuild(store.path, tmp_path / "new", log="move")
    assert not os.path.exists(tmp_path / "new")


def test_a_target_that_cannot_be_made_has_not_expired(golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AccessError, match="creating the target") as caught:
        rebuild(golden("clean-5.5.0").path, tmp_path / "link")
    assert "expired" not in str(caught.value)


def test_a_prepared_message_enters_no_light_queue_either(tmp_path: Path) -> None:
    store = unpack("lmq-5.3.3", tmp_path)
    light = [r for r in store.truth if "INNER_MULTI_QUEUE_OFFSET" in r["properties"]][-1]
    queues = [queue for queue in queues_of_record(light) if queue.topic.startswith("%LMQ%")]
    flags = (light["sysFlag"] | 4).to_bytes(4, "big")
    write_in_log(store, light["commitLogOffset"] + 36, flags)
    assert queues
    rebuilt(store, tmp_path / "new")
    with MessageStore.open(tmp_path / "new") as opened:
        for queue in (QueueId(light["topic"], light["queueId"]), *queues):
            places = opened.entries(queue, *map(int, opened.view.limits(queue))).log_offset
            assert light["commitLogOffset"] not in places.tolist()
