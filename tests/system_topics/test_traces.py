"""The table `traces`: reports of clients as their own decoder reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.system_topics.traces import reports_in
from tests.support.client_traces import assert_as_the_client_decodes
from tests.support.golden import Golden
from tests.support.running.commands import objects
from tests.support.stores import SMALL

HERE = Path(__file__).parent


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_reports_have_the_values_that_the_client_decodes(release: str) -> None:
    lines = (HERE / f"traces-{release}.txt").read_text("ascii").splitlines()
    assert assert_as_the_client_decodes(lines) > 60


def test_the_outcome_is_that_of_sending_consuming_or_the_transaction() -> None:
    sent = "Pub\x011795000000000\x01r\x01g\x01t\x01id\x01\x01k\x01h\x0112\x017\x013\x01off\x01"
    (one, two) = reports_in(f"{sent}true\x02{sent}false\x0110.0.0.1\x02")
    assert (one["outcome"], one["messageType"], one["costMs"]) == ("SUCCESS", "Delay_Msg", 7)
    assert (two["outcome"], two["clientHost"], two["tags"]) == ("FAILED", "10.0.0.1", None)
    (short,) = reports_in("Pub\x011\x01r\x01g\x01t\x01id\x01\x01k\x01h\x0112\x017\x010\x01true\x02")
    assert (short["success"], "offsetMsgId" in short) == (True, False)
    (consumed,) = reports_in("SubAfter\x01req\x01id\x019\x01false\x01k\x012\x01178\x01group\x02")
    assert (consumed["outcome"], consumed["groupName"]) == ("EXCEPTION", "group")
    (failed,) = reports_in("SubAfter\x01req\x01id\x019\x01false\x01k\x010\x01178\x01group\x02")
    assert (failed["outcome"], failed["contextCode"]) == ("FAILED", 0)  # the client sent no code
    (late,) = reports_in("SubAfter\x01req\x01id\x01960000\x01true\x01k\x011\x01178\x01group\x02")
    assert late["outcome"] == "TIME_OUT"


def test_what_is_no_report_is_shown_as_its_text() -> None:
    rows = list(reports_in("hello\x02Pub\x01not a number\x02Pub\x02" + "SubAfter\x01" * 40))
    assert rows[0] == {"unreadable": "hello"}
    assert rows[1]["timestamp"] is None
    assert [row.get("traceType") for row in rows[1:]] == ["Pub", "Pub", "SubAfter"]
    with_large = "SubAfter\x01r\x01m\x01" + "9" * 40 + "\x01true\x01k\x01-9\x01" + "9" * 18 + "\x02"
    (row,) = reports_in(with_large)
    assert (row["costMs"], row["timestamp"], row["outcome"]) == (None, 10**18 - 1, "SUCCESS")


def test_the_table_has_the_place_of_each_report(golden: Golden) -> None:
    """The trace messages of this store have bodies that no client wrote."""
    store = golden("direct-5.5.0")
    records = [r for r in store.truth if r["topic"] == "RMQ_SYS_TRACE_TOPIC"]
    with store.open() as opened:
        rows = opened.table("traces").to_pylist()
    bodies = sum(1 for r in records if r["body"])
    assert records
    assert len(rows) >= bodies - 1
    assert all(row["unreadable"] for row in rows)
    places = {(r["queueId"], r["queueOffset"]) for r in records}
    assert {(row["queueId"], row["queueOffset"]) for row in rows} <= places


def test_a_group_has_its_reports_of_clients_that_do_not_repeat_it(tmp_path: Path) -> None:
    """Up to 4.8, and over a cloud channel, SubAfter ends with the context code."""
    before = "SubBefore\x011795000000000\x01r\x01{0}\x01{1}\x01id{2}\x010\x01k\x02"
    after = "SubAfter\x01{1}\x01id{2}\x015\x01true\x01k\x010\x02"
    sent = "Pub\x011\x01r\x01p\x01t\x01id1\x01\x01k\x01h\x0112\x017\x010\x01off\x01true\x02"
    bodies = (
        before.format("g1", "a", 1) + before.format("g1", "a", 2) + before.format("g2", "b", 1),
        after.format("", "a", 1) + sent + after.format("", "b", 1),
        after.format("", "a", 2) + after.format("", "c", 1),
    )
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        for body in bodies:
            store.append({"topic": "RMQ_SYS_TRACE_TOPIC", "queueId": 0, "body": body.encode()})
    answers = (objects("traces", str(tmp_path / "s"), "--group", g) for g in ("g1", "g2", "p"))
    assert [[(r["traceType"], r["requestId"], r["msgId"]) for r in rows] for rows in answers] == [
        [
            *(("SubBefore", "a", "id1"), ("SubBefore", "a", "id2")),
            *(("SubAfter", "a", "id1"), ("SubAfter", "a", "id2")),
        ],
        [("SubBefore", "b", "id1"), ("SubAfter", "b", "id1")],
        [("Pub", None, "id1")],
    ]
