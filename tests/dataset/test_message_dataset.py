"""Messages as a dataset: what a filter leaves unread, and that no row is lost or too many by it."""

from __future__ import annotations

import gc
import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from rmq_store import MessageStore, QueueId, QueueSlice, StoreError
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.commitlog.log import MARK_BYTES
from rmq_store.dataset.message_dataset import messages_of
from rmq_store.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    MissingFileError,
    OtherStoreError,
    UnknownQueueError,
)
from rmq_store.sql.database import TableDataset
from rmq_store.tables import TABLES
from tests.support.damage import flip_body, write_at
from tests.support.golden import STORES, Golden, GoldenStore, Truth, messages_in, unpack, user_topic
from tests.support.running.campaigns import few

F = pc.field
Place = tuple[str, int, int]
_PLACE = ["topic", "queueId", "queueOffset"]


def blank_log(store: GoldenStore) -> None:
    """Overwrite the log with zeros, but for the bytes by which it is still the same store."""
    with store.open() as opened:
        end = opened.log_range()[1]
    for path in (Path(store.path) / "commitlog").iterdir():
        raw, stop = path.read_bytes(), min(end - int(path.name), path.stat().st_size)
        blank = bytes(stop - 2 * MARK_BYTES)
        path.write_bytes(raw[:MARK_BYTES] + blank + raw[stop - MARK_BYTES :])


def listed(store: GoldenStore) -> list[tuple[QueueId, int, Truth]]:
    """Queue, queue offset and record of each message of a user's topic, as the broker's classes say."""
    with store.open() as opened:
        users = {QueueId(t, q.queue_id) for t in opened.topics(False) for q in opened.queues(t)}
        first = {queue: opened.min_offset(*queue) for queue in users}
        found = []
        for queue, records in store.by_queue.items():
            offset = None
            for record in records if queue in users else ():
                offset = record["queueOffset"] if offset is None else offset
                own = record["queueOffset"] if queue.topic == record["topic"] else offset
                if own >= first[queue]:
                    found.append((queue, own, record))
                offset = own + messages_in(record)
    return found


def places(table: pa.Table) -> list[Place]:
    return sorted(zip(*(table.column(name).to_pylist() for name in _PLACE), strict=True))


def rows_of(query: str, dataset: Any) -> list[tuple[Any, ...]]:
    """What DuckDB answers about `dataset`."""
    with duckdb.connect() as database:
        database.register("dataset", dataset)
        return database.execute(query).fetchall()


def time(ms: int) -> pa.Scalar:
    return pa.scalar(ms, pa.int64()).cast(TIMESTAMP)


def questions(rows: list[tuple[QueueId, int, Truth]]) -> dict[str, tuple[Any, Any]]:
    """Filters as Arrow knows them and as Python does, about values that are in the store."""
    queue, offset, record = rows[len(rows) // 2]
    keyed = next((r for _, _, r in rows[len(rows) // 3 :] if r["keys"]), record)
    tag, at, stored = record["tags"], record["commitLogOffset"], record["storeTimestamp"]
    keys, uniq = keyed["keys"] or "?", keyed["uniqKey"] or "?"
    return {
        "a topic": (F("topic") == queue.topic, lambda q, o, r: q.topic == queue.topic),
        "queues": (F("queueId").isin([0, 3]), lambda q, o, r: q.queue_id in (0, 3)),
        "offsets": (
            (F("queueOffset") >= offset) & (F("queueOffset") < offset + 9),
            lambda q, o, r: offset <= o < offset + 9,
        ),
        "a place": (F("commitLogOffset") == at, lambda q, o, r: r["commitLogOffset"] == at),
        "places": (F("commitLogOffset") > at, lambda q, o, r: r["commitLogOffset"] > at),
        "since": (
            F("storeTimestamp") >= time(stored),
            lambda q, o, r: r["storeTimestamp"] >= stored,
        ),
        "before": (
            F("storeTimestamp") < time(stored),
            lambda q, o, r: r["storeTimestamp"] < stored,
        ),
        "tags": (F("tags") == (tag or "?"), lambda q, o, r: r["tags"] == (tag or "?")),
        "some tags": (
            F("tags").isin([tag or "?", "nobody"]) & (F("queueOffset") >= 1),
            lambda q, o, r: r["tags"] == (tag or "?") and o >= 1,
        ),
        "a tag or none": (
            (F("tags") == (tag or "?")) | F("tags").is_null(),
            lambda q, o, r: r["tags"] in (tag or "?", None),
        ),
        "an offsetMsgId": (
            F("msgId") == record["offsetMsgId"],
            lambda q, o, r: r["offsetMsgId"] == record["offsetMsgId"],
        ),
        "offsetMsgIds": (
            F("msgId").isin([record["offsetMsgId"], keyed["offsetMsgId"], "no id"]),
            lambda q, o, r: r["offsetMsgId"] in (record["offsetMsgId"], keyed["offsetMsgId"]),
        ),
        "keys": (F("keys") == keys, lambda q, o, r: r["keys"] == keys),
        "an id": (F("uniqKey") == uniq, lambda q, o, r: r["uniqKey"] == uniq),
        "ids": (
            F("uniqKey").isin([uniq, "nobody", record["uniqKey"] or "?"]),
            lambda q, o, r: r["uniqKey"] in (uniq, record["uniqKey"] or "?"),
        ),
        "keys or a queue": (
            (F("keys") == keys) | (F("queueId") == 1),
            lambda q, o, r: r["keys"] == keys or q.queue_id == 1,
        ),
        "a key or none": (
            (F("keys") == keys) | F("keys").is_null(),
            lambda q, o, r: r["keys"] == keys or r["keys"] is None,
        ),
        "no key": (F("keys").is_null(), lambda q, o, r: r["keys"] is None),
        "not this topic": (F("topic") != queue.topic, lambda q, o, r: q.topic != queue.topic),
        "all of it": (
            (F("topic") == queue.topic)
            & (F("keys") == keys)
            & (F("storeTimestamp") <= time(stored)),
            lambda q, o, r: (
                q.topic == queue.topic and r["keys"] == keys and r["storeTimestamp"] <= stored
            ),
        ),
        "nothing": (F("topic") == "nobody", lambda q, o, r: False),
    }


@pytest.mark.parametrize("name", few("filters", STORES, "clean-5.2.0", "ext-5.5.0"))
def test_a_filter_has_the_rows_that_match_it_in_every_store(untouched: Golden, name: str) -> None:
    store = untouched(name)
    rows = listed(store)
    with store.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
    assert dataset.count_rows() == len(rows)
    assert places(dataset.to_table(columns=_PLACE)) == sorted((*q, o) for q, o, _ in rows)
    for what, (wanted, matches) in questions(rows).items():
        expected = sorted((*q, o) for q, o, r in rows if matches(q, o, r))
        assert places(dataset.to_table(columns=_PLACE, filter=wanted)) == expected, what
        assert dataset.count_rows(filter=wanted) == len(expected), what
        by_parts = [
            f.to_table(columns=_PLACE, filter=wanted) for f in dataset.get_fragments(wanted)
        ]
        assert sorted(row for part in by_parts for row in places(part)) == expected, what


def test_each_message_of_an_inner_batch_is_a_row(clean: GoldenStore) -> None:
    with clean.open() as opened:
        rows = opened.messages().to_table(columns=["topic", "storeTimestamp"])
        assert opened.messages().count_rows() == len(rows)
    counts: Counter[str] = Counter()
    for record in clean.truth:
        if user_topic(record):
            counts[record["topic"]] += messages_in(record)
    assert Counter(rows["topic"].to_pylist()) == counts
    assert counts["inner"] > sum(record["topic"] == "inner" for record in clean.truth)


@pytest.mark.parametrize("columns", [["queueOffset"], ["queueOffset", "body"]])
def test_ranges_that_share_an_inner_batch_give_each_message_once(
    clean: GoldenStore, columns: list[str]
) -> None:
    queue = QueueId("inner", 0)
    with clean.open() as opened:
        entries = opened.entries(queue, *opened.view.limits(queue))
        widest = int(entries.count.argmax())
        first, last = int(entries.offset[widest]), int((entries.offset + entries.count)[widest]) - 1
        assert last > first + 1
        wanted = [first, *range(last, last + 4)]
        slices = [QueueSlice(queue, first, first + 1), QueueSlice(queue, last, last + 4)]
        for some in (slices, slices[::-1]):
            rows = opened.read_slices(some, columns=columns, unwrap_batches=True).read_all()
            assert sorted(rows["queueOffset"].to_pylist()) == wanted
        found = opened.messages(["inner"]).to_table(
            columns=columns, filter=F("queueOffset").isin(wanted) & (F("queueId") == 0)
        )
        assert sorted(found["queueOffset"].to_pylist()) == wanted


def selected(dataset: Any, wanted: Any) -> int:
    return sum(len(one) for part in dataset.plan(wanted).stores for one in part.ranges)


def test_a_filter_leaves_parts_of_queues_unread(clean: GoldenStore) -> None:
    rows = listed(clean)
    with clean.open() as opened:
        dataset = opened.messages(["orders", "payments"])
        (orders,) = dataset.plan(F("topic") == "orders").stores
        assert {one.queue for one in orders.ranges} == set(opened.queues("orders"))
        in_all = selected(dataset, None)
        assert selected(dataset, F("queueId") == 0) < in_all
        assert selected(dataset, F("body") == b"x") == in_all
        assert selected(dataset, F("topic") == "nobody") == 0
        late = max(r["storeTimestamp"] for q, _, r in rows if q.topic in ("orders", "payments"))
        assert selected(dataset, F("storeTimestamp") > time(late)) == in_all  # clocks go back
        assert selected(dataset, F("commitLogOffset") >= opened.log_range()[1]) == 0
        for column in ("keys", "uniqKey"):
            (part,) = dataset.plan(F(column) == "ORDER_7 CUSTOMER_7").stores
            assert list(part.words or ()) == [{"keys": "ORDER_7"}.get(column, "ORDER_7 CUSTOMER_7")]
        (part,) = dataset.plan((F("keys") == "A") | (F("tags") == "B")).stores
        assert (part.words, part.options.tags) == (None, None)
        assert dataset.plan(F("tags").isin(["B", "A"])).stores[0].options.tags == ("A", "B")
        assert (
            dataset.plan(F("tags") == " A").stores[0].options.tags is None
        )  # which a read takes for A
        ids = [r["offsetMsgId"] for q, _, r in rows if q.topic == "orders"]
        assert selected(dataset, F("msgId") == ids[7]) == 1
        assert selected(dataset, F("msgId").isin(ids[:3])) == 3
        assert selected(dataset, F("msgId").isin([ids[0], "no id"])) == in_all


@pytest.fixture
def long_queue(tmp_path: Path) -> MessageStore:
    """A queue of 40,000 messages, one each second; the clock is set back by an hour in the middle."""
    back = [0 if n < 20_000 else 3_600_000 for n in range(40_000)]
    stamps = [1_795_253_000_000 + n * 1000 - late for n, late in enumerate(back)]
    batch = pa.record_batch(
        {
            "topic": ["orders"] * 40_000,
            "queueId": pa.array([0] * 40_000, pa.int32()),
            "body": [b"%d" % n for n in range(40_000)],
            "storeTimestamp": pa.array(stamps),
        }
    )
    with MessageStore.create(tmp_path / "long", {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        writer.append_batch(batch)
    return MessageStore.open(tmp_path / "long")


def test_ranges_of_a_long_queue_are_narrow_and_right(long_queue: MessageStore) -> None:
    dataset = long_queue.messages()
    assert selected(dataset, F("queueOffset") == 12_345) <= 512
    (one,) = dataset.to_table(columns=["body"], filter=F("queueOffset") == 12_345).to_pylist()
    assert one["body"] == b"12345"
    first = 1_795_253_000_000
    # These seconds come twice: before the clock was set back, and after it.
    wanted = (F("storeTimestamp") >= time(first + 18_000_000)) & (
        F("storeTimestamp") < time(first + 18_010_000)
    )
    found = dataset.to_table(columns=["body"], filter=wanted).column("body").to_pylist()
    expected = [*range(18_000, 18_010), *range(21_600, 21_610)]
    assert sorted(int(body) for body in found) == expected
    place = long_queue.view.log_offset_of(QueueId("orders", 0), 30_000)
    assert selected(dataset, F("commitLogOffset") == place) <= 2048
    assert dataset.count_rows(F("commitLogOffset") == place) == 1


def test_a_filter_on_times_is_right_whatever_the_clock_did(tmp_path: Path) -> None:
    """It goes back and forth by seconds to days, for one message or for hundreds."""
    random = np.random.default_rng(20261129)
    jumps = np.where(random.random(6000) < 0.01, random.integers(-90_000_000, 90_000_000, 6000), 0)
    stored = 1_795_253_000_000 + np.arange(6000) * 10_000 + np.cumsum(jumps)
    batch = pa.record_batch(
        {
            "topic": ["orders"] * 6000,
            "queueId": pa.array([0] * 6000, pa.int32()),
            "body": [b""] * 6000,
            "storeTimestamp": pa.array(stored),
        }
    )
    with MessageStore.create(tmp_path / "odd") as writer:
        writer.append_batch(batch)
    with MessageStore.open(tmp_path / "odd") as store:
        dataset = store.messages()
        for low, high in random.choice(stored, (40, 2)).tolist():
            wanted = (F("storeTimestamp") >= time(low)) & (F("storeTimestamp") <= time(high))
            assert dataset.count_rows(wanted) == int(((stored >= low) & (stored <= high)).sum())


def test_a_unique_key_with_a_blank_and_the_last_time_of_all_are_found(tmp_path: Path) -> None:
    last = (1 << 63) - 1
    batch = pa.record_batch(
        {
            "topic": ["orders"] * 3000,
            "queueId": pa.array([0] * 3000, pa.int32()),
            "body": [b""] * 3000,
            "uniqKey": [f"U {number} x" for number in range(3000)],
            "keys": ["A B"] * 3000,
            "storeTimestamp": pa.array([1_795_253_000_000] * 1500 + [last] * 1500),
        }
    )
    with MessageStore.create(tmp_path / "odd") as writer:
        writer.append_batch(batch)
    with MessageStore.open(tmp_path / "odd") as store:
        dataset = store.messages()
        assert dataset.count_rows(F("uniqKey") == "U 500 x") == 1
        assert store.messages(keys=["U 500 x"]).count_rows() == 1
        assert dataset.count_rows(F("keys") == "A B") == 3000
        assert dataset.count_rows(F("storeTimestamp") > time(1_795_253_000_000)) == 1500


def test_columns_of_the_queues_leave_the_log_closed(copy: GoldenStore) -> None:
    expected = len(listed(copy))
    with copy.open() as opened:
        dataset = opened.messages(unwrap_batches=False, check_ends=False)
    blank_log(copy)
    assert dataset.count_rows() == expected
    assert dataset.to_table(columns=_PLACE).num_rows == expected
    assert rows_of("SELECT count(*) FROM dataset", dataset) == [(expected,)]
    with pytest.raises(StoreError):
        dataset.to_table(columns=["keys"])


def test_damage_is_our_error_and_never_fewer_rows(copy: GoldenStore) -> None:
    rows = listed(copy)
    record = flip_body(copy, "orders")
    at = f"offset {record['commitLogOffset']}"
    with copy.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
        calls: list[Callable[[], Any]] = [
            lambda: dataset.to_table(),
            lambda: list(dataset.to_batches()),
            lambda: dataset.to_table(filter=F("keys") == record["keys"]),
            lambda: dataset.count_rows(F("body") != b""),
            lambda: [fragment.to_table() for fragment in dataset.get_fragments()],
        ]
        for call in calls:
            with pytest.raises(CorruptRecordError, match=at):
                call()
        with pytest.raises(duckdb.Error, match=f"RMQSTORE_CORRUPT_RECORD.*{at}"):
            rows_of("SELECT sum(octet_length(body)) FROM dataset", dataset)
        with pytest.raises(Exception, match=f"RMQSTORE_CORRUPT_RECORD.*{at}"):
            polars.scan_pyarrow_dataset(dataset).collect()
        context = datafusion.SessionContext()
        context.register_dataset("m", dataset)
        with pytest.raises(Exception, match=f"RMQSTORE_CORRUPT_RECORD.*{at}"):
            context.sql("SELECT body FROM m").collect()
        seen: list[StoreError] = []
        passed = opened.messages(unwrap_batches=False, on_damage=seen.append)
        assert passed.to_table(columns=["body"]).num_rows == len(rows) - 1
        assert [error.code for error in seen] == ["RMQSTORE_CORRUPT_RECORD"]
        said = opened.messages(unwrap_batches=False, on_damage="permissive")
        assert said.to_table().num_rows == len(rows)
        (row,) = said.to_table(filter=F("corruptRecord").is_valid()).to_pylist()
        assert (row["topic"], row["queueOffset"]) == ("orders", record["queueOffset"])


@pytest.mark.parametrize("harm", ["no index", "an empty file", "a lost slot", "noise"])
def test_a_key_is_found_whatever_the_index_lost(copy: GoldenStore, harm: str) -> None:
    files = sorted((Path(copy.path) / "index").iterdir())
    for number, path in enumerate(files):
        if harm == "no index" or (harm == "an empty file" and number == 3):
            path.unlink()
        elif harm == "a lost slot":
            write_at(path, 40, bytes(path.stat().st_size // 3 - 40))
        elif harm == "noise" and number % 2:
            path.write_bytes(bytes(byte ^ 0x5A for byte in path.read_bytes()))
    rows = [row for row in listed(copy) if row[2]["keys"] and row[0].topic != "inner"]
    with copy.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
        for _, _, record in rows[::97]:
            for name in ("keys", "uniqKey"):
                expected = sorted((*q, o) for q, o, r in rows if r[name] == record[name])
                assert places(dataset.to_table(filter=F(name) == record[name])) == expected


def test_engines_have_the_same_rows(golden: Golden) -> None:
    store = golden("clean-5.3.3")
    rows = listed(store)
    since = sorted(r["storeTimestamp"] for _, _, r in rows)[len(rows) // 2]
    expected = sorted(
        (*q, o) for q, o, r in rows if q.topic == "orders" and r["storeTimestamp"] >= since
    )
    keyed = next(r for _, _, r in rows if r["keys"])
    same_key = sorted((*q, o) for q, o, r in rows if r["keys"] == keyed["keys"])
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=since)
    with store.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
    database = duckdb.connect()
    database.register("m", dataset)
    columns = "topic, queueId, queueOffset"
    in_time = database.execute(
        f"SELECT {columns} FROM m WHERE topic = 'orders' AND storeTimestamp >= ?", [moment]
    )
    assert sorted(in_time.fetchall()) == expected
    by_key = database.execute(f"SELECT {columns} FROM m WHERE keys = ?", [keyed["keys"]])
    assert sorted(by_key.fetchall()) == same_key
    lazy = polars.scan_pyarrow_dataset(dataset)
    chosen = lazy.filter(polars.col("topic") == "orders", polars.col("storeTimestamp") >= moment)
    assert sorted(chosen.select(_PLACE).collect().rows()) == expected
    chosen = lazy.filter(polars.col("keys") == keyed["keys"])
    assert sorted(chosen.select(_PLACE).collect().rows()) == same_key
    context = datafusion.SessionContext()
    context.register_dataset("m", dataset)
    quoted = '"queueId", "queueOffset"'
    far = context.sql(f"SELECT topic, {quoted} FROM m WHERE keys = '{keyed['keys']}'")
    assert places(far.to_arrow_table()) == same_key
    assert context.sql("SELECT count(*) FROM m").to_pydict() == {"count(*)": [len(rows)]}
    frame = dataset.to_table(columns=_PLACE, filter=F("keys") == keyed["keys"]).to_pandas()
    assert sorted(frame.itertuples(index=False, name=None)) == same_key


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.3.3", "lmq-5.3.3"])
def test_fragments_are_scanned_side_by_side(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("rmq_store.dataset.message_dataset._FRAGMENT_BYTES", 40_000)
    store = golden(name)
    expected = sorted((*q, o) for q, o, _ in listed(store))
    with store.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
    assert len(list(dataset.get_fragments())) > 4
    context = datafusion.SessionContext()
    context.register_dataset("m", dataset)
    found = context.sql('SELECT topic, "queueId", "queueOffset", body, properties FROM m')
    assert places(found.to_arrow_table()) == expected


def test_a_dataset_is_read_by_several_threads_and_outlives_its_store(golden: Golden) -> None:
    store = golden("clean-4.9.7")
    expected = len(listed(store))
    with store.open() as opened:
        dataset = opened.messages(columns=["topic", "keys", "body"])
    del opened
    gc.collect()
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(dataset.to_table().num_rows)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert dataset.schema.names == ["topic", "keys", "body"]
    same = "SELECT count(*) FROM dataset a JOIN dataset b ON a.keys = b.keys AND a.keys IS NULL"
    assert rows_of(same, dataset) == [(0,)]


def test_several_stores_are_one_dataset_by_broker(golden: Golden) -> None:
    one, other = golden("clean-5.3.3"), golden("clean-4.9.7")
    with one.open(broker_name="a") as first, other.open(broker_name="b") as second:
        dataset = messages_of([first, second], unwrap_batches=False)
    assert dataset.count_rows(F("brokerName") == "a") == len(listed(one))
    assert dataset.count_rows() == len(listed(one)) + len(listed(other))
    unread, read = dataset.plan(F("brokerName") == "b").stores
    assert not unread.ranges
    assert read.ranges


def test_words_of_keys_narrow_the_dataset_itself(clean: GoldenStore) -> None:
    rows = listed(clean)
    word = "CUSTOMER_1"
    expected = sorted((*q, o) for q, o, r in rows if word in (r["keys"] or "").split(" "))
    assert len(expected) > 10
    with clean.open() as opened:
        dataset = opened.messages(unwrap_batches=False, keys=[word], columns=[*_PLACE, "tags"])
        permissive = opened.messages(unwrap_batches=False, keys=[word], on_damage="permissive")
    assert places(dataset.to_table()) == expected
    assert places(permissive.to_table()) == expected
    some = sorted(place for place in expected if place[1] == 1)
    assert places(dataset.to_table(filter=F("queueId") == 1)) == some
    assert dataset.plan().stores[0].indexed_keys == frozenset({word})


def test_rows_are_counted_by_the_queues_whatever_the_columns(tmp_path: Path) -> None:
    store = unpack("clean-4.9.7", tmp_path)
    expected = len(listed(store))
    with store.open() as opened:
        bodies = opened.messages(columns=["body"], check_ends=False)
    blank_log(store)
    assert bodies.count_rows() == expected
    assert sum(part.count_rows() for part in bodies.get_fragments()) == expected


def test_light_queues_are_found_by_their_own_names(golden: Golden) -> None:
    store = golden("lmq-5.3.3")
    light = {queue: rows for queue, rows in store.by_queue.items() if queue.topic[0] == "%"}
    with store.open() as opened:
        dataset = opened.messages(include_system_topics=True)
    assert any(queue.topic.startswith("%LMQ%") for queue in light)
    for queue, rows in light.items():
        wanted = (F("topic") == queue.topic) & (F("queueId") == queue.queue_id)
        found = dataset.to_table(columns=["commitLogOffset"], filter=wanted)
        expected = [record["commitLogOffset"] for record in rows]
        assert sorted(found.column(0).to_pylist()) == expected
        for record in rows[::5]:
            one = wanted & (F("uniqKey") == record["uniqKey"])
            found = dataset.to_table(filter=one).column("commitLogOffset")
            assert record["commitLogOffset"] in found.to_pylist()


def test_values_that_exclude_each_other_read_nothing(golden: Golden) -> None:
    with golden("clean-5.5.0").open() as store:
        dataset = store.messages()
    wanted = (F("keys") == "A") & (F("keys") == "B")
    assert selected(dataset, wanted) == 0
    assert dataset.count_rows(wanted) == 0


def test_a_query_without_the_body_reads_none_unless_it_is_to_be_checked(copy: GoldenStore) -> None:
    record = flip_body(copy, "orders")
    with copy.open() as opened:
        columns = ["commitLogOffset", "storeTimestamp", "keys"]
        rows = opened.messages(unwrap_batches=False).to_table(columns=columns)
        checked = opened.messages(unwrap_batches=False, check_crc=True)
        with pytest.raises(CorruptRecordError, match=f"offset {record['commitLogOffset']}"):
            checked.to_table(columns=["storeTimestamp"])
    values = (rows.column(name).to_pylist() for name in ("commitLogOffset", "keys"))
    stored = dict(zip(*values, strict=True))
    assert stored[record["commitLogOffset"]] == record["keys"]
    assert rows.num_rows == len(listed(copy))


def test_a_row_about_damage_is_there_whatever_the_columns_and_the_filter(copy: GoldenStore) -> None:
    flip_body(copy, "orders")
    with copy.open() as opened:
        dataset = opened.messages(columns=["topic", "keys", "body"], on_damage="permissive")
    assert dataset.count_rows(F("keys").is_null() & F("body").is_null()) == 1


def test_a_scanner_is_read_once(golden: Golden) -> None:
    with golden("clean-5.5.0").open() as store:
        scanner = store.messages(unwrap_batches=False).scanner(columns=["topic"])
    assert scanner.to_table().num_rows == len(listed(golden("clean-5.5.0")))
    with pytest.raises(InvalidArgumentError, match="read already"):
        scanner.to_reader()


def test_times_narrow_the_dataset_itself(clean: GoldenStore) -> None:
    stamps = sorted(r["storeTimestamp"] for _, _, r in listed(clean))
    since, until = stamps[100], stamps[-100]
    with clean.open() as opened:
        dataset = opened.messages(since=since, until=until)
        assert dataset.count_rows() == sum(since <= stamp < until for stamp in stamps)
        both = dataset.filter(F("storeTimestamp") < time(stamps[200]))
        assert both.count_rows() == sum(since <= stamp < stamps[200] for stamp in stamps)
        with pytest.raises(InvalidArgumentError, match="as seconds"):
            opened.messages(since=since // 1000)
        assert opened.messages(since=0).count_rows() == opened.messages().count_rows()
        assert opened.messages(since=since, until=since).count_rows() == 0
        with pytest.raises(InvalidArgumentError, match="Give an end that is not before the start"):
            opened.messages(since=until, until=since)


@pytest.mark.parametrize("other", ["clean-5.1.1", "geometry-5.5.0"])
def test_a_dataset_never_mixes_two_stores(golden: Golden, tmp_path: Path, other: str) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden("clean-5.5.0").path, path)

    def replace_store(name: str) -> None:
        shutil.rmtree(path)
        shutil.copytree(golden(name).path, path)

    with MessageStore.open(path) as store:
        dataset, table = store.messages(), TableDataset(TABLES["queues"], [store])
        snapshot = pickle.loads(pickle.dumps(store.snapshot()))
        first, rest = dataset.to_table(), dataset.to_batches()
        next(rest)
        replace_store(other)
        with pytest.raises(StoreError):
            list(rest)
        for read in (
            dataset.to_table,
            lambda: dataset.count_rows(F("topic") == "orders"),
            lambda: dataset.count_rows(F("keys") == "ORDER_7"),
            lambda: list(dataset.get_fragments()),
            table.to_table,
            store.reopen,
            lambda: MessageStore.open(path, snapshot=snapshot),
        ):
            with pytest.raises(OtherStoreError):
                read()
        replace_store("clean-5.5.0")
        assert dataset.to_table().equals(first)


def test_what_a_dataset_refuses_and_warns_of(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    with golden("clean-5.5.0").open() as opened:
        with pytest.raises(UnknownQueueError, match="orders"):
            opened.messages("order")
        with pytest.raises(InvalidArgumentError, match="tag"):
            opened.messages(tag="A")  # type: ignore[call-arg]
        with pytest.raises(InvalidArgumentError, match="storeTimestamp"):
            opened.messages(columns=["storeTimestmp"])
        dataset = opened.messages()
        for call in ("sort_by", "join", "join_asof", "replace_schema"):
            with pytest.raises(InvalidArgumentError, match=call):
                getattr(dataset, call)(None)
        with pytest.raises(pa.ArrowInvalid, match="nobody"):
            dataset.to_table(filter=F("nobody") == 1)
        assert not dataset.count_rows(F("topic") == "RMQ_SYS_TRANS_HALF_TOPIC")
        assert "RMQ_SYS_TRANS_HALF_TOPIC is a topic of the broker" in caplog.text
        assert "there is no topic" not in caplog.text
        assert dataset.count_rows((F("topic") == "ordrs") | (F("topic") == "orders")) == 971
        assert "there is no topic 'ordrs'. Did you mean 'orders'?" in caplog.text
        caplog.clear()
        assert not opened.messages("orders").count_rows(F("topic") == "RMQ_SYS_TRANS_HALF_TOPIC")
        assert "which this query does not read" not in caplog.text
        every = opened.messages(include_system_topics=True)
        assert every.count_rows(F("topic") == "RMQ_SYS_TRANS_HALF_TOPIC")
        assert isinstance(dataset, ds.Dataset)
        assert repr(dataset).startswith("MessageDataset('store', up to ")
        assert dataset.head(3).num_rows == 3
        assert dataset.take([2, 0]).num_rows == 2
        doubled = {"twice": F("queueOffset") * 2}
        assert max(dataset.to_table(columns=doubled).column("twice").to_pylist()) % 2 == 0
        with pytest.raises(TypeError, match="picklable"):
            dataset.__reduce__()


def test_memory_does_not_grow_with_the_store(long_queue: MessageStore) -> None:
    """Bodies go by in batches; at no time many of them are there."""
    dataset = long_queue.messages(batch_rows=1000)
    before = pa.total_allocated_bytes()
    most = 0
    for batch in dataset.to_batches(columns=["topic", "body", "properties", "msgId"]):
        most = max(most, pa.total_allocated_bytes() - before)
        assert batch.num_rows <= 1000
    assert most < 8 << 20


def test_user_topics_are_those_of_the_truth(clean: GoldenStore) -> None:
    expected = {r["topic"] for r in clean.truth if user_topic(r)}
    assert {queue.topic for queue, _, _ in listed(clean)} == expected


def test_no_key_is_a_key_that_no_message_has(golden: Golden) -> None:
    with golden("clean-5.5.0").open() as store:
        dataset = store.messages("orders", keys=[])
        assert dataset.count_rows() == dataset.to_table().num_rows == 0
        assert dataset.count_rows(F("queueId") == 1) == 0
        assert selected(dataset, None) == 0


def test_a_time_needs_no_column_of_it(clean: GoldenStore) -> None:
    rows = listed(clean)
    since = sorted(record["storeTimestamp"] for _, _, record in rows)[len(rows) // 2]
    expected = sorted(r["storeSize"] for _, _, r in rows if r["storeTimestamp"] >= since)
    with clean.open() as opened:
        dataset = opened.messages(unwrap_batches=False, columns=["storeSize"], since=since)
        assert dataset.schema.names == ["storeSize"]
        assert sorted(dataset.to_table().column("storeSize").to_pylist()) == expected
        assert dataset.count_rows() == len(expected)
        assert sum(part.count_rows() for part in dataset.get_fragments()) == len(expected)
        assert rows_of("SELECT sum(storeSize) FROM dataset", dataset) == [(sum(expected),)]


def test_rows_about_damage_are_there_from_a_time_on(copy: GoldenStore) -> None:
    record = flip_body(copy, "orders")
    with copy.open() as opened:
        since = record["storeTimestamp"] - 1000
        dataset = opened.messages("orders", since=since, on_damage="permissive")
        (row,) = dataset.to_table(filter=F("corruptRecord").is_valid()).to_pylist()
    assert row["storeTimestamp"] is None
    assert str(record["commitLogOffset"]) in row["corruptRecord"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_rows_is_refused(golden: Golden, size: int) -> None:
    with golden("clean-5.5.0").open() as store, pytest.raises(InvalidArgumentError):
        store.messages().to_table(columns=["topic"], batch_size=size)


@pytest.mark.filterwarnings("error")
def test_a_log_that_vanished_is_an_error_and_no_warning(copy: GoldenStore) -> None:
    with copy.open() as opened:
        dataset = opened.messages()
    for path in (Path(copy.path) / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(MissingFileError):
        dataset.to_table(columns=["body"])


@pytest.mark.parametrize("name", few("encoded", STORES, "clean-5.5.0", "lmq-5.3.3", "ext-5.5.0"))
def test_encoded_names_are_those_of_the_broker(untouched: Golden, name: str) -> None:
    store = untouched(name)
    with store.open() as opened:
        dataset = opened.messages(unwrap_batches=False)
        assert dataset.has_dictionaries
        batches = list(dataset.dictionary_batches([*_PLACE, "brokerName"], None))
        broker = opened.broker_name
    rows = pa.Table.from_batches(batches)
    kind = pa.dictionary(pa.int32(), pa.string())
    assert [rows.schema.field(one).type for one in ("topic", "brokerName")] == [kind, kind]
    found = [tuple(row.values()) for row in rows.to_pylist()]
    expected = [(queue.topic, queue.queue_id, at, broker) for queue, at, _ in listed(store)]
    assert sorted(found) == sorted(expected)


def test_names_of_many_topics_are_encoded_by_those_of_a_batch(tmp_path: Path) -> None:
    topics = [f"topic-{number:03d}" for number in range(300)]
    with MessageStore.create(tmp_path / "many") as writer:
        for topic in topics:
            writer.append({"topic": topic, "queueId": 0, "body": topic.encode()})
    with MessageStore.open(tmp_path / "many") as store:
        dataset = store.messages(batch_rows=20)
        batches = list(dataset.dictionary_batches(["topic", "body"], None))
        assert store.messages(on_damage="permissive").has_dictionaries is False
    assert all(len(batch.column("topic").dictionary) == batch.num_rows for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["topic"].encode() for row in rows] == [row["body"] for row in rows]
    assert sorted(row["topic"] for row in rows) == topics


def test_times_may_be_texts(clean: GoldenStore) -> None:
    middle = "2026-11-21T09:23:50Z"
    at = int(datetime.fromisoformat(middle.replace("Z", "+00:00")).timestamp() * 1000)
    with clean.open() as store:
        late = store.messages(since=at).count_rows()
        assert 0 < late < store.messages().count_rows()
        assert store.messages(since=middle).count_rows() == late
        assert store.messages(since="09:23:50").count_rows() == late
        with pytest.raises(InvalidArgumentError, match="since='yesterday'"):
            store.messages(since="yesterday")
