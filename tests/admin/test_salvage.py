"""salvage: the whole messages of a damaged log, no other, and an account of every byte."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, Record
from rmq_store.admin.salvage import SalvageReport, salvage
from rmq_store.arrow.encoding.properties import without_crc_item
from rmq_store.errors import TargetExistsError
from rmq_store.verify import verify
from tests.support.damage import exchange, log_bytes, same_bytes, write_in_log
from tests.support.golden import Golden, GoldenStore, log_files, unpack
from tests.support.running.campaigns import few
from tests.support.running.commands import run


def kept(record: Record) -> tuple[Any, ...]:
    """What of a record a salvage keeps: all but its places, and the CRC that covers them."""
    return (
        record.topic,
        record.queue_id,
        record.body,
        without_crc_item(record.properties),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
    )


def records_of(store: MessageStore) -> list[Record]:
    return [extent.record for extent in store.scan() if extent.record is not None]


def check_account(report: SalvageReport) -> None:
    """Every byte of the source's log is a record's, skipped, or no loss."""
    kept_or_ended = report.record_bytes + report.ended_bytes
    total = kept_or_ended + report.skipped_bytes + report.no_loss_bytes
    assert total == report.log_stop - report.log_start
    assert report.skipped_bytes == sum(one.stop - one.start for one in report.skipped)
    json.dumps(report.to_dict())


def strike_log(path: Path, seed: int, folders: tuple[str, ...] = ("commitlog",)) -> None:
    """Damage up to six places of the log: noise, zeros, cuts, a file gone."""
    choose = random.Random(seed)
    files = sorted(one for folder in folders for one in (path / folder).iterdir())
    for _ in range(choose.randrange(1, 7)):
        file = choose.choice(files)
        if not file.exists():
            continue
        raw = bytearray(file.read_bytes())
        used = max(1, len(raw.rstrip(b"\0")))
        at, width = choose.randrange(used), choose.choice((1, 1, 8, 100, 3000))
        match choose.randrange(8):
            case 0 if len(files) > 2 and file not in (files[0], files[-1]):
                file.unlink()
                continue
            case 1 | 2:
                raw[at : at + width] = bytes(len(raw[at : at + width]))
            case _:
                raw[at : at + width] = choose.randbytes(len(raw[at : at + width]))
        file.write_bytes(raw)


def check_salvage(golden: GoldenStore, copy: Path, seed: int) -> None:
    store = unpack(golden.name, copy)
    before = log_bytes(Path(store.path))
    strike_log(Path(store.path), seed)
    after = log_bytes(Path(store.path))
    whole = {
        record["commitLogOffset"]
        for record in golden.truth
        if same_bytes(before, after, record["commitLogOffset"], record["storeSize"])
    }
    fingerprint = store.fingerprint()
    report = salvage(store.path, copy / "target", raw=True)
    assert store.fingerprint() == fingerprint
    check_account(report)
    with golden.open() as source, MessageStore.open(copy / "target") as target:
        wanted = (record for record in records_of(source) if record.physical_offset in whole)
        assert Counter(map(kept, records_of(target))) == Counter(map(kept, wanted)), f"seed {seed}"
        assert verify(target).nothing_wrong


# With a record CRC every changed bit of a record is noticed, so what comes is exactly what is whole.
@pytest.mark.parametrize("seed", few("salvage", [*range(6), *range(100, 200)], *range(6)))
def test_of_a_damaged_log_exactly_the_whole_messages_come(
    golden: Golden, tmp_path: Path, seed: int
) -> None:
    check_salvage(golden("crc-5.5.0"), tmp_path, seed)


@pytest.mark.parametrize(
    "name", ["clean-4.9.7", "clean-5.3.3", "clean-5.5.0", "multipath-5.5.0", "expired-5.5.0"]
)
def test_nothing_is_lost_of_a_whole_store(golden: Golden, tmp_path: Path, name: str) -> None:
    store = golden(name)
    release, paths = name.rpartition("-")[2], store.log_folders
    report = salvage(store.path, tmp_path / "target", config=paths, release=release, raw=True)
    check_account(report)
    assert (report.skipped, report.refused) == ([], {})
    with store.open() as source, MessageStore.open(tmp_path / "target", config=paths) as target:
        assert list(map(kept, records_of(target))) == list(map(kept, records_of(source)))
        assert report.messages == len(store.truth)
        assert verify(target).nothing_wrong


def test_a_store_without_queues_and_index_is_enough(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    for folder in ("consumequeue", "index", "config"):
        for path in sorted((Path(store.path) / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    report = salvage(store.path, tmp_path / "target")
    assert report.messages + report.ended.total() == len(store.truth)


def test_a_target_with_content_is_refused(golden: Golden, tmp_path: Path) -> None:
    store = golden("clean-5.3.3")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    with pytest.raises(TargetExistsError):
        salvage(store.path, tmp_path / "there")


@pytest.mark.parametrize("append_crc", [False, True])
def test_a_record_crc_that_is_brought_along_is_not_kept(
    golden: Golden, tmp_path: Path, append_crc: bool
) -> None:
    """It covers the places of the record it came from; kept, it would make the copy a broken one."""
    columns = ("topic", "queueId", "body", "properties")
    config = {"enabledAppendPropCRC": append_crc}
    with (
        golden("crc-5.5.0").open() as source,
        MessageStore.create(tmp_path / "t", config) as target,
    ):
        for batch in source.read_batches(columns=columns):
            target.append_batch(batch)
        first = next(source.read_batches(columns=columns)).to_pylist()[0]
        target.append({**first, "properties": dict(first["properties"])})
    with MessageStore.open(tmp_path / "t") as target:
        assert verify(target).nothing_wrong
        maps = next(target.read_batches(columns=("properties",))).column("properties").to_pylist()
    assert {"__CRC32#" in dict(one) for one in maps} == {append_crc}


def test_ranges_that_follow_each_other_are_one_line_behind_what_explains_them(
    copy: GoldenStore, tmp_path: Path
) -> None:
    exchange(*log_files(copy)[1:3])
    lines = run("salvage", copy.path, "--to", str(tmp_path / "new"), expect=1).splitlines()
    assert ["has a wrong name" in line for line in lines[1:3]] == [True, True]
    left_out = [line for line in lines if line.startswith("left out: ")]
    assert len(left_out) == 2
    assert all(line.endswith(" times") for line in left_out)


def test_the_record_behind_a_cut_copy_of_a_longer_one_comes(tmp_path: Path) -> None:
    """A record is overwritten with the start of a longer one, which then reaches into the next."""
    store = unpack("crc-5.5.0", tmp_path)
    longer, over = (
        next(r for r in store.truth if r["commitLogOffset"] == at) for at in (126_799, 198_663)
    )
    start, size = over["commitLogOffset"], over["storeSize"]
    assert size < longer["storeSize"]
    log = b"".join(path.read_bytes() for path in log_files(store))
    copied = log[longer["commitLogOffset"] :][:size]
    write_in_log(store, start, copied)
    report = salvage(store.path, tmp_path / "new")
    check_account(report)
    assert [(one.start, one.stop) for one in report.skipped] == [(start, start + size)]
    assert report.messages == len(store.truth) - 1
    verdict = store.verified().verdict
    assert (verdict.lost.messages, verdict.lost.bytes) == (1, size)
