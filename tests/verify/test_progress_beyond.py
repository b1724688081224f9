"""Files that claim more than the queues and the log have, and messages that no consumer gets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.questions.lag_summary import lag_of
from rmq_store.report.section import ReadLimits
from rmq_store.report.store_report import store_report
from rmq_store.text.times import shown_time
from rmq_store.verify import Finding, Severity, verify
from rmq_store.verify.config_against_store import progress_findings
from tests.support.damage import write_at, write_in_log
from tests.support.golden import GoldenStore, unpack, unpack_kind
from tests.support.rocksdb import write_database
from tests.support.running.commands import complaint, objects, run


@pytest.fixture
def clean(tmp_path: Path) -> GoldenStore:
    return unpack("clean-5.5.0", tmp_path)


def found(store: GoldenStore) -> dict[str, Finding]:
    return {one.code: one for one in store.verified().findings}


def change(store: GoldenStore, name: str, pattern: str, to: str) -> None:
    path = Path(store.path, "config", name)
    text, count = re.subn(pattern, to, path.read_text())
    assert count == 1
    path.write_text(text)


def declare(store: GoldenStore, topic: str, **settings: int) -> None:
    """Change settings of a topic in topics.json."""
    path = Path(store.path, "config", "topics.json")
    known = json.loads(path.read_text())
    known["topicConfigTable"][topic] |= settings
    path.write_text(json.dumps(known))


def shrink(store: GoldenStore, topic: str, queues: int) -> None:
    declare(store, topic, readQueueNums=queues, writeQueueNums=queues)


def waiting_from(store: GoldenStore, topic: str, queue_id: int) -> int:
    """Messages in the queues of a topic from this number on, by the broker's own answers."""
    return sum(
        len(of) for queue, of in store.by_queue.items() if queue[0] == topic if queue[1] >= queue_id
    )


def test_nothing_is_beyond_in_the_store_itself(clean: GoldenStore) -> None:
    assert not found(clean)


@pytest.mark.parametrize(("topic", "queues"), [("orders", 2), ("orders", 0), ("payments", 1)])
def test_messages_in_queues_that_no_consumer_reads(
    clean: GoldenStore, topic: str, queues: int
) -> None:
    shrink(clean, topic, queues)
    finding = found(clean)["queue-not-read"]
    assert finding.severity is Severity.WARNING
    assert finding.count == waiting_from(clean, topic, queues)
    assert f"topic {topic} has readQueueNums {queues}" in finding.meaning
    with clean.open() as store:
        answer = lag_of(store, topics=[topic])
    for row in answer.rows:
        expected = "NOT_READ" if row["queueId"] >= queues and row["lag"] else "OK"
        assert row["status"] == expected
    if topic == "orders":
        assert any("no consumer reads" in problem for problem in answer.problems())
    assert "warning queue-not-read" in run("verify", clean.path, expect=1)


def test_what_all_groups_have_consumed_needs_no_consumer(clean: GoldenStore) -> None:
    """As before readQueueNums is made smaller: to copy these messages would repeat them."""
    shrink(clean, "retrying", 1)
    finding = found(clean)["queue-not-read"]
    assert (finding.severity, finding.count) == (Severity.NOTE, 12)
    assert "have consumed them" in finding.meaning
    assert "replay" not in finding.advice
    pattern = r'("retrying@g-retry":\{\s*0:12,\s*1:)12'
    path = Path(clean.path, "config", "consumerOffset.json")
    path.write_text(re.sub(pattern, r"\g<1>11", path.read_text()))
    assert found(clean)["queue-not-read"].severity is Severity.WARNING


def test_the_queues_that_only_a_broker_reads_are_left_out(clean: GoldenStore) -> None:
    shrink(clean, "SCHEDULE_TOPIC_XXXX", 1)
    assert not found(clean)


def test_an_offset_in_a_queue_without_messages(clean: GoldenStore) -> None:
    change(
        clean,
        "consumerOffset.json",
        '"orders@g-slow":\\{',
        '"retrying@g-slow":{7:9},"orders@g-slow":{',
    )
    finding = found(clean)["consumer-ahead"]
    assert ("retrying", 7) not in {tuple(queue) for queue in clean.by_queue}
    assert "offset 9 in retrying/7, which has offsets 0 to 0" in finding.meaning


def test_a_delay_level_that_is_delivered_further_than_its_queue(clean: GoldenStore) -> None:
    change(clean, "delayOffset.json", "18:0", "18:9")
    finding = found(clean)["delay-ahead"]
    assert "delay level 18 is delivered to offset 9 of SCHEDULE_TOPIC_XXXX/17" in finding.meaning
    assert "offsets to 6" in finding.meaning


def test_a_timer_that_has_read_further_than_its_topic(clean: GoldenStore) -> None:
    raw = (1_795_253_084_000).to_bytes(8, "big") + bytes(8) + (5).to_bytes(8, "big")
    Path(clean.path, "config", "timercheck").write_bytes(raw.ljust(4096, b"\0"))
    assert "to offset 5, and the topic has offsets to 0" in found(clean)["timer-ahead"].meaning


@pytest.mark.parametrize("field", [16, 40])
def test_a_checkpoint_that_knows_more_than_the_log(clean: GoldenStore, field: int) -> None:
    with clean.open() as store:
        end = store.log_range()[1]
    path = Path(clean.path, "checkpoint")
    value = end if field == 40 else int.from_bytes(path.read_bytes()[:8], "big") + 60_000
    write_at(path, field, value.to_bytes(8, "big"))
    assert found(clean)["checkpoint-ahead"].severity is Severity.ERROR


def test_a_report_has_them_without_a_check_of_the_log(clean: GoldenStore) -> None:
    shrink(clean, "orders", 2)
    change(clean, "delayOffset.json", "18:0", "18:9")
    said = [one.text for one in store_report(clean.path, bounds=ReadLimits(verified=0)).remarks]
    for code in ("queue-not-read", "delay-ahead"):
        assert any(text.startswith(code) for text in said), code
    with MessageStore.open(clean.path) as store:
        assert not store.view.topics.is_read(
            next(q for q in store.queues("orders") if q.queue_id == 3)
        )


@pytest.mark.parametrize(("claimed", "ahead"), [(0, False), (4, True), (6, True), (9, True)])
def test_a_level_that_counts_what_is_due_after_the_log(
    clean: GoldenStore, claimed: int, ahead: bool
) -> None:
    level = clean.by_queue[QueueId("SCHEDULE_TOPIC_XXXX", 17)]
    assert len(level) == 6  # for two hours after the newest record of the log
    change(clean, "delayOffset.json", "18:0", f"18:{claimed}")
    assert ("delay-ahead" in found(clean)) == ahead
    rows = objects("scheduled", clean.path)
    assert [row["state"] for row in rows].count("waiting") == max(0, 6 - claimed)


def test_delivered_messages_with_other_delays_in_their_entries(
    clean: GoldenStore, tmp_path: Path
) -> None:
    """The broker had delays of its own; a rebuild without its configuration writes the default ones.

    Entries of level 3 then have a time after the end of the log, which has a copy of each message.
    """
    run("rebuild", clean.path, "--to", str(tmp_path / "rebuilt"))
    with MessageStore.open(tmp_path / "rebuilt") as store:
        entries = store.entries(QueueId("SCHEDULE_TOPIC_XXXX", 2), 13, 14)
        assert entries.tags_code[0] > max(m["storeTimestamp"] for m in clean.truth)
        assert not list(progress_findings(store))


def test_a_level_is_ahead_beside_a_damaged_file_of_the_timer(clean: GoldenStore) -> None:
    change(clean, "delayOffset.json", "18:0", "18:4")
    Path(clean.path, "config", "timercheck").write_bytes(b"no offsets")
    assert {"delay-ahead", "config-unreadable"} <= set(found(clean))


def test_a_level_is_ahead_where_its_messages_cannot_be_read(clean: GoldenStore) -> None:
    """No copy is found of what cannot be read, and that proves nothing."""
    change(clean, "delayOffset.json", "18:0", "18:6")
    for record in clean.by_queue[QueueId("SCHEDULE_TOPIC_XXXX", 17)]:
        length_at = record["commitLogOffset"] + 84  # of the body
        write_in_log(clean, length_at, b"\xff\xff\xff\xff")
    with clean.open() as store:
        assert "delay-ahead" in {one.code for one in progress_findings(store)}


TIMERS = "compact-timer-5.5.0"


@pytest.mark.parametrize(("later", "ahead"), [(0, 0), (10**8, 7), (-(10**8), 0)])
def test_a_timer_that_has_delivered_what_the_log_does_not_have(
    tmp_path: Path, later: int, ahead: int
) -> None:
    """The broker counted 7 timers that wait, in config/timermetrics."""
    root = Path(unpack_kind(TIMERS, tmp_path).path)
    path = root / "config" / "timercheck"
    raw = path.read_bytes()
    path.write_bytes((int.from_bytes(raw[:8], "big") + later).to_bytes(8, "big") + raw[8:])
    with MessageStore.open(root) as store:
        findings = {one.code: one for one in verify(store).findings}
        assert findings.get("timer-ahead") is None or findings["timer-ahead"].count == ahead
        assert ("timer-ahead" in findings) == bool(ahead)


@pytest.mark.parametrize("how", ["deleted", "zeros", "the last of zeros", "two deleted"])
def test_an_index_that_ends_before_what_the_checkpoint_says(clean: GoldenStore, how: str) -> None:
    files = sorted(Path(clean.path, "index").iterdir())
    flushed = int.from_bytes(Path(clean.path, "checkpoint").read_bytes()[16:24], "big")
    for path in files[-2:] if how == "two deleted" else files:
        if "deleted" in how:
            path.unlink()
        elif how == "zeros" or path == files[-1]:
            path.write_bytes(bytes(path.stat().st_size))
    finding = found(clean).get("index-lost")
    if how == "the last of zeros":  # the checkpoint knows the last full one
        assert finding is None
    else:
        assert finding is not None
        assert f"up to {shown_time(flushed)}, and its files" in finding.meaning
        assert "index-absent" not in found(clean)


@pytest.mark.parametrize("field", [0, 8, 16])
def test_info_compares_each_time_of_the_checkpoint(clean: GoldenStore, field: int) -> None:
    path = Path(clean.path, "checkpoint")
    later = int.from_bytes(path.read_bytes()[:8], "big") + 1
    write_at(path, field, later.to_bytes(8, "big"))
    assert "the end of the log is lost" in run("info", clean.path, expect=1)


@pytest.mark.campaign
def test_an_index_header_with_a_record_after_the_end_of_the_log(
    clean: GoldenStore, tmp_path: Path
) -> None:
    with clean.open() as store:
        end = store.log_range()[1]
    path = sorted(Path(clean.path, "index").iterdir())[-1]
    write_at(path, 24, end.to_bytes(8, "big"))
    said = f"its header has a record at log offset {end}, and the log ends at {end}"
    with clean.open() as store:
        problems = [row["problem"] for row in store.table("index").to_pylist()]
    assert problems.count(said) == 1
    page = tmp_path / "page.html"
    run("report", clean.path, "-o", str(page))
    assert f"end_log_offset (expected 951357, found {end})" in page.read_text()  # by verify
    run("report", str(unpack("clean-5.3.3", tmp_path).path), "-o", str(page))
    assert "index-beyond-log" not in page.read_text()


@pytest.mark.parametrize(
    ("perm", "read"), [(2, False), (0, False), (4, True), (6, True), (1, False)]
)
def test_messages_of_a_topic_whose_perm_forbids_to_read(
    clean: GoldenStore, perm: int, read: bool
) -> None:
    """PermName of the broker: 4 read, 2 write, 1 inherited; PullMessageProcessor refuses without 4."""
    declare(clean, "orders", perm=perm)
    finding = found(clean).get("queue-not-read")
    assert (finding is None) == read
    if finding is not None:
        assert finding.count == waiting_from(clean, "orders", 0)
        assert f"topic orders has perm {perm}, without 4 (read)" in finding.meaning
        assert f"Set perm to {perm | 4}" in finding.advice
    with clean.open() as store:
        answer = lag_of(store, topics=["orders"])
    assert {row["status"] for row in answer.rows} == ({"OK"} if read else {"NOT_READ"})


def test_dead_letters_need_no_perm_to_be_read(tmp_path: Path) -> None:
    """A broker declares them with perm 2."""
    store = unpack("clean-4.9.7", tmp_path)
    dead = "%DLQ%g-retry"
    assert waiting_from(store, dead, 0)
    declare(store, dead, perm=2)
    assert "queue-not-read" not in found(store)


def test_what_a_group_was_sent_beyond_the_end_of_a_queue(clean: GoldenStore) -> None:
    """pullOffsetTable, which a broker of 5.5.0 wrote; the queue has 12 messages by its own answers."""
    assert len(clean.by_queue[QueueId("retrying", 1)]) == 12
    change(clean, "consumerOffset.json", r"(pullOffsetTable[^}]*1:)12", r"\g<1>15")
    finding = found(clean)["pull-ahead"]
    assert finding.severity is Severity.WARNING
    assert finding.path == str(Path(clean.path, "config", "consumerOffset.json"))
    assert (
        "group g-retry was sent messages to offset 15 of retrying/1, which has" in finding.meaning
    )
    assert set(found(clean)) == {"pull-ahead"}  # what the group committed is not beyond
    assert "warning pull-ahead" in run("verify", clean.path, expect=1)


@pytest.mark.parametrize(("last", "ahead"), [(7, False), (8, True)])
def test_what_a_group_was_given_in_order_beyond_the_end_of_a_queue(
    tmp_path: Path, last: int, ahead: bool
) -> None:
    """A real pop consumer was given offsets 32 to 39 of 40: `o` is the first, and how far others are."""
    store = unpack("proxy-5.5.0", tmp_path)
    assert len(store.by_queue[QueueId("fifo", 0)]) == 40
    change(
        store, "consumerOrderInfo.json", r'"o":\[32,1,2,3,4,5,6,7', f'"o":[32,1,2,3,4,5,6,{last}'
    )
    assert ("pop-ahead" in found(store)) == ahead
    if ahead:
        meaning = found(store)["pop-ahead"].meaning
        assert "group g2 was given messages to offset 41 of fifo/0, which has offsets 0" in meaning


def test_the_table_of_offsets_has_what_was_sent_and_given(tmp_path: Path) -> None:
    store = unpack("proxy-5.5.0", tmp_path)
    rows = objects("table", "offsets", store.path, "--json")
    given = {(row["topic"], row["queueId"], row["offset"]) for row in rows if row["kind"] == "pop"}
    assert given == {("fifo", 0, 40), ("fifo", 1, 20)}
    clean = unpack("clean-5.5.0", tmp_path)
    rows = objects("table", "offsets", clean.path, "--json")
    sent = {(row["topic"], row["queueId"], row["offset"]) for row in rows if row["kind"] == "pull"}
    assert sent == {("retrying", 0, 12), ("retrying", 1, 12)}
    # What a group was sent is not what it consumed.
    assert len(objects("table", "groups", clean.path, "--json")) == sum(
        row["kind"] in ("consumer", "lmq") for row in rows
    )


@pytest.mark.parametrize(
    "table",
    [
        *("5", '{"T@g":null}', '{"T@g":{"0":{"o":5}}}', '{"T@g":{"0":null}}'),
        *('{"T@g":{"0":{"o":[5],"oc":{"5":"x"}}}}', '{"T@g":{"0":{"o":[5],"ot":{"x":5}}}}'),
        '{"T@g":{"0":{"o":[5],"popTime":"x"}}}',
    ],
)
def test_a_file_of_what_was_given_that_no_broker_reads_is_named(
    clean: GoldenStore, table: str
) -> None:
    path = Path(clean.path, "config", "consumerOrderInfo.json")
    Path(f"{path}.bak").unlink(missing_ok=True)
    path.write_text(f'{{"table":{table}}}')
    finding = found(clean)["config-unreadable"]
    assert finding.path == str(path)


def undeclare(store: GoldenStore, *topics: str) -> None:
    path = Path(store.path, "config", "topics.json")
    known = json.loads(path.read_text())
    for topic in topics:
        del known["topicConfigTable"][topic]
    path.write_text(json.dumps(known))


def test_a_topic_that_topics_json_does_not_have(clean: GoldenStore) -> None:
    """PullMessageProcessor answers TOPIC_NOT_EXIST for it."""
    undeclare(clean, "orders", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert set(found(clean)) == {"queue-not-read"}
    finding = found(clean)["queue-not-read"]
    assert finding.severity is Severity.WARNING
    assert finding.count == waiting_from(clean, "orders", 0)
    assert finding.meaning.startswith(
        f"topic orders is not in this file, and {finding.count} messages"
    )
    assert "Create it with 4 queues" in (finding.advice or "")
    assert "not in topics.json, so that a broker refuses them: orders\n" in complaint(
        "topics", clean.path, expect=0
    )
    with clean.open() as store:
        answer = lag_of(store, topics=["orders"])
    assert {row["status"] for row in answer.rows if row["lag"]} == {"NOT_READ"}


@pytest.mark.parametrize("content", [None, "{"])
def test_without_topics_json_no_topic_is_said_to_be_unknown(
    clean: GoldenStore, content: str | None
) -> None:
    path = Path(clean.path, "config", "topics.json")
    Path(f"{path}.bak").unlink(missing_ok=True)
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert "queue-not-read" not in found(clean)


@pytest.mark.parametrize("declared", [True, False])
def test_topics_in_a_database_are_not_those_of_topics_json(
    clean: GoldenStore, declared: bool
) -> None:
    topics = read_topic_configs(clean.path)
    if declared:
        undeclare(clean, "orders")
    rows = {name.encode(): json.dumps(settings).encode() for name, settings in topics.items()}
    if not declared:
        del rows[b"orders"]
    counted = b'{"counter":1000000,"stateVersion":0,"timestamp":0}'
    families = {"default": rows, "kvDataVersion": {b"kvDataVersionKey": counted}}
    write_database(Path(clean.path, "config", "topics"), families)
    assert ("queue-not-read" in found(clean)) is not declared


@pytest.mark.parametrize("kept", [0, 1])
def test_a_group_beyond_a_queue_that_lost_files_needs_a_rebuild_and_no_reset(
    kept: int, clean: GoldenStore
) -> None:
    for file in sorted(Path(clean.path, "consumequeue/orders/2").iterdir())[kept:]:
        file.unlink()
    finding = found(clean)["consumer-ahead"]
    assert (
        f"g-slow has offset 133 in orders/2, which has offsets 0 to {100 * kept}" in finding.meaning
    )
    assert finding.advice.startswith("If the log has messages of this queue that it does not list")
    assert "rebuild the queues first: with them the offset may be right" in finding.advice
