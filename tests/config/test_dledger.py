"""A DLedger log is only read; one that is not here is named, and no read ends early without saying so."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.info import store_info
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.reset_offsets import apply_reset, plan_reset
from rmq_store.admin.retention import plan_retention
from rmq_store.admin.salvage import salvage
from rmq_store.errors import NotAStoreError, StoreError, UnsupportedStoreError
from rmq_store.recovery import plan_recovery, recover
from rmq_store.verify import verify
from tests.support.golden import unpack, unpack_field, unpack_kind, verified

THERE, EXPIRED = "mixed-dledger-old-log-there", "mixed-dledger-old-log-expired"
DIVIDED = 1_228_800  # where commitlog/ of both stores ends and the DLedger log begins


def plain_records(log: Path) -> list[int]:
    """Log offsets of the records in commitlog/, by their sizes and magic codes alone."""
    found = []
    for file in sorted(log.iterdir()):
        raw, at = file.read_bytes(), 0
        while at + 8 <= len(raw):
            size, magic = struct.unpack_from(">iI", raw, at)
            if magic != 0xDAA320A7:
                break
            found.append(int(file.name) + at)
            at += size
    return found


def plan_a_deletion(root: Path) -> None:
    with MessageStore.open(root) as store:
        plan_retention(store, manual=True)


def state_of(root: Path) -> dict[str, str]:
    """A digest of each file."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 24
    }


WRITES: dict[str, Callable[[Path], Any]] = {
    "plan_recovery": plan_recovery,
    "recover": recover,
    "plan as the broker": lambda root: plan_recovery(root, method="broker"),
    "append_to": MessageStore.append_to,
    "retention": plan_a_deletion,
}


@pytest.mark.parametrize("name", [THERE, EXPIRED])
@pytest.mark.parametrize("use", WRITES)
def test_no_writer_changes_a_dledger_log(tmp_path: Path, use: str, name: str) -> None:
    root = unpack_field(name, tmp_path)
    (root / "abort").touch()  # so that there is something to repair
    before = state_of(root)
    with pytest.raises(UnsupportedStoreError, match="DLedger mode") as caught:
        WRITES[use](root)
    assert str(root / "dledger-n0" / "data") in str(caught.value)
    assert "rmqstore rebuild" in str(caught.value)
    assert state_of(root) == before


READS: dict[str, Callable[[Path], Any]] = {
    "open": MessageStore.open,
    "open without queues": lambda root: MessageStore.open(root, queues=False),
    "salvage": lambda root: salvage(root, root.parent / "saved"),
    "rebuild": lambda root: rebuild(root, root.parent / "rebuilt"),
}


@pytest.mark.parametrize("use", READS | WRITES)
def test_entries_in_the_place_of_the_plain_log_are_named(tmp_path: Path, use: str) -> None:
    golden = unpack_kind("dledger-5.5.0", tmp_path)
    root = Path(golden.path)
    (member,) = root.glob("dledger-*")
    shutil.rmtree(root / "commitlog", ignore_errors=True)
    shutil.move(member / "data", root / "commitlog")
    shutil.rmtree(member)
    before = state_of(root)
    with pytest.raises(UnsupportedStoreError, match="entry of DLedger") as caught:
        (READS | WRITES)[use](root)
    assert str(root / "commitlog") in str(caught.value)
    assert state_of(root) == before
    shutil.move(root / "commitlog", root / "dledger-n0" / "data")  # as the advice says
    with MessageStore.open(root) as store:
        assert store.read_batches().read_all().num_rows


def test_offsets_of_a_member_are_not_written(tmp_path: Path) -> None:
    golden = unpack_kind("dledger-5.5.0", tmp_path)
    before = state_of(Path(golden.path))
    with MessageStore.open(golden.path) as store:
        changes = plan_reset(store, "g-slow", to="earliest")
        assert changes
        with pytest.raises(UnsupportedStoreError, match="one member of a DLedger group"):
            apply_reset(store, changes)
    assert state_of(Path(golden.path)) == before


USES: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda root, _: MessageStore.open(root),
    "recover": lambda root, _: recover(root),
    "append_to": lambda root, _: MessageStore.append_to(root),
}


@pytest.mark.parametrize("use", USES)
def test_a_log_that_is_not_here_is_named_with_the_one_before_it(tmp_path: Path, use: str) -> None:
    """storePathDLedgerCommitLog moves the data alone; the index stays in the folder."""
    root = unpack_field(THERE, tmp_path)
    (root / "dledger-n0" / "data").rename(tmp_path / "other-disk")
    before = state_of(root)
    with pytest.raises(UnsupportedStoreError, match="not here") as caught:
        USES[use](root, tmp_path / "new")
    said = str(caught.value)
    assert str(root / "commitlog") in said
    assert str(root / "dledger-n0" / "index") in said
    assert f"log offset 0 to {DIVIDED}" in said
    assert "source=commitlog" in said
    assert "rmqstore salvage" in said
    assert store_info(root).queuesUnread == said
    assert state_of(root) == before


@pytest.mark.parametrize("use", [*USES, "info", "salvage", "read_log", "rebuild"])
@pytest.mark.parametrize("gone", [False, True])
def test_nothing_can_be_read_without_both_logs(tmp_path: Path, use: str, gone: bool) -> None:
    root = unpack_field(EXPIRED, tmp_path)
    (root / "dledger-n0" / "data").rename(tmp_path / "other-disk")
    if gone:
        (root / "commitlog").rmdir()
    uses: dict[str, Callable[[Path, Path], Any]] = {
        **USES,
        "info": lambda root, _: store_info(root),
        "salvage": lambda root, new: salvage(root, new),
        "read_log": lambda root, _: MessageStore.open(root, queues=False),
        "rebuild": lambda root, new: rebuild(root, new),
    }
    with pytest.raises(UnsupportedStoreError, match="commitlog/ has no file") as caught:
        uses[use](root, tmp_path / "new")
    assert "not here" in str(caught.value)
    assert "source=commitlog" not in str(caught.value)


def test_a_read_of_the_older_log_gives_its_records_and_then_says_what_it_left_out(
    tmp_path: Path,
) -> None:
    root = unpack_field(THERE, tmp_path)
    (root / "dledger-n0" / "data").rename(tmp_path / "other-disk")
    wanted = plain_records(root / "commitlog")
    assert len(wanted) == 1000
    read: list[int] = []
    reported: list[StoreError] = []
    with MessageStore.open(root, queues=False) as store:
        for batch in store.read_log(columns=["commitLogOffset"], on_damage=reported.append):
            read += batch.column(0).to_pylist()
        assert read == wanted
        assert ["a DLedger log that is not here" in str(one) for one in reported] == [True]
        with pytest.raises(UnsupportedStoreError, match="messages after"):
            list(store.read_log())
        # Of adjacent ranges, only the one that reaches the end reports it.
        reported.clear()
        middle = wanted[500]
        first = list(store.read_log(None, middle, on_damage=reported.append))
        assert (sum(map(len, first)), reported) == (500, [])
        rest = list(store.read_log(middle, store.log_range()[1], on_damage=reported.append))
        assert (sum(map(len, rest)), len(reported)) == (500, 1)


@pytest.mark.parametrize("here", [True, False])
def test_salvage_reads_both_logs_and_says_what_it_did_not_read(tmp_path: Path, here: bool) -> None:
    root = unpack_field(THERE, tmp_path)
    if not here:
        (root / "dledger-n0" / "data").rename(tmp_path / "other-disk")
    report = salvage(root, tmp_path / "new")
    assert report.messages == (3000 if here else 1000)
    assert (report.unread is None) == here
    assert report.skipped_bytes == 0
    with MessageStore.open(tmp_path / "new") as store:
        assert sum(map(len, store.read_batches(columns=["body"]))) == report.messages


@pytest.mark.parametrize("inside", ["", "data", "index"])
def test_an_empty_dledger_folder_hides_nothing(tmp_path: Path, inside: str) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    Path(golden.path, "dledger-n0", inside).mkdir(parents=True)
    with MessageStore.open(golden.path) as store:
        assert sum(map(len, store.read_batches(columns=["body"], include_system_topics=True)))
        assert {one.code for one in verify(store).findings} == {"dledger-without-log"}
    for use in (recover, MessageStore.append_to):
        with pytest.raises(UnsupportedStoreError, match="has used this store"):
            use(golden.path)


def test_a_configuration_of_dledger_mode_is_enough_to_refuse(tmp_path: Path) -> None:
    """The copy may lack the folder, and what the store holds after commitlog/ is then unknown."""
    golden = unpack("crc-5.5.0", tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text("enableDLegerCommitLog=true\ndLegerSelfId=n0\n")
    for use in (
        lambda: MessageStore.open(golden.path, broker_conf=conf),
        lambda: recover(golden.path, conf),
    ):
        with pytest.raises(UnsupportedStoreError, match="enableDLegerCommitLog=true"):
            use()
    conf.write_text("enableDLegerCommitLog=false\nstorePathDLedgerCommitLog=null\n")
    MessageStore.open(golden.path, broker_conf=conf).close()


def test_entries_of_a_dledger_log_that_was_not_copied_are_not_cut(tmp_path: Path) -> None:
    root = unpack_field(THERE, tmp_path)
    shutil.rmtree(root / "dledger-n0")
    (root / "dledger-n0").mkdir()
    before = state_of(root)
    with pytest.raises(UnsupportedStoreError, match="not here"):
        recover(root)
    assert state_of(root) == before
    codes = {one.code for one in verified(root).findings}
    assert {"dledger-without-log", "queue-dangling-entry"} <= codes


def test_a_store_that_was_copied_without_its_log_says_so(tmp_path: Path) -> None:
    golden = unpack_kind("dledger-5.5.0", tmp_path)
    (log,) = Path(golden.path).glob("dledger-*")
    shutil.rmtree(log)
    with pytest.raises(NotAStoreError, match="neither commitlog/ nor the dledger"):
        MessageStore.open(golden.path)
