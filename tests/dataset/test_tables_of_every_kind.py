"""Every table of every kind of store, value by value, against a count without any of our readers.

The kinds are those of `tests/golden/kinds`, and stores of files of releases of the same formats, which have
batch queues, dead letters and checksums beside. What a client pulled from the broker shows that the count is
right. The order of the rows does not count. The same holds for the plain store that rebuild makes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.tables import TABLES_OF_A_STORE
from tests.support.counted_store import Counted, CountedStore
from tests.support.counted_tables import NOT_COUNTED, RULES
from tests.support.golden import KINDS, GoldenStore, unpack, unpack_kind
from tests.support.running.campaigns import few
from tests.support.running.commands import in_ms, objects, run

# What both a count and the broker's decoder have of a record, by the names of each.
DECODED = {
    **{"place": "commitLogOffset", "size": "storeSize", "topic": "topic", "queue_id": "queueId"},
    **{"offset": "queueOffset", "flags": "sysFlag", "born": "bornTimestamp"},
    **{"stored": "storeTimestamp", "reconsumed": "reconsumeTimes", "crc": "bodyCrc"},
    **{
        "prepared": "preparedTransactionOffset",
        "msg_id": "offsetMsgId",
        "properties": "properties",
    },
}
Counts = Callable[[str], CountedStore]
Message = tuple[str, int, int]  # topic, queue, queue offset
OF_FILES = ["clean-5.4.0", "clean-5.5.0", "crash-5.5.0", "crc-5.5.0"]
ALL = [*KINDS, *OF_FILES]
# A broker fails to answer a pull of the batches; of version 2 of the configuration only answers were kept.
NOT_SERVED = {"rocksdb-batch-5.5.0", "rocksdb-config-v2-5.5.0"}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """`counts(kind)` is that store, unpacked and counted once."""

    @cache
    def get(kind: str) -> CountedStore:
        folder = tmp_path_factory.mktemp("kind")
        store = unpack(kind, folder) if kind in OF_FILES else unpack_kind(kind, folder)
        return CountedStore(store, folder)

    return get


@pytest.fixture(scope="module")
def rebuilt(counts: Counts, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """`rebuilt(kind)` is the plain store that rebuild makes of it, counted."""

    @cache
    def get(kind: str) -> CountedStore:
        source, folder = counts(kind).golden, tmp_path_factory.mktemp("rebuilt")
        run("rebuild", source.path, str(folder / "store"), "--broker-conf", source.conf)
        lines = Path(source.conf).read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("enableDLegerCommitLog")]
        (folder / "broker.conf").write_text("".join(kept))
        return CountedStore(GoldenStore(folder), folder)

    return get


@pytest.mark.parametrize("table", list(TABLES_OF_A_STORE))
@pytest.mark.parametrize("kind", ALL)
def test_a_table_is_what_is_counted(counts: Counts, kind: str, table: str) -> None:
    assert_counted(counts(kind), table)


@pytest.mark.parametrize("table", list(TABLES_OF_A_STORE))
@pytest.mark.parametrize(
    "kind", few("rebuilt tables", ALL, "rocksdb-5.5.0", "dledger-5.5.0", "crash-5.5.0")
)
def test_a_table_of_the_rebuilt_store_is_what_is_counted(
    rebuilt: Counts, kind: str, table: str
) -> None:
    assert_counted(rebuilt(kind), table)


def assert_counted(store: CountedStore, table: str) -> None:
    assert table in RULES, f"no independent count for table {table}"
    name = store.conf.get("brokerName", "store")
    path, conf = store.golden.path, store.golden.conf
    found = sorted_rows(
        counted_columns(table, row) for row in objects("table", table, path, "--broker-conf", conf)
    )
    # After the read: in memory (tmpfs), a hole that is read through a map takes room.
    wanted = sorted_rows({"brokerName": name, **row} for row in RULES[table](store))
    for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
        assert one == other, f"{table} of {path}, row {number}"
    assert len(found) == len(wanted), f"{table} of {path}"


@pytest.mark.parametrize("kind", ALL)
def test_a_rebuilt_store_has_the_same_records_and_queues(
    counts: Counts, rebuilt: Counts, kind: str
) -> None:
    """Each at its place, but for DLedger, which has the head of an entry before each record."""
    one, other = counts(kind), rebuilt(kind)
    heads = 48 if kind.startswith("dledger") else 0
    before = {record.place: heads * (number + 1) for number, record in enumerate(one.records)}
    assert [without_heads(record, before) for record in one.records] == other.records
    assert (
        listed_in(one).keys()
        == listed_in(other).keys()
        == {(*queue, offset) for queue, entries in other.entries.items() for offset in entries}
    )


def without_heads(record: Counted, before: Mapping[int, int]) -> Counted:
    """A record at the place where it is without the heads before it (bytes), and its half message too."""
    half = record.prepared
    return replace(
        record, place=record.place - before[record.place], prepared=half - before.get(half, 0)
    )


@pytest.mark.parametrize("kind", ALL)
def test_a_store_is_like_itself(counts: Counts, kind: str) -> None:
    path, conf = counts(kind).golden.path, counts(kind).golden.conf
    said = run("diff", path, path, "--broker-conf", conf, "--other-conf", conf)
    assert said.startswith("no difference: log ")


@pytest.mark.parametrize("kind", ALL)
def test_a_store_is_like_the_rebuilt_one(counts: Counts, rebuilt: Counts, kind: str) -> None:
    """A DLedger log has other places, and the messages of each queue are the same."""
    store, other = counts(kind), rebuilt(kind).golden.path
    words = ("diff", store.golden.path, other, "--broker-conf", store.golden.conf)
    if not kind.startswith("dledger"):
        assert run(*words).startswith("no difference: log ")
        return
    rows = objects(*words, expect=1)
    moved = {row["name"]: row["count"] for row in rows if row["what"] == "queue"}
    assert {row["what"] for row in rows} == {"log", "queue"}
    assert {row["meaning"] for row in rows if row["what"] == "queue"} == {
        "the messages have other places in the log, as after a replay"
    }
    assert moved == {
        f"{topic}/{queue_id}": len(of) for (topic, queue_id), of in store.by_queue.items()
    }


def counted_columns(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as it was printed, with times in ms, and without the columns that cannot be counted."""
    types = {field.name: field.type for field in TABLES_OF_A_STORE[table].schema}
    return {
        name: in_ms(value) if pa.types.is_timestamp(types[name]) and value else value
        for name, value in row.items()
        if (table, name) not in NOT_COUNTED
    }


def sorted_rows(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


def test_only_tables_named_here_have_no_rows(counts: Counts) -> None:
    """In damage none was met; clients of these stores sent no trace, and popped nothing."""
    empty = {
        table for table, rule in RULES.items() if not any(list(rule(counts(kind))) for kind in ALL)
    }
    assert empty == {"damage", "pop", "traces"}


def test_columns_that_are_not_counted_are_there() -> None:
    for (table, column), reason in NOT_COUNTED.items():
        assert column in TABLES_OF_A_STORE[table].schema.names, reason


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_SERVED])
def test_the_count_is_what_a_client_pulled(counts: Counts, kind: str) -> None:
    store = counts(kind)
    served, counted = served_by(store), listed_in(store)
    whole = {key[0] for key in served} - compaction_topics(store)
    assert whole
    assert [key for key in sorted(counted) if key[0] in whole] == [
        key for key in sorted(served) if key[0] in whole
    ]
    for key, line in served.items():
        one = counted[key]
        assert (one.size, one.crc, one.stored) == (line["size"], line["bodyCrc"], line["storeTs"])
        assert one.properties["UNIQ_KEY"] == line["msgId"]
        if key[0] in whole:  # else the client names the place in the compaction log
            assert (one.place, one.msg_id) == (line["phy"], line["offsetMsgId"])


@pytest.mark.parametrize("kind", ["clean-5.4.0", "clean-5.5.0", "crc-5.5.0"])
def test_the_count_is_what_the_broker_decodes(counts: Counts, kind: str) -> None:
    """Of a property that occurs twice, the broker's decoder gives the last one too."""
    counted = [[getattr(one, name) for name in DECODED] for one in counts(kind).records]
    decoded = [[line[name] for name in DECODED.values()] for line in counts(kind).golden.truth]
    assert counted == decoded


@pytest.mark.parametrize("kind", ["compact-timer-5.5.0", "compacted-5.5.0"])
def test_a_client_got_the_newest_message_of_each_key(counts: Counts, kind: str) -> None:
    store = counts(kind)
    newest: dict[tuple[str, int, str], int] = {}
    listed = listed_in(store)
    for topic, queue_id, offset in sorted(listed):
        one = listed[topic, queue_id, offset]
        if topic in compaction_topics(store):
            newest[topic, queue_id, one.properties["KEYS"]] = offset
    assert newest
    assert {(*key[:2], offset) for key, offset in newest.items()} <= served_by(store).keys()


def served_by(store: CountedStore) -> dict[Message, dict[str, Any]]:
    """What a client pulled, by topic, queue and queue offset."""
    lines = store.golden.lines("served")
    return {(line["topic"], line["queue"], line["offset"]): line for line in lines}


def listed_in(store: CountedStore) -> dict[Message, Counted]:
    """What is counted, by topic, queue and queue offset."""
    return {(*one.queue, one.offset): one for one in store.records if one.is_listed}


def compaction_topics(store: CountedStore) -> set[str]:
    declared = store.config["topics.json"][1]["topicConfigTable"]
    return {
        name
        for name, said in declared.items()
        if said["attributes"].get("cleanup.policy") == "COMPACTION"
    }
