"""Reads of the log alone: damage at the start of its last file hides nothing behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptRecordError, StoreError
from tests.support.golden import GoldenStore, in_a_queue, unpack


def break_start(store: GoldenStore, width: int) -> int:
    """Damage the first bytes of the last file that has a record; gives the log offset."""
    last = max(r["commitLogOffset"] for r in store.truth)
    file = max(f for f in Path(store.path, "commitlog").iterdir() if int(f.name) <= last)
    raw = bytearray(file.read_bytes())
    raw[4 : 4 + width] = bytes(byte ^ 0x5A for byte in raw[4 : 4 + width])
    file.write_bytes(raw)
    return int(file.name)


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.5.0", "nommap-5.5.0", "expired-5.5.0"])
@pytest.mark.parametrize("width", [1, 200, 5000])
def test_records_behind_damage_at_the_start_of_the_last_file(
    tmp_path: Path, name: str, width: int
) -> None:
    store = unpack(name, tmp_path)
    listed = [r["commitLogOffset"] for r in store.truth if in_a_queue(r)]
    start = break_start(store, width)
    hurt = {
        r["commitLogOffset"]
        for r in store.truth
        if start <= r["commitLogOffset"] < start + 4 + width
    }
    met: list[StoreError] = []
    with MessageStore.open(store.path, broker_conf=store.conf, queues=False) as opened:
        with pytest.raises(CorruptRecordError, match=f"at offset {start}"):
            opened.read_log().read_all()
        found = opened.read_log(columns=["commitLogOffset"], on_damage=met.append).read_all()
    assert sorted(found.column(0).to_pylist()) == sorted(set(listed) - hurt)
    assert met


def test_a_file_made_ahead_is_no_damage(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    files = sorted(Path(store.path, "commitlog").iterdir())
    size = files[0].stat().st_size
    (files[-1].parent / f"{int(files[-1].name) + size:020}").write_bytes(bytes(size))
    with MessageStore.open(store.path, queues=False) as opened:
        rows = opened.read_log(columns=["commitLogOffset"]).read_all().num_rows
    assert rows == sum(map(in_a_queue, store.truth))
