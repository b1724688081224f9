"""Messages for the comparisons: one layout of properties, and the mix of layouts of real traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOPICS, QUEUES, TAGS = 4, 4, 5
BATCH = 8192
LAYOUTS = 20
# What clients and brokers add beside keys and tags.
_NAMES = (
    *("TRACE_ON", "MSG_REGION", "CLUSTER", "WAIT", "PGROUP", "traceparent", "tracestate", "user"),
    *(
        "tenant",
        "source",
        "orderType",
        "BORN_TIMESTAMP",
        "shard",
        "version",
        "schema",
        "__SHARDINGKEY",
    ),
)

Messages = Callable[[int, int], Iterator[pa.RecordBatch]]
"""(number of messages, bytes of a body) -> batches."""


def one_layout(count: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same messages as on the Java side: topics, queues, tags, keys and ids, with random bodies."""
    body = np.random.default_rng(1).bytes(body_bytes)
    for start in range(0, count, BATCH):
        number = np.arange(start, min(start + BATCH, count))
        digits = pc.cast(pa.array(number), pa.string())
        yield pa.RecordBatch.from_pydict(
            {
                **_common(number, body),
                "tags": pa.array([f"Tag{i}" for i in range(TAGS)]).take(pa.array(number % TAGS)),
                "keys": pc.binary_join_element_wise("ORDER_", digits, ""),
                "uniqKey": pc.binary_join_element_wise(
                    "7F000001", pc.utf8_lpad(digits, 24, "0"), ""
                ),
            }
        )


def mixed(count: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same with 20 sets of properties and values of random lengths, in random order."""
    chance = np.random.default_rng(20)
    body = chance.bytes(body_bytes)
    layouts = [
        chance.choice(len(_NAMES), chance.integers(1, 9), replace=False) for _ in range(LAYOUTS)
    ]
    words = ["".join(chr(97 + n) for n in chance.integers(0, 26, size)) for size in range(1, 65)]
    for start in range(0, count, BATCH):
        number = np.arange(start, min(start + BATCH, count))
        properties = []
        for one, kind in zip(
            number.tolist(), chance.integers(0, LAYOUTS, len(number)).tolist(), strict=True
        ):
            lengths = chance.integers(0, len(words), len(layouts[kind]) + 1).tolist()
            own = [
                (_NAMES[name], words[n]) for name, n in zip(layouts[kind], lengths, strict=False)
            ]
            keys = f"ORDER_{one} {words[lengths[-1]]}"
            own += [("KEYS", keys), ("UNIQ_KEY", f"7F000001{one:024d}")]
            properties.append([*own, ("TAGS", f"Tag{one % TAGS}")] if kind % 4 else own)
        column = pa.array(properties, pa.map_(pa.string(), pa.string()))
        yield pa.RecordBatch.from_pydict({**_common(number, body), "properties": column})


def _common(number: np.ndarray[tuple[int], np.dtype[np.int64]], body: bytes) -> dict[str, pa.Array]:
    none = pa.array(np.zeros(len(number), np.int32))
    return {
        "topic": pa.array([f"order-topic-{i}" for i in range(TOPICS)]).take(
            pa.array(number % TOPICS)
        ),
        "queueId": pa.array((number // TOPICS % QUEUES).astype(np.int32)),
        "body": pa.array([body], pa.binary()).take(none),
        "bornTimestamp": pa.array(np.full(len(number), 1_700_000_000_000)),
    }
