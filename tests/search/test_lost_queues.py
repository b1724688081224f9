"""A key is found by the index where its queue has lost its files: `find` of the truth's messages."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import (
    CorruptConfigError,
    CorruptRecordError,
    MissingFileError,
    StoreError,
    UnknownQueueError,
)
from rmq_store.index import query_message
from rmq_store.index.query_message import walk_chains
from rmq_store.questions.trace import trace
from rmq_store.search.find_messages import find, find_by_id
from rmq_store.search.selection import Search
from rmq_store.verify import verify
from tests.support.damage import damage_entry, flip_in_log, write_in_log
from tests.support.golden import (
    Golden,
    GoldenStore,
    Truth,
    in_a_queue,
    keys_of,
    log_files,
    unpack,
    unpack_field,
    user_topic,
)


def places(store: MessageStore, search: Search) -> list[int]:
    columns = ["commitLogOffset", "queueOffset"]
    return [row["commitLogOffset"] for b in find(store, search, columns) for row in b.to_pylist()]


def rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def with_key(golden: GoldenStore, key: str, topic: str | None = None) -> list[int]:
    return [
        r["commitLogOffset"]
        for r in golden.truth
        if user_topic(r) and in_a_queue(r) and topic in (None, r["topic"]) and key in keys_of(r)
    ]


@pytest.mark.parametrize("gone", ["orders/0", "orders", ""], ids=["queue", "topic", "all"])
def test_a_key_is_found_though_its_queue_is_gone(copy: GoldenStore, gone: str) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", gone))
    sample: list[Truth] = [r for r in copy.truth if r["topic"] == "orders" and r["keys"]][::200]
    assert any(record["queueId"] == 0 for record in sample)
    with copy.open() as store:
        for record in sample:
            key = record["keys"].split(" ")[0]
            assert sorted(places(store, Search(keys=[key]))) == with_key(copy, key)
            of_topic = places(store, Search(["orders"], keys=[key]))
            assert sorted(of_topic) == with_key(copy, key, "orders")
            other = Search(["orders"], [(record["queueId"] + 1) % 4], keys=[key])
            assert record["commitLogOffset"] not in places(store, other)
            at = record["storeTimestamp"]
            of_time = Search(keys=[key], since=at, until=at + 1)
            assert record["commitLogOffset"] in places(store, of_time)
            assert record["commitLogOffset"] not in places(store, Search(keys=[key], since=at + 1))
        with pytest.raises(UnknownQueueError):
            places(store, Search(["no-such-topic"], keys=["k"]))


@pytest.mark.parametrize("indexed", [True, False])
def test_messages_of_a_deleted_topic_have_no_place_in_the_queue_of_the_new_one(
    tmp_path: Path, indexed: bool
) -> None:
    """Its queues begin at 0 again, so `new0` has the place that `old0` had."""
    unpack_field("deleted-topic-5.5.0", tmp_path)
    path = tmp_path / "deleted-topic" / "c2-created-again"
    if not indexed:
        shutil.rmtree(path / "index")
    with MessageStore.open(path) as store:
        for key, offset in (("old0", None), ("new0", 0)):
            (message,) = store.query_message("again", key)
            assert message.queue_offset == offset
            (row,) = rows(find(store, Search(keys=[key])))
            assert (row["queueOffset"], row["body"]) == (offset, key.encode())
            assert message.uniq_key is not None
            for name in (message.uniq_key, message.msg_id):
                assert rows(find_by_id(store, name)) == [row]
                (life,) = trace(store, name)
                assert [step.queueOffset for step in life.steps] == [offset]


@pytest.mark.campaign
@pytest.mark.parametrize("broken", [False, True], ids=["", "topics.json broken"])
def test_ids_and_traces_find_a_topic_that_has_no_queue_left(tmp_path: Path, broken: bool) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    shutil.rmtree(Path(golden.path, "consumequeue", "orders"))
    if broken:
        break_topics(golden)
    sample = [r for r in golden.truth if user_topic(r) and r["uniqKey"] and r["keys"]][::60]
    assert {"orders", "payments"} <= {r["topic"] for r in sample}
    with golden.open() as store:
        for record in sample:
            # Without topics.json nothing shows under which topic the index has its keys.
            lost = broken and record["topic"] == "orders"
            at = record["commitLogOffset"]
            assert at in [m.commit_log_offset for m in store.messages_by_id(record["offsetMsgId"])]
            by_id = [m.commit_log_offset for m in store.messages_by_id(record["uniqKey"])]
            assert (at in by_id) is not lost
            lives = trace(store, record["keys"].split(" ")[0])
            assert (at in [s.commitLogOffset for life in lives for s in life.steps]) is not lost


def test_numbers_of_queues_are_held_against_the_files_where_topics_json_is_broken(
    copy: GoldenStore,
) -> None:
    with copy.open() as store:
        store.view.require_queue_ids("orders", [0, 3])
    break_topics(copy)
    with copy.open() as store:
        store.view.require_queue_ids("orders", [0, 3])
        with pytest.raises(UnknownQueueError, match="has no queue 77"):
            store.view.require_queue_ids("orders", [0, 77])


def test_a_table_of_topics_that_is_none_is_damage_of_its_file(copy: GoldenStore) -> None:
    for table in ("[1]", '{"orders":7}'):
        break_topics(copy, f'{{"topicConfigTable":{table}}}')
        with pytest.raises(CorruptConfigError, match="not a table of topics"):
            read_topic_configs(copy.path)
        with copy.open() as store:
            assert store.view.topics.every == store.topics()
            assert "config-unreadable" in {one.code for one in verify(store).findings}


def break_topics(golden: GoldenStore, text: str = "{") -> None:
    folder = Path(golden.path, "config")
    (folder / "topics.json.bak").unlink(missing_ok=True)
    (folder / "topics.json").write_text(text, "utf-8")


def test_the_index_is_gone_through_once_for_an_id(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[list[int]] = []

    def walk(files: Any, hashes: list[int]) -> Any:
        walks.append(hashes)
        return walk_chains(files, hashes)

    monkeypatch.setattr(query_message, "walk_chains", walk)
    record = next(r for r in golden("clean-5.5.0").truth if user_topic(r) and r["uniqKey"])
    with golden("clean-5.5.0").open() as store:
        found = store.messages_by_id(record["uniqKey"])
        assert record["commitLogOffset"] in [m.commit_log_offset for m in found]
        assert len(walks) == 1
        assert len(walks[0]) == len(store.view.topics.every)


@pytest.mark.parametrize("how", ["a bit of the body", "the whole record", "the file"])
@pytest.mark.parametrize("topics", [None, ["orders"]], ids=["any topic", "its topic"])
def test_a_damaged_record_in_a_topic_without_queues_is_reported(
    copy: GoldenStore, how: str, topics: list[str] | None
) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", "orders"))
    files = log_files(copy)
    path, size = files[1], int(files[1].name)
    record, other = [
        r
        for r in copy.truth
        if r["topic"] == "orders" and r["keys"] and size < r["commitLogOffset"] < 2 * size - 2000
    ][20:22]
    key = record["keys"].split(" ")[0]
    search = Search(topics, keys=[key])
    with copy.open() as store:
        assert places(store, search) == with_key(copy, key, "orders" if topics else None)
    if how == "the file":
        path.unlink()
    elif how == "the whole record":
        write_in_log(copy, record["commitLogOffset"], bytes(record["storeSize"]))
    else:
        flip_in_log(copy, record["commitLogOffset"] + 90)
    with copy.open() as store:
        kinds = (CorruptRecordError, MissingFileError)
        with pytest.raises(kinds, match="points to damage") as reported:
            places(store, search)
        assert reported.value.offset == record["commitLogOffset"]
        assert reported.value.advice
        left_out: list[StoreError] = []
        kept = [b for b in find(store, search, ["flag"], left_out.append) if b.num_rows]
        assert not kept
        assert [one.offset for one in left_out] == [record["commitLogOffset"]]
        if how != "the file":  # what is sound is found, and a damaged neighbour is not in its way
            sound = other["keys"].split(" ")[0]
            assert other["commitLogOffset"] in places(store, Search(topics, keys=[sound]))


def test_a_damaged_record_outside_of_the_selection_is_not_reported(copy: GoldenStore) -> None:
    record = next(r for r in copy.truth if r["topic"] == "orders" and r["keys"])
    flip_in_log(copy, record["commitLogOffset"] + 90)
    key, after = record["keys"].split(" ")[0], record["storeTimestamp"] + 1
    with copy.open() as store:
        with pytest.raises(CorruptRecordError):
            places(store, Search(["orders"], keys=[key]))
        others = [(record["queueId"] + 1) % 4]
        assert places(store, Search(["orders"], others, keys=[key])) == []
        assert places(store, Search(["orders"], since=after, keys=[key])) == []


def test_a_key_that_no_index_has_is_found_though_its_queue_is_gone(copy: GoldenStore) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", "orders"))
    shutil.rmtree(Path(copy.path, "index"))
    sample = [r for r in copy.truth if r["topic"] == "orders" and r["keys"]][::200]
    with copy.open() as store:
        for record in sample:
            key = record["keys"].split(" ")[0]
            assert places(store, Search(keys=[key])) == with_key(copy, key)
            assert places(store, Search(["orders"], keys=[key])) == with_key(copy, key, "orders")


LAST_OF_A_FILE = 99  # entries of a queue file of that store, less one: a search sets out from these


@pytest.mark.parametrize("damaged", [1, LAST_OF_A_FILE])
def test_one_damaged_entry_hides_no_other_message_from_its_key(
    copy: GoldenStore, damaged: int
) -> None:
    """Nor does one come twice: the first of a queue is not found by bisection if the second is damaged."""
    queue = [r for r in copy.truth if r["topic"] == "orders" and r["queueId"] == 0]
    damage_entry(Path(copy.path, "consumequeue", "orders", "0"), damaged)
    assert queue[damaged]["keys"]
    with copy.open() as store:
        for number in (*range(0, len(queue), 9), damaged):
            record = queue[number]
            if not record["keys"]:
                continue
            search = Search(["orders"], keys=[record["keys"].split(" ")[0]])
            left_out: list[StoreError] = []
            columns = ["commitLogOffset"]
            batches = list(find(store, search, columns, left_out.append))
            found = [at for batch in batches for at in batch.column(0).to_pylist()]
            assert sorted(found) == with_key(copy, search.keys[0], "orders")
            if number == damaged:
                assert [type(one) for one in left_out] == [CorruptRecordError]
                with pytest.raises(CorruptRecordError):
                    places(store, search)
