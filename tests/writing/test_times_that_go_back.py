"""Stores whose store times go back, as after a clock was set back or a topic was moved, are whole."""

from __future__ import annotations

from pathlib import Path

from rmq_store import MessageStore, QueueId
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.format.byte_layout import CHECKPOINT_FILE
from rmq_store.markers import Checkpoint
from rmq_store.recovery import recover
from rmq_store.verify import verify
from tests.support.damage import flip
from tests.support.golden import Golden, GoldenStore

SIZES = {"mappedFileSizeCommitLog": 1 << 18, "mappedFileSizeConsumeQueue": 20_000}
COLUMNS = ("topic", "queueId", "rawBody", "properties", "sysFlag", "storeTimestamp")


def copy_into(target: Path, source: GoldenStore, topic: str, sizes: dict[str, int] = SIZES) -> int:
    """Append the messages of a topic with the time at which their broker stored them."""
    opened = MessageStore.append_to if target.exists() else MessageStore.create
    with source.open() as store, opened(target, sizes) as writer:
        count = 0
        for batch in store.read_batches(topic, columns=COLUMNS):
            names = ["body" if name == "rawBody" else name for name in batch.schema.names]
            writer.append_batch(batch.rename_columns(names))
            count += batch.num_rows
    return count


def read_all(path: Path) -> int:
    with MessageStore.open(path) as store:
        assert verify(store).nothing_wrong
        return sum(batch.num_rows for batch in store.read_batches(columns=("topic", "body")))


def test_older_messages_at_the_end_are_no_lost_end(golden: Golden, tmp_path: Path) -> None:
    target = tmp_path / "store"
    count = copy_into(target, golden("clean-5.3.3"), "orders")
    count += copy_into(target, golden("clean-5.5.0"), "payments")
    last = max(r["storeTimestamp"] for r in golden("clean-5.5.0").truth if r["topic"] == "payments")
    newest = max(r["storeTimestamp"] for r in golden("clean-5.3.3").truth if r["topic"] == "orders")
    assert last < newest
    # As the broker, which notes when the last record was stored.
    assert Checkpoint.read_or_zero(target / CHECKPOINT_FILE).physic_msg_timestamp == last
    assert read_all(target) == count
    rebuild(target, tmp_path / "rebuilt")
    assert read_all(tmp_path / "rebuilt") == count
    salvage(target, tmp_path / "salvaged")
    assert read_all(tmp_path / "salvaged") == count


def test_a_checkpoint_of_before_the_clock_was_set_back_is_no_lost_end(
    golden: Golden, tmp_path: Path
) -> None:
    target = tmp_path / "store"
    count = copy_into(target, golden("clean-5.3.3"), "documents")
    count += copy_into(target, golden("clean-5.5.0"), "payments")
    documents = [r for r in golden("clean-5.3.3").truth if r["topic"] == "documents"]
    newest = max(r["storeTimestamp"] for r in documents)
    before = Checkpoint.read_or_zero(target / CHECKPOINT_FILE)
    Checkpoint(newest, newest, before.index_msg_timestamp).write(target / CHECKPOINT_FILE)
    assert read_all(target) == count


def test_recovery_keeps_flushed_records_behind_damage(golden: Golden, tmp_path: Path) -> None:
    """The checkpoint has an earlier time than the records before the damage."""
    target = tmp_path / "store"
    sizes = {**SIZES, "mappedFileSizeCommitLog": 1 << 22}  # all in one file
    count = copy_into(target, golden("clean-5.3.3"), "orders", sizes)
    count += copy_into(target, golden("clean-5.5.0"), "payments", sizes)
    with MessageStore.open(target) as store:
        place = store.log_offset_of(QueueId("orders", 0), 20)
    (file,) = (target / "commitlog").iterdir()
    flip(file, place + 100)  # in the body
    (target / "abort").touch()
    recover(target, sizes)
    with MessageStore.open(target) as store:
        sound = [run for run in store.scan() if run.record is not None]
        assert len(sound) == count - 1
