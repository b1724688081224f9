"""The export to the real Delta: what arrives, once, whatever happened; what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmqstore_jobs.exporting.manifest import Manifest
from tests.live.support.delta_spark import RUNNER, Exports, delta_python, environment, exports
from tests.support.checkout import CHECKOUT
from tests.support.damage import log_file_at
from tests.support.golden import Golden, GoldenStore, bodies_of, messages_in, unpack, user_topic
from tests.support.running.campaigns import some

pytestmark = pytest.mark.live

NAME, INNER = "clean-5.5.0", "inner"
STORED_AT = 56  # storeTimestamp in a record with an IPv4 born host
TOPICS = ("orders", "payments")


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    with exports(tmp_path_factory.mktemp("delta")) as session:
        yield session


def spec(store: GoldenStore, target: Path, **options: str) -> dict[str, Any]:
    options = {"brokerConf": store.conf, "brokerName": "broker-a", **options}
    return {
        "store": store.path,
        "target": str(target),
        "options": options,
        "format": "delta",
        "wave_bytes": 200_000,
    }


def expected_of(store: GoldenStore, topics: tuple[str, ...] = ()) -> Counter[Any]:
    """Place, body and day (UTC); the bodies of the topic of inner batches are not looked at."""
    found: Counter[Any] = Counter()
    for record in filter(user_topic, store.truth):
        if topics and record["topic"] not in topics:
            continue
        day = f"{datetime.fromtimestamp(record['storeTimestamp'] / 1000, timezone.utc):%Y-%m-%d}"
        members = messages_in(record)
        for i in range(members):
            body = None if record["topic"] == INNER else bodies_of(record)[0].hex()
            found[record["topic"], record["queueId"], record["queueOffset"] + i, body, day] += 1
    return found


def found_in(delta: Exports, table: Path) -> Counter[Any]:
    return Counter(
        (
            row["topic"],
            row["queueId"],
            row["queueOffset"],
            None if row["topic"] == INNER else row["body"].lower(),
            row["day"],
        )
        for row in delta.rows(table)
    )


def test_every_message_arrives_once_and_the_manifest_says_so(
    delta: Exports, golden: Golden, tmp_path: Path
) -> None:
    store, table = golden(NAME), tmp_path / "table"
    before = store.fingerprint()
    report = delta.export(spec(store, table))
    expected = expected_of(store)
    assert report["ok"], report
    assert report["numbers"]["messagesAdded"] == expected.total()
    assert found_in(delta, table) == expected
    assert store.fingerprint() == before
    with Manifest(table) as manifest:
        waves = list(manifest.waves())
    assert len(waves) > 1
    assert [wave.delta_version for wave in waves] == list(range(len(waves)))
    assert sum(wave.rows for wave in waves) == expected.total()
    for file in (file for wave in waves for file in wave.files):
        raw = (table / file.path).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file.size, file.sha256)
        assert pq.read_metadata(table / file.path).num_rows == file.rows
    topics = {path.name for path in table.iterdir() if path.name.startswith("topic=")}
    assert len(topics) == len({place[0] for place in expected})


def test_a_message_with_a_time_of_no_date_has_no_day(delta: Exports, tmp_path: Path) -> None:
    store, table = unpack(NAME, tmp_path), tmp_path / "table"
    record = next(record for record in store.truth if record["topic"] == "orders")
    at = record["commitLogOffset"]
    file = log_file_at(store, at)
    raw = bytearray(file.read_bytes())
    struct.pack_into(">q", raw, at - int(file.name) + STORED_AT, 253_402_300_800_000)
    file.write_bytes(raw)
    report = delta.export(spec(store, table, topic="orders"))
    assert report["ok"], report
    found = delta.rows(table)
    assert len(found) == expected_of(store, ("orders",)).total()
    (undated,) = (row for row in found if row["day"] is None)
    assert all(undated[name] == record[name] for name in ("topic", "queueId", "queueOffset"))


def test_twice_adds_nothing_and_what_is_new_is_added_alone(
    delta: Exports, golden: Golden, tmp_path: Path
) -> None:
    store, table = golden(NAME), tmp_path / "table"
    half = '{"orders": {"0": 100, "1": 7}}'
    first = delta.export(spec(store, table, topic="orders", endingOffsets=half))
    # What others do to a table in the meantime is none of the export's business.
    delta.ask(sql=f"OPTIMIZE delta.`{table}`")
    second = delta.export(spec(store, table, topic="orders"))
    third = delta.export(spec(store, table, topic="orders"))
    expected = expected_of(store, ("orders",))
    added = [report["numbers"]["messagesAdded"] for report in (first, second, third)]
    assert added[0] > 0
    assert added == [added[0], expected.total() - added[0], 0]
    assert third["ok"]
    assert found_in(delta, table) == expected


def test_a_wave_without_messages_adds_none_and_is_done(
    delta: Exports, golden: Golden, tmp_path: Path
) -> None:
    """A tag that no message has, though its hash is one that some have."""
    store, table = golden(NAME), tmp_path / "table"
    for _ in range(2):
        report = delta.export(spec(store, table, topic="orders", tags="no-such-tag"))
        assert report["ok"], report
        assert report["numbers"]["messagesInTheTarget"] == 0


def test_other_options_stores_formats_and_tables_are_refused(
    delta: Exports, golden: Golden, tmp_path: Path
) -> None:
    store, table = golden(NAME), tmp_path / "table"
    delta.export(spec(store, table, topic="orders"))

    def refused(asked: dict[str, Any]) -> str:
        held = sorted(table.rglob("*"))
        reported = delta.export(asked)
        assert reported["refused"] == "RMQSTORE_JOURNAL", reported
        assert sorted(table.rglob("*")) == held
        return str(reported["message"])

    assert "other options" in refused(spec(store, table, topic="orders", tags="FB"))
    assert "other messages" in refused(spec(golden("clean-4.9.7"), table, topic="orders"))
    other = {**spec(store, table, topic="orders"), "format": "parquet"}
    assert "in another format" in refused(other)
    shutil.rmtree(table / "_delta_log")
    assert "is not the one" in refused(spec(store, table, topic="orders"))


@pytest.mark.parametrize("where", some("Delta", ["begin", "middle", "after"], 3))
def test_killed_and_run_again_nothing_is_lost_or_doubled(
    delta: Exports, golden: Golden, tmp_path: Path, where: str
) -> None:
    """Before Delta's commit, while files are written, and between that commit and the manifest."""
    store, table = golden(NAME), tmp_path / "table"
    asked = spec(store, table, topic=",".join(TOPICS))
    words = [store.path, "--to", str(table), "--format", "delta", "--wave-bytes", "200k"]
    words += ["--topic", ",".join(TOPICS), "--broker-conf", store.conf, "--broker-name", "broker-a"]
    done = subprocess.run(
        [str(delta_python()), str(RUNNER), where, *words, "--master", "local[2]"],
        env=environment(tmp_path / "about"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    versions = list((table / "_delta_log").glob("*.json")) if where == "after" else []
    report = delta.export(asked)
    if "refused" in report:  # the killed one's JVM has added its wave after we had looked
        assert where == "middle"
        assert "run this again" in report["message"]
        report = delta.export(asked)
    assert report["ok"], report
    assert found_in(delta, table) == expected_of(store, TOPICS)
    assert delta.export(asked)["numbers"]["messagesAdded"] == 0
    with Manifest(table) as manifest:
        waves = list(manifest.waves())
    assert sum(wave.rows for wave in waves) == expected_of(store, TOPICS).total()
    if where == "after":
        assert len(versions) == 1
        assert report["numbers"]["messagesAdded"] < sum(wave.rows for wave in waves)
        assert waves[0].delta_version == 0


def test_a_manifest_that_is_behind_the_table_catches_up_or_is_refused(
    delta: Exports, golden: Golden, tmp_path: Path
) -> None:
    """As after a restore, or where the JVM of a killed export commits after the next had looked."""
    store, table = golden(NAME), tmp_path / "table"
    delta.export(spec(store, table, topic="orders"))
    kept = tmp_path / "kept"
    shutil.copytree(table / "_manifest", kept)
    first_lost = len(list((table / "_delta_log").glob("*.json")))
    # Several waves, so that commits are left behind the one that is lost below.
    delta.export({**spec(store, table, topic="payments"), "wave_bytes": 80_000})
    assert len(list((table / "_delta_log").glob("*.json"))) > first_lost + 1

    def put_back() -> None:
        shutil.rmtree(table / "_manifest")
        shutil.copytree(kept, table / "_manifest")

    put_back()
    report = delta.export(spec(store, table, topic=",".join(TOPICS)))
    assert report["ok"], report
    assert report["numbers"]["messagesAdded"] == 0
    assert report["numbers"]["messagesInTheTarget"] == expected_of(store, TOPICS).total()
    assert found_in(delta, table) == expected_of(store, TOPICS)

    put_back()
    delta.ask(checkpoint=str(table))
    for version in range(first_lost + 1):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    reported = delta.export(spec(store, table, topic="documents"))
    assert "already has wave" in reported["message"], reported
    with Manifest(table) as manifest:
        assert manifest.next_number == first_lost + 1


def test_without_delta_s_log_nothing_is_known_of_killed_exports(
    delta: Exports, tmp_path: Path
) -> None:
    store, table = unpack(NAME, tmp_path), tmp_path / "table"
    delta.export(spec(store, table, topic="orders"))
    with Manifest(table) as manifest:
        manifest.begin(0)  # as one that was killed in its next wave
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    reported = delta.export(spec(store, table, topic="payments"))
    assert "Delta deleted this part" in reported["message"], reported


def test_the_command_fetches_delta_and_says_so(golden: Golden, tmp_path: Path) -> None:
    store = golden(NAME)
    words = [store.path, "--to", str(tmp_path / "t"), "--format", "delta", "--topic", "payments"]
    script = CHECKOUT / "jobs" / "export.py"
    done = subprocess.run(
        [str(delta_python()), str(script), *words, "--report", "report.json"],
        env=environment(tmp_path / "about"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["numbers"]["messagesAdded"] == expected_of(store, ("payments",)).total()
