"""Tables of the broker's own topics, with a damaged message in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import QueueId
from tests.support.damage import write_at, write_in_log
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, complaint, objects


def hurt(store: GoldenStore, queue: QueueId, row: int) -> int:
    """Damage the magic of one message of a queue; gives its log offset."""
    record = store.by_queue[queue][row]
    at = record["commitLogOffset"]
    write_in_log(store, at + 4, b"\xff")
    return int(at)


@pytest.mark.parametrize(
    ("command", "queue", "row"),
    [
        ("scheduled", QueueId("SCHEDULE_TOPIC_XXXX", 17), 2),
        ("retries", QueueId("%RETRY%g-retry", 0), 2),
        ("transactions", QueueId("RMQ_SYS_TRANS_HALF_TOPIC", 0), 5),
    ],
)
def test_a_damaged_message_is_left_out_and_said(
    command: str, queue: QueueId, row: int, copy: GoldenStore
) -> None:
    before = objects(command, copy.path)
    at = hurt(copy, queue, row)
    assert "--skip-damaged leaves it out" in complaint(command, copy.path, expect=2)
    said = complaint(command, copy.path, "--skip-damaged", "--json", expect=1)
    assert "left out: " in said
    assert str(at) in said
    after = objects(command, copy.path, "--skip-damaged", expect=1)
    assert 0 < len(after) <= len(before)
    assert all(at not in one.values() for one in after)


@pytest.mark.parametrize(
    ("name", "queue"),
    [("retries", QueueId("%RETRY%g-retry", 0)), ("deadLetters", QueueId("%DLQ%g-retry", 0))],
)
def test_a_table_of_messages_leaves_them_out_too(name: str, queue: QueueId, tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    before = objects("table", name, store.path)
    at = hurt(store, queue, 1)
    assert "--skip-damaged leaves it out" in complaint("table", name, store.path, expect=2)
    lenient = call("table", name, store.path, "--skip-damaged", "--json")
    assert lenient.returncode == 1
    assert lenient.stderr.count("left out: ") == 1
    assert str(at) in lenient.stderr
    assert 0 < len(lenient.stdout.splitlines()) <= len(before)


def test_a_table_of_files_has_no_damaged_messages_to_leave_out(copy: GoldenStore) -> None:
    said = call("table", "files", copy.path, "--skip-damaged")
    assert said.returncode == 2
    assert "tables of messages: scheduled, transactions, " in said.stderr


def test_messages_that_entries_of_other_queues_hide_are_counted(copy: GoldenStore) -> None:
    """The first files of two queues are exchanged."""
    one, other = (
        Path(copy.path, f"consumequeue/orders/{queue}/00000000000000000000") for queue in (0, 1)
    )
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])
    words = ("cat", copy.path, "--topic", "orders", "--skip-damaged", "--columns")
    by_records = call(*words, "queueOffset,keys").stderr.splitlines()[-1]
    assert by_records.startswith("rmqstore: 200 messages ")


@pytest.mark.parametrize(
    ("gone", "printed", "said"),
    [
        ("consumequeue/orders/{}/00000000000000002000", 571, "400 messages"),
        ("commitlog/00000000000000786432", 806, "at least 165 messages"),
        ("commitlog/00000000000000262144", 669, "302 messages"),
    ],
    ids=["middle-of-queues", "end-of-log", "middle-of-log"],
)
@pytest.mark.parametrize("command", ["cat", "find"])
def test_messages_are_counted_not_places(
    command: str, gone: str, printed: int, said: str, copy: GoldenStore
) -> None:
    """971 messages of orders are in four queues."""
    for pattern in {gone.format(queue) for queue in range(4)}:
        for path in Path(copy.path).glob(pattern):
            path.unlink()
    done = call(command, copy.path, "--topic", "orders", "--skip-damaged")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, printed)
    assert done.stderr.splitlines()[-1] == f"rmqstore: {said} could not be read; see `verify`"


@pytest.mark.parametrize("columns", ["queueId,queueOffset", "queueId,queueOffset,body"])
@pytest.mark.parametrize("words", [(), ("--queue", "0"), ("--since", "2020-01-01")])
def test_the_messages_before_damage_are_printed(
    words: tuple[str, ...], columns: str, copy: GoldenStore
) -> None:
    asked = ("cat", copy.path, "--topic", "orders", "--columns", columns, *words)
    every = call(*asked).stdout.splitlines()
    rows = {tuple(line.split("\t")[:2]): row for row, line in enumerate(every)}
    # An entry without a record has no place in the log: it is before the next one of its queue.
    file = Path(copy.path, "consumequeue/orders/0", "0" * 20)
    file.chmod(0o644)
    write_at(file, 1000, bytes(20))
    assert call(*asked)[:2] == (
        2,
        "\n".join(_without(every, "0\t50")[: rows["0", "51"] - 1]) + "\n",
    )
    if "body" in columns:
        hurt(copy, QueueId("orders", 0), 20)
        assert call(*asked)[:2] == (2, "\n".join(every[: rows["0", "20"]]) + "\n")


def test_tail_goes_on_past_damage(copy: GoldenStore) -> None:
    words = ("tail", copy.path, "--topic", "orders", "-n", "3", "--columns", "queueId,queueOffset")
    every = call(*words).stdout.splitlines()
    row = len(copy.by_queue[QueueId("orders", 0)]) - 2
    hurt(copy, QueueId("orders", 0), row)
    words = (*words[:-1], "queueId,queueOffset,body")
    assert "stopped at a damaged message" in complaint(*words, expect=2)
    done = call(*words, "--skip-damaged")
    assert done.returncode == 1
    printed = ["\t".join(line.split("\t")[:2]) for line in done.stdout.splitlines()]
    assert printed == _without(every, f"0\t{row}")
    assert "rmqstore: left out: " in done.stderr


def _without(lines: list[str], start: str) -> list[str]:
    return [line for line in lines if not line.startswith(start)]
