"""The numbers and texts of a report are those of the tables, and of the broker's own decoder."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.retention import plan_retention
from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.text.times import shown_time
from tests.report.conftest import MakePage, Page, page_of
from tests.support.golden import Golden, bodies_of, messages_in, unpack_field, unpack_kind
from tests.support.running.commands import call, objects

NAME = "clean-4.9.7"  # it has dead letters, retries, open transactions and a group that is behind


NAMES = (NAME, "hours-crash-4.9.7")
Pages = Callable[[str], Page]


@pytest.fixture(scope="module")
def pages(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """`pages(name)`: the page of a golden store."""

    @cache
    def made(name: str) -> Page:
        store = golden(name)
        before = store.fingerprint()
        page = page_of(store.path, tmp_path_factory.mktemp("page") / "report.html")
        assert store.fingerprint() == before, "a report changed the store"
        assert page.done.returncode == 0, page.done.both
        return page

    return made


@pytest.fixture
def page(pages: Pages) -> Page:
    return pages(NAME)


@pytest.mark.parametrize("name", NAMES)
def test_topics_and_days_have_the_messages_and_bytes_of_the_broker(
    golden: Golden, pages: Pages, name: str
) -> None:
    page = pages(name)
    expected: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    days: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for queue, records in golden(name).by_queue.items():
        for record in records:
            expected[queue.topic] += messages_in(record)
            sizes[queue.topic] += record["storeSize"]
            day = days[shown_time(record["storeTimestamp"])[:10]]
            day[0] += messages_in(record)
            day[1] += record["storeSize"]
    rows = {row["topic"]: row for row in page.rows("by-topic")}
    del rows["(in no queue)"]
    assert {topic: row["messages"] for topic, row in rows.items()} == {
        topic: f"{count:,}" for topic, count in expected.items()
    }
    assert {topic: row["bytes"] for topic, row in rows.items()} == {
        topic: f"{size:,} bytes" for topic, size in sizes.items()
    }
    assert len(days) > 1 or name == NAME
    assert [(row["day"], row["messages"], row["bytes"]) for row in page.rows("by-day")] == [
        (day, f"{count:,}", f"{size:,} bytes") for day, (count, size) in sorted(days.items())
    ]
    assert f"{expected.total():,} messages in " in page.text("rate")


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_messages_are_those_of_the_broker(
    golden: Golden, pages: Pages, name: str
) -> None:
    page = pages(name)
    records = [record for queue in golden(name).by_queue.values() for record in queue]
    records.sort(key=lambda record: (-record["storeSize"], record["commitLogOffset"]))
    names = ("storeSize", "topic", "queueId", "queueOffset")
    assert [tuple(row[name] for name in names) for row in page.rows("largest-messages")] == [
        (f"{r['storeSize']:,} bytes", r["topic"], str(r["queueId"]), f"{r['queueOffset']:,}")
        for r in records[:20]
    ]


def test_popped_messages_are_counted_where_they_were_not_acknowledged(
    report: MakePage, tmp_path: Path
) -> None:
    store = unpack_field("pop-stages-5.5.0", tmp_path, "state") / "s3-second"
    rows = objects("table", "groups", str(store))
    popped = {(r["consumerGroup"], r["topic"], r["notAcknowledged"]) for r in rows}
    page = report(str(store))
    assert ("gp", "popt", "2") in {
        (row["consumerGroup"], row["topic"], row["notAcknowledged"])
        for row in page.rows("lag-by-group")
    }
    assert ("gp", "popt", 2) in popped
    assert any(f"pop {store} --group gp --topic popt" in command for command in page.commands)


def test_lag_is_that_of_the_table_groups(golden: Golden, page: Page) -> None:
    with golden(NAME).open() as store:
        groups = store.table("groups").to_pylist()
        plan = plan_retention(store, manual=True, now_ms=1 << 42)
    expected: dict[tuple[str, str], list[int]] = {}
    for row in groups:
        total = expected.setdefault((row["consumerGroup"], row["topic"]), [0, 0, 0, 0])
        total[0] += 1
        total[1] += row["lag"]
        total[2] += row["lagBytes"]
        total[3] = max(total[3], row["lagMs"])
    assert {
        (row["consumerGroup"], row["topic"]): tuple(
            row[name] for name in ("queues", "lag", "lagBytes", "lagMs")
        )
        for row in page.rows("lag-by-group")
    } == {
        key: (f"{queues:,}", f"{lag:,}", f"{size:,} bytes", f"{span:,} ms")
        for key, (queues, lag, size, span) in expected.items()
    }
    behind = max(expected, key=lambda key: expected[key][1])
    assert page.rows("slowest-bytes")[0]["consumerGroup"] == behind[0] == "g-slow"
    lost = sum(risk.messages for risk in plan.risks)
    (risk,) = page.rows("retention-by-group")
    assert (risk["consumerGroup"], risk["topic"]) == ("g-slow", "orders")
    assert risk["messages"] == f"{lost:,}"
    warning = f"group g-slow loses {lost:,} unread messages of topic orders when retention deletes"
    assert any(text.startswith(warning) for text in page.remarks)


@pytest.mark.parametrize("name", NAMES[1:])
def test_open_transactions_are_those_that_no_op_message_names(
    golden: Golden, pages: Pages, name: str
) -> None:
    queues, page = golden(name).by_queue, pages(name)
    done = {
        int(number)
        for op in queues[QueueId("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)]
        for number in bodies_of(op)[0].decode().split(",")
    }
    halves = queues[QueueId("RMQ_SYS_TRANS_HALF_TOPIC", 0)]
    left = [half for half in halves if half["queueOffset"] not in done]
    assert len(left) > 1
    assert [(row["sinceTimestamp"], row["keys"]) for row in page.rows("open-transactions")] == [
        (f"{half['storeTimestamp']} ms", half["keys"]) for half in left
    ]


def test_what_waits_is_that_of_the_tables(golden: Golden, page: Page) -> None:
    with golden(NAME).open() as store:
        rows = {
            name: store.table(name).to_pylist()
            for name in ("scheduled", "transactions", "deadLetters", "retries")
        }
    opened = [row for row in rows["transactions"] if row["state"] == "open"]
    opened.sort(key=lambda row: row["sinceTimestamp"])
    assert [row["keys"] for row in page.rows("open-transactions")] == [
        row["keys"] or "" for row in opened
    ]
    assert page.remarks[f"{len(opened)} transactions are neither committed nor rolled back"]
    due = sorted(rows["scheduled"], key=lambda row: (row["state"] != "overdue", in_ms(row)))
    assert [
        (row["state"], row["dueTimestamp"], row["topic"]) for row in page.rows("scheduled-messages")
    ] == [(row["state"], f"{in_ms(row)} ms", row["topic"]) for row in due]
    (of_group,) = page.rows("dead-letters-by-group")
    assert of_group["messages"] == str(len(rows["deadLetters"])) == "13"
    keys = Counter(row["keys"] or "" for row in rows["deadLetters"])
    assert Counter(row["keys"] for row in page.rows("dead-letters-newest")) == keys
    (of_group,) = page.rows("retries-by-group")
    assert of_group["messages"] == str(len(rows["retries"]))
    newest = sorted((row["lastTimestamp"] for row in rows["retries"]), reverse=True)
    assert [row["lastTimestamp"] for row in page.rows("retries-newest")] == [
        f"{round(at.timestamp() * 1000)} ms" for at in newest
    ]


def in_ms(row: dict[str, datetime]) -> int:
    return round(row["dueTimestamp"].timestamp() * 1000)


@pytest.mark.usefixtures("_no_plots")
def test_overdue_messages_come_first(tmp_path: Path, report: MakePage) -> None:
    store = unpack_kind("compact-timer-5.5.0", tmp_path)
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        timers = [one for one in delayed_messages(opened) if one["kind"] == "timer"]
    row = {"topic": "orders", "queueId": 0, "body": b""}
    with MessageStore.append_to(store.path) as writer:
        writer.append(row | {"storeTimestamp": max(one["dueTimestamp"] for one in timers) + 5000})
    made = report(store.path, "--broker-conf", store.conf)
    rows = made.rows("scheduled-messages")
    assert [one["state"] for one in rows] == ["overdue"] * 7 + ["waiting"] * 8
    assert rows[6]["overdueMs"] == "5,000 ms"
    said = "7 scheduled messages were due before the newest record and are not delivered"
    assert made.remarks[said] == "warning"


def test_the_facts_are_those_of_info(golden: Golden, page: Page) -> None:
    facts = [f"{row['fact']:<12} {row['value']}" for row in page.rows("facts-of-store")]
    said = call("info", golden(NAME).path).stdout
    unverified = "; not verified: rmqstore verify STORE"  # the report has checked the whole log
    assert unverified in said
    assert "\n".join(facts) + "\n" == said.replace(unverified, "")
    parts = {row["part"]: row for row in page.rows("files-by-part")}
    logs = list(Path(golden(NAME).path, "commitlog").iterdir())
    assert parts["commitlog"]["files"] == str(len(logs))
    assert parts["commitlog"]["size"] == f"{sum(f.stat().st_size for f in logs):,} bytes"
    assert "records look like those of 4.9.7" in page.text("files")


def test_every_command_of_the_page_works(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind: its name and its options."""
    monkeypatch.setenv("COLUMNS", "100")
    kinds: dict[tuple[str, ...], list[str]] = {}
    for command in page.commands:
        words = shlex.split(command)
        assert words[0] == "rmqstore"
        kind = (words[1], *(word for word in words if word.startswith("--")))
        kinds[kind] = words[1:]
    assert len(kinds) > 15
    for words in kinds.values():
        done = call(*words)
        assert done.returncode == 0, (words, done.both)
        assert done.stdout.strip(), words


@pytest.mark.usefixtures("_no_plots")
def test_commands_name_the_broker_as_the_report_was_asked(golden: Golden, report: MakePage) -> None:
    store = golden(NAME)
    made = report(store.path, "--broker-conf", store.conf, "--broker-name", "broker a")
    for command in made.commands:
        assert f"--broker-conf {store.conf}" in command
        assert "--broker-name 'broker a'" in command
    assert "give --broker-conf" not in made.text("retention")


def test_a_time_is_shown_in_utc(page: Page) -> None:
    shown = page.soup.select("#open-transactions td.time")[0]
    ms = int(str(shown["title"]).split()[0])
    assert shown.get_text().strip() == shown_time(ms)
    assert datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat()[:19] in shown.get_text()


def test_both_plots_of_the_rate_name_their_axis(page: Page) -> None:
    """One is for a narrow window."""
    texts = [text.get_text() for text in page.soup.select("#rate svg text")]
    assert texts.count("messages per second") == 2
