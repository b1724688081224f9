"""Reads of a store in which the folder of a topic or a queue is gone, although the log has its messages."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import CorruptQueueError, StoreError
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, complaint, objects, run

NAME, TOPIC = "clean-5.5.0", "orders"


def without(tmp_path: Path, *lost: str) -> GoldenStore:
    golden = unpack(NAME, tmp_path)
    shutil.rmtree(Path(golden.path, "consumequeue", *lost))
    return golden


@pytest.mark.parametrize("lost", [(TOPIC,), (TOPIC, "0")])
@pytest.mark.parametrize("topics", [TOPIC, None])
def test_a_read_of_the_queue_fails(
    lost: tuple[str, ...], topics: str | None, tmp_path: Path
) -> None:
    golden = without(tmp_path, *lost)
    with golden.open() as store:
        assert TOPIC in store.topics()
        with pytest.raises(
            CorruptQueueError, match="queue orders/0 has no files, although the log"
        ):
            store.read_batches(topics).read_all()
        met: list[StoreError] = []
        rows = store.read_batches(topics, on_damage=met.append).read_all()
        left = {queue for queue in golden.by_queue if queue in store.queues()}
    gone = {queue for queue in golden.by_queue if queue.topic == TOPIC and queue not in left}
    assert len(met) == len(gone) > 0
    users = [queue for queue in left if queue.topic == TOPIC or not topics]
    assert rows.num_rows >= sum(len(golden.by_queue[q]) for q in users if q.topic == TOPIC)


def test_a_queue_of_a_topic_that_no_configuration_declares(tmp_path: Path) -> None:
    golden = unpack("expired-5.5.0", tmp_path)
    shutil.rmtree(Path(golden.path, "consumequeue", "SCHEDULE_TOPIC_XXXX", "8"))
    with golden.open() as store, pytest.raises(CorruptQueueError, match="SCHEDULE_TOPIC_XXXX/8"):
        store.read_batches(include_system_topics=True).read_all()
    assert "SCHEDULE_TOPIC_XXXX/8 has no files" in complaint("scheduled", golden.path, expect=2)
    assert "though its topic is there" in run("verify", golden.path, expect=1)


def test_queues_of_a_deleted_topic_that_a_recovery_listed_again(tmp_path: Path) -> None:
    """The broker lists the newest messages of the log again, of some queues of the topic."""
    golden = unpack(NAME, tmp_path)
    for queue_id in "123":
        shutil.rmtree(Path(golden.path, "consumequeue", TOPIC, queue_id))
    topics = Path(golden.path, "config/topics.json")
    declared = json.loads(topics.read_text("utf-8"))
    del declared["topicConfigTable"][TOPIC]
    topics.write_text(json.dumps(declared), "utf-8")
    with golden.open() as store:
        left = golden.by_queue[QueueId(TOPIC, 0)]
        assert store.read_batches(TOPIC).read_all().num_rows == len(left)
    assert "queue-missing" not in run("verify", golden.path, expect=1)


def test_a_read_of_other_topics_does_not(tmp_path: Path) -> None:
    golden = without(tmp_path, TOPIC)
    with golden.open() as store:
        assert store.read_batches("payments").read_all().num_rows
        assert store.read_batches("payments", [0]).read_all().num_rows


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "--topic", TOPIC),
        ("cat", "--topic", TOPIC, "--queue", "0"),
        ("find", "--topic", TOPIC, "--tag", "x"),
        ("sql", "select count(*) from messages"),
        ("sql", f"select body from messages where topic = '{TOPIC}'"),
    ],
)
def test_commands_that_read_it_fail(words: tuple[str, ...], tmp_path: Path) -> None:
    golden = without(tmp_path, TOPIC, "0")
    said = run(words[0], golden.path, *words[1:], expect=2)
    assert "queue orders/0 has no files" in said


def test_a_recovery_names_it(tmp_path: Path) -> None:
    golden = without(tmp_path, TOPIC, "0")
    said = run("recover", golden.path, expect=1)
    assert "queue orders/0 has no files, although the log has at least" in said
    assert "nothing else was checked" not in said


def test_what_skips_damage_counts_its_messages(tmp_path: Path) -> None:
    golden = without(tmp_path, TOPIC)
    lost = sum(len(rows) for queue, rows in golden.by_queue.items() if queue.topic == TOPIC)
    done = call("find", golden.path, "--topic", TOPIC, "--text", "none", "--skip-damaged")
    assert f"at least {lost:,} messages could not be read" in done.stderr


def test_queues_are_read_in_one_order(tmp_path: Path) -> None:
    """Rows that share a place of the log, as those of light queues, come in the order of the ranges."""
    with unpack("lmq-5.3.3", tmp_path).open() as store:
        queues = [part.queue for part in store.view.ranges_of(store.topics())]
        assert queues == sorted(store.queues())


def test_times_without_its_messages_do_not_select_it(tmp_path: Path) -> None:
    golden = without(tmp_path, "payments")
    with golden.open() as store:
        lost = [queue for queue in golden.by_queue if queue.topic == "payments"]
        assert store.view.lost_queues() == set(lost)
        first = min(r["storeTimestamp"] for r in golden.truth if r["topic"] == "payments")
    until = ("--until", str(first))
    assert not run("cat", golden.path, "--topic", "payments", *until).splitlines()
    run("cat", golden.path, "--topic", "payments", "--until", str(first + 1), expect=2)


@pytest.mark.parametrize(
    ("there", "named"), [("payments/1", "payments/5"), ("payments", "payment")]
)
def test_a_folder_under_a_wrong_name_lists_nothing(there: str, named: str, tmp_path: Path) -> None:
    """Its entries lead to records of another queue, and so do not stand for them."""
    path = unpack(NAME, tmp_path).path
    queues = Path(path, "consumequeue")
    (queues / there).rename(queues / named)
    of_queue = ("--topic", "payments", "--queue", "1")
    query = "select count(*) from messages where topic = 'payments' and queueId = 1"
    for words in (("cat", path, *of_queue), ("sql", path, query)):
        assert "queue payments/1 has no files" in complaint(*words, expect=2)
    assert "queue payments/1 has no files" in complaint("queues", path, expect=1)
    done = call("replay", path, "--to-parquet", str(tmp_path / "new"), *of_queue)
    assert done.returncode == (1 if "/" in there else 2)
    assert "queue payments/1 has no files" in done.both


def test_a_topic_that_lost_its_queues_and_its_configuration(tmp_path: Path) -> None:
    golden = without(tmp_path, "payments")
    for file in Path(golden.path, "config").glob("topics.json*"):
        file.unlink()
    words = "418 records of topic payments in the log, and no queue of it"
    for command in (("queues",), ("sql", "select count(*) from messages")):
        assert words in complaint(command[0], golden.path, *command[1:], expect=0)
    (row,) = objects("find", golden.path, "--key", "ORDER_1650")
    assert (row["topic"], row["queueId"], row["queueOffset"]) == ("payments", 1, 191)
    assert "committed" in run("trace", golden.path, "ORDER_1650")


def test_counts_in_sql_say_what_queues_lack(tmp_path: Path) -> None:
    path = unpack(NAME, tmp_path).path
    Path(path, "consumequeue/orders/1/00000000000000004000").unlink()
    for table in ("queues", "topics", "groups", "usage"):
        said = complaint("sql", path, f"select count(*) from {table}", expect=0)
        assert said.count("queue orders/1 ends before its messages") == 1


@pytest.mark.parametrize("table", ["queues", "topics", "groups", "usage"])
def test_tables_that_count_entries_say_what_queues_lack(
    table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = unpack(NAME, tmp_path).path
    Path(path, "consumequeue/orders/1/00000000000000004000").unlink()
    said = call("table", path, table)
    assert (said.returncode, said.stderr.count("queue orders/1 ends before its messages")) == (1, 1)
    with MessageStore.open(path) as store:
        assert store.table(table).num_rows
    assert caplog.text.count("queue orders/1 ends before its messages") == 1


def test_a_cut_log_file_of_a_crashed_store(tmp_path: Path) -> None:
    path = unpack("crash-5.5.0", tmp_path).path
    os.truncate(Path(path, "commitlog/00000000000001835008"), 18_000)
    for command in ("queues", "topics", "lag"):
        assert "log offset 1853008 to 2097152 is in no file" in complaint(command, path, expect=1)
