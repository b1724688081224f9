"""The messages of stores as a `pyarrow.dataset.Dataset`: what others push down decides what is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import TIMESTAMP, arrow_schema
from rmq_store.dataset.lazy_dataset import Batches, Fragment, LazyDataset
from rmq_store.errors import LOG, InvalidArgumentError, nearest
from rmq_store.format.topics import is_system_topic
from rmq_store.reading.query import (
    FIRST_BATCH_ROWS,
    PERMISSIVE,
    DamageMode,
    Query,
    ReadOptions,
    number,
    several_values,
)
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.scan import Scan
from rmq_store.scan.tasks import Share, StoreScan, read_messages
from rmq_store.search.condition import Condition, quoted_texts, values_of_all_matches
from rmq_store.search.log_partitions import newest_time, ranges_by_log_slice
from rmq_store.search.selection import CLOCK_SLACK_MS, DamageInRanges, ranges_in_store
from rmq_store.text.times import NotATimeError, Time, fixed_range, parse_time

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rmq_store.reading.query import CommonReadOptions

_FRAGMENT_BYTES = 64 << 20


class MessageDataset(LazyDataset):
    """Messages of stores, as of one moment each. Reads what a query needs, and nothing before.

    - Only columns that the query or its filter names are read. If the queue entries have all of them
      (see `read_slices`), the log is not opened; `count_rows()` reads the queues alone.
    - A filter on brokerName, topic, queueId, queueOffset and commitLogOffset chooses the parts of queues to
      read. Other filters, whatever their form, read all messages: one on storeTimestamp too, because a
      broker's clock may have been set back. `since` and `until` of `messages` find a range of times
      without a look at the others.
    - A filter that only some values of `tags` can match reads the records of these tags, by the hashes in the
      entries; one that only some values of `msgId` can match, the records at their log offsets.
    - A filter that only some values of `keys` or `uniqKey` can match (up to 20 in a list) uses the
      index, as `keys` does, and reads the log where no index covers it. If the index has none of them
      and the log is short (256 MiB), the queues are read whole: a damaged index hides messages.
    - The filter is applied to every row that is read.
    - Damage raises the error of `read_slices` while rows are read, unless `on_damage` was given. Parts
      that a filter excludes are not read, and their damage is not seen; what a queue lost at an end is
      reported if the filter may match it. Bodies are read, and held
      against their CRC, only where a query names `body` or `rawBody`; `check_crc` decides otherwise.

    Rows have no promised order. Several threads may scan at a time: each scan opens the stores again.
    Not picklable; not to be joined or sorted by Arrow, which are tasks of the query engine or of the table.
    """

    def __init__(
        self,
        stores: Sequence[StoreReader],
        scan: Scan,
        schema: pa.Schema,
        how: ReadOptions,
        wanted: Any = None,
    ) -> None:
        """Use `MessageStore.messages` or `messages_of`."""
        place = schema.get_field_index("storeTimestamp")
        every = arrow_schema(["storeTimestamp"]) if place < 0 else []
        super().__init__(schema, pa.schema([*schema, *every]))
        self._stores, self._scan = tuple(stores), scan
        self._how, self._query, self._filter = how, Query.of(False, **how), wanted

    def __repr__(self) -> str:
        messages = sum(len(range_) for part in self._scan.stores for range_ in part.ranges)
        stores = ", ".join(repr(store.broker_name) for store in self._stores)
        kind = "" if self._filter is None else f", filter={self._filter}"
        return f"MessageDataset({stores}, up to {messages} messages{kind})"

    def _counted_by(self) -> pa.Field:
        return replace(self._query, columns=["queueId"]).schema.field(0)

    def with_columns(self, columns: Sequence[str]) -> MessageDataset:
        """The same messages with other columns. Raises InvalidArgumentError for an unknown one."""
        schema = arrow_schema(columns)
        return MessageDataset(self._stores, self._scan, schema, self._how, self._filter)

    def filter(self, expression: Any) -> MessageDataset:
        """The dataset with only the rows that match; see the class for what is read."""
        wanted = self._wanted(expression)
        return MessageDataset(self._stores, self._scan, self._columns, self._how, wanted)

    def _wanted(self, wanted: Any) -> Any:
        if self._filter is None or wanted is None:
            return self._filter if wanted is None else wanted
        return self._filter & wanted

    def plan(self, filter: Any = None) -> Scan:
        """What is read of each store with this filter: ranges of queues, and words of the index.

        Reads queue entries where the filter names their places.
        """
        wanted = self._wanted(filter)
        if wanted is None or _has_rows_about_damage(self._query):  # whose values are null
            return self._scan
        self._warn_of_unread_topics(wanted)
        self._warn_of_unknown_topics(wanted)
        return self._scan.narrowed(Condition.of(self._readable, wanted))

    def _warn_of_unread_topics(self, wanted: Any) -> None:
        """A filter may name a topic of the broker, which is not among the topics that are read."""
        for store, part in zip(self._stores, self._scan.stores, strict=True):
            if part.options.topics is not None or part.options.include_system_topics:
                return
            topics = set(store.topics()) - {range_.queue.topic for range_ in part.ranges}
            for topic in sorted(topics & quoted_texts(wanted)):
                LOG.warning("%s is a topic of the broker, which this query does not read", topic)

    def _warn_of_unknown_topics(self, wanted: Any) -> None:
        """A misspelt topic is no error in a query, and has no rows."""
        named = values_of_all_matches(self._readable, wanted, "topic") or frozenset()
        views = [store.view for store in self._stores]
        if all(any(view.queues_of(topic) for view in views) for topic in named):
            return
        topics = set[str]().union(*(view.topics.every for view in views))
        for topic in sorted(named - topics):
            LOG.warning(
                "there is no topic %r. %s", topic, nearest(topic, topics, last=is_system_topic)
            )

    def _batches(self, columns: Sequence[str], wanted: Any) -> Batches:
        return self._read_all(self.plan(wanted), columns)

    @property
    def has_dictionaries(self) -> bool:
        """Whether `dictionary_batches` has dictionaries; not in a mode of damage."""
        return not isinstance(self._query.on_damage, DamageMode)

    def dictionary_batches(self, columns: Sequence[str], wanted: Any) -> Batches:
        """As the batches of a scan, but brokerName and topic are dictionaries."""
        return self._read_all(self.plan(wanted), columns, encoded=True)

    def _read_all(self, scan: Scan, columns: Sequence[str], *, encoded: bool = False) -> Batches:
        for part in zip(self._stores, scan.stores, strict=True):
            yield from self._read(*part, columns, encoded=encoded)

    def _read(
        self, opened: StoreReader, part: StoreScan, columns: Sequence[str], *, encoded: bool = False
    ) -> Batches:
        if not part.ranges:
            return
        with opened.reopen() as store, store.refusing_replacement():
            how: ReadOptions = {**self._how, "encoded": encoded, "keys": part.indexed_keys}
            ranges, plan = part.ranges, part.key_plan(store)
            if not isinstance(how.get("on_damage"), str):
                how["concerns"] = DamageInRanges(store, part.options)
            if plan is not None:
                view = store.ranges_for(part.options.sees_compacted)
                ranges = tuple(plan.ranges(view.offset_at_log))
            how["check_ends"] = plan is None and how.get("check_ends", True)
            share = Share(0, ranges=ranges)
            for batch in read_messages(part, share, store, columns, how):
                if batch.num_rows:
                    yield batch

    def get_fragments(self, filter: Any = None) -> Iterator[MessageFragment]:
        """The parts of the log that have rows which match, each to be scanned by itself."""
        for opened, part in zip(self._stores, self.plan(filter).stores, strict=True):
            if part.indexed_keys is not None:
                yield MessageFragment(self, opened, part)
                continue
            with opened.reopen() as store:
                view = store.ranges_for(part.options.sees_compacted)
                for ranges in ranges_by_log_slice(store, part.ranges, _FRAGMENT_BYTES, view):
                    yield MessageFragment(self, opened, replace(part, ranges=ranges))


class MessageFragment(Fragment):
    """A part of a dataset: a slice of the log of one store."""

    def __init__(self, dataset: MessageDataset, opened: StoreReader, part: StoreScan) -> None:
        """Use `MessageDataset.get_fragments`."""
        super().__init__(dataset, lambda columns, _: dataset._read(opened, part, columns))
        self.part = part

    def __repr__(self) -> str:
        return f"MessageFragment({self.part.store.broker_name!r}, {len(self.part.ranges)} slices)"


def messages_of(
    stores: Sequence[StoreReader],
    topics: str | Sequence[str] | None = None,
    queue_ids: Collection[int] | None = None,
    *,
    since: int | str | None = None,
    until: int | str | None = None,
    columns: Sequence[str] | None = None,
    include_system_topics: bool = False,
    **how: Unpack[CommonReadOptions],
) -> MessageDataset:
    """The messages of several stores as one dataset; a filter on brokerName chooses among them.

    The arguments are those of `MessageStore.messages`.
    """
    how.setdefault("unwrap_batches", True)
    named, words = several_values("topics", topics), several_values("keys", how.get("keys"))
    times = _time("since", since), _time("until", until)
    since, until = fixed_range(*times, partial(newest_time, stores), names=("since", "until"))
    if words is not None:
        how["keys"] = words
    first: CommonReadOptions = {"first_batch_rows": FIRST_BATCH_ROWS, "log_order": False}
    options = cast("ReadOptions", {**first, **how})
    query = Query.of(False, columns=columns, **how)
    selection = ScanOptions(
        named,
        several_values("queue_ids", queue_ids, Integral),
        since,
        until,
        include_system_topics=include_system_topics,
        keys=words,
        compacted=query.compacted,
        max_body_bytes=query.max_body_bytes,
        unwrap_batches=query.unwrap_batches,
    )
    wanted = None
    for limit, is_first in ((since, True), (until, False)):
        if limit is not None:
            time, stored = pa.scalar(limit, pa.int64()).cast(TIMESTAMP), pc.field("storeTimestamp")
            condition = stored >= time if is_first else stored < time
            wanted = condition if wanted is None else wanted & condition
    if wanted is not None and _has_rows_about_damage(query):
        wanted |= pc.field("storeTimestamp").is_null()
    scans = []
    for store in stores:
        ranges = tuple(ranges_in_store(store, selection, CLOCK_SLACK_MS))
        scans.append(StoreScan(store.pinned(), ranges if words != () else (), selection))
    return MessageDataset(stores, Scan(tuple(scans)), query.schema, options, wanted)


def _time(name: str, value: int | str | None) -> Time | None:
    """The value of an argument that takes a time. Raises InvalidArgumentError for another."""
    if value is None or value == 0:
        return value
    try:
        return parse_time(value if isinstance(value, str) else str(number(name, value)))
    except NotATimeError as error:
        raise InvalidArgumentError(reason=f"{name}={value!r} {error}") from None


def _has_rows_about_damage(query: Query) -> bool:
    return isinstance(query.on_damage, DamageMode) and query.on_damage.mode == PERMISSIVE
