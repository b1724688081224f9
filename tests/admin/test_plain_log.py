"""A store in DLedger mode rebuilt without it: every message keeps all but its place."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import STATE_FILE, rebuild
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError
from rmq_store.verify import verify
from tests.support.damage import flip, write_at
from tests.support.dledger import (
    HEAD,
    Entry,
    entries_of,
    put_records_into_entries,
    record_at,
    with_crc,
)
from tests.support.golden import GoldenStore, files_below, unpack, unpack_field, unpack_kind
from tests.support.running.child import killed

NAME = "dledger-5.5.0"
HALVES = b"RMQ_SYS_TRANS_HALF_TOPIC"
COLUMNS = ["topic", "queueId", "queueOffset", "body", "properties", "storeTimestamp", "bornHost"]
ORDER = [(name, "ascending") for name in COLUMNS[:3]]


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(NAME, tmp_path)


def records_of(log: Path) -> dict[int, bytes]:
    """The records of a plain log by place; nothing but a blank may be behind those of a file."""
    found: dict[int, bytes] = {}
    for path in sorted(log.iterdir()):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw):
            size, magic = struct.unpack_from(">iI", raw, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                assert (magic, size) == (0xCBD43194, len(raw) - at) or not any(raw[at:])
                break
            found[int(path.name) + at] = raw[at : at + size]
            at += size
    return found


def rebuilt(root: Path, target: Path, config: Any = None) -> None:
    report = rebuild(root, target, config=config)
    assert report.all_well
    assert not (target / "dledger-n0").exists()
    assert not {STATE_FILE, "abort"} & {path.name for path in target.iterdir()}


def rows_of(root: Path, config: Any = None) -> Any:
    with MessageStore.open(root, config=config, broker_name="b") as store:
        table = store.read_batches(columns=COLUMNS, include_system_topics=True).read_all()
        return table.sort_by(ORDER)


def test_records_differ_only_in_what_names_a_place(golden: GoldenStore, tmp_path: Path) -> None:
    target = tmp_path / "target"
    rebuilt(Path(golden.path), target, golden.conf)
    before = list(entries_of(Path(golden.path, "dledger-n0", "data")))
    after = records_of(target / "commitlog")
    assert len(before) == len(after) == 760
    moved = {entry.place + HEAD.size: place for entry, place in zip(before, after, strict=True)}
    committed = 0
    for entry, (place, record) in zip(before, after.items(), strict=True):
        wanted = record_at(entry.body, place)
        (half,) = struct.unpack_from(">q", wanted, 76)
        if half:
            committed += 1
            wanted = wanted[:76] + struct.pack(">q", moved[half]) + wanted[84:]
            assert HALVES in after[moved[half]]
        assert record == wanted
    assert committed == 5
    # The queues too.
    for queue in sorted(Path(golden.path, "consumequeue").glob("*/*/*")):
        raw = queue.read_bytes()
        units = [struct.unpack_from(">qiq", raw, at) for at in range(0, len(raw), 20)]
        wanted = b"".join(
            struct.pack(">qiq", moved[at], size, tags) if size else bytes(20)
            for at, size, tags in units
        )
        made = target / queue.relative_to(golden.path)
        assert made.read_bytes() == wanted
    config = StoreConfig.read(golden.conf)
    without = replace(config, enableDLegerCommitLog=None)
    with MessageStore.open(target, config=without) as store:
        assert list(verify(store).findings) == []
        orders = [r for r in golden.lines("served") if "ORDER_0" in r["props"].get("KEYS", "")]
        found = store.query_message("orders", "ORDER_0")
        assert [one.commit_log_offset for one in found] == [moved[r["phy"]] for r in orders]
    for path in Path(golden.path, "config").iterdir():
        assert (target / "config" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["mixed-dledger-old-log-there", "mixed-dledger-old-log-expired"])
def test_a_store_with_two_logs_becomes_one_of_one_log(tmp_path: Path, name: str) -> None:
    root = unpack_field(name, tmp_path)
    rebuilt(root, tmp_path / "target")
    assert rows_of(tmp_path / "target") == rows_of(root)
    with MessageStore.open(root) as before, MessageStore.open(tmp_path / "target") as after:
        for queue in before.queues():
            assert after.min_offset(*queue) == before.min_offset(*queue)
            assert after.max_offset(*queue) == before.max_offset(*queue)
        assert after.log_range()[0] == before.log_range()[0]
        assert after.log.chain.file_size == before.log.chain.file_size
        assert verify(after).nothing_wrong


@pytest.mark.parametrize("name", ["crc-5.5.0", "clean-5.3.3", "direct-5.5.0", "lmq-5.3.3"])
def test_records_of_all_kinds_stay_what_they_are(tmp_path: Path, name: str) -> None:
    """Record CRCs, IPv6 hosts, inner batches and light queues, in entries; the golden queues know."""
    store = unpack(name, tmp_path)
    root = Path(store.path)
    plain = records_of(root / "commitlog")
    with store.open() as opened:
        wanted = opened.read_batches(columns=COLUMNS, include_system_topics=True).read_all()
        size = opened.log.chain.file_size
    put_records_into_entries(root, size)
    rebuilt(root, tmp_path / "target", store.conf)
    after = records_of(tmp_path / "target" / "commitlog")
    # Without the heads of entries, all records are at their old places again.
    assert after == {place: with_crc(record) for place, record in plain.items()}
    with MessageStore.open(tmp_path / "target", broker_conf=store.conf) as opened:
        found = opened.read_batches(columns=COLUMNS, include_system_topics=True).read_all()
        assert found.sort_by(ORDER) == wanted.sort_by(ORDER)
        assert not {one.code for one in verify(opened).findings if one.code.startswith("log-")}


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
module.rebuild(sys.argv[1], sys.argv[2], progress=progress)
"""


@pytest.mark.campaign
@pytest.mark.parametrize("at", [1, 700_000, 2_300_000, 4_000_000, 7_000_000])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path: Path, at: int) -> None:
    root = unpack_field("mixed-dledger-old-log-there", tmp_path)
    rebuilt(root, tmp_path / "whole")
    killed(KILLED, str(root), str(tmp_path / "target"), str(at), timeout=120)
    assert json.loads((tmp_path / "target" / STATE_FILE).read_text())["log"] == "copy"
    assert rebuild(root, tmp_path / "target").resumed
    made, whole = (
        files_below(tmp_path / name, "commitlog", "consumequeue") for name in ("target", "whole")
    )
    assert made == whole


@pytest.mark.parametrize("zeros", [False, True])
def test_damage_is_damage_in_the_new_log_too(
    golden: GoldenStore, tmp_path: Path, zeros: bool
) -> None:
    (path,) = Path(golden.path, "dledger-n0", "data").iterdir()
    entries = list(entries_of(path.parent))
    lost = entries[400]
    if zeros:
        write_at(path, lost.place, bytes(lost.size))
    else:
        flip(path, lost.place + HEAD.size + 95)
    report = rebuild(golden.path, tmp_path / "target", config=golden.conf)
    assert not report.all_well
    ((start, stop),) = report.recovery.damage
    places = records_of_damaged(entries, lost)
    assert (start, stop - start) == (places[lost.place], lost.size)
    damage: list[Any] = []
    with MessageStore.open(tmp_path / "target", queues=False) as store:
        rows = store.read_log(columns=["commitLogOffset"], on_damage=damage.append).read_all()
    assert sorted([*rows.column(0).to_pylist(), places[lost.place]]) == sorted(places.values())
    assert [one.offset for one in damage] == [places[lost.place]]


def records_of_damaged(entries: list[Entry], lost: Entry) -> dict[int, int]:
    """Where the record of each entry is in the new log; the damaged entry keeps its size."""
    places, at = {}, 0
    for entry in entries:
        places[entry.place] = at
        at += entry.size if entry is lost else len(entry.body)
    return places


def test_a_dledger_log_cannot_be_linked(golden: GoldenStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--log copy"):
        rebuild(golden.path, tmp_path / "target", log="link")
    assert not (tmp_path / "target").exists()
