"""The commands of the broker's own topics, held against their tables."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.support.golden import Golden, GoldenStore, unpack, user_topic
from tests.support.running.commands import call, complaint, objects, run


def test_rows_are_chosen_by_topic_state_and_group(clean: GoldenStore) -> None:
    asked = call("transactions", clean.path, "--state", "open", "--json")
    assert {json.loads(line)["state"] for line in asked.stdout.splitlines()} == {"open"}
    assert asked.stderr == "10 rows: 10 open\n"
    none = call("scheduled", clean.path, "--topic", "orders", "--json")
    assert (none.stdout, none.stderr, none.returncode) == ("", "0 rows\n", 0)
    said = complaint("transactions", clean.path, "--topic", "paymets", expect=2)
    assert "Did you mean 'payments'?" in said


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        (("retries", "--group", "g-slwo"), "clean-5.5.0", "group 'g-slwo'. Did you mean 'g-slow'?"),
        (("retries", "--group", "g"), "crash-5.5.0", "there is no group 'g'. There are none"),
        (("traces", "--group", "g11"), "direct-5.5.0", "group 'g11'. Did you mean 'g1'?"),
        (
            ("dlq", "--topic", "paymets"),
            "clean-5.5.0",
            "no topic 'paymets'. Did you mean 'payments'?",
        ),
        (("dlq", "--group", "g-slwo"), "clean-5.5.0", "Did you mean 'g-slow'?"),
        (("lag", "--group", "TOOLS_CONSUMR"), "clean-5.5.0", "Did you mean 'TOOLS_CONSUMER'?"),
    ],
)
def test_an_unknown_name_is_refused_where_there_is_nothing_to_print(
    words: tuple[str, ...], name: str, said: str, golden: Golden
) -> None:
    done = call(words[0], golden(name).path, *words[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("retries", "--group", "g-slow"),  # has offsets
        ("retries", "--group", "TOOLS_CONSUMER"),  # has settings alone
        ("traces", "--group", "g-retry"),
        ("dlq", "--group", "g-slow"),
        ("dlq", "--topic", "orders"),
        ("lag", "--group", "TOOLS_CONSUMER"),
    ],
)
def test_a_known_group_or_topic_may_have_nothing(words: tuple[str, ...], golden: Golden) -> None:
    assert call(words[0], golden("clean-5.5.0").path, *words[1:]).returncode == 0


def test_the_messages_of_the_broker_are_counted_where_they_are_left_out(golden: Golden) -> None:
    store = golden("proxy-5.5.0")
    asked = call("scheduled", store.path, "--json")
    assert asked.stdout == ""
    assert asked.stderr.splitlines()[1].startswith("451 of the broker's own are left out")
    assert len(call("scheduled", store.path, "--json", "--system").stdout.splitlines()) == 451


def test_a_group_with_offsets_is_known_without_its_settings(copy: GoldenStore) -> None:
    for name in ("subscriptionGroup.json", "subscriptionGroup.json.bak"):
        Path(copy.path, "config", name).write_text("{")
    assert call("retries", copy.path, "--group", "g-slow").stderr == "0 rows\n"
    assert call("retries", copy.path, "--group", "g-none").returncode == 2


def test_a_transaction_of_a_topic_that_lost_a_queue_is_not_rolled_back(tmp_path: Path) -> None:
    path = unpack("clean-5.5.0", tmp_path).path
    shutil.rmtree(Path(path, "consumequeue/payments/0"))
    rows = [json.loads(line) for line in call("transactions", path, "--json").stdout.splitlines()]
    states = Counter(row["state"] for row in rows if row["queueId"] == 0)
    assert len(rows) == 30
    assert states["rolledBack"] == 0 < states["ended"]


def test_topics_of_the_broker_show_themselves_by_topics_that_no_user_can_create(
    golden: Golden, tmp_path: Path
) -> None:
    store = golden("clean-5.3.3")
    assert {row["topic"] for row in objects("topics", store.path)} == {
        r["topic"] for r in store.truth if user_topic(r)
    }
    path = unpack("clean-5.3.3", tmp_path).path
    file = Path(path, "config/topics.json")
    file.write_text(file.read_text().replace("rmq_sys_", "users_"))
    assert "golden_REPLY_TOPIC" in run("topics", path)  # nothing proves whose it is
