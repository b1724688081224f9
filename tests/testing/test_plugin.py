"""The fixtures for tests of applications, as pytest finds them, and the examples of their page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.errors import InvalidMessageError
from rmq_store.testing.store_checks import StoreChecks, StoreFactory
from tests.support.checkout import CHECKOUT
from tests.support.golden import GoldenStore, in_a_queue, unpack_kind
from tests.support.running.child import python, run_python

PAGE = CHECKOUT / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def passed(folder: Path, test: str) -> str:
    """Run a file of tests as its user would, in a folder without our settings."""
    (folder / "test_example.py").write_text(test)
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder))
    # A folder of its own also spares the deletion of what earlier runs of ours have left.
    done = run_python(*words, f"--basetemp={folder}/made", cwd=folder)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_the_first_example_of_the_page_runs(tmp_path: Path) -> None:
    assert passed(tmp_path, EXAMPLES[0]).startswith("3 passed")


@pytest.mark.live
def test_the_example_with_a_broker_runs(tmp_path: Path) -> None:
    assert passed(tmp_path, EXAMPLES[1]).startswith("1 passed")


def test_pytest_loads_nothing_of_ours_but_the_fixtures() -> None:
    code = "import sys, rmq_store.testing.plugin; print('pyarrow' in sys.modules)"
    assert python(code) == "False\n"


def test_a_store_of_a_broker_is_checked(
    copy: GoldenStore, rmq_store_at: Callable[[str], StoreChecks]
) -> None:
    checks = rmq_store_at(copy.path)
    truth = [r for r in copy.truth if r["topic"] == "orders" and in_a_queue(r)]
    found = checks.messages("orders")
    assert [m.commit_log_offset for m in found] == [r["commitLogOffset"] for r in truth]
    checks.assert_keys("orders", " ".join(r["keys"] or "" for r in truth).split())
    with pytest.raises(AssertionError, match="messages by topic"):
        checks.assert_topics({"orders": len(truth) + 1})
    with pytest.raises(AssertionError, match="keys of orders"):
        checks.assert_keys("orders", ["no such key"])


def test_all_messages_of_a_compaction_topic_are_checked(
    tmp_path: Path, rmq_store_at: Callable[[str], StoreChecks]
) -> None:
    """Not only those that the broker still serves."""
    golden = unpack_kind("compacted-5.5.0", tmp_path)
    sent = {one["queueId"]: one["max"] for one in golden.answers("minMax")}
    assert sent == {0: 109, 1: 42, 2: 0, 3: 5, 4: 0}
    checks = rmq_store_at(golden.path)
    others = [one for one in golden.lines("served") if one["topic"] == "other"]
    assert len(checks.messages("state")) == sum(sent.values())
    checks.assert_topics({"state": sum(sent.values()), "other": len(others)})
    keys = [message.keys for message in checks.messages("state", 3)]
    assert keys == ["same"] * 5


def test_stores_of_one_test_have_folders_of_their_own(rmq_store_factory: StoreFactory) -> None:
    first, second = (rmq_store_factory([{"topic": t, "body": t}]) for t in ("a", "b"))
    first.assert_topics({"a": 1})
    second.assert_order("b", ["b"])


def test_an_unknown_column_is_refused_with_the_nearest(rmq_store_factory: StoreFactory) -> None:
    with pytest.raises(InvalidMessageError, match="queueId"):
        rmq_store_factory([{"topic": "a", "body": "b", "queueID": 1}])
