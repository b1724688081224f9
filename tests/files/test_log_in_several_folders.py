"""A log in several folders: folders that are named twice, and files that are there twice."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptRecordError, StoreError, UnrecoverableStoreError
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, objects, run

FILE = "00000000000000098304"
SIZE = 32768


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack("multipath-5.5.0", tmp_path)


def raw_salvage(store: GoldenStore, folder: Path) -> tuple[str, ...]:
    to = ("--to", str(folder / "copy"), "--raw")
    return ("salvage", store.path, "--broker-conf", conf(store), *to)


def conf(store: GoldenStore, *folders: str, **more: str) -> str:
    """A configuration that names the folders of the log, by default both with their whole paths."""
    root = Path(store.path)
    named = folders or (str(root / "commitlog-a"), str(root / "commitlog-b"))
    lines = [f"storePathCommitLog={','.join(named)}", f"mappedFileSizeCommitLog={SIZE}"]
    path = root.parent / "named.conf"
    path.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in more.items())]))
    return str(path)


def in_both(store: GoldenStore) -> tuple[Path, Path]:
    """The file of the log with records at FILE, and the place for one of its name beside it."""
    there = next(Path(store.path).glob(f"commitlog-*/{FILE}"))
    other = {"commitlog-a": "commitlog-b", "commitlog-b": "commitlog-a"}[there.parent.name]
    return there, Path(store.path, other, FILE)


def zeros(raw: bytes) -> bytes:
    return bytes(len(raw))


def nothing(raw: bytes) -> bytes:
    return b""


def cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 3]


def started(raw: bytes) -> bytes:
    """The file as it was when a third was written: the rest is zeros."""
    return cut(raw).ljust(len(raw), b"\0")


def of_another_place(raw: bytes) -> bytes:
    """A file of records that were written at other log offsets."""
    changed, at = bytearray(raw), 0
    while (size := struct.unpack_from(">i", changed, at)[0]) > 91:
        struct.pack_into(">q", changed, at + 28, struct.unpack_from(">q", raw, at + 28)[0] + SIZE)
        at += size
        if at + 8 > len(raw):
            break
    return bytes(changed)


def without_its_start(raw: bytes) -> bytes:
    return bytes(1000) + raw[1000:]


def without_some(raw: bytes) -> bytes:
    return raw[:20_100] + bytes(900) + raw[21_000:]


LEFTOVERS: list[Callable[[bytes], bytes]] = [
    *(zeros, nothing, cut, started, of_another_place, without_its_start, without_some)
]


def check_all_is_read(store: GoldenStore, with_conf: str, tmp_path: Path) -> None:
    with MessageStore.open(store.path, broker_conf=with_conf) as opened:
        found = [extent.record for extent in opened.scan() if extent.record is not None]
    assert [record.physical_offset for record in found] == [
        one["commitLogOffset"] for one in store.truth
    ]
    said = json.loads(
        run(
            *("salvage", store.path, "--to", str(tmp_path / "copy"), "--broker-conf", with_conf),
            *("--raw", "--json"),
        )
    )
    assert said["messages"] == len(store.truth)


def findings(store: GoldenStore, with_conf: str) -> list[dict[str, Any]]:
    lines = objects("verify", store.path, "--broker-conf", with_conf, expect=1)
    return [line for line in lines if "code" in line]


def read_all(path: str, with_conf: str, source: str) -> None:
    with MessageStore.open(path, broker_conf=with_conf) as opened:
        reads = (
            opened.read_log()
            if source == "commitlog"
            else opened.read_batches(include_system_topics=True)
        )
        for _ in reads:
            pass


@pytest.mark.parametrize("leftover", LEFTOVERS)
@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_files_of_one_name_the_one_with_the_records_is_read(
    store: GoldenStore, tmp_path: Path, leftover: Callable[[bytes], bytes], swapped: bool
) -> None:
    there, beside = in_both(store)
    beside.write_bytes(leftover(there.read_bytes()))
    if swapped:
        there.rename(there.with_name("x"))
        beside.rename(there)
        there.with_name("x").rename(beside)
    with_conf = conf(store)
    check_all_is_read(store, with_conf, tmp_path)
    finding, *refused = findings(store, with_conf)
    assert (finding["code"], finding["severity"]) == ("log-file-doubled", "error")
    short = [str(path) for path in (there, beside) if path.stat().st_size != SIZE]
    assert [(one["code"], one["path"]) for one in refused] == [
        ("log-file-refused", path) for path in short
    ]
    assert str(there) in finding["meaning"]
    assert str(beside) in finding["meaning"]
    assert str(there) in run("info", store.path, "--broker-conf", with_conf, expect=1)
    before = {path: path.read_bytes() for path in Path(store.path).rglob("*") if path.is_file()}
    for words in (("recover", store.path, "--apply"), ("recover", store.path)):
        done = call(*words, "--broker-conf", with_conf)
        assert done.returncode == 2
        assert str(there) in done.stderr
        assert str(beside) in done.stderr
    with pytest.raises(UnrecoverableStoreError, match="has a file of this name"):
        MessageStore.append_to(store.path, with_conf)
    after = {path: path.read_bytes() for path in Path(store.path).rglob("*") if path.is_file()}
    assert after == before


def test_two_files_of_other_records_are_an_error_that_names_both(
    store: GoldenStore, tmp_path: Path
) -> None:
    there, beside = in_both(store)
    raw, at, changed = there.read_bytes(), 0, 0
    other = bytearray(raw)
    while at + 8 < SIZE and (size := struct.unpack_from(">i", raw, at)[0]) > 91:
        if struct.unpack_from(">I", raw, at + 4)[0] == 0xCBD43194:
            break
        struct.pack_into(">i", other, at + 16, 4711)  # flag
        at, changed = at + size, changed + 1
    beside.write_bytes(bytes(other))
    with_conf = conf(store)
    (finding,) = findings(store, with_conf)
    assert finding["code"] == "log-file-doubled"
    assert f"lacks {changed}, from log offset 98304 on" in finding["meaning"]
    with pytest.raises(CorruptRecordError) as refused:
        read_all(store.path, with_conf, "commitlog")
    assert str(there) in str(refused.value)
    assert str(beside) in str(refused.value)
    asked = raw_salvage(store, tmp_path)
    said = run(*asked, expect=1)
    assert f"{len(store.truth)} messages" in said
    assert f"the first one lacks {changed}" in said


def test_one_record_that_differs_is_found_by_verify_and_salvage(
    store: GoldenStore, tmp_path: Path
) -> None:
    there, beside = in_both(store)
    raw = there.read_bytes()
    sizes, at = [], 0
    while struct.unpack_from(">I", raw, at + 4)[0] in (0xDAA320A7, 0xDAA320AB):
        sizes.append(at)
        at += struct.unpack_from(">i", raw, at)[0]
    place = sizes[len(sizes) // 2 + 3]
    other = bytearray(raw)
    struct.pack_into(">i", other, place + 16, 4711)
    beside.write_bytes(bytes(other))
    with_conf = conf(store)
    (finding,) = findings(store, with_conf)
    assert f"lacks 1, from log offset {98304 + place} on" in finding["meaning"]
    asked = raw_salvage(store, tmp_path)
    assert "lacks 1," in run(*asked, expect=1)


def test_a_damaged_read_names_both_files(store: GoldenStore) -> None:
    there, beside = in_both(store)
    raw = bytearray(there.read_bytes())
    raw[200:260] = bytes(60)  # in the first records of both
    there.write_bytes(bytes(raw))
    beside.write_bytes(bytes(raw[:20000]))
    with pytest.raises(StoreError) as refused:
        read_all(store.path, conf(store), "queue")
    assert str(there) in str(refused.value)
    assert str(beside) in str(refused.value)


# --- folders that are named twice -----------------------------------------------------------------


def link(store: GoldenStore, name: str) -> str:
    path = Path(store.path).parent / f"link-to-{name}"
    path.symlink_to(Path(store.path, name))
    return str(path)


def test_a_folder_of_several_names_is_one_folder(
    store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(store.path)
    a, b = str(root / "commitlog-a"), str(root / "commitlog-b")
    expected = sorted(
        (path.name, path.stat().st_size) for path in root.rglob("*") if path.is_file()
    )
    monkeypatch.chdir(root.parent)
    Path("other").symlink_to(root)
    ways = [
        conf(store, a, b),
        conf(store, f"{a}/", f"{root}/./commitlog-b", a),
        conf(store, link(store, "commitlog-a"), b, f"{b}/../commitlog-b//"),
        conf(store, "commitlog-a", b),
        conf(store, a, readOnlyCommitLogStorePaths=f"{b},{a},{link(store, 'commitlog-b')}"),
    ]
    for number, with_conf in enumerate(ways):
        shutil.copy(with_conf, tmp_path / "one.conf")
        for named in (store.path, "store", "./store/", "other", str(root / ".." / "other")):
            found = objects("table", "files", named, "--broker-conf", str(tmp_path / "one.conf"))
            assert sorted((Path(row["path"]).name, row["size"]) for row in found) == expected, named
            parts = [row["part"] for row in found if row["size"] == SIZE]
            assert parts == ["commitlog"] * 6
        run("verify", store.path, "--broker-conf", with_conf)
        check_all_is_read(store, with_conf, tmp_path / f"{number}")


@pytest.mark.parametrize("number", [0, 4, 50])
@pytest.mark.parametrize("hurt_first", [False, True])
def test_a_file_whose_bodies_are_damaged_is_not_read_instead_of_an_intact_one(
    store: GoldenStore, tmp_path: Path, number: int, hurt_first: bool
) -> None:
    """Its records have the right lengths: only their CRCs tell."""
    there, beside = in_both(store)
    base = int(FILE)
    inside = [
        one for one in store.truth if base <= one["commitLogOffset"] < base + SIZE and one["body"]
    ]
    record = inside[number]
    raw = bytearray(there.read_bytes())
    body = raw.index(bytes_of(record), record["commitLogOffset"] - base)
    raw[body] ^= 0xFF
    intact = Path(store.path, "commitlog-b" if hurt_first else "commitlog-a", FILE)
    hurt = beside if intact == there else there
    whole = there.read_bytes()
    intact.write_bytes(whole)
    hurt.write_bytes(raw)
    check_all_is_read(store, conf(store), tmp_path)


def bytes_of(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["body"])


def test_of_files_with_the_same_records_the_one_of_full_size_is_read(store: GoldenStore) -> None:
    last = max((p for p in Path(store.path).glob("commitlog-*/*")), key=lambda p: p.name)
    end = store.truth[-1]["commitLogOffset"] + store.truth[-1]["storeSize"] - int(last.name)
    raw = last.read_bytes()
    for short in ("commitlog-a", "commitlog-b"):
        for folder in ("commitlog-a", "commitlog-b"):
            size = end + 200 if folder == short else len(raw)
            Path(store.path, folder, last.name).write_bytes(raw[:size])
        with MessageStore.open(store.path, broker_conf=conf(store)) as opened:
            used = opened.log.chain.segments[-1]
        assert (used.size, Path(used.path).parent.name == short) == (len(raw), False)
