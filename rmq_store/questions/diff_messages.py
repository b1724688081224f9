"""Which messages of two stores are in both, by UNIQ_KEY and body: for migrations and replays, where offsets
differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.string_slices import buffers
from rmq_store.format.hashes import crc32_of_slices, java_string_hashes
from rmq_store.format.queues import QueueSlice
from rmq_store.search.queue_selection import require_topic
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress

FIRST, SECOND, DIFFERENT = "first", "second", "different"
_READ = ("uniqKey", "bornTimestamp", "bornHost", "queueId", "queueOffset", "body")
_SCHEMA = pa.schema(
    [
        *(("uniqKey", pa.string()), ("crc", pa.int64()), ("queueId", pa.int32())),
        *(("queueOffset", pa.int64()), (FIRST, pa.int64()), (SECOND, pa.int64())),
    ]
)
_MOST = 2_000_000  # messages that are compared together, with about 100 bytes each
_SAME = ["uniqKey", "crc"]


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
    """A message that one store has and the other has not, or not with this body. `where`: first, second or
    different; the queue is that of the store that has it."""

    topic: str
    uniqKey: str
    where: str
    store: str
    queueId: int
    queueOffset: int


def diff_messages(
    first: MessageStore,
    second: MessageStore,
    topics: Sequence[str] = (),
    progress: Progress | None = None,
) -> Iterator[tuple[TopicDiff, list[OneSided]]]:
    """For each topic, the counts, and the messages that are not in both stores with the same body.

    By default topics of users, of both stores. A message without UNIQ_KEY counts by the time and host of its
    producer. Takes memory for two million messages, and for those that are not in both; a larger topic is
    read once for each two million. Raises UnknownQueueError for a topic that neither store has, and the
    errors of `read_slices` for damage.
    """
    stores = first, second
    for topic in topics:
        if not any(store.view.queues_of(topic) for store in stores):
            require_topic(first, topic)
    wanted = sorted(topics or {topic for store in stores for topic in store.topics(False)})
    counts = {t: sum(len(part) for store in stores for part in _ranges(store, t)) for t in wanted}
    if progress is not None:
        progress.expect(sum(count * _parts(count) for count in counts.values()))
    for topic in wanted:
        yield _diff(stores, topic, _parts(counts[topic]), progress)


def _ranges(store: MessageStore, topic: str) -> list[QueueSlice]:
    return store.view.ranges_of([topic]) if store.view.queues_of(topic) else []


def _parts(count: int) -> int:
    return 1 + count // _MOST


def _diff(
    stores: tuple[MessageStore, MessageStore], topic: str, parts: int, progress: Progress | None
) -> tuple[TopicDiff, list[OneSided]]:
    sums = np.zeros(4, dtype=np.int64)
    sided: list[OneSided] = []
    for part in range(parts):
        messages = pa.concat_tables(
            _messages(store, topic, (part, parts), side, progress)
            for store, side in zip(stores, (FIRST, SECOND), strict=True)
        )
        counts, uneven = _compare(messages)
        sums += counts
        sided += reversed(list(_places(messages, uneven, topic)))
    return TopicDiff(topic, *sums.tolist()), sided


def _messages(
    store: MessageStore, topic: str, part: tuple[int, int], side: str, progress: Progress | None
) -> pa.Table:
    """The messages of a topic whose keys are of one part of several, as rows of _SCHEMA."""
    pieces, ranges = [], _ranges(store, topic)
    for batch in store.read_slices(ranges, columns=_READ, compacted=False, unwrap_batches=True):
        if progress is not None:
            progress(batch.num_rows)
        born = pc.binary_join_element_wise(
            batch["bornTimestamp"].cast(pa.int64()).cast(pa.string()), batch["bornHost"], " "
        )
        keys = pc.coalesce(batch["uniqKey"], born)
        ends, text = buffers(keys)
        rows = np.flatnonzero(java_string_hashes(text, ends) % part[1] == part[0])
        bounds, bodies = buffers(batch["body"])
        starts = bounds.astype(np.int64)
        crcs = crc32_of_slices(bodies, starts[:-1], np.diff(starts))
        own, none = pa.array(np.ones(len(rows), np.int64)), pa.array(np.zeros(len(rows), np.int64))
        columns = [
            keys.take(pa.array(rows)),
            pa.array(crcs[rows]),
            *(batch[name].take(pa.array(rows)) for name in ("queueId", "queueOffset")),
            *((own, none) if side == FIRST else (none, own)),
        ]
        pieces.append(pa.Table.from_arrays(columns, schema=_SCHEMA))
    return pa.concat_tables([_SCHEMA.empty_table(), *pieces])


def _compare(messages: pa.Table) -> tuple[list[int], pa.Table]:
    """The counts of a TopicDiff, and for each key and CRC how many more one of the stores has."""
    grouped = messages.group_by(_SAME).aggregate([(FIRST, "sum"), (SECOND, "sum")])
    in_first, in_second = (grouped[f"{side}_sum"].to_numpy() for side in (FIRST, SECOND))
    both = np.minimum(in_first, in_second)
    uneven = grouped.select(_SAME)
    for side, count in ((FIRST, in_first), (SECOND, in_second)):
        uneven = uneven.append_column(side, pa.array(count - both))
    uneven = uneven.filter(pa.array(in_first != in_second))
    by_key = uneven.group_by("uniqKey").aggregate([(FIRST, "sum"), (SECOND, "sum")])
    more_first, more_second = (by_key[f"{side}_sum"].to_numpy() for side in (FIRST, SECOND))
    other = np.minimum(more_first, more_second)
    counts = (both, more_first - other, more_second - other, other)
    return [int(count.sum()) for count in counts], uneven


def _places(messages: pa.Table, uneven: pa.Table, topic: str) -> Iterator[OneSided]:
    """The messages of the keys and CRCs of which one store has more, each with the store that has it."""
    sides: dict[str, set[str]] = {}
    more: dict[tuple[str, int, str], int] = {}
    for row in uneven.to_pylist():
        for side in (FIRST, SECOND):
            if row[side]:
                sides.setdefault(row["uniqKey"], set()).add(side)
                more[row["uniqKey"], row["crc"], side] = row[side]
    some = messages.filter(pc.is_in(messages["uniqKey"], uneven["uniqKey"].combine_chunks()))
    for row in reversed(
        some.to_pylist()
    ):  # of several with one key and body, the later ones are more
        key, side = row["uniqKey"], FIRST if row[FIRST] else SECOND
        if more.get((key, row["crc"], side), 0):
            more[key, row["crc"], side] -= 1
            where = DIFFERENT if len(sides[key]) == 2 else side
            yield OneSided(topic, key, where, side, row["queueId"], row["queueOffset"])
