"""Is it a store, and of what geometry? What is refused says what it is, and where the store is."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import (
    CorruptQueueError,
    IndexGeometryError,
    InvalidArgumentError,
    MissingFileError,
    NotAStoreError,
    UnknownQueueError,
    UnsupportedStoreError,
)
from tests.support.golden import Golden, GoldenStore, unpack


def advice_for(path: str | Path) -> str | None:
    """What is said of a path that is no store."""
    with pytest.raises(NotAStoreError) as caught:
        MessageStore.open(path)
    return caught.value.advice


@pytest.mark.parametrize("inside", ["commitlog", "consumequeue", "index", "config", "checkpoint"])
def test_one_level_too_deep_names_the_store(golden: Golden, inside: str) -> None:
    store = golden("clean-5.3.3").path
    assert advice_for(os.path.join(store, inside)) == f"Did you mean {store}?"


@pytest.mark.parametrize("levels", [1, 2])
def test_levels_too_high_name_the_store(tmp_path: Path, levels: int) -> None:
    golden = unpack("crc-5.5.0", tmp_path / "a")
    assert advice_for(Path(golden.path).parents[levels - 1]) == f"Did you mean {golden.path}?"


def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    with pytest.raises(NotAStoreError, match="no such folder") as caught:
        MessageStore.open(f"{golden.path}s")
    assert caught.value.advice == f"Did you mean {golden.path}?"
    with pytest.raises(NotAStoreError):
        MessageStore.open(tmp_path / "nothing" / "at" / "all")


def test_of_several_stores_beside_it_the_one_with_a_like_name_is_named(tmp_path: Path) -> None:
    for name in ("broken", "other", "store"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    for asked in (tmp_path / "stroe", tmp_path / "broken" / ".." / "stroe"):
        assert advice_for(asked) == f"Did you mean {tmp_path / 'store'}?"
    assert "Did you mean" not in (advice_for(tmp_path / "quite-different") or "")


def test_a_folder_with_other_files_is_not_named_as_a_store(tmp_path: Path) -> None:
    """As the folder of this package's modules, which also has a `commitlog`."""
    (tmp_path / "package" / "commitlog").mkdir(parents=True)
    (tmp_path / "package" / "commitlog" / "log.py").touch()
    assert "Did you mean" not in (advice_for(tmp_path / "packag") or "")


def test_a_store_whose_log_may_not_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    listed = os.listdir

    def refused(path: str | os.PathLike[str]) -> list[str]:
        if os.path.basename(path) == "commitlog":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refused)  # the superuser may list everything
    assert advice_for(f"{golden.path}s") == f"Did you mean {golden.path}?"


def test_no_store_is_named_for_a_path_below_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """All else lies below the root too, and has nothing to do with what was asked for."""
    monkeypatch.setattr("rmq_store.config.locate._store_below", lambda *_: Path("/srv/other"))
    for asked in ("/no-such-folder/store", "/no-such-folder"):
        with pytest.raises(NotAStoreError) as caught:
            MessageStore.open(asked)
        assert "other" not in str(caught.value)


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("dledger-n0/index/00000000000000000000", "DLedger"),
        ("commitlog/x", None),
        ("0a1b2c3d_cluster/broker-a/orders/0/COMMIT_LOG/cfcd208400000000000000000000", "tiered"),
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
def test_queues_in_a_damaged_database_are_never_read_as_empty(tmp_path: Path, folder: str) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    shutil.rmtree(Path(golden.path, "consumequeue"))
    mark = Path(golden.path, folder, "CURRENT")
    mark.parent.mkdir()
    mark.write_text("MANIFEST-000004\n")
    with pytest.raises(CorruptQueueError, match=r"RocksDB.*MANIFEST-000004") as caught:
        golden.open()
    assert caught.value.path == str(mark.parent)


def test_unknown_names_are_refused_with_the_nearest(golden: Golden) -> None:
    store = golden("crc-5.5.0")
    with pytest.raises(InvalidArgumentError, match="Did you mean 'mappedFileSizeCommitLog'"):
        store.open(config={"mapedFileSizeComitLog": 1})
    with store.open() as opened:
        with pytest.raises(InvalidArgumentError, match="Did you mean 'queueOffset'"):
            list(opened.read_batches(columns=["queueOfset"]))
        with pytest.raises(InvalidArgumentError, match="Did you mean 'columns'"):
            opened.read_slices([], colums=["body"])  # type: ignore[call-arg]
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
def test_a_wrong_index_geometry_is_refused(golden: Golden, wrong: dict[str, int]) -> None:
    store = golden("geometry-5.5.0")
    record = next(record for record in store.truth if record["keys"])
    with store.open(config=wrong) as opened, pytest.raises(IndexGeometryError):
        opened.query_message(record["topic"], record["keys"])
    right = {"maxHashSlotNum": 7, "maxIndexNum": 13}
    with store.open(config=right) as opened:
        assert opened.query_message(record["topic"], record["keys"].split(" ")[0])


def test_a_geometry_of_the_same_file_size_is_refused_too(golden: Golden) -> None:
    # Five slots take the place of one item: 7 + 5 slots and 13 - 1 items make the same size.
    store = golden("geometry-5.5.0")
    record = next(record for record in store.truth if record["keys"])
    shifted = {"maxHashSlotNum": 12, "maxIndexNum": 12}
    with store.open(config=shifted) as opened, pytest.raises(IndexGeometryError):
        opened.query_message(record["topic"], record["keys"])


@pytest.mark.parametrize("setting", ["storePathCommitLog", "readOnlyCommitLogStorePaths"])
def test_a_folder_of_the_log_that_is_not_there_is_named(golden: Golden, setting: str) -> None:
    store = golden("multipath-5.5.0").path
    elsewhere = {"storePathCommitLog": "/machine/of/old/commitlog-a,/machine/of/old/commitlog-b"}
    with MessageStore.open(store, config=elsewhere) as opened:
        assert opened.topics()  # found under the root by their names
    lost = {**elsewhere, "readOnlyCommitLogStorePaths": "/machine/of/old/commitlog-b"}
    lost[setting] = "/machine/of/old/commitlog-a,/machine/of/old/commitlog-zzz"
    with pytest.raises(MissingFileError, match="does not exist") as caught:
        MessageStore.open(store, config=lost)
    assert caught.value.path == "/machine/of/old/commitlog-zzz"


def test_a_log_in_folders_of_other_names_is_named(golden: Golden) -> None:
    with pytest.raises(NotAStoreError, match=r"commitlog-a, commitlog-b.*storePathCommitLog"):
        MessageStore.open(golden("multipath-5.5.0").path)


def test_what_only_looks_like_a_log_is_not_named(tmp_path: Path) -> None:
    store = Path(unpack("clean-5.5.0", tmp_path).path)
    (store / "commitlog").rename(tmp_path / "aside")
    (first, *_) = sorted((tmp_path / "aside").iterdir())
    for name in ("timerlog", "linked", "pipe"):
        (store / name).mkdir()
    (store / "timerlog" / first.name).write_bytes(bytes(64))
    (store / "linked" / first.name).symlink_to(first)
    os.mkfifo(store / "pipe" / first.name)
    with pytest.raises(NotAStoreError) as caught:
        MessageStore.open(store)
    said = str(caught.value)
    assert all(name not in said for name in ("timerlog", "linked", "pipe", "storePathCommitLog="))


def test_a_place_in_a_hole_of_the_log_is_not_said_to_have_expired(copy: GoldenStore) -> None:
    files = sorted((Path(copy.path) / "commitlog").iterdir())
    files[1].unlink()
    start, stop = int(files[1].name), int(files[2].name)
    missing = pytest.raises(MissingFileError, match=f"{start} to {stop} are missing")
    with MessageStore.open(copy.path) as opened, missing as caught:
        opened.message_at(start + 5)
    assert "expired and was" not in str(caught.value)
