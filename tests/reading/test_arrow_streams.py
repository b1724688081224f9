"""What takes Arrow streams reads a store: DuckDB, Polars, DataFusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import datafusion
import duckdb
import polars
import pyarrow as pa
import pytest

from rmq_store import MessageStore, QueueSlice
from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.errors import CorruptRecordError, OtherStoreError, ReadOnlyStoreError
from tests.support.damage import flip_in_log
from tests.support.golden import Golden, GoldenStore, messages_in, unpack, user_topic
from tests.support.running.child import run_python
from tests.support.stores import make_store


@pytest.fixture
def store(golden: Golden) -> GoldenStore:
    return golden("clean-5.3.3")


def test_duckdb_counts_what_a_consumer_was_given(store: GoldenStore) -> None:
    expected = Counter((r["topic"], r["tags"]) for r in store.truth if user_topic(r))
    with store.open() as opened:
        database = duckdb.connect()
        database.register("messages", opened.read_batches(columns=["topic", "tags"]))
        found = database.sql("SELECT topic, tags, count(*) FROM messages GROUP BY ALL").fetchall()
        database.register("store", opened)
        (total,) = database.sql("SELECT count(*) FROM store").fetchall()
    assert {(topic, tags): count for topic, tags, count in found} == expected
    # Of the store itself each message of an inner batch is a row, as of `messages`.
    assert total == (sum(messages_in(r) for r in store.truth if user_topic(r)),)


def test_polars_and_datafusion_have_the_same_rows(store: GoldenStore) -> None:
    places = [r["commitLogOffset"] for r in store.truth if r["topic"] == "orders"]
    columns = ["commitLogOffset", "storeTimestamp", "body", "properties"]
    with store.open() as opened:
        rows = pa.Table.from_batches(opened.read_batches("orders", columns=columns))
        frame = polars.DataFrame(opened.read_batches("orders", columns=columns))
        context = datafusion.SessionContext()
        far = context.from_arrow(opened.read_batches("orders", columns=columns)).to_arrow_table()
    assert rows["commitLogOffset"].to_pylist() == sorted(places)
    assert frame["commitLogOffset"].to_list() == rows["commitLogOffset"].to_pylist()
    assert frame["body"].to_list() == rows["body"].to_pylist()
    assert far.to_pylist() == rows.to_pylist()


def test_a_reader_without_rows_has_the_schema(store: GoldenStore) -> None:
    with store.open() as opened:
        queue = opened.queues("orders")[0]
        for reader in (
            opened.read_batches("orders", stop=0),
            opened.read_slices([QueueSlice(queue, 5, 5)]),
            opened.read_log(0, 0),
        ):
            assert isinstance(reader, pa.RecordBatchReader)
            assert reader.schema == arrow_schema(None)
            assert reader.read_all().num_rows == 0
        permissive = opened.read_batches("orders", stop=0, on_damage="permissive")
        assert permissive.schema.names[-1] == "corruptRecord"
        assert all(field.nullable for field in permissive.schema)


@pytest.mark.parametrize("mode", [None, "permissive", "dropmalformed"])
@pytest.mark.parametrize("columns", [None, ["queueOffset"], ["body", "corruptRecord", "rawBody"]])
def test_batches_have_the_schema_that_the_reader_names(
    store: GoldenStore, mode: str | None, columns: list[str] | None
) -> None:
    with store.open() as opened:
        readers = (
            opened.read_batches(columns=columns, on_damage=mode, unwrap_batches=True),
            opened.read_log(columns=columns, on_damage=mode),
        )
        for reader in readers:
            batches = list(reader)
            assert batches
            assert all(batch.schema == reader.schema for batch in batches)


def test_an_error_keeps_its_type_and_reaches_other_libraries_as_text(tmp_path: Path) -> None:
    golden = unpack("clean-5.3.3", tmp_path)
    hurt = next(r for r in golden.truth if r["topic"] == "orders")
    flip_in_log(golden, hurt["commitLogOffset"] + 100)
    with MessageStore.open(golden.path) as opened:
        with pytest.raises(CorruptRecordError):
            list(opened.read_batches("orders"))
        database = duckdb.connect()
        database.register("damaged", opened.read_batches("orders", columns=["body"]))
        with pytest.raises(duckdb.Error, match="RMQSTORE_CORRUPT_RECORD"):
            database.sql("SELECT count(body) FROM damaged").fetchall()


def test_the_package_is_the_command(store: GoldenStore) -> None:
    done = run_python("-m", "rmq_store", "topics", store.path)
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout


@pytest.mark.parametrize(
    "begin",
    [
        lambda store: store.read_batches(batch_rows=50),
        lambda store: store.read_batches(batch_rows=50, columns="queueOffset", check_ends=False),
        lambda store: store.read_log(batch_rows=50),
    ],
)
def test_a_read_that_was_begun_fails_after_close(
    begin: Callable[[MessageStore], pa.RecordBatchReader], store: GoldenStore
) -> None:
    with store.open() as opened:
        batches, late = begin(opened), begin(opened)
        first = batches.read_next_batch()
        scan = opened.messages().scanner(batch_size=50).to_batches()
        rows = opened.messages().count_rows() - next(scan).num_rows
    assert len(first.to_pylist()) == 50
    for reader in (batches, late):
        with pytest.raises(ReadOnlyStoreError, match="the store was closed"):
            reader.read_next_batch()
    assert sum(batch.num_rows for batch in scan) == rows


@pytest.mark.parametrize("how", ["queues", "log"])
def test_a_read_that_was_begun_never_mixes_two_stores(how: str, tmp_path: Path) -> None:
    """Their messages have the same places, so that each entry leads to a record of its queue."""
    path = tmp_path / "store"
    make_store(path, 200)
    make_store(tmp_path / "other", 200)
    with MessageStore.open(path) as store:
        read = store.read_log if how == "log" else store.read_batches
        reader = read(columns=["body", "storeTimestamp"], batch_rows=50)
        next(reader)
        path.rename(tmp_path / "gone")
        (tmp_path / "other").rename(path)
        with pytest.raises(OtherStoreError):
            list(reader)
