"""A slice of a larger batch is written as a batch of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.arrow.encoding.batch_to_records import LOOPBACK, prepare
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.releases import dialect

ROWS = 9
FORMS = {
    "map": pa.array(
        [None if n == 4 else [("TAGS", f"t{n}"), ("a" * n + "x", "y")] for n in range(ROWS)],
        pa.map_(pa.string(), pa.string()),
    ),
    "words": pa.array([None if n % 3 else f"tag-{n}" for n in range(ROWS)]),
    "raw": pa.array([b"" if n == 5 else b"TAGS\x01%d\x02" % n for n in range(ROWS)], pa.binary()),
}


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        ("map", {"properties": "map"}),
        ("words", {"tags": "words", "keys": "words"}),
        ("raw", {"rawProperties": "raw"}),
    ],
    ids=str,
)
def test_a_slice_is_written_as_a_copy_of_its_rows(form: str, columns: dict[str, str]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([f"topic-{n % 2}" for n in range(ROWS)]),
            "queueId": pa.array(range(ROWS), pa.int32()),
            "body": pa.array([b"b" * n for n in range(ROWS)], pa.binary()),
            "bornTimestamp": pa.array(range(ROWS), pa.timestamp("ms")),
            "bornHost": pa.array([None, "10.0.0.1:5", "[::1]:7"] * 3),
            **{name: FORMS[values] for name, values in columns.items()},
        }
    )
    part = batch.slice(3, 5)
    copied = pa.RecordBatch.from_pylist(part.to_pylist(), batch.schema)
    ours, expected = (
        prepare(one, StoreConfig(), dialect("5.5.0"), LOOPBACK) for one in (part, copied)
    )
    zeros = expected.store_timestamp
    rows = slice(1, 5)
    given = (zeros[rows], zeros[rows], zeros[rows])
    assert ours.placed(rows, *given).tobytes() == expected.placed(rows, *given).tobytes()


@pytest.mark.parametrize("form", ["map", "raw"])
def test_the_light_queues_that_a_slice_names_list_its_rows(form: str, tmp_path: Path) -> None:
    """Only one row of the batch names them: slices without it are looked at for themselves."""
    name, queue = "INNER_MULTI_DISPATCH", "%LMQ%group-a"
    if form == "map":
        kind = pa.map_(pa.string(), pa.string())
        given = pa.array([[(name, queue)] if n == 4 else [("a", "b")] for n in range(ROWS)], kind)
    else:
        item = f"{name}\x01{queue}\x02".encode()
        given = pa.array([item if n == 4 else b"a\x01b\x02" for n in range(ROWS)], pa.binary())
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["parent"] * ROWS),
            "queueId": pa.array([0] * ROWS, pa.int32()),
            "body": pa.array([b"%d" % n for n in range(ROWS)], pa.binary()),
            "properties" if form == "map" else "rawProperties": given,
        }
    )
    config = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with MessageStore.create(tmp_path / "s", config) as w:
        for start, length in ((0, 2), (2, 1), (3, 3), (6, 0), (6, 3)):
            w.append_batch(batch.slice(start, length))
    with MessageStore.open(tmp_path / "s") as store:
        (light,) = (q for q in store.queues() if q.topic == queue)
        found = [m for b in store.read_batches(queue) for m in b.column("body").to_pylist()]
        parent = [m for b in store.read_batches("parent") for m in b.column("body").to_pylist()]
    assert (light.queue_id, found) == (0, [b"4"])
    assert parent == [b"%d" % n for n in range(ROWS)]
