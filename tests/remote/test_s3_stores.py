"""A store in an S3 server on loopback: the same rows, read by ranges, and no credential anywhere."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import MessageStore
from rmq_store.commitlog.walk import SoundRun, walk
from rmq_store.errors import AccessError, InvalidArgumentError, NotAStoreError, StoreError
from rmq_store.files import parallel as sidebyside
from rmq_store.files import source as sources
from rmq_store.files.remote import remote_store as remote
from rmq_store.files.remote import remote_store as remotefile
from rmq_store.files.segments import REMOTE
from rmq_store.report.store_report import store_report
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import Scan
from rmq_store.search.selection import select_ranges
from rmq_store.tables import TABLES_OF_A_STORE
from spark_source.source import RmqStoreSource
from tests.support.golden import Golden, GoldenStore, unpack, unpack_kind
from tests.support.slow_s3 import SECRET, FarAway, s3_server, upload
from tests.support.spark.reads import rows_of

pytestmark = pytest.mark.campaign

NAMES = ("clean-5.5.0", "crash-5.5.0", "geometry-5.5.0")
ROCKSDB = "rocksdb-5.5.0"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Golden stores under s3://stores/NAME, and the options that a client needs."""
    folder = tmp_path_factory.mktemp("s3")
    with s3_server() as options:
        for name in NAMES:
            upload(options, unpack(name, folder).path, name)
        upload(options, unpack_kind(ROCKSDB, folder).path, ROCKSDB)
        yield options


def options_of(bucket: dict[str, Any], name: str, **more: str) -> dict[str, str]:
    return {"path": f"s3://stores/{name}", "storageoptions": json.dumps(bucket), **more}


@pytest.fixture(params=["whole windows", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As it is, and with limits so low that golden stores, which are small, meet them."""
    if request.param == "small blocks":
        monkeypatch.setattr(remotefile, "BLOCK", 512)
        monkeypatch.setattr(remotefile, "MOST_A_REQUEST", 16 << 10)
        monkeypatch.setattr(remotefile, "KEPT_BYTES", 16 << 10)
        monkeypatch.setattr(sources, "KEPT_BYTES", 16 << 10)
        monkeypatch.setattr("rmq_store.consumequeue.queue_folders._REMOTE_BLOCK", 512)
        monkeypatch.setattr("rmq_store.commitlog.log._LEAST_LOOK", 2048)
        monkeypatch.setattr("rmq_store.index.index_file_reader.REMOTE_BLOCK", 64)
        monkeypatch.setattr("rmq_store.index.query_message.REMOTE_BLOCK", 64)
        short = REMOTE._replace(step=16 << 10)
        monkeypatch.setattr("rmq_store.files.segment_chain.REMOTE", short)
    return str(request.param)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [*((name, "whole windows") for name in NAMES), ("clean-5.5.0", "small blocks")],
    indirect=["blocks"],
)
@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_the_rows_are_those_of_the_local_store(
    golden: Golden, bucket: dict[str, Any], name: str, source: str, blocks: str
) -> None:
    more = {
        "includesystemtopics": "true",
        "source": source,
        "maxbytesperpartition": "200k",
        "brokername": "b",
    }

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["commitLogOffset"], row["topic"], row["queueId"], row["queueOffset"]

    far = rows_of(options_of(bucket, name, **more))
    near = rows_of({"path": golden(name).path, **more})
    assert sorted(far, key=key) == sorted(near, key=key)


def test_queues_and_offsets_in_rocksdb_are_read_too(bucket: dict[str, Any], tmp_path: Path) -> None:
    golden = unpack_kind(ROCKSDB, tmp_path)
    topics = {line["topic"] for line in golden.lines("served")}
    more = {"topic": ",".join(sorted(topics)), "columns": "topic,queueId,queueOffset,body"}
    rows = rows_of(options_of(bucket, ROCKSDB, **more))
    assert len(rows) == len(golden.lines("served"))
    assert rows == rows_of({"path": golden.path, **more})
    with (
        MessageStore.open(f"s3://stores/{ROCKSDB}", storage_options=bucket) as far,
        MessageStore.open(golden.path) as near,
    ):
        assert far.consumer_offsets() == near.consumer_offsets() != {}


def test_what_is_not_asked_for_is_not_fetched(
    bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotefile, "BLOCK", 4096)
    asked: list[tuple[str, int, int]] = []
    read = remote.Shadow.read

    def watching(self: remote.Shadow, path: str, start: int, stop: int) -> bytes:
        asked.append((path, start, stop))
        return read(self, path, start, stop)

    monkeypatch.setattr(remote.Shadow, "read", watching)
    options = options_of(bucket, NAMES[0], topic="orders", columns="queueId,queueOffset")
    source = RmqStoreSource(options)
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    asked.clear()
    for partition in partitions:
        assert list(reader.read(partition))
    assert asked
    assert not [path for path, _, _ in asked if "/commitlog/" in path]
    topics = {
        path.split("/consumequeue/")[1].split("/")[0]
        for path, _, _ in asked
        if "/consumequeue/" in path
    }
    assert topics == {"orders"}


def test_neighbours_are_one_request(bucket: dict[str, Any]) -> None:
    with MessageStore.open("s3://stores/clean-5.5.0", storage_options=bucket) as store:
        opened = store.reads().requests
        messages = sum(batch.num_rows for batch in store.read_batches())
        requests = store.reads().requests - opened
        queues = len(store.queues())
        logs = len(store.log.chain.segments)
    assert messages > 1000
    assert requests <= 2 * queues + 2 * logs


def test_requests_are_under_way_side_by_side_and_never_too_many(bucket: dict[str, Any]) -> None:
    """At opening, a look at each queue; then the ranges of the log. No thread outlives the read."""
    with FarAway(bucket, 0.01) as far:
        store = MessageStore.open("s3://stores/clean-5.5.0", storage_options=far.options)
        with store:
            assert 4 <= far.most_at_once <= sidebyside.LOOKS_IN_FLIGHT
            far.reset()
            rows = sum(batch.num_rows for batch in store.read_batches())
        assert rows > 1000
        assert 4 <= far.most_at_once <= sidebyside.IN_FLIGHT
    assert not [one.name for one in threading.enumerate() if "rmqstore-fetch" in one.name]


def test_times_are_looked_for_in_all_queues_at_once(golden: Golden, bucket: dict[str, Any]) -> None:
    store = golden("clean-5.5.0")
    orders = [r for r in store.truth if r["topic"] == "orders"]
    with FarAway(bucket, 0.01) as far:
        times = {
            "startingtimestamp": str(orders[200]["storeTimestamp"]),
            "endingtimestamp": str(orders[-200]["storeTimestamp"]),
        }
        asked = parse_options({"path": "here", "topic": "orders", **times})
        with (
            MessageStore.open("s3://stores/clean-5.5.0", storage_options=far.options) as away,
            store.open() as here,
        ):
            far.reset()
            assert select_ranges(away, asked) == select_ranges(here, asked)
            assert len(away.queues("orders")) == 4
            assert 2 <= far.most_at_once <= 4


def test_an_error_of_a_request_is_ours_and_leaves_no_thread(
    bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open("s3://stores/clean-5.5.0", storage_options=bucket) as store:
        read = remote.Shadow._opened

        def one_fails(self: remote.Shadow, inside: str) -> Any:
            if inside.startswith("consumequeue/orders/2/"):
                raise OSError(f"When reading: AWS Error with {SECRET}")
            return read(self, inside)

        monkeypatch.setattr(remote.Shadow, "_opened", one_fails)
        with pytest.raises(AccessError, match="consumequeue/orders/2/") as refused:
            list(store.read_batches())
        assert SECRET not in str(refused.value) + repr(refused.value.__cause__)
    assert not [one.name for one in threading.enumerate() if "rmqstore-fetch" in one.name]


def test_what_is_given_up_is_out_of_memory() -> None:
    """Counted as memory of this process that no file backs, over files larger than what is kept."""

    class Zeros:
        def read(self, path: str, start: int, stop: int) -> bytes:
            return b"\x01" * (stop - start)

    held = remotefile.HeldBytes()
    file = remotefile.RemoteFile(Zeros(), "a", 1 << 30, held)  # type: ignore[arg-type]
    before = anonymous_bytes()
    for at in range(0, 1 << 30, 16 << 20):
        file.fetch(np.array([at]), np.array([at + (16 << 20)]), first=True)
        assert int(file.bytes[at]) == 1
        assert held.bytes <= remotefile.KEPT_BYTES + (16 << 20)
    grown = anonymous_bytes() - before
    assert grown <= remotefile.KEPT_BYTES + (48 << 20)


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text("utf-8")
    names = ("RssAnon", "RssShmem")
    lines = [line.split() for line in status.splitlines() if line.startswith(names)]
    return sum(int(line[1]) for line in lines) << 10


def test_a_configuration_file_over_a_megabyte_comes_whole(
    bucket: dict[str, Any], copy: GoldenStore
) -> None:
    """As that of a broker with ten thousand topics; and only where it is asked for."""
    topics = Path(copy.path) / "config" / "topics.json"
    table = json.loads(topics.read_text("utf-8"))
    one = table["topicConfigTable"]["orders"]
    for number in range(8000):
        table["topicConfigTable"][f"topic-{number}"] = {**one, "topicName": f"topic-{number}"}
    topics.write_text(json.dumps(table), encoding="utf-8")
    assert topics.stat().st_size > 1 << 20
    far = upload(bucket, copy.path, "many-topics")
    config = {"table": "config", "brokername": "b"}
    rows = rows_of({"path": far, "storageoptions": json.dumps(bucket), **config})
    assert len(rows) > 8000
    assert near(rows, far, copy) == near(rows_of({"path": copy.path, **config}), far, copy)


def near(rows: list[dict[str, Any]], address: str, store: GoldenStore) -> list[dict[str, Any]]:
    """Rows as they are of the local store, without what a copy has of its own."""
    # A copy is written when it is made, and takes no room on this disk.
    gone = ("allocated", "modified", "configModified", "configAgeMs", "deletedFrom")
    return [
        {
            name: value.replace(address, store.path) if isinstance(value, str) else value
            for name, value in row.items()
            if name not in gone
        }
        for row in rows
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_of_the_local_store(
    golden: Golden, bucket: dict[str, Any], name: str
) -> None:
    compare_tables(golden, bucket, name)


def test_tables_of_a_store_that_comes_in_small_blocks(
    golden: Golden, bucket: dict[str, Any], blocks: str
) -> None:
    compare_tables(golden, bucket, NAMES[0])


def compare_tables(golden: Golden, bucket: dict[str, Any], name: str) -> None:
    store = golden(name)
    address = f"s3://stores/{name}"
    for table in TABLES_OF_A_STORE:
        options = {"table": table, "brokername": "b"}
        found = near(rows_of(options_of(bucket, name, **options)), address, store)
        expected = near(rows_of({"path": store.path, **options}), address, store)
        if table == "index":
            # Only a local index file is looked at for records that it skips.
            gaps = [row for row in found if row["path"] is None]
            assert all(row in expected for row in gaps)
            expected = [row for row in expected if row["path"] is not None or row in gaps]
        assert sorted(found, key=str) == sorted(expected, key=str), table


def test_the_log_is_looked_at_byte_by_byte_as_locally(
    golden: Golden, bucket: dict[str, Any], blocks: str
) -> None:
    name = NAMES[0]

    def seen(store: MessageStore) -> list[Any]:
        swept: list[Any] = []
        for piece in walk(store.log):
            if isinstance(piece, SoundRun):
                swept += (piece.segment.base + piece.headers.at).tolist()
            else:
                swept.append((piece.start, piece.stop, piece.gap, piece.reason))
        scanned = [(one.start, one.stop, one.gap) for one in store.scan()]
        return [scanned, swept]

    with (
        MessageStore.open(f"s3://stores/{name}", storage_options=bucket) as far,
        golden(name).open() as near,
    ):
        assert seen(far) == seen(near)


def test_credentials_are_in_no_message_plan_or_log(
    bucket: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(bucket, NAMES[0])
    with caplog.at_level(logging.DEBUG):
        plan = rows_of({**options, "table": "plan"})
        source = RmqStoreSource(options)
        source.schema()
        parsed, scan = source._pinned
        assert isinstance(scan, Scan)
        said = [str(plan), repr(scan), repr(parsed)]
        for wrong in (
            {**options, "path": "s3://stores/nothing-here"},
            {**options, "path": "s3://somebody:a-secret-that-must-not-show@stores/clean-5.5.0"},
            {**options, "path": f"s3://stores/x?secret_key={SECRET}"},
            {**options, "storageoptions": f'{{"secret_key": "{SECRET}"'},
            {**options, "storageoptions": json.dumps({**bucket, "no_such": SECRET})},
            {**options, "topik": "orders"},
            {**options, "topic": "order"},
        ):
            with pytest.raises(StoreError) as refused:
                rows_of(wrong)
            said += [str(refused.value), repr(refused.value), repr(refused.value.__cause__)]
    assert SECRET not in "".join(said) + caplog.text
    assert plan[0]["path"] == "s3://stores/clean-5.5.0"


def test_an_address_without_a_store_and_one_with_a_password_are_refused(
    bucket: dict[str, Any],
) -> None:
    with pytest.raises(NotAStoreError, match="s3://stores/nothing"):
        rows_of(options_of(bucket, "nothing"))
    with pytest.raises(InvalidArgumentError, match="credentials"):
        rows_of({"path": "s3://a:b@stores/x"})


def test_no_shadow_is_left_behind(
    bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows_of(options_of(bucket, NAMES[0], topic="orders"))
    with pytest.raises(StoreError):
        rows_of(options_of(bucket, NAMES[0], topic="order"))
    assert list(tmp_path.iterdir()) == []
    plan = RmqStoreSource(options_of(bucket, NAMES[0]))
    assert len(pickle.dumps(plan)) < 100_000


def test_a_report_of_a_store_in_a_bucket(
    bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket["secret_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{bucket['endpoint_override']}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    report = store_report("s3://stores/clean-5.5.0")
    assert report.failed == []
    sections = {section.anchor: section for section in report.sections}
    facts = {row[0].text: row[1].text for row in sections["facts"].grids[0].rows}
    assert facts["log"].startswith("0 to 951545: ")
    assert facts["lock"].startswith("unknown")
    rows = sections["space"].grids[0].rows
    assert [cell.text for cell in rows[0]] == ["orders", "971", "484.7 KiB", "52.2%"]
    assert SECRET not in repr(report)


@pytest.mark.usefixtures("blocks")
def test_compaction_topics_answer_as_in_the_local_store(
    bucket: dict[str, Any], tmp_path: Path
) -> None:
    golden = unpack_kind("compacted-5.5.0", tmp_path)
    uri = upload(bucket, golden.path, golden.name)
    answers = golden.answers("getMessage")
    assert answers
    with (
        MessageStore.open(uri, broker_name="store", storage_options=bucket) as far,
        MessageStore.open(golden.path) as near,
    ):
        for answer in answers:
            asked = answer["topic"], answer["queueId"], answer["offset"], answer["maxMsgNums"]
            for as_broker in (False, True):
                found = far.get_message(*asked, as_broker=as_broker)
                assert found == near.get_message(*asked, as_broker=as_broker)
