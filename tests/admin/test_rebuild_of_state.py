"""rebuild of what a broker needs besides log, queues and index: files of compaction and of the timer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store.admin.rebuild import DATABASE, rebuild
from tests.admin.test_salvage_of_state import HALF, lose, of
from tests.support.golden import files_below, unpack_field, unpack_kind, unpack_state
from tests.support.log_records import fields
from tests.support.running.commands import objects, run


@pytest.mark.parametrize("store_type", ["default", DATABASE])
def test_files_of_compaction_topics_come_along(tmp_path: Path, store_type: str) -> None:
    store = unpack_kind("compacted-5.5.0", tmp_path)
    report = rebuild(store.path, tmp_path / "new", config=store.conf, store_type=store_type)
    before = files_below(Path(store.path, "compaction"))
    assert len(before) > 10
    assert files_below(tmp_path / "new/compaction") == before
    assert report.left_behind == ()
    topic = next(Path(store.path, "compaction/compactionCq").iterdir()).name
    served, again = (
        objects("cat", str(root), "--topic", topic, "--columns", "queueId,queueOffset,keys")
        for root in (store.path, tmp_path / "new")
    )
    assert served == again
    assert served


def test_a_link_among_the_files_of_compaction_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link may lead out of the store, to a file that is none of the broker's."""
    store = unpack_kind("compacted-5.5.0", tmp_path)
    before = files_below(Path(store.path, "compaction"))
    (tmp_path / "elsewhere").write_text("secret", "utf-8")
    Path(store.path, "compaction/link").symlink_to(tmp_path / "elsewhere")
    rebuild(store.path, tmp_path / "new", config=store.conf)
    assert files_below(tmp_path / "new/compaction") == before
    assert "compaction/link: not a file" in caplog.text


def test_files_of_the_timer_come_along(tmp_path: Path) -> None:
    store = unpack_state("timers-waiting-5.5.0", tmp_path)
    Path(store.path, "timerwheel").write_bytes(b"\1" * 100_000)
    Path(store.path, "kvStore").mkdir()
    Path(store.path, "kvStore/000007.log").write_bytes(b"of pop")
    rebuild(store.path, tmp_path / "new", config=store.conf)
    for name in ("timerlog", "config"):
        before = files_below(Path(store.path, name))
        assert before == {
            k: v for k, v in files_below(tmp_path / "new" / name).items() if k in before
        }
    assert (tmp_path / "new/timerwheel").read_bytes() == b"\1" * 100_000
    assert (tmp_path / "new/kvStore/000007.log").read_bytes() == b"of pop"
    waiting = objects("scheduled", store.path, "--broker-name", "b")
    assert objects("scheduled", str(tmp_path / "new"), "--broker-name", "b") == waiting
    assert len(waiting) == 10


def test_without_its_log_the_timer_begins_anew(tmp_path: Path) -> None:
    """A checkpoint says that the timer has read its messages; without the log they would never come."""
    store = unpack_state("timers-waiting-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path, "timerlog"))
    said = run("rebuild", store.path, "--to", str(tmp_path / "new"))
    assert "left out: config/timercheck" in said
    assert not (tmp_path / "new/config/timercheck").exists()
    assert (tmp_path / "new/config/topics.json").exists()


def test_half_messages_with_other_offsets_than_op_messages_name_are_counted(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    halves = of(fields(store.path), HALF)
    lose(store, halves[10].log_offset)
    (report,) = objects("rebuild", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert report["renumbered"] == {HALF: len(halves) - 11}
    assert f"{len(halves) - 11} of {HALF}" in run(
        "rebuild", store.path, "--to", str(tmp_path / "again"), expect=1
    )


def test_the_log_of_the_timer_does_not_fit_a_log_without_entries(tmp_path: Path) -> None:
    root = unpack_field("mixed-dledger-old-log-there", tmp_path)
    store = next(path.parent for path in root.rglob("consumequeue"))
    timers = unpack_state("timers-waiting-5.5.0", tmp_path)
    shutil.copytree(Path(timers.path, "timerlog"), store / "timerlog")
    (store / "config").mkdir(exist_ok=True)
    (store / "config/timercheck").write_bytes(bytes(4096))
    report = rebuild(store, tmp_path / "new", config=next(root.glob("*.conf"), None))
    assert report.left_behind == ("config/timercheck", "timerlog")
    assert not (tmp_path / "new/config/timercheck").exists()
    assert not (tmp_path / "new/timerlog").exists()
