"""Every store that a real broker wrote reads as the broker's own classes read it."""

from __future__ import annotations

import pickle
from collections import defaultdict

import pytest

from rmq_store import Gap, QueueId
from rmq_store.format.record import decode_properties
from tests.support.golden import (
    CLEAN,
    MODEST,
    STORES,
    UNCLEAN,
    Golden,
    Truth,
    columns_of,
    in_a_queue,
    keys_of,
    messages_in,
)
from tests.support.golden_rows import Expected, all_rows, expected_message, fields_of, log_end_of
from tests.support.running.campaigns import few

# --- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few("records", STORES, *MODEST))
def test_every_record_of_the_truth_is_in_the_log_and_equal(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    found: dict[int, Truth] = {}
    with golden.open() as store:
        at = store.log_range()[0]
        for extent in store.scan():
            assert extent.start == at, "every byte is in one extent"
            assert extent.stop > extent.start
            assert (extent.record is None) != (extent.gap is None)
            at = extent.stop
            if extent.record is None:
                continue
            message = store.message_at(extent.start)
            record = golden.by_log_offset.get(extent.start)
            if record is None:
                assert name in UNCLEAN, f"a record at {extent.start} that is not in the truth"
                assert extent.start >= log_end_of(golden)
                assert extent.start < store.log_range()[1], "it is a part of the log, in order"
                continue
            found[extent.start] = record
            expected = expected_message(record)
            assert fields_of(message, expected) == expected
            assert decode_properties(message.raw_properties) == message.properties
            assert (message.topic, message.queue_id) == (record["topic"], record["queueId"])
            written = message.record_queue_offset
            assert record["queueOffset"] == (message.queue_offset if written is None else written)
            assert extent.record.magic == record["magic"] & 0xFFFFFFFF
        files = store.scan()
        assert at == max(extent.stop for extent in files)
    assert found == golden.by_log_offset


@pytest.mark.parametrize("name", CLEAN)
def test_a_cleanly_closed_log_ends_where_the_broker_says(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    answer = golden.answers("log")[0]
    with golden.open() as store:
        low, high = store.log_range()
        assert low == answer["minPhyOffset"]
        if name != "nommap-5.5.0":
            assert high == answer["maxPhyOffset"]
            assert {extent.gap for extent in store.scan(high)} <= {Gap.UNWRITTEN}
            return
        # A restarting broker takes the old copies behind the last record for a part of the log.
        behind = [extent for extent in store.scan(high) if extent.start < answer["maxPhyOffset"]]
        assert behind
        assert all(extent.gap is Gap.GHOST for extent in behind)


def test_ghosts_are_never_returned_though_the_log_goes_on_behind_them(untouched: Golden) -> None:
    golden = untouched("nommap-5.5.0")
    places = {ghost["position"]: ghost for ghost in golden.answers("ghost")}
    with golden.open() as store:
        extents = list(store.scan())
        ghosts = {extent.start: extent for extent in extents if extent.gap is Gap.GHOST}
        assert {at: extent.stop - at for at, extent in ghosts.items()} == {
            at: ghost["size"] for at, ghost in places.items()
        }
        records = [extent.start for extent in extents if extent.record is not None]
        assert min(ghosts) < max(records), "the log goes on behind ghosts"
        offsets = {row["commitLogOffset"] for row in all_rows(store)}
        assert offsets == {t["commitLogOffset"] for t in golden.truth if in_a_queue(t)}
        for ghost in places.values():
            # The record that was copied is found where it stands, and there alone.
            record = golden.by_log_offset[ghost["commitLogOffset"]]
            for key in keys_of(record):
                found = store.query_message(record["topic"], key)
                assert not {m.commit_log_offset for m in found} & set(places)


# --- the queues ------------------------------------------------------------------------------------


def rows_by_queue(rows: list[Expected]) -> dict[QueueId, list[Expected]]:
    queues: dict[QueueId, list[Expected]] = defaultdict(list)
    for row in rows:
        queues[QueueId(row["topic"], row["queueId"])].append(row)
    return queues


@pytest.mark.parametrize("name", few("rows", STORES, *MODEST))
def test_read_batches_gives_every_queue_whole_and_every_field_equal(
    untouched: Golden, name: str
) -> None:
    golden = untouched(name)
    with golden.open() as store:
        rows = all_rows(store)
        log_offsets = [row["commitLogOffset"] for row in rows]
        assert log_offsets == sorted(log_offsets), "rows come in the order of the log"
        queues = rows_by_queue(rows)
        limits = {
            queue: (store.min_offset(*queue), store.max_offset(*queue)) for queue in store.queues()
        }
    assert {queue for queue, (low, high) in limits.items() if low < high} == set(queues)
    assert set(golden.by_queue) <= set(queues), "no queue of the truth is missing"
    for queue, mine in queues.items():
        truth = golden.by_queue.get(queue, [])
        beyond = mine[len(truth) :]
        assert not beyond or name in UNCLEAN, "nothing but the truth"
        assert all(row["commitLogOffset"] >= log_end_of(golden) for row in beyond)
        # Positions follow one another from min to max; an inner batch takes as many as it holds.
        position, high = limits[queue]
        for row, record in zip(mine, truth, strict=False):
            expected = columns_of(record)
            assert {column: row[column] for column in expected} == expected
            assert row["queueOffset"] == position
            written = row["recordQueueOffset"]
            assert record["queueOffset"] == (position if written is None else written)
            assert row["brokerName"] == "store"
            assert row["corruptRecord"] is None
            position += messages_in(record)
        for row in beyond:
            assert row["queueOffset"] == position
            position += 1
        assert position == high


# --- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few("pickled", STORES, "clean-5.4.0", "lmq-5.3.3"))
def test_a_pickled_snapshot_shows_the_same_rows(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    with golden.open() as store:
        rows = all_rows(store)
        sent = pickle.dumps(store.snapshot())
    with golden.open(snapshot=pickle.loads(sent)) as again:
        assert all_rows(again) == rows
        assert rows


@pytest.mark.parametrize("name", ["clean-5.3.3", "geometry-5.5.0", "multipath-5.5.0"])
def test_the_brokers_own_configuration_changes_nothing(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    with golden.open() as store, golden.open(broker_conf=golden.conf) as configured:
        assert configured.log_range() == store.log_range()
        named = {row["brokerName"] for row in all_rows(configured)}
        assert named == {"broker-a" if name == "clean-5.3.3" else "store"}
        rows = [{**row, "brokerName": "store"} for row in all_rows(configured)]
        assert rows == all_rows(store)


def test_the_log_of_multipath_is_not_found_without_its_folders(untouched: Golden) -> None:
    golden = untouched("multipath-5.5.0")
    with golden.open() as store:
        assert {extent.gap for extent in store.scan()} == {None, Gap.FILLER, Gap.UNWRITTEN}
        half = {"storePathCommitLog": "commitlog-a"}
        with golden.open(config=half) as alone:
            assert Gap.MISSING in {extent.gap for extent in alone.scan()}
            assert len(all_rows(store)) > len(all_rows(alone, on_damage=lambda error: None))


WITH_UNQUEUED = ["direct-5.5.0", "expired-5.5.0", "ext-5.5.0", "geometry-5.5.0", "tsp-5.5.0"]


@pytest.mark.parametrize("name", WITH_UNQUEUED)
def test_records_of_no_queue_are_rows_of_the_log_if_asked_for(untouched: Golden, name: str) -> None:
    golden = untouched(name)
    wanted = [
        (record["topic"], record["queueId"], record["commitLogOffset"])
        for record in golden.truth
        if not in_a_queue(record)
    ]
    columns = ["topic", "queueId", "commitLogOffset", "queueOffset"]
    with golden.open() as store:
        rows = store.read_log(columns=columns, include_unqueued=True).read_all().to_pylist()
        listed = store.read_log(columns=columns).read_all().to_pylist()
    unqueued = [row for row in rows if row["queueOffset"] is None]
    found = [(row["topic"], row["queueId"], row["commitLogOffset"]) for row in unqueued]
    assert sorted(found) == sorted(wanted)
    assert len({topic for topic, *_ in wanted}) > 1
    assert [row for row in rows if row["queueOffset"] is not None] == listed


# --- what is committed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STORES if name.startswith(("clean", "proxy"))])
def test_consumer_offsets_lie_in_their_queues(untouched: Golden, name: str) -> None:
    with untouched(name).open() as store:
        offsets = store.consumer_offsets()
        queues = set(store.queues())
        seen = 0
        for topics in offsets.values():
            for topic, committed in topics.items():
                for queue_id, offset in committed.items():
                    if QueueId(topic, queue_id) in queues:
                        seen += offset > 0
                        assert 0 <= offset <= store.max_offset(topic, queue_id)
        assert seen
