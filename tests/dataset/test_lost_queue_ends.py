"""A filter does not hide what a queue has lost at its ends, and has no error where it excludes that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.errors import CorruptQueueError, DataLossError, StoreError
from rmq_store.search.queue_selection import CLOCK_SLACK_MS
from tests.support.golden import unpack
from tests.support.running.commands import call
from tests.support.spark.reads import rows_of

late, early = 1_795_253_030_200, 1_795_253_027_500  # ms
FAR_MS = CLOCK_SLACK_MS + 60_000


Injure = Callable[[Path], None]
Hurt = Callable[[Injure], MessageStore]


def without_last(store: Path) -> None:
    (store / "consumequeue/orders/0/00000000000000004000").unlink()


def with_zeros(store: Path) -> None:
    file = store / "consumequeue/orders/0/00000000000000004000"
    content = file.read_bytes()
    file.write_bytes(content[:600] + bytes(len(content) - 600))


def without_first(store: Path) -> None:
    (store / "consumequeue/orders/0/00000000000000000000").unlink()


def with_short_batches(store: Path) -> None:
    for file in (store / "batchconsumequeue/inner/0").iterdir():
        file.write_bytes(file.read_bytes()[:1000])


def without_queue(store: Path) -> None:
    for file in (store / "consumequeue/orders/0").iterdir():
        file.unlink()


def without_end_of_log(store: Path) -> None:
    (store / "commitlog/00000000000000786432").unlink()


def with_exchanged_log_files(store: Path) -> None:
    exchange(store / "commitlog/00000000000000000000", store / "commitlog/00000000000000262144")


def with_exchanged_queue_files(store: Path) -> None:
    queues = store / "consumequeue"
    exchange(*(queues / name / "0" for name in ("orders", "RMQ_SYS_TRANS_HALF_TOPIC")))


def exchange(one: Path, other: Path) -> None:
    one.rename(one.with_name("x"))
    other.rename(one)
    one.with_name("x").rename(other)


def time(ms: int) -> pa.Scalar:
    return pa.scalar(ms, pa.int64()).cast(TIMESTAMP)


topic, queue_id, offset = pc.field("topic"), pc.field("queueId"), pc.field("queueOffset")
place, stored, keys = pc.field("commitLogOffset"), pc.field("storeTimestamp"), pc.field("keys")


def with_exchanged_queues(store: Path) -> None:
    exchange(*(store / "consumequeue/retrying" / name for name in "01"))


def with_exchanged_first_files(store: Path) -> None:
    names = (store / "consumequeue" / name / f"{0:020d}" for name in ("orders/0", "payments/1"))
    exchange(*names)


@pytest.fixture
def hurt(tmp_path: Path) -> Hurt:
    def made(injure: Injure) -> MessageStore:
        path = unpack("clean-5.5.0", tmp_path).path
        injure(Path(path))
        return MessageStore.open(path)

    return made


@pytest.mark.parametrize(
    ("injure", "wanted"),
    [
        (without_last, keys == "ORDER_1416"),
        (with_zeros, keys == "ORDER_1416"),
        (without_queue, keys == "ORDER_1416"),
        (without_last, (queue_id == 0) & (offset >= 210)),
        (without_last, place >= 800_000),
        (without_last, (topic == "orders") & (stored >= time(late))),
        (without_first, (topic == "orders") & (offset < 50)),
        (without_first, place < 30_000),
        (without_first, (topic == "orders") & (stored < time(early))),
        # A clock may have been set back.
        (without_last, (topic == "orders") & (stored < time(early))),
        (without_first, (topic == "orders") & (stored >= time(late))),
        (with_short_batches, (topic == "inner") & (offset >= 150)),
        (with_exchanged_first_files, keys == "ORDER_21"),
    ],
)
@pytest.mark.parametrize("columns", [["queueOffset"], ["body"]])
def test_a_filter_that_lost_messages_match(
    hurt: Hurt, injure: Injure, wanted: pc.Expression, columns: list[str]
) -> None:
    with hurt(injure) as store:
        with pytest.raises(CorruptQueueError, match=r"queue (orders|inner)/0 "):
            store.messages().to_table(columns, wanted)
        errors: list[StoreError] = []
        store.messages(on_damage=errors.append).to_table(columns, wanted)
        assert errors


@pytest.mark.parametrize(
    ("injure", "wanted", "count"),
    [
        (without_last, (topic == "orders") & (offset < 50), 200),
        (without_last, (topic == "orders") & (queue_id == 1), 257),
        (without_last, topic == "inner", None),
        (without_last, keys == "ORDER_1", None),
        (without_last, place < 30_000, 51),
        (without_last, (topic == "orders") & (stored < time(early - FAR_MS)), 0),
        (without_first, (topic == "orders") & (offset >= 110), None),
        (without_first, keys == "ORDER_1416", 1),
        (without_first, place >= 800_000, 378),
        (without_first, (topic == "orders") & (stored >= time(late + FAR_MS)), 0),
        (with_short_batches, (topic == "inner") & (offset < 20), 20),
    ],
)
def test_a_filter_that_excludes_what_is_lost(
    tmp_path: Path, hurt: Hurt, injure: Injure, wanted: pc.Expression, count: int | None
) -> None:
    with hurt(injure) as store:
        rows = store.messages(unwrap_batches=True).count_rows(wanted)
    with MessageStore.open(unpack("clean-5.5.0", tmp_path / "sound").path) as sound:
        assert rows == sound.messages(unwrap_batches=True).count_rows(wanted)
    assert count in (None, rows)


def test_a_place_before_the_log_excludes_what_is_lost(hurt: Hurt) -> None:
    def injure(store: Path) -> None:
        without_first(store)
        (store / "commitlog/00000000000000000000").unlink()

    with hurt(injure) as opened:
        assert opened.log_range()[0] == 262_144
        assert opened.messages().count_rows(place < 30_000) == 0
        with pytest.raises(CorruptQueueError):
            opened.messages().count_rows(place < 300_000)


def test_times_of_the_dataset(hurt: Hurt) -> None:
    with hurt(without_last) as store:
        with pytest.raises(CorruptQueueError):
            store.messages("orders", since=late).count_rows()
        assert store.messages("orders", until=early).count_rows() == 80


def test_fragments_report_it_once(hurt: Hurt) -> None:
    errors: list[StoreError] = []
    with hurt(without_last) as store:
        dataset = store.messages(on_damage=errors.append)
        for one in dataset.get_fragments((topic == "orders") & (offset >= 210)):
            one.count_rows()
    assert len(errors) == 1


def test_a_key_by_sql(hurt: Hurt) -> None:
    with hurt(without_last) as store:
        query = ("sql", str(store.path), "select queueOffset from messages", "--key", "ORDER_1416")
        strict, skipping = call(*query), call(*query, "--skip-damaged")
    assert strict.returncode == 2
    assert "queue orders/0 ends before its messages" in strict.stderr
    assert skipping.returncode == 1
    assert "queue offset 248" in skipping.stderr


def test_a_key_that_the_index_lists_after_the_end_of_the_log(hurt: Hurt) -> None:
    with hurt(without_end_of_log) as store, pytest.raises(DataLossError) as lost:
        store.messages("orders").count_rows(keys == "ORDER_1416")
    assert "the index lists 1 message, the first at log offset" in str(lost.value)
    assert "Look for the rest in a replica or a copy" in str(lost.value)


def test_a_key_where_all_that_a_queue_lists_is_after_the_end_of_the_log(tmp_path: Path) -> None:
    store = Path(unpack("clean-4.3.2", tmp_path).path)
    (store / "commitlog/00000000000000262144").unlink()
    file = store / "commitlog/00000000000000000000"
    file.write_bytes(file.read_bytes()[:82312])
    (store / "consumequeue/orders/2/00000000000000000000").unlink()
    with (
        MessageStore.open(store) as opened,
        pytest.raises(CorruptQueueError, match="queue orders/2 starts after its messages"),
    ):
        opened.messages().to_table(filter=pc.field("keys") == "ORDER_120")


def test_a_key_of_a_log_whose_files_were_exchanged(tmp_path: Path) -> None:
    path = Path(unpack("proxy-5.5.0", tmp_path).path)
    with_exchanged_log_files(path)
    with MessageStore.open(path) as store, pytest.raises(DataLossError) as lost:
        store.messages().count_rows(keys == "k258")
    assert "it is the file 00000000000000262144. The file with that name" in str(lost.value)


def test_a_key_that_a_crash_may_have_lost_is_a_warning(
    hurt: Hurt, caplog: pytest.LogCaptureFixture
) -> None:
    def injure(store: Path) -> None:
        without_end_of_log(store)
        (store / "abort").touch()

    with hurt(injure) as store:
        assert not store.messages("orders").count_rows(keys == "ORDER_1416")
    assert "a crash lost the end, or a broker just wrote it" in caplog.text


def test_columns_of_queues_whose_files_were_exchanged(hurt: Hurt) -> None:
    with hurt(with_exchanged_queue_files) as store:
        with pytest.raises(CorruptQueueError, match="queue orders/0 ends before its messages"):
            store.messages().to_table(["topic", "queueOffset"])
        counted = call("topics", str(store.path))
    assert counted.returncode == 1
    assert "warning: queue orders/0 ends before its messages" in counted.stderr


def test_entries_of_another_queue_are_noticed_where_no_record_is_read(
    hurt: Hurt, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts and columns of the queues: their numbers are right, but not what they are of."""
    columns = ["topic", "queueId", "queueOffset"]
    options = {"columns": ",".join(columns), "mode": "DROPMALFORMED"}
    with hurt(with_exchanged_queues) as store:
        path, messages = str(store.path), store.messages()
        with pytest.raises(CorruptQueueError, match="leads to a record of another queue"):
            messages.count_rows()
        assert messages.count_rows(topic == "orders") == 971
        errors: list[StoreError] = []
        counted = store.read_batches(columns=columns, on_damage=errors.append).read_all()
    assert [(e.entry[:3], e.entry.messages) for e in errors if e.entry is not None] == [
        (("retrying", 0, 0), 12),
        (("retrying", 1, 0), 12),
    ]
    assert len(rows_of({"path": path, "unwrapBatches": "false", **options})) == len(counted)
    assert "mode=DROPMALFORMED: 2 x RMQSTORE_CORRUPT_QUEUE (at least 24 messages)" in caplog.text
    with pytest.raises(CorruptQueueError, match="leads to a record of another queue"):
        rows_of({"path": path, "columns": options["columns"]})
    done = call("sql", path, "select count(*) from messages")
    assert (done.returncode, "leads to a record of another queue" in done.stderr) == (2, True)
