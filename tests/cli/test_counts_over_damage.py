"""What counts messages, on damaged stores."""

from __future__ import annotations

from pathlib import Path

from rmq_store import QueueId
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import call, objects

SECOND_FILE = 262144


def lost_end(store: GoldenStore) -> int:
    """The last entries of a queue are zeros, which reads as a shorter queue."""
    file = sorted(Path(store.path, "consumequeue", "orders", "1").iterdir())[-1]
    raw = file.read_bytes()
    used = len(raw.rstrip(b"\0")) // 20 * 20
    file.write_bytes(raw[: used - 80] + bytes(len(raw) - used + 80))
    return 0


def test_the_day_of_messages_without_a_record_is_not_known(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    last = sorted(Path(store.path, "commitlog").iterdir())[-1]
    last.unlink()
    done = call("usage", store.path, "--by", "day")
    days = dict(line.split("\t")[:2] for line in done.stdout.splitlines()[1:])
    gone = [one for one in store.truth if one["commitLogOffset"] >= int(last.name)]
    assert gone
    assert set(days) == {"2026-11-21", "(not known)"}
    assert done.returncode == 1


def test_a_message_that_neither_queue_nor_log_has_is_in_the_table_of_damage(tmp_path: Path) -> None:
    """The queue ends early, as after a crash, and the log has lost one of the records after it."""
    store = unpack("clean-5.5.0", tmp_path)
    Path(store.path, "abort").touch()
    lost = store.by_queue[QueueId("orders", 0)][220]
    files = sorted(Path(store.path, "consumequeue", "orders", "0").iterdir())
    raw = b"".join(file.read_bytes() for file in files)
    kept = raw[: 200 * 20].ljust(len(raw), b"\0")
    for file in files:
        size = file.stat().st_size
        file.write_bytes(kept[:size])
        kept = kept[size:]
    at = lost["commitLogOffset"]
    write_in_log(store, at, bytes(lost["storeSize"]))
    (row,) = [row for row in objects("table", "damage", store.path) if row["queueOffset"] == 220]
    assert row["commitLogOffset"] is None
    assert row["storeSize"] is None
    everything = call("verify", store.path).stdout + call("table", "damage", store.path).stdout
    assert "offset -1" not in everything
