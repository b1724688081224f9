"""An operator renames a broker: its store stays the same, and reads show the new name as brokerName."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from tests.support.golden import Golden, GoldenStore
from tests.support.running.commands import objects, run

OLD, NEW = "brokerName=broker-a\n", "brokerName=renamed\n"


@pytest.fixture
def store(golden: Golden) -> GoldenStore:
    return golden("clean-5.5.0")


@pytest.fixture
def renamed(store: GoldenStore, tmp_path: Path) -> str:
    """The broker.conf of the store with another brokerName."""
    text = Path(store.conf).read_text()
    assert OLD in text
    (tmp_path / "renamed.conf").write_text(text.replace(OLD, NEW))
    return str(tmp_path / "renamed.conf")


@pytest.mark.parametrize(
    "words", [("lag",), ("topics", "--system"), ("transactions",), ("cat", "--topic", "orders")]
)
def test_rows_differ_by_the_name_alone(
    store: GoldenStore, renamed: str, words: tuple[str, ...]
) -> None:
    command, *options = words
    before = objects(command, store.path, *options, "--broker-conf", store.conf)
    after = objects(command, store.path, *options, "--broker-conf", renamed)
    assert before
    assert {row.pop("brokerName", "renamed") for row in after} == {"renamed"}
    for row in (*before, *after):
        row.pop("brokerName", None)
        row.pop("configAgeMs", None)  # it grows
    assert after == before


def test_the_topic_of_the_old_name_stays_a_topic_of_the_broker_or_has_no_message(
    store: GoldenStore, renamed: str
) -> None:
    """A broker makes a topic of its name; the one of its old name stays in topics.json, empty."""
    assert "no problems found" in run("verify", store.path, "--broker-conf", renamed)
    with MessageStore.open(store.path, broker_conf=renamed) as opened:
        read = opened.messages().to_table(columns=["topic"])["topic"].unique().to_pylist()
        assert "broker-a" in opened.view.topics.declared
    assert "broker-a" not in read
