"""A store in an S3 server on loopback: the same rows, read by ranges, and no credential anywhere."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from rmq_store import MessageStore, remote
from rmq_store import files as files_module
from rmq_store.errors import InvalidArgumentError, NotAStoreError, StoreError
from spark_source.source import RmqStoreSource
from tests.conftest import GoldenStore, unpack
from tests.support.reads import rows_of

pytestmark = pytest.mark.campaign

Golden = Callable[[str], GoldenStore]
NAMES = ("clean-5.5.0", "crash-5.5.0", "geometry-5.5.0")
SECRET = "a-secret-that-must-not-show"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Golden stores under s3://stores/NAME, and what a client has to be told."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "endpoint_override": f"{host}:{port}",
        "scheme": "http",
        "access_key": "somebody",
        "secret_key": SECRET,
        "region": "us-east-1",
        "allow_bucket_creation": "true",
    }
    fs = pafs.S3FileSystem(**{**options, "allow_bucket_creation": True})
    fs.create_dir("stores")
    folder = tmp_path_factory.mktemp("s3")
    for name in NAMES:
        pafs.copy_files(
            unpack(name, folder).path,
            f"stores/{name}",
            source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=fs,
        )
    yield options
    server.stop()


def options_of(bucket: dict[str, Any], name: str, **more: str) -> dict[str, str]:
    return {"path": f"s3://stores/{name}", "storageoptions": json.dumps(bucket), **more}


@pytest.fixture(params=["whole windows", pytest.param("small blocks", marks=pytest.mark.campaign)])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As it is, and with limits so low that golden stores, which are small, meet them."""
    if request.param == "small blocks":
        monkeypatch.setattr(remote, "BLOCK", 512)
        monkeypatch.setattr(remote, "KEPT_BYTES", 16 << 10)
        monkeypatch.setattr(remote, "MOST_A_REQUEST", 32)
        monkeypatch.setattr(files_module, "ALWAYS_FETCHED", 2048)
        monkeypatch.setattr("rmq_store.commitlog._LEAST_LOOK", 2048)
        monkeypatch.setattr("rmq_store.commitlog._RUN_STEP", 16 << 10)
    return str(request.param)


@pytest.mark.parametrize("name", NAMES)
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


def test_keys_tags_and_times_select_as_locally(golden: Golden, bucket: dict[str, Any]) -> None:
    store = golden(NAMES[0])
    orders = [r for r in store.truth if r["topic"] == "orders"]
    for more in (
        {"keys": orders[7]["uniqKey"]},
        {"tags": orders[3]["tags"]},
        {"startingtimestamp": str(orders[100]["storeTimestamp"])},
        {"table": "queues"},
    ):
        if "table" not in more:
            more = {**more, "topic": "orders", "columns": "commitLogOffset,tags"}
        else:
            more = {**more, "brokername": "b"}
        assert rows_of(options_of(bucket, NAMES[0], **more)) == rows_of(
            {"path": store.path, **more}
        )


def test_what_is_not_asked_for_is_not_fetched(
    bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BLOCK", 4096)
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
    # ALWAYS_FETCHED is what makes a window of the log one request here.
    with MessageStore.open("s3://stores/clean-5.5.0", storage_options=bucket) as store:
        opened, _ = store.remote_reads()
        messages = sum(batch.num_rows for batch in store.read_batches())
        requests = store.remote_reads()[0] - opened
        queues = len(store.queues())
        logs = len(store.log_files_between(None, None))
    assert messages > 1000
    assert requests <= 2 * queues + 2 * logs


def test_credentials_are_in_no_message_plan_or_log(
    bucket: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(bucket, NAMES[0])
    with caplog.at_level(logging.DEBUG):
        plan = rows_of({**options, "table": "plan"})
        said = [
            str(plan),
            repr(RmqStoreSource(options)._plan),
            repr(RmqStoreSource(options)._asked),
        ]
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


def test_a_file_uri_is_a_local_path(golden: Golden) -> None:
    store = golden(NAMES[0])
    plain = {"topic": "orders", "columns": "commitLogOffset"}
    assert rows_of({"path": f"file://{store.path}", **plain}) == rows_of(
        {"path": store.path, **plain}
    )
