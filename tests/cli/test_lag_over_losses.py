"""`lag` names the queues of which waiting messages have no entry or no file of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import unpack
from tests.support.running.commands import call, complaint, objects, run

NAME = "clean-5.5.0"


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_queue_without_a_middle_file_has_lost_entries(is_cut: bool, tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    file = Path(path, "consumequeue/orders/0/00000000000000002000")
    if is_cut:
        file.write_bytes(file.read_bytes()[:1000])
    else:
        file.unlink()
    rows = objects("lag", path, "--group", "g-slow", expect=1)
    assert {row["queueId"]: (row["status"], row["lagBytes"]) for row in rows}[0] == (
        "LOST_ENTRIES",
        None,
    )
    assert [row["status"] for row in rows].count("OK") == 3
    assert "rmqstore rebuild lists them" in call("lag", path).stderr


@pytest.mark.parametrize(("name", "behind"), [("786432", 5), ("524288", 4)])
def test_messages_that_wait_in_a_lost_file_of_the_log_are_lost(
    name: str, behind: int, tmp_path: Path
) -> None:
    golden = unpack(NAME, tmp_path)
    next(Path(golden.path, "commitlog").glob(f"*{name}")).unlink()
    rows = objects("lag", golden.path, expect=1)
    lost = [row for row in rows if row["status"] == "LOST_RECORDS"]
    assert len(lost) == behind
    assert all(row["lag"] for row in lost)
    assert {row["status"] for row in rows if row not in lost} == {"OK"}
    totals = objects("lag", golden.path, "--by", "group", expect=1)
    assert [(row["queuesWithLoss"], row["lagMs"] is None) for row in totals] == [
        (4, behind == 5),
        (int(behind == 5), behind == 5),
        (0, False),
    ]
    with golden.open() as store:
        assert store.table("groups")["status"].to_pylist().count("LOST_RECORDS") == behind


@pytest.mark.parametrize("gone", ["the file", "the folder"])
def test_lag_without_the_file_of_offsets_is_not_known(gone: str, tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    for file in Path(path, "config").glob("consumerOffset.json*" if gone == "the file" else "*"):
        file.unlink()
    for words in ([], ["--max-lag", "10"], ["--json"]):
        said = complaint("lag", path, *words, expect=1)
        assert said.count("there is no consumerOffset.json: how far groups have consumed") == 1
        assert "g-retry" in said


def test_a_store_that_never_had_a_consumer_has_no_unknown_lag(tmp_path: Path) -> None:
    path = unpack("crash-5.3.3", tmp_path).path
    assert not Path(path, "config/consumerOffset.json").exists()
    settings = '{"subscriptionGroupTable":{"TOOLS_CONSUMER":{"groupName":"TOOLS_CONSUMER"}}}'
    Path(path, "config/subscriptionGroup.json").write_text(settings)
    assert "there is no consumerOffset.json" in complaint("lag", path, expect=0)
    for words in (["--max-lag", "10"], ["--group", "TOOLS_CONSUMER"]):
        assert "is not known. Look for the file" in complaint("lag", path, *words, expect=1)


def test_no_offset_is_no_lag_of_nothing(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    assert "group g-retry has no offset of topic orders" in complaint(
        *(
            "lag",
            path,
            "--group",
            "g-retry",
            "--group",
            "g-slow",
            "--topic",
            "orders",
            "--max-lag",
            "1000",
        ),
        expect=1,
    )
    for file in Path(path, "config").glob("consumerOffset.json*"):
        file.write_text('{"offsetTable": {}}')
    assert run("lag", path).startswith("consumerGroup")
    said = complaint("lag", path, "--max-lag", "1000", expect=1)
    assert "no group has an offset, so that how far it is behind is not known" in said
