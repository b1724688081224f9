"""Which messages of two stores are in both, by UNIQ_KEY and body: for migrations and replays, where offsets
differ.

Each store adds up its messages in buckets of keys. The messages of a bucket with the same sums in both are in
both stores; those of the other buckets are read again, and compared one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.property_columns import buffers
from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import Mask
from rmq_store.format.hashes import crc32_of_strings, java_string_hashes
from rmq_store.format.queues import QueueSlice
from rmq_store.questions.answer_by_shares import Engine, OnProgress, StoreSource, ask, processes_for
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import ranges_by_log_slice
from rmq_store.search.selection import require_topic
from rmq_store.text.progress import Progress

FIRST, SECOND = SIDES = ("first", "second")
DIFFERENT = "different"
_READ = ("topic", "uniqKey", "bornTimestamp", "bornHost", "queueId", "queueOffset", "body")
_SCHEMA = pa.schema(
    [
        *(("topic", pa.string()), ("key", pa.string()), ("crc", pa.int64())),
        *(("queueId", pa.int32()), ("queueOffset", pa.int64()), ("bucket", pa.int64())),
    ]
)
_COUNTED = pa.schema([*_SCHEMA, *((side, pa.int64()) for side in SIDES)])
_MESSAGE = ["topic", "key", "crc"]
_WITHOUT_UNIQ_KEY = "\0"  # begins the key that stands for one
_BUCKETS = 1 << 14
_SHARE_BYTES = 128 << 20  # of the log
_COMPARED_AT_ONCE = 500_000  # messages, with a few hundred bytes each

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
Share = tuple[QueueSlice, ...]
Opened = tuple[StoreReader, StoreSource, Engine | None]
"""A store, the same store as an engine opens it, and the engine; None: processes of this host."""


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
class MessageDiff:
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


@dataclass(slots=True)
class Sums:
    """Messages added up: their hashes modulo 2**64 and their number by bucket, and their number by topic.

    `damage`: the errors of those that were left out.
    """

    hashes: Hashes = field(default_factory=lambda: np.zeros(_BUCKETS, dtype=np.uint64))
    counts: Hashes = field(default_factory=lambda: np.zeros(_BUCKETS, dtype=np.uint64))
    topics: Counter[str] = field(default_factory=Counter)
    damage: list[StoreError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Look:
    """What both looks at a store have in common: shares of its messages along the log.

    `skips`: leave damage out.
    """

    topics: Sequence[str]
    skips: bool

    def plan(self, store: StoreReader) -> list[Share]:
        """Ranges of queues along the log, of about `_SHARE_BYTES` each."""
        return ranges_by_log_slice(store, _ranges(store, self.topics), _SHARE_BYTES)

    def weight(self, share: Share) -> int:
        """The number of entries."""
        return sum(map(len, share))

    def _messages(
        self, store: StoreReader, share: Share, on_damage: Callable[[StoreError], None]
    ) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
        """The messages of a share as rows of _SCHEMA, and the hash of each."""
        for batch in store.read_slices(
            share,
            columns=_READ,
            compacted=False,
            unwrap_batches=True,
            check_ends=False,
            on_damage=on_damage if self.skips else None,
        ):
            yield _hashed(batch)


@dataclass(frozen=True, slots=True)
class SumsQuestion(_Look):
    """Adds up the messages of a store."""

    def work(self, store: StoreReader, share: Share, progress: OnProgress) -> Sums:
        """The sums of one share."""
        sums = Sums()
        for batch, hashes in self._messages(store, share, sums.damage.append):
            progress(batch.num_rows)
            buckets = batch["bucket"].to_numpy()
            np.add.at(sums.hashes, buckets, hashes)
            sums.counts += np.bincount(buckets, minlength=_BUCKETS).astype(np.uint64)
            counted = pc.value_counts(batch["topic"])
            sums.topics.update({row["values"]: row["counts"] for row in counted.to_pylist()})
        return sums

    def merge(self, store: StoreReader, parts: Iterable[Sums]) -> Sums:
        """The sums of the whole store."""
        whole = Sums()
        for part in parts:
            whole.hashes += part.hashes
            whole.counts += part.counts
            whole.topics += part.topics
            whole.damage += part.damage
        return whole


@dataclass(frozen=True, slots=True)
class MessagesOfBuckets(_Look):
    """The messages of a store in some buckets."""

    buckets: Mask

    def work(self, store: StoreReader, share: Share, progress: OnProgress) -> pa.Table:
        """Those of one share."""
        batches = []
        for batch, _ in self._messages(store, share, lambda error: None):
            progress(batch.num_rows)
            batches.append(batch.filter(pa.array(self.buckets[batch["bucket"].to_numpy()])))
        return pa.Table.from_batches(batches, schema=_SCHEMA)

    def merge(self, store: StoreReader, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Those of each share, when somebody takes them."""
        return iter(parts)


def diff_messages(
    first: Opened,
    second: Opened,
    topics: Sequence[str] = (),
    progress: Progress | None = None,
    on_damage: OnDamage | None = None,
) -> Iterator[MessageDiff | TopicDiff]:
    """The messages that are not in both stores with the same body, then the counts of each topic.

    By default topics of users, of both stores. A message without UNIQ_KEY counts by the time and host of its
    producer, and by its body. Takes memory for half a million messages; if more differ they go through
    temporary files. Raises UnknownQueueError for a topic that neither store has, and the errors of
    `read_slices` for damage, which `on_damage` gets instead.
    """
    sides = first, second
    stores = [store for store, _, _ in sides]
    for topic in topics:
        if not any(store.view.queues_of(topic) for store in stores):
            require_topic(stores[0], topic)
    wanted = sorted(set(topics) or {topic for store in stores for topic in store.topics(False)})
    skips = on_damage is not None
    sums: list[Sums] = []
    adding = SumsQuestion(wanted, skips)
    for store, source, engine in sides:
        engine = engine or processes_for(store)
        sums.append(ask(adding, source, engine, progress=progress))
        opening = store.opening  # what it saw to be missing at the ends of the queues
        for error in [*sums[-1].damage, *opening.errors(opening.ends_in(_ranges(store, wanted)))]:
            if on_damage is None:
                raise error
            on_damage(error)
    uneven = (sums[0].hashes != sums[1].hashes) | (sums[0].counts != sums[1].counts)
    counts = {topic: np.zeros(3, dtype=np.int64) for topic in wanted}
    if uneven.any():
        question = MessagesOfBuckets(wanted, skips, uneven)
        messages = (
            _of_side(table, name)
            for (store, source, engine), name in zip(sides, SIDES, strict=True)
            for table in ask(question, source, engine or processes_for(store), progress=progress)
        )
        most = sum(int(of_side.counts[uneven].sum()) for of_side in sums)
        for bucket in _by_key(messages, 1 + most // _COMPARED_AT_ONCE):
            differing = _compare(bucket)
            for topic, *of_topic in _by_topic(differing):
                counts[topic] += of_topic
            yield from _places(bucket, differing)
    for topic in wanted:
        only_first, only_second, different = counts[topic].tolist()
        both = sums[0].topics[topic] - only_first - different
        yield TopicDiff(topic, both, only_first, only_second, different)


def _ranges(store: StoreReader, topics: Sequence[str]) -> list[QueueSlice]:
    return store.view.ranges_of([topic for topic in topics if store.view.queues_of(topic)])


def _hashed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Hashes]:
    """Messages as rows of _SCHEMA, and the hash of topic, key and body of each."""
    ends, bodies = buffers(batch["body"])
    crcs = crc32_of_strings(bodies, ends)
    born = batch["bornTimestamp"].cast(pa.int64()).cast(pa.string())
    texts = born, batch["bornHost"], pa.array(crcs).cast(pa.string())
    made = pc.binary_join_element_wise(_WITHOUT_UNIQ_KEY, *texts, " ")
    keys = pc.coalesce(batch["uniqKey"], made)
    topics = batch["topic"].cast(pa.string())
    of_keys = _hashes(pc.binary_join_element_wise(topics, keys, "\n"))
    buckets = (of_keys % np.uint64(_BUCKETS)).astype(np.int64)
    columns = topics, keys, pa.array(crcs), batch["queueId"], batch["queueOffset"]
    rows = pa.RecordBatch.from_arrays([*columns, pa.array(buckets)], schema=_SCHEMA)
    return rows, _mixed(of_keys + crcs.astype(np.uint64))


def _hashes(texts: pa.Array) -> Hashes:
    """Hashes of 64 bits: two of 32 bits that have nothing in common."""
    ends, raw = buffers(texts)
    low = crc32_of_strings(raw, ends).astype(np.uint64)
    high = java_string_hashes(raw, ends).astype(np.uint32).astype(np.uint64)
    return _mixed((high << np.uint64(32)) | low)


def _mixed(values: Hashes) -> Hashes:
    """The values with each bit spread over all others (the last step of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _of_side(messages: pa.Table, side: str) -> pa.Table:
    """Rows of _COUNTED: messages of one store."""
    for name in SIDES:
        counts = np.full(len(messages), name == side, dtype=np.int64)
        messages = messages.append_column(name, pa.array(counts))
    return messages


def _by_key(messages: Iterator[pa.Table], parts: int) -> Iterator[pa.Table]:
    """The messages in so many parts; those of one key are in one part, in their order."""
    if parts == 1:
        yield pa.concat_tables([_COUNTED.empty_table(), *messages])
        return
    with TemporaryDirectory(prefix="rmqstore-diff-") as folder:
        paths = [Path(folder, str(bucket)) for bucket in range(parts)]
        with ExitStack() as writers:
            files = [writers.enter_context(pa.ipc.new_stream(path, _COUNTED)) for path in paths]
            for table in messages:
                part_of = table["bucket"].to_numpy() % parts
                for bucket in np.unique(part_of).tolist():
                    files[bucket].write_table(table.filter(pa.array(part_of == bucket)))
        for path in paths:
            with pa.ipc.open_stream(path) as stream:
                yield stream.read_all()


def _compare(messages: pa.Table) -> pa.Table:
    """How many more messages one of the stores has, for each topic, key and CRC of which they differ."""
    grouped = messages.group_by(_MESSAGE).aggregate([(side, "sum") for side in SIDES])
    in_first, in_second = (grouped[f"{side}_sum"].to_numpy() for side in SIDES)
    both = np.minimum(in_first, in_second)
    differing = grouped.select(_MESSAGE)
    for side, count in ((FIRST, in_first), (SECOND, in_second)):
        differing = differing.append_column(side, pa.array(count - both))
    return differing.filter(pa.array(in_first != in_second))


def _by_topic(differing: pa.Table) -> Iterator[tuple[str, int, int, int]]:
    """Each topic with the messages only in the first store, only in the second, and with other bodies."""
    by_key = differing.group_by(["topic", "key"]).aggregate([(side, "sum") for side in SIDES])
    in_first, in_second = (by_key[f"{side}_sum"].to_numpy() for side in SIDES)
    different = np.minimum(in_first, in_second)
    counts = pa.table(
        {
            "topic": by_key["topic"],
            FIRST: in_first - different,
            SECOND: in_second - different,
            DIFFERENT: different,
        }
    )
    names = (FIRST, SECOND, DIFFERENT)
    for row in counts.group_by("topic").aggregate([(name, "sum") for name in names]).to_pylist():
        yield row["topic"], *(row[f"{name}_sum"] for name in names)


def _places(messages: pa.Table, differing: pa.Table) -> Iterator[MessageDiff]:
    """The messages of which one store has more. Of several with one key and body the first ones are in both,
    and of a key that both stores have with other bodies the first ones are different."""
    some = messages.join(differing.select(_MESSAGE), _MESSAGE, join_type="left semi")
    grouped = some.group_by(_MESSAGE).aggregate([(side, "sum") for side in SIDES])
    even: dict[tuple[str, str, int, str], int] = {}
    more: Counter[tuple[str, str, str]] = Counter()
    columns = [column.to_pylist() for column in grouped.columns]
    for topic, key, crc, *counts in zip(*columns, strict=True):
        for side, count in zip(SIDES, counts, strict=True):
            even[topic, key, crc, side] = min(counts)
            more[topic, key, side] += count - min(counts)
    different = {
        (topic, key, side): min(more[topic, key, FIRST], more[topic, key, SECOND])
        for topic, key, _ in more
        for side in SIDES
    }
    order = [(FIRST, "descending"), ("queueId", "ascending"), ("queueOffset", "ascending")]
    for batch in some.sort_by(order).to_batches(max_chunksize=1 << 13):
        for row in batch.to_pylist():
            topic, key, side = row["topic"], row["key"], FIRST if row[FIRST] else SECOND
            if even[topic, key, row["crc"], side]:
                even[topic, key, row["crc"], side] -= 1
                continue
            where = DIFFERENT if different[topic, key, side] else side
            different[topic, key, side] -= where == DIFFERENT
            shown = None if key.startswith(_WITHOUT_UNIQ_KEY) else key
            yield MessageDiff(topic, shown, where, side, row["queueId"], row["queueOffset"])
