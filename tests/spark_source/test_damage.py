"""What becomes of damage: fail, a row that says so, or a number. Nothing is passed over silently."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import QueueId
from rmq_store.errors import (
    BodyError,
    CorruptRecordError,
    DataLossError,
    MissingFileError,
    UnsupportedStoreError,
)
from rmq_store.format.compression import SysFlag
from spark_source.source import RmqStoreSource
from tests.support.damage import write_at, write_in_log
from tests.support.golden import Golden, GoldenStore, Truth, in_a_queue, unpack, unpack_field
from tests.support.spark.reads import rows_of

NAME = "clean-5.5.0"
COLUMNS = "topic,queueId,queueOffset,commitLogOffset,storeSize,body,corruptRecord"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack(NAME, tmp_path)


def options_of(store: GoldenStore, **options: str) -> dict[str, str]:
    given = {"path": store.path, "topic": "orders", "columns": COLUMNS, **options}
    return {name.lower(): value for name, value in given.items()}


def orders(store: GoldenStore) -> list[Truth]:
    return [r for r in store.truth if r["topic"] == "orders" and in_a_queue(r)]


def hit(store: GoldenStore) -> list[int]:
    """Three kinds of damage in records of `orders`; gives their log offsets."""
    records = orders(store)
    plain = [r for r in records if not r["sysFlag"] & SysFlag.COMPRESSED and len(r["body"]) > 40]
    crc, head, length = plain[3], plain[10], plain[20]
    write_in_log(store, crc["commitLogOffset"] + 95, b"\xa5\x5a\xa5")  # in the body
    write_in_log(store, head["commitLogOffset"] + 4, b"\0\0\0\0")  # its magic
    write_in_log(store, length["commitLogOffset"] + 84, b"\x7f\xff\xff\xff")  # its body length
    return [r["commitLogOffset"] for r in (crc, head, length)]


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_the_modes_fail_report_or_drop(
    store: GoldenStore, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = hit(store)
    whole = {r["commitLogOffset"] for r in orders(store)} - set(bad)
    options = options_of(store, source=source)
    with pytest.raises(CorruptRecordError, match="mode=DROPMALFORMED leaves it out"):
        rows_of(options)

    with caplog.at_level(logging.WARNING, "rmqstore"):
        kept = rows_of({**options, "mode": "DROPMALFORMED"})
    assert {r["commitLogOffset"] for r in kept} == whole
    (line,) = [r.getMessage() for r in caplog.records if "not read" in r.getMessage()]
    assert "mode=DROPMALFORMED: 3 x RMQSTORE_CORRUPT_RECORD" in line

    reported = rows_of({**options, "mode": "PERMISSIVE"})
    sound = {r["commitLogOffset"] for r in reported if r["corruptRecord"] is None}
    assert sound == whole
    damage = [r for r in reported if r["corruptRecord"] is not None]
    assert sorted(r["commitLogOffset"] for r in damage) == sorted(bad)
    for row in damage:
        assert "RMQSTORE_CORRUPT_RECORD" in row["corruptRecord"]
        assert f"at log offset {row['commitLogOffset']}" in row["corruptRecord"]
        assert row["body"] is None
    if source == "consumequeue":  # the queue says which message it was
        by_place = {r["commitLogOffset"]: r for r in orders(store)}
        for row in damage:
            record = by_place[row["commitLogOffset"]]
            for name in ("topic", "queueId", "queueOffset", "storeSize"):
                assert row[name] == record[name]


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_the_table_lists_what_the_modes_meet(store: GoldenStore, source: str) -> None:
    bad = hit(store)
    rows = rows_of({"path": store.path, "topic": "orders", "table": "damage", "source": source})
    assert sorted(row["commitLogOffset"] for row in rows) == sorted(bad)
    assert {row["code"] for row in rows} == {"RMQSTORE_CORRUPT_RECORD"}
    assert all(Path(row["path"]).is_file() for row in rows)


def test_a_sound_store_has_no_damage(golden: Golden) -> None:
    for name in (NAME, "crash-5.5.0", "hot-5.5.0", "nommap-5.5.0", "tsp-5.5.0", "expired-5.5.0"):
        for source in ("consumequeue", "commitlog"):
            options = {"path": golden(name).path, "table": "damage", "source": source}
            assert rows_of({**options, "includesystemtopics": "true"}) == [], (name, source)


def test_a_missing_log_file_in_the_middle_is_damage_of_every_entry(store: GoldenStore) -> None:
    paths = sorted((Path(store.path) / "commitlog").iterdir())
    gone = paths[1]
    options = options_of(store)
    source = RmqStoreSource(options)  # pinned before
    assert source.schema()
    size = gone.stat().st_size
    gone.unlink()
    lost = {
        r["commitLogOffset"]
        for r in orders(store)
        if int(gone.name) <= r["commitLogOffset"] < int(gone.name) + size
    }
    assert lost
    with pytest.raises(MissingFileError, match="RMQSTORE_MISSING_FILE"):
        rows_of(options)
    reported = rows_of({**options, "mode": "PERMISSIVE"})
    assert {r["commitLogOffset"] for r in reported if r["corruptRecord"]} == lost
    assert len(reported) == len(orders(store))
    by_log = rows_of({**options, "mode": "PERMISSIVE", "source": "commitlog"})
    (gap,) = [r for r in by_log if r["corruptRecord"]]
    assert gap["commitLogOffset"] == int(gone.name)
    assert f"no commitLog file has {size} bytes" in gap["corruptRecord"]


def test_files_that_expire_during_a_query_follow_fail_on_data_loss(store: GoldenStore) -> None:
    paths = sorted((Path(store.path) / "commitlog").iterdir())
    for fail in ("true", "false"):
        source = RmqStoreSource(options_of(store, failondataloss=fail))
        reader = source.reader(source.schema())
        partitions = list(reader.partitions())
        if fail == "true":
            paths[0].rename(store.folder / "kept")  # as the broker deletes: the oldest first

        def read(reader: Any = reader, partitions: Any = partitions) -> list[int]:
            batches = [b for p in partitions for b in reader.read(p)]
            return [row for b in batches for row in b.column("commitLogOffset").to_pylist()]

        if fail == "true":
            with pytest.raises(DataLossError, match="during the read"):
                read()
            (store.folder / "kept").rename(paths[0])
        else:
            size = paths[0].stat().st_size
            paths[0].unlink()
            left = [r["commitLogOffset"] for r in orders(store) if r["commitLogOffset"] >= size]
            assert sorted(read()) == sorted(left)


def test_a_queue_entry_that_leads_nowhere_is_accounted_for(store: GoldenStore) -> None:
    file = sorted((Path(store.path) / "consumequeue/orders/1").iterdir())[0]
    write_at(file, 4 * 20, struct.pack(">qi", 2**40, 200))  # far behind the log's end
    reported = rows_of(options_of(store, mode="PERMISSIVE"))
    (row,) = [r for r in reported if r["corruptRecord"]]
    assert (row["topic"], row["queueId"], row["queueOffset"]) == (*QueueId("orders", 1), 4)
    assert "RMQSTORE_CORRUPT_QUEUE" in row["corruptRecord"]
    assert len(reported) == len(orders(store))


def test_bodies_over_the_limit_follow_the_mode_and_raw_ones_come(clean: GoldenStore) -> None:
    packed = [r for r in clean.truth if r["sysFlag"] & SysFlag.COMPRESSED and in_a_queue(r)]
    topic = packed[0]["topic"]
    large = {
        r["commitLogOffset"]
        for r in packed
        if r["topic"] == topic and len(r["bodyDecompressed"]) * 3 // 4 > 300
    }
    assert large
    options = options_of(clean, topic=topic, maxBodyBytes="256")
    with pytest.raises(BodyError, match="RMQSTORE_BODY"):
        rows_of(options)
    reported = rows_of({**options, "mode": "PERMISSIVE"})
    assert large <= {r["commitLogOffset"] for r in reported if r["corruptRecord"]}
    raw = rows_of({**options, "columns": "commitLogOffset,rawBody"})
    assert large <= {r["commitLogOffset"] for r in raw}


def test_rows_about_damage_make_every_column_nullable(store: GoldenStore) -> None:
    schema = RmqStoreSource({"path": store.path, "mode": "PERMISSIVE"}).schema()
    assert all(field.nullable for field in schema)
    assert schema.fieldNames()[-1] == "corruptRecord"


def test_queue_files_that_expire_with_the_log_are_data_loss_too(tmp_path: Path) -> None:
    """Queue files of 7 entries: the oldest goes together with the log it leads to."""
    store = unpack("geometry-5.5.0", tmp_path)
    folders = [
        p for p in (Path(store.path) / "consumequeue").glob("*/*") if len(list(p.iterdir())) > 2
    ]
    folder = folders[0]
    assign = f'{{"{folder.parent.name}": [{folder.name}]}}'
    options = {"path": store.path, "assign": assign, "columns": "queueOffset"}
    reader_of: dict[str, Any] = {}
    for fail in ("true", "false"):
        source = RmqStoreSource({**options, "failondataloss": fail})
        reader_of[fail] = source.reader(source.schema())
    whole = [b for p in reader_of["true"].partitions() for b in reader_of["true"].read(p)]
    offsets = [row for b in whole for row in b.column("queueOffset").to_pylist()]
    partitions = list(reader_of["true"].partitions())
    sorted(folder.iterdir())[0].unlink()
    with pytest.raises(DataLossError):
        [b for p in partitions for b in reader_of["true"].read(p)]
    left = [b for p in partitions for b in reader_of["false"].read(p)]
    found = [row for b in left for row in b.column("queueOffset").to_pylist()]
    assert found == offsets[7 - offsets[0] % 7 :]


def test_every_entry_of_a_queue_file_that_is_gone_is_accounted_for(tmp_path: Path) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    folders = (Path(store.path) / "consumequeue").glob("*/*")
    folder = next(path for path in sorted(folders) if len(list(path.iterdir())) > 3)
    assign = f'{{"{folder.parent.name}": [{folder.name}]}}'
    options = {"path": store.path, "assign": assign, "columns": "queueOffset,body,corruptRecord"}
    whole = rows_of(options)
    gone = sorted(folder.iterdir())[1]
    lost = range(int(gone.name) // 20, int(gone.name) // 20 + 7)
    gone.unlink()
    reported = rows_of({**options, "mode": "PERMISSIVE"})
    assert len(reported) == len(whole)
    assert sorted(r["queueOffset"] for r in reported if r["corruptRecord"]) == list(lost)
    left = rows_of({**options, "mode": "DROPMALFORMED"})
    assert left == [r for r in whole if r["queueOffset"] not in lost]


def test_what_a_task_has_opened_and_read_is_in_the_debug_log(
    clean: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    size = sum(r["storeSize"] for r in orders(clean))
    with caplog.at_level(logging.DEBUG, "rmqstore"):
        rows_of(options_of(clean))
    (line,) = [r.getMessage() for r in caplog.records if " bytes of " in r.getMessage()]
    assert f"read {size} bytes of" in line
    assert "/commitlog/" in line
    assert "/consumequeue/orders/" in line
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "rmqstore"):
        rows_of(options_of(clean, columns="topic,queueOffset"))
    (line,) = [r.getMessage() for r in caplog.records if " bytes of " in r.getMessage()]
    assert "read 0 bytes of 0 files of the log" in line
    assert "/commitlog/" not in line


def test_a_read_of_the_log_before_a_dledger_log_says_what_it_left_out(tmp_path: Path) -> None:
    """The log holds 1,000 of 3,000 messages; the others are in dledger-n0/data, which was not copied."""
    root = unpack_field("mixed-dledger-old-log-there", tmp_path)
    (root / "dledger-n0" / "data").rename(tmp_path / "other-disk")
    (topic,) = (path.name for path in (root / "consumequeue").iterdir())
    options = {"path": str(root), "topic": topic, "source": "commitlog", "columns": COLUMNS}
    with pytest.raises(UnsupportedStoreError, match="DLedger"):
        rows_of(options)
    rows = rows_of({**options, "mode": "PERMISSIVE"})
    about = [row["corruptRecord"] for row in rows if row["corruptRecord"] is not None]
    assert len(rows) == 1001
    assert len(about) == 1
    assert "DLedger log that is not here" in str(about[0])
    plain = {name: value for name, value in options.items() if name != "source"}
    with pytest.raises(UnsupportedStoreError, match="not here"):
        rows_of(plain)
    options["brokerConf"] = plain["brokerConf"] = str(tmp_path / "broker.conf")
    (tmp_path / "broker.conf").write_text(f"storePathDLedgerCommitLog={tmp_path / 'other-disk'}\n")
    assert len(rows_of(options)) == len(rows_of(plain)) == 3000


def test_another_topic_than_that_of_a_lost_end_is_read(copy: GoldenStore) -> None:
    """Its queue is not in the part of the snapshot that the plan has."""
    max(Path(copy.path, "consumequeue/orders/0").iterdir()).unlink()
    found = rows_of({"path": copy.path, "topic": "payments"})
    assert len(found) == sum(r["topic"] == "payments" and in_a_queue(r) for r in copy.truth)
