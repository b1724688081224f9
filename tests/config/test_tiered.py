"""Stores of a broker with tiered storage, which a real broker of 5.5.0 wrote with the plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.config.locate import tiered_queues
from rmq_store.errors import UnsupportedStoreError
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.commands import call, complaint

METADATA = "tieredStoreMetadata.json"


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind("tiered-5.5.0", tmp_path)


def queues(golden: GoldenStore) -> set[QueueId]:
    return {QueueId(line["topic"], line["queue"]) for line in golden.lines("served")}


def test_the_store_on_the_brokers_disk_is_read_and_named(golden: GoldenStore) -> None:
    before = golden.fingerprint()
    wanted = {(x["topic"], x["queue"], x["offset"], x["phy"]) for x in golden.lines("served")}
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset"]
    with MessageStore.open(golden.path) as store:
        rows = store.read_batches(["orders", "payments"], columns=columns).read_all().to_pylist()
        assert {tuple(row.values()) for row in rows} == wanted
        assert [*store.opening.losses(), *store.opening.notes()] == []
        assert verify(store).nothing_wrong
    tiered = tiered_queues(golden.path)
    assert tiered is not None
    assert tiered.first == dict.fromkeys(queues(golden), 0)
    done = call("info", golden.path)
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("tiered"))
    assert f"messages of {len(queues(golden))} queues to tiered storage" in line
    assert METADATA in line
    assert json.loads(call("info", golden.path, "--json").stdout)["tieredStorage"] in line
    assert golden.fingerprint() == before


def test_a_queue_that_begins_earlier_there_is_a_warning(golden: GoldenStore) -> None:
    sorted(Path(golden.path, "commitlog").iterdir())[0].unlink()  # it has expired
    with MessageStore.open(golden.path) as store:
        older = [queue for queue in queues(golden) if store.min_offset(*queue) > 0]
        (warning,) = store.opening.notes()
    assert older
    assert f"{len(older)} queue" in warning
    assert METADATA in warning
    assert "tiered storage" in complaint("topics", golden.path, expect=0)


def test_files_that_are_deleted_there_do_not_count(golden: GoldenStore) -> None:
    path = Path(golden.path, "config", METADATA)
    path.write_text(path.read_text().replace('"status":0', '"status":2'))
    sorted(Path(golden.path, "commitlog").iterdir())[0].unlink()
    tiered = tiered_queues(golden.path)
    assert tiered is not None
    assert tiered.first == {}
    with MessageStore.open(golden.path) as store:
        assert [*store.opening.losses(), *store.opening.notes()] == []


def test_a_list_that_cannot_be_read_is_named_all_the_same(golden: GoldenStore) -> None:
    for name in (METADATA, f"{METADATA}.bak"):
        Path(golden.path, "config", name).write_text('{"queueMetadataTable":')
    tiered = tiered_queues(golden.path)
    assert tiered is not None
    assert tiered.first is None
    with MessageStore.open(golden.path) as store:
        (warning,) = store.opening.notes()
    assert "tiered storage" in warning


def test_a_store_without_the_plugin_has_none(tmp_path: Path) -> None:
    assert tiered_queues(unpack_kind("compacted-5.5.0", tmp_path).path) is None


@pytest.mark.parametrize("below", range(6))
def test_a_folder_of_tiered_storage_is_refused_by_name(golden: GoldenStore, below: int) -> None:
    folder = golden.folder / "tiered"
    for _ in range(below):
        folder = sorted(folder.iterdir())[0]
    with pytest.raises(UnsupportedStoreError, match="tiered storage") as caught:
        MessageStore.open(folder)
    assert "storePathRootDir" in (caught.value.advice or "")
