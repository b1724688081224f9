"""The journal of a target: what one process records is what the next one reads, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_store import QueueId, QueueSlice
from rmq_store.errors import AccessError
from rmq_store.files.journal import Journal, JournalError, TargetLockedError, from_json_value
from tests.support.running.child import in_a_child


@dataclass(frozen=True, slots=True)
class Work:
    """What a test has begun."""

    name: str
    ranges: tuple[QueueSlice, ...] = ()
    span: tuple[int, int] = (0, 0)
    counts: Mapping[str, int] | None = None
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """What a test has done."""

    name: str
    end: int


class OfTests(Journal[Work, Ended]):
    """The journal of these tests."""

    of = "a test"
    types = (Work | None, tuple[Ended, ...])
    in_doubt = "Delete it."

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "beside" / "journal.json", folder / "beside" / "lock")


WORK = Work("w", (QueueSlice(QueueId("orders", 1), 3, 9),), (1, 2), {"read": 5}, signed=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "beside").iterdir())


def test_what_is_recorded_is_what_the_next_process_reads(tmp_path: Path) -> None:
    with OfTests(tmp_path) as journal:
        assert (journal.begun, journal.done) == (None, ())
        journal.save(WORK, Ended("v", 7))
    with OfTests(tmp_path) as again:
        assert again.begun == WORK
        assert again.done == (Ended("v", 7),)
        again.save(None, *again.done, Ended("w", 9))
    assert names(tmp_path) == ["journal.json"]
    seen = OfTests(tmp_path)
    seen.load()
    assert (seen.begun, seen.done) == (None, (Ended("v", 7), Ended("w", 9)))
    seen.save(None)
    assert names(tmp_path) == []


def test_a_path_that_is_not_utf_8_comes_back(tmp_path: Path) -> None:
    path = os.fsdecode(b"/stores/raw\xff \xe4\xbd\xa0\n")
    with OfTests(tmp_path) as journal:
        journal.save(Work(path, WORK.ranges), Ended(path, 7))
    with OfTests(tmp_path) as again:
        assert again.begun == Work(path, WORK.ranges)
        assert again.done == (Ended(path, 7),)


def test_the_file_is_what_its_docstring_says(tmp_path: Path) -> None:
    with OfTests(tmp_path) as journal:
        journal.save(Work("w", WORK.ranges), Ended("v", 7))
    assert json.loads(journal.path.read_text()) == {
        "format": 1,
        "journal": "a test",
        "begun": {
            "name": "w",
            "ranges": [{"queue": ["orders", 1], "start": 3, "stop": 9}],
            "span": [0, 0],
            "counts": None,
            "signed": False,
        },
        "done": [{"name": "v", "end": 7}],
    }


def test_a_killed_process_leaves_its_entry_and_no_lock(tmp_path: Path) -> None:
    def work() -> None:
        OfTests(tmp_path).__enter__().save(WORK)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitstatus_to_exitcode(in_a_child(work)) == -signal.SIGKILL
    assert names(tmp_path) == ["journal.json", "lock"]
    with OfTests(tmp_path) as journal:
        assert journal.begun == WORK
    assert names(tmp_path) == ["journal.json"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_where_no_file_can_be_made_is_an_error() -> None:
    """To root, /proc answers as if the folder was removed."""
    with pytest.raises(AccessError, match="cannot be written"), InProc(Path("/proc")):
        pass


class InProc(OfTests):
    """A journal in a folder that takes no file."""

    def __init__(self, folder: Path) -> None:
        Journal.__init__(self, folder / "journal.json", folder / "lock")


def test_of_two_at_once_one_is_refused(tmp_path: Path) -> None:
    with (
        OfTests(tmp_path),
        pytest.raises(TargetLockedError, match="another process"),
        OfTests(tmp_path),
    ):
        pass
    with OfTests(tmp_path) as journal:
        assert journal.begun is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "[]",
        "null",
        "\xff",
        "[" * 100_000,
        '{"format": 2, "journal": "a test", "begun": null, "done": []}',
        '{"format": 1, "journal": "another", "begun": null, "done": []}',
        '{"format": 1, "journal": "a test", "begun": null}',
        '{"format": 1, "journal": "a test", "begun": {}, "done": []}',
        '{"format": 1, "journal": "a test", "begun": {"name": 1}, "done": []}',
        '{"format": 1, "journal": "a test", "begun": {"name": "w", "signed": 1}, "done": []}',
        '{"format": 1, "journal": "a test", "begun": {"name": "w", "span": [1]}, "done": []}',
        '{"format": 1, "journal": "a test", "begun": {"name": "w", "more": 1}, "done": []}',
        '{"format": 1, "journal": "a test", "begun": null, "done": [{"name": "v", "end": true}]}',
    ],
)
def test_a_file_that_is_no_such_journal_is_refused_by_name_and_stays(
    text: str, tmp_path: Path
) -> None:
    journal = OfTests(tmp_path)
    journal.path.parent.mkdir()
    journal.path.write_text(text, "latin-1")
    with pytest.raises(JournalError, match=r"journal\.json.*Delete it\."), journal:
        pass
    assert journal.path.read_text("latin-1") == text
    assert names(tmp_path) == ["journal.json"]


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to nothing"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    journal = OfTests(tmp_path)
    journal.path.parent.mkdir()
    if kind == "folder":
        journal.path.mkdir()
    elif kind == "fifo":
        os.mkfifo(journal.path)
    else:
        journal.path.symlink_to(tmp_path / "nothing")
    with pytest.raises(Exception, match=r"journal\.json") as refused, journal:
        pass
    assert getattr(refused.value, "code", "").startswith("RMQSTORE_")
    assert names(tmp_path) == ["journal.json"]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with OfTests(tmp_path) as journal:
        journal.save(WORK)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(AccessError, match="No space left"):
                journal.save(None, Ended("w", 9))
        journal.load()
        assert journal.begun == WORK


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, True), (bool, 1), (str, None), (tuple[int, ...], [1, "2"]), (Mapping[str, int], [])],
)
def test_a_value_of_another_type_is_refused(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match="is not"):
        from_json_value(kind, value)
