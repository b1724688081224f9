"""Several stores in an object store: by pattern, as a list and by name, as with local paths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import InvalidArgumentError, StoreError
from tests.support.golden import Golden, unpack, user_topic
from tests.support.slow_s3 import SECRET, s3_server, upload
from tests.support.spark.reads import rows_of

pytestmark = pytest.mark.campaign

STORES = {"a": "nommap-5.5.0", "b": "crc-5.5.0"}
PLAIN = {"columns": "brokerName,topic,commitLogOffset", "unwrapbatches": "false"}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Stores under s3://stores/brokers/rack-?/broker-?, and one elsewhere."""
    folder = tmp_path_factory.mktemp("s3")
    with s3_server() as options:
        for letter, name in STORES.items():
            path = unpack(name, folder).path
            upload(options, path, f"brokers/rack-{letter}/broker-{letter}")
        upload(options, path, "brokers/.hidden/broker-c")
        yield options


@pytest.fixture
def expected(golden: Golden) -> Counter[str]:
    """Messages of each broker."""
    truths = {letter: golden(name).truth for letter, name in STORES.items()}
    return Counter({f"broker-{x}": sum(map(user_topic, truth)) for x, truth in truths.items()})


def test_a_pattern_of_one_part_alone_finds_one(
    bucket: dict[str, Any], expected: Counter[str]
) -> None:
    options = {"path": "s3://stores/brokers/rack-a/broker-*", **PLAIN}
    rows = rows_of({**options, "storageoptions": json.dumps(bucket)})
    assert len(rows) == expected["broker-a"]


def test_a_pattern_that_finds_nothing_is_refused_as_locally(
    bucket: dict[str, Any], tmp_path: Path
) -> None:
    for pattern in ("s3://stores/brokers/*/nothing", "s3://stores/nobody-*", f"{tmp_path}/x*"):
        with pytest.raises(InvalidArgumentError, match="the pattern matches no folder"):
            rows_of({"path": pattern, "storageoptions": json.dumps(bucket)})


def test_two_of_one_name_are_refused_with_their_addresses(bucket: dict[str, Any]) -> None:
    path = "s3://stores/brokers/rack-a/broker-a"
    twice = {"a": path, "b": path}
    assert rows_of({"stores": json.dumps(twice), "storageoptions": json.dumps(bucket), **PLAIN})
    options = {"path": "s3://stores/brokers/rack-*/*", "brokername": "x"}
    with pytest.raises(InvalidArgumentError, match="one brokerName was given for 2 stores"):
        rows_of({**options, "storageoptions": json.dumps(bucket)})


def test_a_store_that_is_not_there_is_left_out_as_asked(
    bucket: dict[str, Any], expected: Counter[str]
) -> None:
    stores = {
        "broker-a": "s3://stores/brokers/rack-a/broker-a",
        "broker-x": "s3://stores/brokers/rack-x/broker-x",
    }
    options = {"stores": json.dumps(stores), "storageoptions": json.dumps(bucket), **PLAIN}
    with pytest.raises(StoreError, match="rack-x"):
        rows_of(options)
    rows = rows_of({**options, "unavailablestores": "skip"})
    assert len(rows) == expected["broker-a"]


def test_credentials_are_in_no_message_about_a_pattern(bucket: dict[str, Any]) -> None:
    wrong = json.dumps({**bucket, "endpoint_override": "127.0.0.1:1"})
    for path, options in (
        (f"s3://somebody:{SECRET}@stores/*/x", bucket),
        (f"s3://somebody:{SECRET}@stores/x", bucket),
        (f"s3://stores/*?secret_key={SECRET}", bucket),
        (f"s3://stores/b?okers?secret_key={SECRET}", bucket),
        ("s3://sto*/x", bucket),
        ("s3://nobodys-bucket/*", bucket),
        ("s3://stores/*", json.loads(wrong)),
    ):
        with pytest.raises(StoreError) as refused:
            rows_of({"path": path, "storageoptions": json.dumps(options)})
        assert SECRET not in str(refused.value) + repr(refused.value.__cause__)
