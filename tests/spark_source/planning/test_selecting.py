"""Which messages are selected, by name, offset and time; expected rows come from the truth."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from rmq_store.errors import DataLossError, InvalidArgumentError
from rmq_store.format.compression import SysFlag
from tests.support.golden import Golden, GoldenStore, in_a_queue, unpack
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import NAME, PLACE, options_of, places


def test_a_pattern_that_no_topic_has_selects_nothing(golden: Golden) -> None:
    assert rows_of(options_of(golden(NAME), subscribePattern="nothing-like-this")) == []


def test_a_tag_that_looks_like_several_is_said(
    clean: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    for tags in ("TagA, TagB", "TagA|TagB"):
        caplog.clear()
        assert rows_of(options_of(clean, tags=tags, **PLACE)) == []
        said = [line for line in caplog.messages if "is one tag" in line]
        assert said == [f"{tags!r} is one tag; several are given as 'TagA || TagB'"]
    caplog.clear()
    rows_of(options_of(clean, tags="TagA || TagB || a-b", **PLACE))
    assert "is one tag" not in caplog.text


def test_what_is_passed_over_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = unpack(NAME, tmp_path)
    os.mkfifo(Path(store.path) / "commitlog" / "00000000000009999999")
    for _ in range(2):  # each with many opens of the store
        assert rows_of(options_of(store, maxBytesPerPartition="50k", **PLACE))
    assert len([line for line in caplog.messages if "not a regular file" in line]) == 1


def test_a_range_is_refused_if_it_is_reversed_and_has_no_row_if_it_is_empty(golden: Golden) -> None:
    store = golden(NAME)
    five, nine = '{"orders": {"b": {"0": 5}}}', '{"orders": {"b": {"0": 9}}}'
    orders = {"brokerName": "b", "assign": '{"orders": [0]}', **PLACE}
    reversed_ranges = [
        {"startingOffsets": nine, "endingOffsets": five},
        {"startingOffsets": '{"orders": {"0": -1}}', "endingOffsets": five},
        {"startingTimestamp": "-1h", "endingTimestamp": "-2h"},
    ]
    for given in reversed_ranges:
        with pytest.raises(InvalidArgumentError, match="Give an end"):
            rows_of(options_of(store, **orders, **given))
    when = str(store.truth[100]["storeTimestamp"])
    last = str(store.truth[-1]["storeTimestamp"])
    for given in (
        {"startingOffsets": five, "endingOffsets": five},
        {"startingTimestamp": when, "endingTimestamp": when},
        {"startingTimestamp": last, "endingOffsets": five},
        {"startingTimestamp": "-1h", "endingTimestamp": "-1h"},
        {"startingTimestamp": "2030-01-01", "endingTimestamp": "-1s"},  # nothing is new
    ):
        assert rows_of(options_of(store, **orders, **given)) == [], given


def test_a_time_that_no_message_reaches_is_nothing_or_an_error_as_asked(golden: Golden) -> None:
    options = options_of(golden(NAME), topic="orders", startingTimestamp="9999999999999")
    assert rows_of(options) == []
    with pytest.raises(InvalidArgumentError, match="no message stored at"):
        rows_of({**options, "startingoffsetsbytimestampstrategy": "error"})


def test_offsets_that_expired_are_data_loss_unless_it_is_accepted(golden: Golden) -> None:
    store = golden("expired-5.5.0")
    with store.open() as opened:
        queue = next(q for q in opened.queues() if opened.min_offset(*q) > 0)
        low, high = opened.min_offset(*queue), opened.max_offset(*queue)
    options = options_of(
        store,
        assign=json.dumps({queue.topic: [queue.queue_id]}),
        startingOffsets=json.dumps({queue.topic: {str(queue.queue_id): 0}}),
    )
    with pytest.raises(DataLossError, match="RMQSTORE_DATA_LOSS"):
        rows_of(options)
    found = rows_of({**options, "failondataloss": "false"})
    assert [row["queueOffset"] for row in found] == list(range(low, high))


def test_times_are_exact_in_queues_of_batches(clean: GoldenStore) -> None:
    batches = [r for r in clean.truth if r["sysFlag"] & SysFlag.INNER_BATCH and in_a_queue(r)]
    topic, last = batches[0]["topic"], batches[-1]["storeTimestamp"]
    mine = [r for r in clean.truth if r["topic"] == topic]
    for moment in (mine[0]["storeTimestamp"], mine[len(mine) // 2]["storeTimestamp"], last + 1):
        for option, wanted in (
            ("startingTimestamp", [r for r in mine if r["storeTimestamp"] >= moment]),
            ("endingTimestamp", [r for r in mine if r["storeTimestamp"] < moment]),
        ):
            rows = rows_of(options_of(clean, topic=topic, **{option: str(moment)}, **PLACE))
            assert places(rows) == Counter(r["commitLogOffset"] for r in wanted), (option, moment)


def test_stores_are_opened_to_look_and_left_as_they_were(copy: GoldenStore) -> None:
    before = copy.fingerprint()
    for table in ("topics", "queues", "files", "index", "groups", "usage", "damage", "plan"):
        rows_of(options_of(copy, table=table))
    rows_of(options_of(copy, source="commitlog"))
    assert copy.fingerprint() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assign": '{"orders": {"nobody": [0]}}'}, "no broker 'nobody'"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "needs the queues"),
    ],
)
def test_the_log_as_the_source_refuses_what_it_cannot_heed(
    golden: Golden, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rows_of(options_of(golden(NAME), source="commitlog", **options))
