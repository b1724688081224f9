"""Dead letters of messages that were popped: how often the client was given them, and their topic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rmqstore_jobs.dlq import DlqSpec
from rmqstore_jobs.dlq import run as resend
from tests.support.golden import GoldenStore, unpack_state
from tests.support.log_records import fields
from tests.support.running.commands import complaint, objects, run


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack_state("pop-5.5.0", tmp_path)


def dead_and_given(store: GoldenStore) -> dict[str, int]:
    """Of each dead letter, by KEYS, how often the client was given it."""
    lines = Path(store.folder, "events.jsonl").read_text().splitlines()
    given = Counter(event["given"] for event in map(json.loads, lines) if "given" in event)
    dead = [record for record in fields(store.path) if record.topic == "%DLQ%gp"]
    return {record.keys: given[record.body.decode()] for record in dead}


def test_each_was_given_as_often_as_the_client_was(store: GoldenStore) -> None:
    expected = dead_and_given(store)
    assert set(expected.values()) == {3}
    (report,) = objects("dlq", store.path, "--top", "100")
    letters = {row["keys"]: row for row in report["tables"]["theNewest"]}
    assert letters.keys() == expected.keys()
    assert {row["originTopic"] for row in letters.values()} == {"popt"}
    for key, times in expected.items():
        assert f"failed {times} times" in letters[key]["why"]
        assert f"after {times} attempts" in run("trace", store.path, key)


def test_they_are_sent_again_to_the_topic_that_they_came_from(
    store: GoldenStore, tmp_path: Path
) -> None:
    target = tmp_path / "again"
    assert resend(None, DlqSpec(store.path, groups=("gp",), resend=str(target))).ok
    assert {record.topic for record in fields(target)} == {"popt"}
    assert {record.keys for record in fields(target)} == dead_and_given(store).keys()


def test_their_origin_topic_selects_them_and_is_refused_where_they_are_sent_again(
    store: GoldenStore, tmp_path: Path
) -> None:
    """Not the retry topic from which the client got them last: `%RETRY%gp_popt`."""
    expected = dead_and_given(store)
    (report,) = objects("dlq", store.path, "--topic", "popt", "--top", "100")
    assert {row["keys"] for row in report["tables"]["theNewest"]} == expected.keys()
    (none,) = objects("dlq", store.path, "--topic", "%RETRY%gp_popt")
    assert not any(none["tables"].values())
    target = str(tmp_path / "again")
    said = complaint("dlq", store.path, "--topic", "popt", "--to", target, expect=2)
    assert "by group, not by origin topic" in said
    assert not Path(target).exists()
    said = complaint("dlq", store.path, "--origin-topic", "popt", expect=2)
    assert "unknown option --origin-topic" in said
