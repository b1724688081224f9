"""A log in several folders: folders that are named twice, and files that are there twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import UnrecoverableStoreError
from tests.support.golden import GoldenStore, files_below, unpack
from tests.support.running.commands import call, objects, run

FILE = "00000000000000098304"
SIZE = 32768


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    store = unpack("multipath-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path, "compaction"))  # it has a file of 100 MB
    return store


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


def check_all_is_read(store: GoldenStore, with_conf: str, tmp_path: Path) -> None:
    with MessageStore.open(store.path, broker_conf=with_conf) as opened:
        found = [extent.record for extent in opened.scan() if extent.record is not None]
    assert [record.physical_offset for record in found] == [
        one["commitLogOffset"] for one in store.truth
    ]
    words = (store.path, "--to", str(tmp_path / "copy"), "--broker-conf", with_conf, "--raw")
    (said,) = objects("salvage", *words)
    assert said["messages"] == len(store.truth)


@pytest.mark.parametrize("kept", [SIZE, SIZE // 3, 0])
def test_two_files_of_one_name_are_refused(store: GoldenStore, tmp_path: Path, kept: int) -> None:
    """A broker reads the one whose folder comes first in a HashSet."""
    there, beside = in_both(store)
    beside.write_bytes(there.read_bytes()[:kept])
    with_conf = conf(store)
    before = files_below(Path(store.path))
    for words in (
        *(("cat", store.path, "--topic", "orders"), ("verify", store.path), ("info", store.path)),
        *(("recover", store.path, "--apply"), ("recover", store.path)),
        ("salvage", store.path, "--to", str(tmp_path / "copy")),
    ):
        done = call(*words, "--broker-conf", with_conf)
        assert done.returncode == 2, words
        assert str(there) in done.stderr
        assert str(beside) in done.stderr
        assert "move the other one away" in done.stderr
    with pytest.raises(UnrecoverableStoreError, match="has a file of this name"):
        MessageStore.append_to(store.path, with_conf)
    assert files_below(Path(store.path)) == before
    assert not (tmp_path / "copy").exists()


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
