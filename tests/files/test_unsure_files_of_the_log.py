"""A file of the log with a wrong name, or that may not be read, is named, and no command changes it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import UnrecoverableStoreError
from tests.support.damage import exchange, flip, write_at
from tests.support.golden import GoldenStore, log_files, unpack
from tests.support.running.child import become_nobody, in_a_child
from tests.support.running.commands import call, complaint, objects


def exchange_first(golden: GoldenStore) -> dict[str, str]:
    """Exchange the first two files; the wrong names and the right ones."""
    first, second, *_ = log_files(golden)
    exchange(first, second)
    return {first.name: second.name, second.name: first.name}


def rename(golden: GoldenStore, number: int) -> dict[str, str]:
    file = log_files(golden)[number]
    wrong = file.with_name(f"{9 * file.stat().st_size:020d}")
    file.rename(wrong)
    return {wrong.name: file.name}


def hurt(golden: GoldenStore, how: str) -> dict[str, str]:
    match how:
        case "exchanged":
            return exchange_first(golden)
        case "only":
            for file in log_files(golden)[1:]:
                file.unlink()
            return rename(golden, 0)
        case _:
            return rename(golden, {"middle": 1, "last": -1}[how])


@pytest.mark.parametrize("how", ["exchanged", "middle", "last", "only"])
def test_a_file_with_a_wrong_name_is_named_with_the_right_one(how: str, tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    names = hurt(golden, how)
    before = golden.fingerprint()
    *found, summary = objects("verify", golden.path, expect=1)
    assert Path(summary["verdict"]["do"]).name == min(names)
    named = [one for one in found if one["code"] == "log-file-misnamed"]
    misnamed = {Path(one["path"]).name: one["meaning"] for one in named}
    salvaged = call("salvage", golden.path, "--to", str(tmp_path / "salvaged"))
    assert misnamed.keys() == names.keys()
    assert "log-ghost" not in {one["code"] for one in found}
    assert salvaged.returncode == 1
    for wrong, right in names.items():
        for text in (misnamed[wrong], salvaged.stdout):
            assert f"{wrong} has a wrong name: by the physicalOffset" in text
            assert f"it is the file {right}" in text
    for command in (("recover",), ("recover", "--apply"), ("rebuild", "--to", str(tmp_path / "t"))):
        said = complaint(command[0], golden.path, *command[1:], expect=2)
        assert f"{min(names)} has a wrong name" in said
        assert f"it is the file {names[min(names)]}" in said
        assert ("move that one aside first" in said) == (how == "exchanged")
    with pytest.raises(UnrecoverableStoreError, match="a wrong name"):
        MessageStore.append_to(golden.path)
    assert {
        p: k for p, k in golden.fingerprint().items() if not p.endswith(("/lock", "/store"))
    } == {p: k for p, k in before.items() if not p.endswith(("/lock", "/store"))}


def test_nobody_is_advised_to_overwrite_a_file_that_belongs_there(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    first, *_, last = log_files(golden)
    first.write_bytes(last.read_bytes())
    salvaged = call("salvage", golden.path, "--to", str(tmp_path / "salvaged")).stdout
    for said in (salvaged, call("verify", golden.path).stdout, call("recover", golden.path).stderr):
        assert "Another file has that name" in said
        assert "Give it that name" not in said


def test_many_findings_of_a_code_are_counted_in_one_sentence(copy: GoldenStore) -> None:
    for file in log_files(copy):
        write_at(file, 28, (12345).to_bytes(8, "big"))
        for at in range(40, file.stat().st_size, 4000):
            flip(file, at)
    (last,) = (one for one in copy.verified().findings if "are not listed" in one.meaning)
    assert last.meaning.startswith(f"{last.count} more of this code are not listed; the last one: ")


def test_a_file_that_may_not_be_read_is_named_and_not_passed_over() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        Path(open_to_all).chmod(0o755)
        golden = unpack("crash-5.5.0", Path(open_to_all))
        for path in Path(open_to_all).rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
        closed = log_files(golden)[1]
        closed.chmod(0)

        def work() -> None:
            become_nobody()
            for command in (("recover",), ("recover", "--apply"), ("cat", "--topic", "orders")):
                said = complaint(command[0], golden.path, *command[1:], expect=2)
                assert f"{closed}: opening: Permission denied" in said

        before = {path: kept for path, kept in golden.fingerprint().items() if "commitlog" in path}
        assert in_a_child(work) == 0
        after = {path: kept for path, kept in golden.fingerprint().items() if "commitlog" in path}
        assert after == before
