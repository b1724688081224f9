"""Follow the logs of the stores of a stream: where it starts, and where a micro-batch ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commitlog.log import Mark
from rmq_store.config.dledger import unread_dledger
from rmq_store.config.locate import broker_names_of_paths, name_in_pattern
from rmq_store.errors import DataLossError, InvalidArgumentError, MissingFileError, StoreError
from rmq_store.files.remote.uri_filesystem import has_pattern
from rmq_store.files.segments import again_if_expired
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.log_reader import (
    LogEndFinder,
    LogPlace,
    end_after_bytes,
    end_after_rows,
    end_of_known_records,
)
from rmq_store.reading.query import warn_of_tags
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.options import STREAM_OPTIONS
from rmq_store.scan.parse_options import ScanOptions, parse_option, parse_options
from rmq_store.scan.scan import StoreToOpen, require_one_name_each, stores_to_open
from rmq_store.search.log_partitions import newest_time
from rmq_store.search.selection import ByQueue, QueueLimitsInLog, WantedQueues, first_offsets
from rmq_store.snapshot.snapshot import StoreSnapshot

LATEST, EARLIEST, GIVEN = "latest", "earliest", "given"
_OWN = {option.name.casefold(): option for option in STREAM_OPTIONS}
_STARTS = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")

# Options of a batch -> why a stream has none of them, and what to use.
_NOT_OF_A_STREAM: Mapping[str, str] = {
    **dict.fromkeys(
        ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
        "A stream has no end: read a batch with spark.read, or stop at what is there now with "
        ".trigger(availableNow=True)",
    ),
    "source": "A stream always reads the log; leave it out",
    "compacted": "A stream returns every message; a batch gives the last one of each key",
    "includeUnqueued": "A stream returns what queues will list; read a batch with "
    "source=commitlog for the rest",
    "splitBy": "A stream cuts the log; repartition by topic and queueId if order per queue matters",
    "verifyQueue": "A stream reads the records themselves; leave it out",
    "maxRecordsPerPartition": "Give maxBytesPerPartition",
    "startingOffsetsByTimestampStrategy": "A queue without such a message starts at its end",
    "table": "Tables are read as a batch, with spark.read",
    "unavailableStores": "A stream fails while a store cannot be opened, and continues there after a "
    "restart; leave it out",
    "checkpointLocation": "It is an option of writeStream",
}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream has besides a batch. `start`: latest, earliest, or given in the other options.

    `max_delay_s`: seconds that a micro-batch waits for `min_rows`.
    """

    start: str = LATEST
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay_s: float = 900.0


def options_as_of_batch(raw: Mapping[str, str]) -> dict[str, str]:
    """The options without those that only a stream has."""
    return {
        name: value
        for name, value in raw.items()
        if name.casefold() not in _OWN and not _is_latest(name, value)
    }


def parse_stream_options(raw: Mapping[str, str]) -> tuple[ScanOptions, StreamOptions]:
    """The options of a stream as typed values.

    Raises InvalidArgumentError as `parse_options`, and for an option that a stream cannot have.
    """
    by_name = {name.casefold(): value for name, value in raw.items()}
    for name, advice in _NOT_OF_A_STREAM.items():
        if name.casefold() in by_name:
            raise InvalidArgumentError(
                reason=f"option {name!r} has no meaning in a stream", advice=advice
            )
    options = parse_options(options_as_of_batch(raw))
    own = {name: option for name, option in _OWN.items() if name in by_name}
    fields = {option.field: parse_option(option, by_name[name]) for name, option in own.items()}
    return options, StreamOptions(_start(by_name), **fields)


def _start(given: Mapping[str, str]) -> str:
    word = given.get(_STARTS[0], LATEST).strip().lower()
    others = any(name in given for name in _STARTS[1:])
    return GIVEN if others or word not in (LATEST, EARLIEST) else word


def _is_latest(name: str, value: str) -> bool:
    return name.casefold() == _STARTS[0] and value.strip().lower() == LATEST


VERSION = 1


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A place in the log of one store.

    `since`: where the stream began in a store that appeared after the query. `first_offsets`: the
    first wanted queue offset of queues, for records that start before `first_until` in the log;
    only the first offsets of a query have them.
    """

    place: LogPlace
    since: int | None = None
    first_offsets: Mapping[QueueId, int] = field(default_factory=dict)
    first_until: int = 0


StreamOffset = Mapping[str, StorePlace]
"""Broker name -> place."""


def offset_to_dict(offset: StreamOffset) -> dict[str, Any]:
    """The offset as Spark keeps it."""
    return {"version": VERSION, "stores": {name: _of_place(p) for name, p in offset.items()}}


def places_from_dict(offset: Mapping[str, Any]) -> dict[str, StorePlace]:
    """The offset from Spark's checkpoint. Raises InvalidArgumentError for another format."""
    if offset.get("version") != VERSION:
        raise InvalidArgumentError(
            reason="the checkpoint's offset has another format",
            expected=f"version {VERSION}",
            actual=repr(offset.get("version")),
            advice="It is from another release of rmqstore or another source; use a new checkpoint",
        )
    return {name: _to_place(stored) for name, stored in offset["stores"].items()}


def _of_place(place: StorePlace) -> dict[str, Any]:
    marks = {"before": place.place.before, "first": place.place.first}
    values: dict[str, Any] = {"log": place.place.offset}
    values |= {name: astuple(mark) for name, mark in marks.items() if mark is not None}
    if place.since is not None:
        values["since"] = place.since
    if place.first_offsets:
        by_topic: dict[str, dict[str, int]] = {}
        for queue, offset in place.first_offsets.items():
            by_topic.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
        values |= {"firstOffsets": by_topic, "firstUntil": place.first_until}
    return values


def _to_place(stored: Mapping[str, Any]) -> StorePlace:
    marks = (None if stored.get(n) is None else Mark(*stored[n]) for n in ("before", "first"))
    first = {
        QueueId(topic, int(queue_id)): offset
        for topic, queues in stored.get("firstOffsets", {}).items()
        for queue_id, offset in queues.items()
    }
    return StorePlace(
        LogPlace(stored["log"], *marks), stored.get("since"), first, stored.get("firstUntil", 0)
    )


class Follower:
    """Finds the places of a stream. Opens each store without its queues, as it is now.

    `ends`: where the logs ended at the last look, without any limit.
    """

    def __init__(self, options: ScanOptions, stream: StreamOptions) -> None:
        self.options, self.stream = options, stream
        self.ends: dict[str, StorePlace] = {}
        self._names: dict[str, str] = {}  # path -> broker name, where no option gives it
        self._followers: dict[str, LogEndFinder] = {}  # by broker name

    # --- stores ----------------------------------------------------------------------------------

    def targets(self) -> dict[str, StoreToOpen]:
        """The stores that there are now, by broker name.

        Raises InvalidArgumentError if two have the same name.
        """
        named = [(self._name_of(target), target) for target in stores_to_open(self.options)]
        require_one_name_each([(name, target.path) for name, target in named])
        return dict(named)

    def _name_of(self, target: StoreToOpen) -> str:
        """A name that stays the same when another store appears under a pattern."""
        if self.options.broker_name is not None:
            return self.options.broker_name
        for pattern in self.options.paths:
            name = name_in_pattern(pattern, target.path)
            if name is not None:
                return name
        plain = list(dict.fromkeys(path for path in self.options.paths if not has_pattern(path)))
        if target.path in plain and len(self.options.paths) > 1:
            return broker_names_of_paths(plain)[plain.index(target.path)]
        if target.broker_name is not None:
            return target.broker_name
        if target.path not in self._names:
            with self.open(None, target) as store:
                self._names[target.path] = store.broker_name
        return self._names[target.path]

    def open(self, name: str | None, target: StoreToOpen, end: int | None = 0) -> StoreReader:
        """The store of a broker without its queues; `read_log` reads it up to log offset `end`. None:
        the whole store.

        Without queues the end of the log is not searched for, which can take a walk through a whole file.
        """
        store = StoreReader.open(
            target.path,
            broker_name=name,
            broker_conf=target.broker_conf,
            snapshot=None if end is None else StoreSnapshot(0, end),
            queues=end is None,
            storage_options=self.options.storage_options,
        )
        # A broker that moves to DLedger stores nothing more in the log that is followed.
        missing = unread_dledger(store.path, store.config, store.log.chain.segments)
        if missing is not None:
            store.close()
            raise missing
        return store

    def end_finder_of(self, name: str, target: StoreToOpen) -> LogEndFinder:
        """Finds the end of the whole records of a store, at each look."""

        def listed_end() -> int:
            with self.open(name, target, None) as store:
                return end_of_known_records(store.view, store.queues())

        return self._followers.setdefault(name, LogEndFinder(listed_end))

    def require(self, name: str) -> StoreToOpen:
        """The store of a broker. Raises MissingFileError if it is gone."""
        targets = self.targets()
        if name not in targets:
            raise MissingFileError(
                self.options.path,
                reason=f"the stream has read from broker {name!r}, and no store has this name now",
                expected=name,
                actual=", ".join(sorted(targets)),
                advice="Put the store back; if only its name is another one because stores were added, "
                "name them by option 'stores'; or start a new query with another checkpoint",
            )
        return targets[name]

    def with_queues(self, stores: Iterable[tuple[str, StoreToOpen]]) -> Iterator[StoreReader]:
        """Some stores, by broker name, as they are now, each open until the next one."""
        for name, target in stores:
            with self.open(name, target, None) as store:
                yield store

    # --- where a query starts --------------------------------------------------------------------

    def initial(self) -> dict[str, StorePlace]:
        """Where a new query starts: by default at the ends of the logs."""
        warn_of_tags(self.options.tags)
        targets = self.targets()
        options = self.options.with_fixed_times(
            lambda: newest_time(self.with_queues(targets.items()))
        )
        return {name: self._initial(name, target, options) for name, target in targets.items()}

    def _initial(self, name: str, target: StoreToOpen, options: ScanOptions) -> StorePlace:
        with self.open(name, target, None) as store:
            start = store.log_range()[0]
            # Not the end of the snapshot: its last record may be half-written, and then the bytes
            # before the place would change.
            end = self.end_finder_of(name, target).end(store.log, start)
            if self.stream.start == LATEST:
                return StorePlace(LogPlace.at(store.log, end))
            if self.stream.start == EARLIEST:
                return StorePlace(LogPlace.at(store.log, start))
            first = first_offsets(store, options)
            at = max(start, self._first_place(store, first, start, end))
            return StorePlace(LogPlace.at(store.log, at), None, first, end)

    def _first_place(
        self, store: StoreReader, first: Mapping[QueueId, int], start: int, end: int
    ) -> int:
        """Where the first message of all is in the log; `start` if an entry does not lead to its own."""
        states, damage = store.snapshot().queues, list[StoreError]()
        wanted = [QueueSlice(q, n, n + 1) for q, n in first.items() if q in states]
        batches = store.read_slices(
            [part for part in wanted if part.stop <= states[part.queue].max_offset],
            columns=("commitLogOffset", "storeTimestamp"),
            check_crc=False,
            check_ends=False,
            compacted=False,
            on_damage=damage.append,
        )
        places = [pc.min(batch["commitLogOffset"]).as_py() for batch in batches if batch.num_rows]
        return start if damage else min(places, default=end)

    # --- where a micro-batch ends ----------------------------------------------------------------

    def latest(
        self, start: StreamOffset, *, limited: bool = False, target: StreamOffset | None = None
    ) -> dict[str, StorePlace]:
        """Where the logs end now, not after `target`. `limited`: at most the rows and bytes of the options
        after `start`.

        A store that is new under a pattern begins at the start of its log. Each store gets an equal
        part of the rows.
        """
        stores = {name: self.require(name) for name in start} | self.targets()
        limits = self.stream if limited else StreamOptions()
        each = None if limits.max_rows is None else max(1, limits.max_rows // len(stores))
        places: dict[str, StorePlace] = {}
        for name, where in stores.items():
            look = partial(self._latest_of, name, where, start, each, limits.max_bytes, target)
            place = again_if_expired(look)
            if place is not None:
                places[name] = place
        return places

    def _latest_of(
        self,
        name: str,
        where: StoreToOpen,
        start: StreamOffset,
        most_rows: int | None,
        most_bytes: int | None,
        target: StreamOffset | None,
    ) -> StorePlace | None:
        """The same of one store; None if it is new and has nothing yet."""
        with self.open(name, where) as store:
            before = start.get(name) or self._since(store)
            end = self._end(store, where, before)
            self.ends[name] = StorePlace(LogPlace.at(store.log, end))
            if target is not None:
                end = min(end, target[name].place.offset) if name in target else store.log.start
            if most_bytes is not None:
                end = end_after_bytes(store.log, before.place.offset, end, most_bytes)
            if most_rows is not None and end > before.place.offset:
                end = end_after_rows(self._rows(name, where, before, end), end, most_rows)
            moved = name in start or end > before.place.offset
            return _moved(store, before, end) if moved else None

    def _since(self, store: StoreReader) -> StorePlace:
        start = store.log.start
        return StorePlace(LogPlace.at(store.log, start), start)

    def _end(self, store: StoreReader, target: StoreToOpen, before: StorePlace) -> int:
        """The end of the whole records. failOnDataLoss decides if the log is not the same."""
        follower = self.end_finder_of(store.broker_name, target)
        try:
            return follower.end_after(store.log, before.place, target.path)
        except DataLossError as error:  # a LogCutError too
            self.options.lose(error)
        # Only the end matters, and that is not before the last file.
        return follower.end(store.log, store.log.start)

    # --- rows ------------------------------------------------------------------------------------

    def rows_between(self, start: StreamOffset, end: StreamOffset, enough: int) -> int:
        """The number of rows between two offsets; stops counting at `enough`."""
        count = 0
        for name, last in end.items():
            where = self.require(name)
            for batch in self._rows(name, where, start.get(name), last.place.offset):
                count += int(batch.num_rows)
                if count >= enough:
                    return count
        return count

    def _rows(
        self, name: str, target: StoreToOpen, first: StorePlace | None, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """The places of the rows of a micro-batch. Damage is left to the tasks that read them."""
        with self.open(name, target, stop) as store:
            first = first or self._since(store)
            yield from store.read_log(
                first.place.offset,
                stop,
                limits=self.limits(store, first),
                columns=("commitLogOffset", "storeSize"),
                check_crc=False,
                tags=self.options.tags,
                keys=self.options.keys,
                unwrap_batches=self.options.unwrap_batches,
                on_damage=lambda error: None,
            )

    def limits(self, store: StoreReader, first: StorePlace) -> QueueLimitsInLog:
        """What a micro-batch that starts at a place wants of each queue."""
        starts = ByQueue({(None, queue): n for queue, n in first.first_offsets.items()})
        from_place = replace(
            self.options, since=None, starting_offsets=starts, starting_timestamps=ByQueue()
        )
        return QueueLimitsInLog(WantedQueues.of(store, from_place))


def _moved(store: StoreReader, before: StorePlace, end: int) -> StorePlace:
    """The place at `end`, after `before`."""
    if end == before.place.offset:
        return before
    first = before.first_offsets if end < before.first_until else {}
    return StorePlace(
        LogPlace.at(store.log, end), before.since, first, before.first_until if first else 0
    )
