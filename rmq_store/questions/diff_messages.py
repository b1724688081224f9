"""Which messages of two stores are in both, by UNIQ_KEY and body: for migrations and replays, where offsets
differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.string_slices import buffers
from rmq_store.format.array_types import Ints
from rmq_store.format.hashes import crc32_of_slices, java_string_hashes
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage
from rmq_store.search.queue_selection import require_topic
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress

FIRST, SECOND = SIDES = ("first", "second")
DIFFERENT = "different"
_READ = ("uniqKey", "bornTimestamp", "bornHost", "queueId", "queueOffset", "body")
_SCHEMA = pa.schema(
    [
        *(("key", pa.string()), ("crc", pa.int64()), ("queueId", pa.int32())),
        *(("queueOffset", pa.int64()), (FIRST, pa.int64()), (SECOND, pa.int64())),
    ]
)
_WITHOUT_UNIQ_KEY = "\0"  # begins the key that stands for one
_COMPARED_AT_ONCE = 500_000  # messages, with a few hundred bytes each where the stores differ


@dataclass(frozen=True, slots=True)
class TopicDiff:
    """How many messages of a topic each store has: in both, in one alone, and in both with other bodies."""

    topic: str
    both: int
    onlyFirst: int
    onlySecond: int
    different: int

    @property
    def differs(self) -> bool:
        """Whether the stores do not have the same messages of the topic."""
        return bool(self.onlyFirst or self.onlySecond or self.different)


@dataclass(frozen=True, slots=True)
class OneSided:
    """A message that one store has and the other has not, or not with this body.

    `where`: first, second or different. `store`: first or second, the one that the queue is of.
    `uniqKey`: None for a message without UNIQ_KEY.
    """

    topic: str
    uniqKey: str | None
    where: str
    store: str
    queueId: int
    queueOffset: int


def diff_messages(
    first: MessageStore,
    second: MessageStore,
    topics: Sequence[str] = (),
    progress: Progress | None = None,
    on_damage: OnDamage | None = None,
) -> Iterator[OneSided | TopicDiff]:
    """For each topic the messages that are not in both stores with the same body, then the counts.

    By default topics of users, of both stores. A message without UNIQ_KEY counts by the time and host of its
    producer, and by its body. Takes memory for half a million messages; those of a larger topic go through
    temporary files. Raises UnknownQueueError for a topic that neither store has, and the errors of
    `read_slices` for damage.
    """
    stores = first, second
    for topic in topics:
        if not any(store.view.queues_of(topic) for store in stores):
            require_topic(first, topic)
    wanted = sorted(set(topics) or {topic for store in stores for topic in store.topics(False)})
    counts = {t: sum(len(part) for store in stores for part in _ranges(store, t)) for t in wanted}
    if progress is not None:
        progress.expect(sum(counts.values()))
    for topic in wanted:
        messages = (
            piece
            for store, side in zip(stores, SIDES, strict=True)
            for piece in _messages(store, topic, side, progress, on_damage)
        )
        sums = np.zeros(4, dtype=np.int64)
        for part in _by_key(messages, 1 + counts[topic] // _COMPARED_AT_ONCE):
            of_part, uneven = _compare(part)
            sums += of_part
            yield from _places(part, uneven, topic)
        yield TopicDiff(topic, *sums.tolist())


def _ranges(store: MessageStore, topic: str) -> list[QueueSlice]:
    return store.view.ranges_of([topic]) if store.view.queues_of(topic) else []


def _messages(
    store: MessageStore,
    topic: str,
    side: str,
    progress: Progress | None,
    on_damage: OnDamage | None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a topic as rows of _SCHEMA."""
    batches = store.read_slices(
        _ranges(store, topic),
        columns=_READ,
        compacted=False,
        unwrap_batches=True,
        on_damage=on_damage,
    )
    for batch in batches:
        if progress is not None:
            progress(batch.num_rows)
        bounds, bodies = buffers(batch["body"])
        starts = bounds.astype(np.int64)
        crcs = pa.array(crc32_of_slices(bodies, starts[:-1], np.diff(starts)))
        born = batch["bornTimestamp"].cast(pa.int64()).cast(pa.string())
        made = pc.binary_join_element_wise(born, batch["bornHost"], crcs.cast(pa.string()), " ")
        count = {name: pa.array(np.full(len(crcs), name == side, dtype=np.int64)) for name in SIDES}
        columns = {
            "key": pc.coalesce(
                batch["uniqKey"], pc.binary_join_element_wise(_WITHOUT_UNIQ_KEY, made, "")
            ),
            "crc": crcs,
            "queueId": batch["queueId"],
            "queueOffset": batch["queueOffset"],
            **count,
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def _by_key(messages: Iterator[pa.RecordBatch], parts: int) -> Iterator[pa.Table]:
    """The messages in so many parts; those of one key are in one part, in their order."""
    if parts == 1:
        yield pa.Table.from_batches(messages, schema=_SCHEMA)
        return
    with TemporaryDirectory(prefix="rmqstore-diff-") as folder:
        paths = [Path(folder, str(part)) for part in range(parts)]
        with ExitStack() as writers:
            files = [writers.enter_context(pa.ipc.new_stream(path, _SCHEMA)) for path in paths]
            for batch in messages:
                part_of = _hashes(batch["key"]) % parts
                for part in np.unique(part_of).tolist():
                    files[part].write_batch(batch.filter(pa.array(part_of == part)))
        for path in paths:
            with pa.ipc.open_stream(path) as stream:
                yield stream.read_all()


def _hashes(keys: pa.Array) -> Ints:
    ends, text = buffers(keys)
    return java_string_hashes(text, ends).astype(np.int64)


def _compare(messages: pa.Table) -> tuple[list[int], pa.Table]:
    """The counts of a TopicDiff, and for each key and CRC how many more one of the stores has."""
    grouped = messages.group_by(["key", "crc"]).aggregate([(side, "sum") for side in SIDES])
    in_first, in_second = (grouped[f"{side}_sum"].to_numpy() for side in SIDES)
    both = np.minimum(in_first, in_second)
    uneven = grouped.select(["key", "crc"])
    for side, count in ((FIRST, in_first), (SECOND, in_second)):
        uneven = uneven.append_column(side, pa.array(count - both))
    uneven = uneven.filter(pa.array(in_first != in_second))
    by_key = uneven.group_by("key").aggregate([(side, "sum") for side in SIDES])
    more_first, more_second = (by_key[f"{side}_sum"].to_numpy() for side in SIDES)
    different = np.minimum(more_first, more_second)
    counts = (both, more_first - different, more_second - different, different)
    return [int(count.sum()) for count in counts], uneven


def _places(messages: pa.Table, uneven: pa.Table, topic: str) -> Iterator[OneSided]:
    """The messages of which one store has more. Of several with one key and body the first ones are in both,
    and of a key that both stores have with other bodies the first ones are different."""
    even: dict[tuple[str, int, str], int] = {}
    more: dict[tuple[str, str], int] = {}
    some = messages.filter(pc.is_in(messages["key"], uneven["key"].combine_chunks()))
    grouped = some.group_by(["key", "crc"]).aggregate([(side, "sum") for side in SIDES])
    for key, crc, *counts in zip(*(column.to_pylist() for column in grouped.columns), strict=True):
        for side, count in zip(SIDES, counts, strict=True):
            even[key, crc, side] = min(counts)
            more[key, side] = more.get((key, side), 0) + count - min(counts)
    different = {
        (key, side): min(more[key, FIRST], more[key, SECOND]) for key, _ in more for side in SIDES
    }
    for batch in some.to_batches(max_chunksize=1 << 13):
        for row in batch.to_pylist():
            key, side = row["key"], FIRST if row[FIRST] else SECOND
            if even[key, row["crc"], side]:
                even[key, row["crc"], side] -= 1
                continue
            where = DIFFERENT if different[key, side] else side
            different[key, side] -= where == DIFFERENT
            shown = None if key.startswith(_WITHOUT_UNIQ_KEY) else key
            yield OneSided(topic, shown, where, side, row["queueId"], row["queueOffset"])
