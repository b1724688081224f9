"""Keys of stores in an object store: found by the index, with the answers of the local store."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.files.remote import remote_store as remote
from tests.support.golden import CLEAN, STORES, Truth, in_a_queue, keys_of, unpack, user_topic
from tests.support.running.campaigns import some
from tests.support.slow_s3 import s3_server, upload
from tests.support.spark.reads import rows_of

pytestmark = pytest.mark.campaign

SEED = 20261
PLACE = {"columns": "topic,queueId,queueOffset,commitLogOffset,uniqKey", "unwrapbatches": "false"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """An empty bucket, and the options that a client needs."""
    with s3_server() as options:
        yield options


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Path and bytes of every request for bytes from here on."""
    found: list[tuple[str, int]] = []
    read = remote.Shadow.read

    def watching(self: remote.Shadow, path: str, start: int, stop: int) -> bytes:
        raw = read(self, path, start, stop)
        found.append((path, len(raw)))
        return raw

    monkeypatch.setattr(remote.Shadow, "read", watching)
    return found


def indexed_stores() -> list[str]:
    """Those with an index, but for one whose log lies in folders outside the store's own."""
    return [name for name in STORES if name != "multipath-5.5.0"]


def some_words(records: list[Truth], count: int) -> list[str]:
    words = sorted({w for r in records for w in keys_of(r) if w.isascii() and "||" not in w})
    words = [w for w in words if not any(c.isspace() for c in w)]
    print("seed", SEED)
    return random.Random(SEED).sample(words, min(count, len(words)))


def places(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((r["commitLogOffset"], r["topic"], r["queueId"], r["queueOffset"]) for r in rows)


@pytest.mark.parametrize("name", some("remote index", indexed_stores(), 5))
def test_keys_are_found_as_locally(
    bucket: dict[str, Any], tmp_path: Path, name: str, asked: list[tuple[str, int]]
) -> None:
    store = unpack(name, tmp_path)
    records = [r for r in store.truth if user_topic(r)]
    words = some_words(records, 5)
    far = {"path": upload(bucket, store.path, name), "storageoptions": json.dumps(bucket)}
    for keys in (words[0], " || ".join(words), "no-such-key"):
        one = {"keys": keys, **PLACE}
        asked.clear()
        found = places(rows_of({**far, **one}))
        assert any("/index/" in path for path, _ in asked)
        assert found == places(rows_of({"path": store.path, **one}))
        if name in CLEAN:
            wanted = set(keys.split(" || "))
            expected = Counter(r["commitLogOffset"] for r in records if keys_of(r) & wanted)
            assert Counter(place[0] for place in found) == expected
    shutil.rmtree(store.folder)


def test_single_messages_are_found_as_locally(bucket: dict[str, Any], tmp_path: Path) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    records = [r for r in store.truth if in_a_queue(r) and r["uniqKey"]]
    uri = upload(bucket, store.path, "single")
    with MessageStore.open(uri, storage_options=bucket) as far, store.open() as near:
        for record in random.Random(SEED).sample(records, 3):
            for id_ in (record["uniqKey"], record["offsetMsgId"]):
                seen = [
                    [(m.commit_log_offset, m.queue_id, m.queue_offset, m.body) for m in found]
                    for found in (far.messages_by_id(id_), near.messages_by_id(id_))
                ]
                assert seen[0]
                assert seen[0] == seen[1]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 60 MB and two index files of 9 MB each: large beside what a look-up needs."""
    folder = tmp_path_factory.mktemp("large") / "store"
    sizes = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 200_000, "maxIndexNum": 400_000}
    with MessageStore.create(folder, sizes) as store:
        for first in range(0, 60_000, 1000):
            rows = [
                {
                    "topic": "orders",
                    "queueId": n % 8,
                    "body": b"%08d" % n + bytes(880),
                    "keys": f"k{n} g{n % 30_000}",
                }
                for n in range(first, first + 1000)
            ]
            schema = arrow_schema(["topic", "queueId", "body", "keys"])
            store.append_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    return folder


def test_a_look_up_fetches_kilobytes_and_not_the_log(
    bucket: dict[str, Any], large: Path, tmp_path: Path, asked: list[tuple[str, int]]
) -> None:
    uri = upload(bucket, str(large), "large")
    sizes = {p: p.stat().st_size for p in large.rglob("*") if p.is_file()}
    log = sum(size for path, size in sizes.items() if path.parent.name == "commitlog")
    assert log > 50 << 20
    conf = tmp_path / "broker.conf"
    conf.write_text("maxHashSlotNum=200000\nmaxIndexNum=400000\n", encoding="utf-8")
    options = {"path": uri, "storageoptions": json.dumps(bucket), "brokerconf": str(conf)}
    latest = json.dumps({"orders": {str(queue): -1 for queue in range(8)}})
    for keys, hits in (("k31234", 1), ("g77", 2), ("k5 || k29999 || k59999", 3), ("nothing", 0)):
        asked.clear()
        assert rows_of({**options, "topic": "orders", "startingoffsets": latest}) == []
        opening = len(asked), sum(size for _, size in asked)
        asked.clear()
        found = rows_of({**options, "topic": "orders", "keys": keys, **PLACE})
        assert len(found) == hits
        requests = len(asked) - opening[0]
        fetched = sum(size for _, size in asked) - opening[1]
        index = sum(size for path, size in asked if "/index/" in path)
        print(keys, "opening", opening, "then", requests, "requests", fetched, "bytes", index)
        # Two index files: fronts, slots and a few items of each; then the record and its entry,
        # when the look-up is planned and again when it is read; the last record of the log; and a look
        # at the log's end, topics.json and the ends of eight queues, which opening takes only once.
        assert requests <= 24 + 10 * hits
        assert fetched < (512 << 10) * (1 + hits)
        assert index < 128 << 10
