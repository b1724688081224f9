"""One pass over the log finds open what the tables find by queues, offsets and the files of the timer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.salvage import NAMES_NOTHING, salvage
from rmq_store.format.topics import REVIVE_PREFIX
from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.open_state import OpenState, UnacknowledgedMessages
from rmq_store.system_topics.transactions import OPEN, transactions
from tests.support.golden import CLEAN, KINDS, UNCLEAN, unpack, unpack_kind, unpack_state
from tests.support.running.campaigns import few
from tests.support.stores import SMALL

STATES = ("pop-5.5.0", "timers-waiting-5.5.0", "tx-expired-5.5.0")
PATHS = [
    *((unpack, name) for name in (*CLEAN, *UNCLEAN) if name != "multipath-5.5.0"),
    *((unpack_kind, name) for name in KINDS),
    *((unpack_state, name) for name in STATES),
]
OFTEN = [PATHS[0], *(path for path in PATHS if path[0] is not unpack), (unpack, "clean-5.5.0")]


@pytest.mark.parametrize("case", few("open state", PATHS, *OFTEN), ids=lambda case: case[1])
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


def test_a_check_point_without_distances_has_offsets_in_a_row(tmp_path: Path) -> None:
    """As older brokers write it: three messages from offset 5 on, of which the second is acknowledged."""
    given = {"c": "g", "t": "orders", "q": 1, "so": 5, "n": 3, "bm": 0b010}
    check_point = given | {"pt": 1000, "it": 10}
    body = json.dumps(check_point).encode()
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store.append({"topic": f"{REVIVE_PREFIX}c", "queueId": 0, "tags": "ck", "body": body})
    with MessageStore.open(tmp_path / "s") as store:
        state = OpenState.of(store)
    assert state.given == {("g", QueueId("orders", 1)): UnacknowledgedMessages(5, 2)}
