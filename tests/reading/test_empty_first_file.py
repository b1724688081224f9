"""A file of the log that lost all its bytes is damage, also if it is the first one: nothing in it expired."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.errors import MissingFileError, StoreError
from tests.support.golden import GoldenStore, unpack, user_topic
from tests.support.running.commands import call
from tests.support.spark.reads import rows_of

FULL = 65536


@pytest.fixture(params=[1, 2])
def hurt(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[GoldenStore, int, int]:
    """A store whose first files of the log, before which others expired, are empty; what they held."""
    golden = unpack("expired-5.5.0", tmp_path)
    files = sorted(Path(golden.path, "commitlog").iterdir())[: request.param]
    for path in files:
        os.truncate(path, 0)
    return golden, int(files[0].name), int(files[-1].name) + FULL


def test_a_read_names_each_message_that_was_there(hurt: tuple[GoldenStore, int, int]) -> None:
    golden, start, stop = hurt
    with MessageStore.open(golden.path) as store:
        errors: list[StoreError] = []
        rows = store.read_batches(columns=["commitLogOffset"], on_damage=errors.append).read_all()
        listed = {r["commitLogOffset"] for r in golden.truth if user_topic(r)}
        held = {place for place in listed if start <= place < stop}
        found = set(rows.column("commitLogOffset").to_pylist())
        assert store.log_range()[0] == start
        assert found == {place for place in listed if place >= stop}
        assert {error.log_offset for error in errors} == held
        with pytest.raises(MissingFileError):
            store.read_batches().read_all()
        with pytest.raises(MissingFileError, match=f"{stop - start} bytes at log offset {start}"):
            store.read_log().read_all()
    for source in ("consumequeue", "commitlog"):
        with pytest.raises(MissingFileError):
            rows_of({"path": str(golden.path), "source": source})


def test_commands_name_the_file(hurt: tuple[GoldenStore, int, int]) -> None:
    golden, start, stop = hurt
    assert f"log offset {start} to {stop} is in no file" in call("info", str(golden.path)).stdout
    assert f"log offset {start} to {stop} is in no file" in call("verify", str(golden.path)).both
    assert (
        "are missing or empty, including the record"
        in call("cat", str(golden.path), "--topic", "orders").stderr
    )


def test_adjacent_ranges_name_the_hole_once(hurt: tuple[GoldenStore, int, int]) -> None:
    golden, start, stop = hurt
    with MessageStore.open(golden.path) as store:
        whole = store.read_log(columns=["commitLogOffset"], on_damage=lambda _: None).read_all()
        for cut in (0, start - 1, start, start + 1, stop - 1, stop, stop + 1):
            errors: list[StoreError] = []
            parts = [
                store.read_log(
                    *ends, columns=["commitLogOffset"], on_damage=errors.append
                ).read_all()
                for ends in ((None, cut), (cut, None))
            ]
            assert pa.concat_tables(parts) == whole
            assert [error.log_offset for error in errors] == [start]
        assert next(iter(store.scan(start))) == next(iter(store.scan()))
