"""A copy of a store whose broker.conf still names the log of the original: nobody writes to that one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from zlib_ng import zlib_ng

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.retention import apply_retention, plan_retention
from rmq_store.admin.salvage import salvage
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import ForeignLogError
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import GoldenStore, log_files, offsets, unpack, wanted
from tests.support.running.commands import complaint

MESSAGE = {"topic": "orders", "queueId": 0, "body": b"x"}


def appended(store: Path, conf: Path, recovery: str) -> None:
    with MessageStore.append_to(store, conf, recovery=recovery) as writer:
        writer.append(MESSAGE)


def expired(store: Path, conf: Path) -> None:
    with MessageStore.open(store, broker_conf=conf) as opened:
        plan = plan_retention(opened, manual=True, disk_used_percent=99)
    assert plan.log
    apply_retention(plan, lose_unread=True)


Writer = Callable[[Path, Path], object]
WRITERS: dict[str, Writer] = {
    "append, strict": lambda store, conf: appended(store, conf, "strict"),
    "append, refuse": lambda store, conf: appended(store, conf, "refuse"),
    "recover, strict": lambda store, conf: recover(store, conf),
    "plan, as the broker": lambda store, conf: plan_recovery(store, conf, method="broker"),
    "retention": expired,
}


@pytest.fixture
def live(tmp_path: Path) -> GoldenStore:
    """The original: a broker that was killed has left it, so a recovery would change its log."""
    return unpack("crash-5.5.0", tmp_path)


def conf_of(store: GoldenStore, folder: Path, **settings: object) -> Path:
    """The original's broker.conf, with `settings`."""
    conf = folder / "broker.conf"
    lines = [f"{name}={value}" for name, value in settings.items()]
    conf.write_text("\n".join([Path(store.conf).read_text(), *lines]))
    return conf


def copy_of(store: GoldenStore, folder: Path) -> Path:
    copy = folder / "backup" / "store"
    shutil.copytree(store.path, copy)
    return copy


def prints(*folders: Path | str) -> dict[str, tuple[int, int, int]]:
    """Of every file and folder below: size, mtime and a checksum of the bytes."""
    found = {}
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*")):
        stat = path.stat()
        crc = zlib_ng.crc32(path.read_bytes()) if path.is_file() else 0
        found[str(path)] = (stat.st_size if path.is_file() else 0, stat.st_mtime_ns, crc)
    assert found
    return found


@pytest.mark.parametrize("writer", WRITERS)
def test_a_copy_with_a_log_of_its_own(live: GoldenStore, tmp_path: Path, writer: str) -> None:
    copy = copy_of(live, tmp_path)
    log = Path(live.path, "commitlog")
    conf = conf_of(live, tmp_path, storePathCommitLog=log)
    before = prints(live.path, copy)
    with pytest.raises(ForeignLogError, match="storePathCommitLog") as caught:
        WRITERS[writer](copy, conf)
    assert caught.value.path == str(log)
    assert caught.value.expected == f"a log of {copy}"
    assert f"in {copy / 'commitlog'}" in str(caught.value.actual)
    assert prints(live.path, copy) == before


@pytest.mark.parametrize("linked", [False, True], ids=["", "through a link"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_configuration_of_another_root(
    live: GoldenStore, tmp_path: Path, writer: str, linked: bool
) -> None:
    """The original has its log on a disk of its own, and the copy was made of the root alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    Path(live.path, "commitlog").rename(disk / "commitlog")
    copy = copy_of(live, tmp_path)
    (tmp_path / "link").symlink_to(live.path)
    root = tmp_path / "link" if linked else live.path
    conf = conf_of(
        live, tmp_path, storePathCommitLog=disk / "commitlog", storePathRootDir=f"{root}/"
    )
    before = prints(live.path, copy, disk)
    with pytest.raises(ForeignLogError, match="storePathRootDir=") as caught:
        WRITERS[writer](copy, conf)
    assert caught.value.path == str(disk / "commitlog")
    assert prints(live.path, copy, disk) == before
    WRITERS["recover, strict"](Path(live.path), conf)  # the store itself may


@pytest.mark.parametrize("deep", [False, True], ids=["", "deep inside"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_log_that_lies_in_another_store(
    live: GoldenStore, tmp_path: Path, writer: str, deep: bool
) -> None:
    """A copy without the log, or one whose configuration came from elsewhere."""
    log = Path(live.path, "commitlog")
    if deep:
        (Path(live.path) / "logs").mkdir()
        log = log.rename(Path(live.path, "logs", "commitlog"))
    copy = copy_of(live, tmp_path)
    shutil.rmtree(copy / log.relative_to(live.path))
    conf = conf_of(live, tmp_path, storePathCommitLog=log)
    before = prints(live.path, copy)
    with pytest.raises(ForeignLogError, match="another store") as caught:
        WRITERS[writer](copy, conf)
    assert f"{live.path} is another store, with its own checkpoint" in str(caught.value.actual)
    assert prints(live.path, copy) == before


@pytest.mark.parametrize("setting", ["storePathCommitLog", "readOnlyCommitLogStorePaths"])
def test_each_folder_of_several_is_looked_at(tmp_path: Path, setting: str) -> None:
    """Of one of the log's folders the copy has no copy, and the configuration names the original's."""
    live = unpack("multipath-5.5.0", tmp_path)
    shutil.rmtree(Path(live.path, "compaction"))  # it has a file of 100 MB
    copy = copy_of(live, tmp_path)
    shutil.rmtree(copy / "commitlog-b")
    there = Path(live.path, "commitlog-b")
    named = {"storePathCommitLog": "commitlog-a", setting: f"commitlog-a,{there}"}
    conf = conf_of(live, tmp_path, **named)
    before = prints(live.path, copy)
    for writer in ("append, strict", "recover, strict"):
        with pytest.raises(ForeignLogError) as caught:
            WRITERS[writer](copy, conf)
        assert caught.value.path == str(there)
    assert prints(live.path, copy) == before


def test_a_link_that_was_copied_as_a_link(live: GoldenStore, tmp_path: Path) -> None:
    copy = copy_of(live, tmp_path)
    shutil.rmtree(copy / "commitlog")
    (copy / "commitlog").symlink_to(Path(live.path, "commitlog"))
    before = prints(live.path)
    with pytest.raises(ForeignLogError, match="Replace the link"):
        recover(copy)
    assert prints(live.path) == before


def test_reading_such_a_copy_stays_allowed(live: GoldenStore, tmp_path: Path) -> None:
    copy = copy_of(live, tmp_path)
    conf = conf_of(live, tmp_path, storePathCommitLog=Path(live.path, "commitlog"))
    with MessageStore.open(copy, broker_conf=conf) as store:
        assert sorted(offsets(store)) == sorted(wanted(live))
        assert plan_retention(store, manual=True, disk_used_percent=99).log


def test_what_makes_a_new_store_of_it_leaves_the_original_alone(
    live: GoldenStore, tmp_path: Path
) -> None:
    copy = copy_of(live, tmp_path)
    log = Path(live.path, "commitlog")
    conf = conf_of(live, tmp_path, storePathCommitLog=log, storePathRootDir=live.path)
    before = prints(live.path, copy)
    for mode in ("copy", "link"):
        assert rebuild(copy, tmp_path / f"rebuilt-{mode}", config=conf, log=mode).all_well
    assert salvage(copy, tmp_path / "saved", config=conf, raw=True).messages == len(live.truth)
    with MessageStore.create(tmp_path / "new", conf) as store:
        store.append(MESSAGE)
    upwards = {"storePathCommitLog": os.path.relpath(log, tmp_path / "newer")}
    with MessageStore.create(tmp_path / "newer", upwards) as store:
        store.append(MESSAGE)
    assert prints(live.path, copy) == before
    # A broker would write to the original with this configuration, and so would we.
    with pytest.raises(ForeignLogError):
        MessageStore.append_to(tmp_path / "new", conf)
    MessageStore.append_to(tmp_path / "new", {"storePathCommitLog": "commitlog"}).close()


def two_disks(tmp_path: Path) -> tuple[GoldenStore, str]:
    """The golden store of two folders, one of them on another disk under the name of the first."""
    store = unpack("multipath-5.5.0", tmp_path)
    root, disk = Path(store.path), tmp_path / "disk2" / "store"
    disk.mkdir(parents=True)
    (disk.parent / "lock").touch()  # of some other program: one such file is no mark of a store
    (root / "commitlog-a").rename(root / "commitlog")
    (root / "commitlog-b").rename(disk / "commitlog")
    return store, f"{root / 'commitlog'},{disk / 'commitlog'}"


@pytest.mark.parametrize("root", ["absent", "a link", "relative"])
def test_a_log_on_several_disks_is_written_to(tmp_path: Path, root: str) -> None:
    store, folders = two_disks(tmp_path)
    (tmp_path / "link").symlink_to(store.path)
    said = {"right": store.path, "a link": str(tmp_path / "link"), "relative": "elsewhere/store"}
    settings = {"storePathCommitLog": folders}
    if root in said:
        settings["storePathRootDir"] = said[root]
    conf = conf_of(store, tmp_path, **settings)
    Path(store.path, "abort").touch()
    assert recover(store.path, conf).log_end
    with MessageStore.append_to(tmp_path / "link", conf) as writer:
        done = writer.append(MESSAGE)
    with MessageStore.open(store.path, broker_conf=conf) as opened:
        assert opened.message_at(done.commit_log_offset).body == b"x"
        start = opened.log_range()[0]
        plan = plan_retention(opened, manual=True, disk_used_percent=99)
    assert apply_retention(plan, lose_unread=True)
    with MessageStore.open(store.path, broker_conf=conf) as opened:
        assert opened.log_range()[0] == plan.log_start_after > start


def test_a_store_all_of_whose_parts_are_links_to_another_disk(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    disk = tmp_path / "disk2"
    disk.mkdir()
    for name in ("commitlog", "consumequeue"):
        part = Path(store.path, name)
        part.rename(disk / name)
        part.symlink_to(disk / name)
    files = len(log_files(store))
    with MessageStore.append_to(store.path, StoreConfig.read(store.conf)) as writer:
        writer.append(MESSAGE)
    assert len(list((disk / "commitlog").iterdir())) >= files


@pytest.mark.parametrize(
    "words",
    [
        ["recover", "--apply"],
        ["retention", "--keep-from", "2100-01-01T00:00:00Z", "--apply", "--lose-unread"],
    ],
)
def test_the_commands_say_so(live: GoldenStore, tmp_path: Path, words: list[str]) -> None:
    copy = copy_of(live, tmp_path)
    log = Path(live.path, "commitlog")
    conf = conf_of(live, tmp_path, storePathCommitLog=log)
    before = prints(live.path, copy)
    said = complaint(*words, str(copy), "--broker-conf", str(conf), expect=2)
    assert said.startswith(f"rmqstore: [RMQSTORE_FOREIGN_LOG] {log}: ")
    assert len(said.splitlines()) == 1
    assert prints(live.path, copy) == before
