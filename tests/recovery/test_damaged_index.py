"""A damaged index file stops no recovery: it holds no message, and the log has all of its keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.index.index_file_reader import IndexFile, list_index_files
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import GoldenStore, keys_of, unpack, user_topic, verified


def hurt(path: Path, harm: str) -> None:
    """Damage an index file so that it shows its geometry no more."""
    raw = bytearray(path.read_bytes())
    match harm:
        case "header":
            raw[16:40] = b"\xff" * 24
        case "slots":
            raw[40:440] = b"\x7f" * 400
        case "first items":
            raw[440:900] = random.Random(1).randbytes(460)
        case _:
            raw = raw[: len(raw) // 2]
    path.write_bytes(raw)


def sizes_of(golden: GoldenStore) -> dict[str, int]:
    """The numbers of slots and items that the broker ran with."""
    (geometry,) = {IndexFile(one).geometry for one in list_index_files(Path(golden.path, "index"))}
    return {"maxHashSlotNum": geometry.slots, "maxIndexNum": geometry.items}


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("harm", ["header", "slots", "first items", "cut"])
@pytest.mark.parametrize("name", ["crash-5.3.3", "clean-5.3.3"])
def test_strict_recovery_indexes_the_records_of_a_damaged_file_again(
    name: str, harm: str, configured: bool, tmp_path: Path
) -> None:
    """And a broker starts on the file."""
    golden = unpack(name, tmp_path)
    config = sizes_of(golden) if configured else None
    hurt(max(Path(golden.path, "index").iterdir()), harm)
    plan = plan_recovery(golden.path, config=config, release="5.3.3", method="broker")
    assert plan.log_end == golden.truth[-1]["commitLogOffset"] + golden.truth[-1]["storeSize"]
    recover(golden.path, config=config, release="5.3.3")
    for segment in list_index_files(Path(golden.path, "index")):
        assert IndexFile(segment).geometry is not None
    with MessageStore.open(golden.path) as store:
        assert store.key_index().unreadable == []
        for record in [r for r in golden.truth if user_topic(r) and keys_of(r)][-5:]:
            for key in keys_of(record):
                found = store.key_index().candidates([record["topic"]], key)[record["topic"]]
                assert record["commitLogOffset"] in found


@pytest.mark.parametrize("size", [0, 39])
def test_strict_recovery_removes_an_index_file_that_was_never_filled(
    size: int, tmp_path: Path
) -> None:
    """A process was killed right after it created the file."""
    golden = unpack("crash-5.3.3", tmp_path)
    short = Path(golden.path, "index", "20991231235959999")
    short.write_bytes(b"\0" * size)
    report = recover(golden.path, release="5.3.3")
    assert not short.exists()
    assert (str(short), "removed") in [(file.path, file.what) for file in report.files]
    assert not [found for found in verified(golden.path).findings if found.code.startswith("index")]
