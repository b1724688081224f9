"""`lag` names the queues of which waiting messages have no entry or no file of the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store.tables import TABLES
from tests.support.golden import log_files, unpack
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


def test_the_summary_counts_groups_whose_lag_is_not_known(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    shutil.rmtree(Path(path, "consumequeue", "orders"))
    assert ", 1 not known" in call("lag", path, "--group", "g-slow").stderr


def zero_entries(file: Path, first: int, count: int) -> None:
    """Lose entries of a queue file: a page of it never reached the disk."""
    file.chmod(0o644)
    with file.open("r+b") as queue:
        queue.seek(first * 20)
        queue.write(bytes(count * 20))


@pytest.mark.parametrize(("group", "status"), [("g-slow", "LOST_ENTRIES"), ("g-retry", "OK")])
def test_what_counts_entries_names_zeros_between_them(
    group: str, status: str, tmp_path: Path
) -> None:
    path = unpack(NAME, tmp_path).path
    zero_entries(Path(path, "consumequeue/orders/0/00000000000000000000"), 50, 5)
    for command in ("topics", "queues", "lag", "recover"):
        said = call(command, path)
        assert said.returncode == 1
        assert said.both.count("queue orders/0 does not list 5 whole records that the log has") == 1
        assert "at queue offsets from 50 to 54; the first has log offset" in said.both
    rows = objects("lag", path, "--group", group, expect=1)
    assert {row["queueId"]: row["status"] for row in rows}[0] == status
    assert run("info", path).count("; not compared with the log") == 1


def test_zeros_that_a_group_has_passed_do_not_spoil_its_lag(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    zero_entries(Path(path, "consumequeue/orders/0/00000000000000000000"), 40, 5)
    rows = objects("lag", path, "--group", "g-slow", expect=1)
    assert {row["status"] for row in rows} == {"OK"}


@pytest.mark.parametrize(
    ("name", "first", "status"), [("0000", 0, "OK"), ("2000", 100, "LOST_ENTRIES")]
)
def test_exchanged_files_of_two_queues_are_named(
    name: str, first: int, status: str, tmp_path: Path
) -> None:
    """The numbers of their messages stay right."""
    path = unpack(NAME, tmp_path).path
    files = [next(Path(path, f"consumequeue/orders/{one}").glob(f"*{name}")) for one in (0, 1)]
    held = [file.read_bytes() for file in files]
    for file, other in zip(files, reversed(held), strict=True):
        file.chmod(0o644)
        file.write_bytes(other)
    for command in ("topics", "queues", "lag", "recover"):
        said = call(command, path)
        assert said.returncode == 1
        for queue in ("orders/0", "orders/1"):
            line = f"queue {queue} does not list 100 whole records that the log has of it, at queue offsets "
            (found,) = (one for one in said.both.splitlines() if line in one)
            assert f"from {first} to {first + 99};" in found
            assert "and its entry leads to a record of another queue" in found
    rows = objects("lag", path, "--group", "g-slow", expect=1)
    assert {row["queueId"]: row["status"] for row in rows}[1] == status
    assert "in a file or folder that was renamed" in complaint(
        "cat", path, "--topic", "orders", expect=2
    )


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_lost_queue_of_a_topic_without_settings_is_named(
    number: int, is_cut: bool, tmp_path: Path
) -> None:
    """Such a store has no topics.json; its checkpoint has the time of its first record."""
    golden = unpack("direct-5.5.0", tmp_path)
    shutil.rmtree(Path(golden.path, f"consumequeue/orders/{number}"))
    if is_cut:
        log_files(golden)[-1].unlink()
    for command in ("topics", "queues", "lag"):
        said = complaint(command, golden.path, expect=1)
        assert f"queue orders/{number} has no files, although the log has at least" in said
        assert ("the end of the log is lost" in said) is is_cut
    assert "queue-missing" in run("verify", golden.path, expect=1)
    words = ("cat", golden.path, "--topic", "orders", "--queue")
    assert f"orders/{number} has no files" in run(*words, str(number), expect=2)
    assert "has no queue 9" in run(*words, "9", expect=2)


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
        assert TABLES["groups"].of(store)["status"].to_pylist().count("LOST_RECORDS") == behind


def test_a_lost_queue_comes_first_and_its_group_has_no_known_lag(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    shutil.rmtree(Path(path, "consumequeue/orders/2"))
    (row,) = objects("lag", path, "--top", "1", expect=1)
    assert (row["status"], row["queueId"], row["lag"]) == ("LOST_QUEUE", 2, None)
    (total,) = objects("lag", path, "--top", "1", "--by", "group", expect=1)
    assert (total["consumerGroup"], total["queuesWithLoss"]) == ("g-slow", 1)
    assert [total[name] for name in ("lag", "lagBytes", "lagMs")] == [None] * 3
    said = call("lag", path, "--max-lag", "500").stderr
    assert "by at least 597 messages in all" in said
    assert "group g-slow of topic orders is at least 597 messages behind; at most 500" in said


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
