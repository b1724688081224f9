"""Several stores in one frame."""

from __future__ import annotations

import json
import os
import pickle
import resource
from collections import Counter
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from rmq_store.config.locate import broker_names_of_paths
from rmq_store.errors import InvalidArgumentError, NotAStoreError, UnknownQueueError
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import Scan, pinned_scan
from rmq_store.scan.tasks import Share, reporting_shares, shares_of, tasks_of
from tests.support.golden import Golden, unpack, user_topic
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import NAME, PLACE, plan_of


@pytest.fixture
def two(tmp_path: Path) -> dict[str, str]:
    """Two brokers' stores: folders broker-a and broker-b."""
    found = {}
    for broker, name in (("broker-a", NAME), ("broker-b", "clean-5.4.0")):
        copy = unpack(name, tmp_path)
        Path(copy.path).rename(tmp_path / broker)
        found[broker] = str(tmp_path / broker)
    return found


@pytest.fixture
def many(golden: Golden, tmp_path: Path) -> Path:
    """A folder with twenty brokers' stores."""
    for number in range(20):
        (tmp_path / f"broker-{number:02}").symlink_to(golden(NAME).path)
    return tmp_path


def by_broker(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["brokerName"] for row in rows)


def test_several_stores_are_one_frame(golden: Golden, two: dict[str, str], tmp_path: Path) -> None:
    expected = {
        "broker-a": sum(map(user_topic, golden(NAME).truth)),
        "broker-b": sum(map(user_topic, golden("clean-5.4.0").truth)),
    }
    plain = {"unwrapbatches": "false", **PLACE}
    for how in (
        {"paths": json.dumps(list(two.values()))},
        {"path": str(tmp_path / "broker-*")},
        {"stores": json.dumps(two)},
    ):
        assert by_broker(rows_of({**how, **plain})) == expected, how
    other = {"east": two["broker-a"], "west": two["broker-b"]}
    assert set(by_broker(rows_of({"stores": json.dumps(other), **plain}))) == {"east", "west"}


def test_several_stores_have_a_configuration_each(
    two: dict[str, str], golden: Golden, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1000\n")
    options = {"stores": json.dumps(two), **PLACE}
    good = {"broker-a": golden(NAME).conf, "broker-b": golden("clean-5.4.0").conf}
    assert rows_of({**options, "brokerconf": json.dumps(good)})
    with pytest.raises(Exception, match="mappedFileSizeCommitLog"):
        rows_of({**options, "brokerconf": json.dumps({**good, "broker-b": str(conf)})})
    with pytest.raises(InvalidArgumentError, match="Did you mean 'broker-b'"):
        rows_of({**options, "brokerconf": json.dumps({"broker-bb": str(conf)})})
    with pytest.raises(InvalidArgumentError, match="JSON by broker name"):
        rows_of({**options, "brokerconf": str(conf)})


@pytest.mark.parametrize(
    ("confs", "message"),
    [
        ('{"broker-a": ' + "9" * 5000 + "}", "option 'brokerConf' is not JSON"),
        ('{"broker-a": "/a.conf", "broker-a": "/b.conf"}', "names 'broker-a' twice"),
        ('{"broker-a": null}', "has no text for 'broker-a'; it looks like .*broker.conf"),
    ],
)
def test_configurations_that_no_one_can_mean_are_refused(
    two: dict[str, str], confs: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rows_of({"stores": json.dumps(two), "brokerConf": confs})


def test_stores_of_one_folder_name_are_named_by_where_their_paths_differ(
    two: dict[str, str], tmp_path: Path
) -> None:
    """As brokers are mounted: /data/broker-a/store and /data/broker-b/store."""
    for broker, path in two.items():
        Path(path).rename(tmp_path / "moved")
        Path(path).mkdir()
        (tmp_path / "moved").rename(tmp_path / broker / "store")
    pattern = str(tmp_path / "broker-*" / "store")
    paths = [f"{path}/store/" for path in two.values()]
    for how in ({"path": pattern}, {"paths": json.dumps(paths)}):
        rows = rows_of({**how, "topic": "orders", **PLACE})
        assert set(by_broker(rows)) == {"broker-a", "broker-b"}


def test_plans_have_absolute_paths(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor of a cluster works in a folder of its own, and may not have the broker's configuration."""
    os.symlink(golden("clean-5.5.0").path, tmp_path / "store")
    (tmp_path / "broker.conf").write_text("maxMessageSize=4321")
    monkeypatch.chdir(tmp_path)
    for options in (
        {"path": "store", "brokerConf": "broker.conf"},
        {"path": "st*", "brokerConf": "./broker.conf"},
        {"stores": '{"b": "store/"}', "brokerConf": '{"b": "broker.conf"}'},
    ):
        pinned = pinned_scan(parse_options(options)).store
        assert (pinned.path, pinned.config.maxMessageSize) == (str(tmp_path / "store"), 4321)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/d/a/store", "/d/b/store"], ["a", "b"]),
        (["/d/a/store/", "file:///d/b//store"], ["a", "b"]),
        (["file:/d/a/store", "/d/b/store"], ["a", "b"]),
        (["/d/a/store", "/d/b/store", "/e/c"], ["a", "b", "c"]),
        (["/d/x/1/store", "/d/x/2/store", "/d/y/1/store"], ["x-1", "x-2", "y-1"]),
        (["/store", "/d/store"], ["store", "d"]),
        (["s3://bucket/a/store", "s3://bucket/b/store"], ["a", "b"]),
        (["s3://east/store", "s3://west/store"], ["east", "west"]),
        (["/d/broker-a", "/d/broker-b"], ["broker-a", "broker-b"]),
        (["/d/a/store", "/d/a/../a/store"], ["store", "store"]),
    ],
)
def test_the_names_of_several_stores(paths: list[str], names: list[str]) -> None:
    assert broker_names_of_paths(paths) == names


def test_two_of_one_name_are_refused_with_the_fix(golden: Golden) -> None:
    paths = [golden(NAME).path, f"{golden(NAME).path}/../store"]
    with pytest.raises(InvalidArgumentError, match="two stores have the broker name 'store'") as e:
        rows_of({"paths": json.dumps(paths)})
    assert "stores = {" in str(e.value)
    with pytest.raises(InvalidArgumentError, match="one brokerName was given for 2 stores"):
        rows_of({"paths": json.dumps(paths), "brokername": "a"})


def test_a_store_that_cannot_be_opened_fails_the_query_or_is_named(
    two: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = {**two, "broker-c": str(tmp_path / "nowhere")}
    options = {"stores": json.dumps(stores), **PLACE}
    with pytest.raises(NotAStoreError, match="nowhere"):
        rows_of(options)
    skipping = {**options, "unavailablestores": "skip"}
    assert set(by_broker(rows_of(skipping))) == {"broker-a", "broker-b"}
    assert "left out a store" in caplog.text
    (left_out,) = [row for row in plan_of(skipping) if row["leftOut"]]
    assert (left_out["brokerName"], left_out["partition"]) == ("broker-c", None)
    with pytest.raises(NotAStoreError):  # none is left
        rows_of({"path": str(tmp_path / "nowhere"), "unavailablestores": "skip"})


def test_a_topic_of_one_broker_is_enough_and_one_of_none_is_refused(
    two: dict[str, str], golden: Golden
) -> None:
    a = {r["topic"] for r in golden(NAME).truth if user_topic(r)}
    options = {"stores": json.dumps(two), **PLACE}
    assert rows_of({**options, "subscribe": sorted(a)[0]})
    with pytest.raises(UnknownQueueError, match="Did you mean"):
        rows_of({**options, "subscribe": "order"})


def test_a_query_has_the_files_of_one_store_open_at_a_time(many: Path) -> None:
    """Also to find the newest message of all, from which a relative time counts."""
    options = {"path": str(many / "broker-*"), "startingTimestamp": "-1d"}
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(number) for number in os.listdir("/proc/self/fd")}
    free = (number for number in count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 60, None)), before[1]))
    try:
        scan = Scan.of(parse_options(options))
        shares = shares_of(scan.stores)
        shares += reporting_shares(scan.stores)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {share.store for share in shares} == set(range(20))


def stores_of_tasks(many: Path, **options: str) -> list[list[int]]:
    """The stores of the shares of each task."""
    scan = Scan.of(parse_options({"path": str(many / "broker-*"), **options}))
    return [
        [share.store for share in task] for task in tasks_of(scan.stores, shares_of(scan.stores))
    ]


def test_small_stores_share_a_task(many: Path) -> None:
    every = list(range(20))
    tasks = stores_of_tasks(many)
    assert len(tasks) < 10
    assert [store for task in tasks for store in task] == every
    assert len(stores_of_tasks(many, minpartitions="15")) >= 15
    alone = stores_of_tasks(many, maxrecordsperpartition="100000")
    assert alone == [[store] for store in every]
    cut = stores_of_tasks(many, maxbytesperpartition="100k")
    assert all(len(set(task)) == len(task) for task in cut)
    assert sorted({store for task in cut for store in task}) == every


def test_shares_refusing_replacement_are_in_different_tasks(two: dict[str, str]) -> None:
    scan = Scan.of(parse_options({"stores": json.dumps(two)}))
    shares = [Share(store, verifies=(at, at + 10)) for store in (0, 1) for at in (0, 10)]
    assert [len(task) for task in tasks_of(scan.stores, shares)] == [1, 2, 1]


def test_stores_with_long_logs_have_a_task_each(two: dict[str, str]) -> None:
    scan = Scan.of(parse_options({"stores": json.dumps(two)}))
    for size, tasks in ((1 << 20, [2]), (1 << 30, [1, 1])):
        shares = [Share(store, log_bytes=size) for store in (0, 1)]
        assert [len(task) for task in tasks_of(scan.stores, shares)] == tasks


def test_a_task_unpickles_the_plan_of_its_store_alone(two: dict[str, str]) -> None:
    scan = Scan.of(parse_options({"stores": json.dumps(two)}))
    with pytest.MonkeyPatch.context() as patch:
        pinned = type(scan.stores[0].store)
        patch.setattr(pinned, "__setstate__", lambda *_: pytest.fail("unpickled"), raising=False)
        shipped = pickle.loads(pickle.dumps(scan))
    assert shipped.stores[1].store.broker_name == "broker-b"
    assert pickle.loads(pickle.dumps(shipped)) == scan == shipped
    assert len(shipped.stores) == len(shipped.stores[:9]) == 2
