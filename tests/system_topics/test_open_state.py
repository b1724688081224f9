"""One pass over the log finds open what the tables find by queues, offsets and the files of the timer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.moved_records import NAMES_NOTHING
from rmq_store.admin.salvage import salvage
from rmq_store.format.topics import REVIVE_PREFIX
from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.open_state import OpenState
from rmq_store.system_topics.transactions import OPEN, transactions
from tests.support.golden import CLEAN, KINDS, UNCLEAN, unpack, unpack_kind, unpack_state

STATES = ("pop-5.5.0", "timers-waiting-5.5.0", "tx-expired-5.5.0")
PATHS = [
    *((unpack, name) for name in (*CLEAN, *UNCLEAN) if name != "multipath-5.5.0"),
    *((unpack_kind, name) for name in KINDS),
    *((unpack_state, name) for name in STATES),
]


@pytest.mark.parametrize("case", PATHS, ids=lambda case: case[1])
def test_one_pass_finds_what_the_tables_find(tmp_path: Path, case: tuple[type, str]) -> None:
    unpacked, name = case
    store = unpacked(name, tmp_path)
    with MessageStore.open(store.path) as opened:
        state = OpenState.of(opened)
        waiting = {
            row["commitLogOffset"]
            for row in delayed_messages(opened)
            if row["state"] != "delivered" and not (row["topic"] or "").startswith(REVIVE_PREFIX)
        }
        halves = [row for row in transactions(opened) if row["state"] == OPEN]
    assert state.waiting == waiting
    assert state.open_transactions == len(halves)


def test_records_of_the_broker_in_no_queue_are_copied_and_not_counted(tmp_path: Path) -> None:
    """The store classes wrote some with the flags of prepared and rolled back messages."""
    store = unpack("direct-5.5.0", tmp_path)
    report = salvage(store.path, tmp_path / "new", config=store.conf)
    assert (report.waiting, report.open_transactions) == (17, 17)
    assert report.ended == {NAMES_NOTHING: 20}  # op messages, with numbers that no half message has
    assert report.messages == len(store.truth) - 20
