"""The log itself as the source: the rows that the queues would give."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import CorruptRecordError, DataLossError
from tests.support.golden import STORES, Golden, GoldenStore, in_a_queue, unpack
from tests.support.running.campaigns import some
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import PLACE, options_of, places, truth_where


@pytest.mark.campaign
@pytest.mark.parametrize("name", some("log source", STORES, 4))
@pytest.mark.parametrize("queues", ["there", "gone"])
def test_the_log_gives_the_rows_of_the_queues(
    golden: Golden, tmp_path: Path, name: str, queues: str
) -> None:
    store = golden(name)
    folders = store.log_folders.get("storePathCommitLog", "commitlog")
    conf = tmp_path / "broker.conf"
    conf.write_text(Path(store.conf).read_text() + f"\nstorePathCommitLog={folders}")
    columns = "topic,queueId,queueOffset,commitLogOffset,storeSize,tags,msgId,bodyCrc,tagsCode,body"
    options = options_of(store, brokerConf=str(conf), includeSystemTopics="true", columns=columns)
    wanted = rows_of(options)
    if queues == "gone":
        copy = unpack(name, tmp_path)
        for folder in ("consumequeue", "batchconsumequeue", "index"):
            shutil.rmtree(Path(copy.path) / folder, ignore_errors=True)
        options = {**options, "path": copy.path}
    found = rows_of({**options, "source": "commitlog", "maxbytesperpartition": "60k"})

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["commitLogOffset"], row["topic"], row["queueId"], row["queueOffset"]

    assert sorted(found, key=key) == sorted(wanted, key=key)


@pytest.mark.parametrize("name", ["direct-5.5.0", "geometry-5.5.0"])
def test_unqueued_records_come_if_asked_for(golden: Golden, name: str) -> None:
    store = golden(name)
    options = options_of(store, source="commitlog", includeSystemTopics="true", **PLACE)
    found = rows_of({**options, "includeunqueued": "true"})
    every = Counter(r["commitLogOffset"] for r in store.truth)
    assert places(found) == every
    nowhere = {r["commitLogOffset"] for r in found if r["queueOffset"] is None}
    assert nowhere == {r["commitLogOffset"] for r in store.truth if not in_a_queue(r)}
    assert nowhere
    assert places(rows_of(options)) == truth_where(store, lambda r: True)


def test_a_lost_end_of_the_log_is_an_error(tmp_path: Path) -> None:
    store = unpack("clean-4.9.0", tmp_path)
    last = sorted(Path(store.path, "commitlog").iterdir())[-1]
    content = last.read_bytes()
    last.write_bytes(content[:100_000] + bytes(len(content) - 100_000))
    options = {"path": store.path, "source": "commitlog", **PLACE}
    with pytest.raises(DataLossError, match="the end of the log is lost"):
        rows_of(options)
    assert rows_of({**options, "mode": "DROPMALFORMED"})


@pytest.mark.parametrize("names", [(1, 2), (0, 1), (2, 0)])
def test_records_in_a_log_file_under_a_wrong_name_are_left_out_with_a_word(
    copy: GoldenStore, names: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Two exchanged files, the first of the log among them, and a copy that took the place of another."""
    files = sorted(Path(copy.path, "commitlog").iterdir())
    first, second = (files[number] for number in names)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    if names[1]:
        second.write_bytes(content)
    wrong = [first, second] if names[1] else [first]
    lost = [range(int(file.name), int(file.name) + len(content)) for file in wrong]
    options = {"path": copy.path, "source": "commitlog", "includeSystemTopics": "true"}
    rows = rows_of({**options, "maxbytesperpartition": "60k", **PLACE})
    wanted = truth_where(
        copy, lambda record: not any(record["commitLogOffset"] in gone for gone in lost)
    )
    assert places(rows).keys() == wanted.keys()
    assert "where records name another place" in caplog.text


def test_damage_before_the_first_record_is_an_error(copy: GoldenStore) -> None:
    first = min(Path(copy.path, "commitlog").iterdir())
    first.write_bytes(b"x" * 40 + first.read_bytes()[40:])
    options = {"path": copy.path, "source": "commitlog", "maxbytesperpartition": "60k", **PLACE}
    with pytest.raises(CorruptRecordError, match="at log offset 0"):
        rows_of(options)
