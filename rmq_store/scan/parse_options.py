"""Parse the options of `spark.read.format("rmqstore")` to typed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmq_store.errors import LOG, InvalidArgumentError, StoreError, nearest, spoken
from rmq_store.files.remote.uri_filesystem import StorageOptions
from rmq_store.format.compression import DEFAULT_MAX_BODY_BYTES
from rmq_store.reading.query import FAILFAST
from rmq_store.scan import option_values as values
from rmq_store.scan.options import (
    BY_LOG,
    COMMITLOG,
    CONSUMEQUEUE,
    DEFAULT_PARTITION_BYTES,
    OPTIONS,
    STREAM_OPTIONS,
    Option,
)
from rmq_store.search.selection import Selection, given_offsets_and_times, queues_on
from rmq_store.text.times import Time, fixed_time, reversed_range, shown_time

_NO_CLIENT = "the source reads the files of a store and asks no broker"
_LIVE: Mapping[str, str] = {
    name.casefold(): why
    for names, why in (
        (
            "nameServer namesrv namesrvAddr nameServerAddr nameServerAddress endpoints proxyAddr "
            "kafka.bootstrap.servers bootstrap.servers",
            f"{_NO_CLIENT}: give the store's folder as path",
        ),
        (
            "consumerGroup group groupId kafka.group.id group.id groupIdPrefix instanceName clientId",
            f"{_NO_CLIENT}, and it commits no offset: give startingOffsets; table=groups has the "
            "committed offsets",
        ),
        (
            "accessKey secretKey accessKeyId secretAccessKey securityToken sessionToken aclEnable "
            "useTLS",
            f"{_NO_CLIENT}: anyone who can read the files can read the messages",
        ),
        (
            "pullTimeout pullTimeoutMs pullBatchSize pullMaxNumsPerQueue pullThresholdForQueue "
            "consumeTimeout pollTimeoutMs kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
            "fetchOffset.retryIntervalMs suspendTimeoutMillis consumeThreadMin consumeThreadMax",
            f"{_NO_CLIENT}: there is nothing to wait for; maxBytesPerPartition sets how much a "
            "task reads",
        ),
        (
            "messageModel consumeFromWhere",
            f"{_NO_CLIENT}: startingOffsets and startingTimestamp set where to start",
        ),
    )
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class ScanOptions(Selection):
    """The options of a read as typed values. None means not given."""

    paths: tuple[str, ...] = ()
    stores: Mapping[str, str] | None = None
    unavailable_stores: str = "fail"
    columns: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    broker_name: str | None = None
    broker_conf: str | None = None
    source: str = CONSUMEQUEUE
    include_unqueued: bool = False
    split_by: str = BY_LOG
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = DEFAULT_PARTITION_BYTES
    verify_queue: bool = False
    compacted: bool = True
    mode: str = FAILFAST
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    unwrap_batches: bool = True
    table: str | None = None
    checkpoint: str | None = None
    storage_options: StorageOptions | None = None

    @property
    def path(self) -> str | None:
        """The first path, for error messages; None with option `stores`."""
        return self.paths[0] if self.paths else None

    @property
    def sees_compacted(self) -> bool:
        """Whether queues of compaction topics are read as consumers are served; tables count queues as
        such."""
        return self.compacted and self.table is None and self.source == CONSUMEQUEUE

    def with_fixed_times(self, newest: Callable[[], int | None]) -> ScanOptions:
        """The options with relative times fixed by the storeTimestamp of the newest message.

        Raises InvalidArgumentError if they end before they begin.
        """
        times = self.since, self.until
        first, stop = (fixed_time(time, newest) for time in times)
        fixed = replace(self, since=first, until=stop)
        if not any(isinstance(time, int) for time in times):  # else a store without new messages
            refuse_reversed_ranges(fixed)
        return fixed

    def lose(self, error: StoreError) -> None:
        """Raise an error about messages that are not there any more; with failOnDataLoss=false, warn."""
        if self.fail_on_data_loss:
            raise error
        LOG.warning("%s", error)


_OF_A_STREAM = {option.name.casefold() for option in STREAM_OPTIONS}
_BY_FOLDED_NAME = {option.name.casefold(): option for option in OPTIONS}

_EXCLUDE_EACH_OTHER = (
    ("topic", "subscribe", "subscribePattern", "assign"),
    ("path", "stores"),
    ("stores", "brokerName"),
)

# Options of other sources -> what to use here instead.
_SAID_OTHERWISE = {
    "includeheaders": "The column properties always has the headers",
    "queueid": 'Name queues with assign = {"orders": [0, 1]}, or filter on the column queueId',
    "queueids": 'Name queues with assign = {"orders": [0, 1]}, or filter on the column queueId',
    "inferschema": "The columns are fixed; select some with option columns or .schema(...)",
}

# Options that Spark passes only for a table in its catalog.
_OF_THE_CATALOG = ("location", "owner")

_Given = tuple[str, Time | None]
"""An option and its value."""


def parse_options(raw: Mapping[str, str]) -> ScanOptions:
    """The options of a read as typed values.

    Names are compared without case, because Spark passes them in lower case. Raises InvalidArgumentError for
    an unknown name (with the nearest known one), an option that only a client of a live broker has (with the
    reason), an invalid value, a missing path, and options that exclude each other.
    """
    if any(name.casefold() in _OF_THE_CATALOG for name in raw):
        raise refused_options(
            "CREATE TABLE is not supported: Spark keeps its path and loses the other options",
            "Use CREATE TEMPORARY VIEW … USING rmqstore OPTIONS (path '…')",
        )
    fields: dict[str, Any] = {}
    names: set[str] = set()
    for name, value in raw.items():
        if name.casefold() == "paths":  # how Spark passes load([a, b])
            try:
                fields["paths"] = values.paths(value)
            except ValueError as refused:
                raise refused_options(
                    f"option 'paths' {refused}", "Give them as load([a, b])"
                ) from None
            names.add("path")
            continue
        option = _known(name)
        fields[option.field] = parse_option(option, value)
        names.add(option.name)
    for group in _EXCLUDE_EACH_OTHER:
        both = [name for name in group if name in names]
        if len(both) > 1:
            raise refused_options(
                f"options {both[0]!r} and {both[1]!r} exclude each other", "Give one of them"
            )
    if not names & {"path", "stores"}:
        raise refused_options(
            "no path",
            "Give the store's folder: load('/path/to/store'), or in SQL CREATE TEMPORARY VIEW … "
            "USING rmqstore OPTIONS (path '/path/to/store')",
        )
    options = ScanOptions(**fields)
    _check_together(options, names)
    return options


def _check_together(options: ScanOptions, names: set[str]) -> None:
    if options.source == COMMITLOG:
        for name in ("maxRecordsPerPartition", "splitBy", "verifyQueue"):
            if name in names:
                raise refused_options(
                    f"option {name!r} needs the queues, and source=commitlog does not read them",
                    "Leave it out; maxBytesPerPartition and minPartitions split the log",
                )
        if options.timestamp_strategy == "error":
            raise refused_options(
                "startingOffsetsByTimestampStrategy=error needs the queues, and source=commitlog does "
                "not read them",
                "Leave it out; a queue without such a message has no row",
            )
    elif options.include_unqueued:
        raise refused_options(
            "includeUnqueued asks for records that no queue lists, but the queues are the source",
            "Give source=commitlog too",
        )
    if (options.table == "stream") != (options.checkpoint is not None):
        raise refused_options(
            "option 'checkpointLocation' and table=stream need each other",
            "Give both for the progress of a query. A query itself has the option in writeStream",
        )
    refuse_reversed_ranges(options)
    if options.table is not None and options.columns is not None and options.table != "plan":
        raise refused_options(
            f"option 'columns' selects columns of messages, not of table {options.table!r}",
            "Use select(...)",
        )


def refuse_reversed_ranges(options: ScanOptions) -> None:
    """Raise InvalidArgumentError for a range that ends before it begins. An empty one has no row."""
    first: _Given = ("startingTimestamp", options.since)
    last: _Given = ("endingTimestamp", options.until)
    _refuse_reversed("", first, last, shown_time)
    by_queue = given_offsets_and_times(options)
    brokers = {name or "" for _, ends in by_queue for name, _ in ends.numbers}
    for broker in sorted(brokers):  # "": what is for all of them
        of_broker = f" of broker {broker!r}" if broker else ""
        for queue in sorted({q for _, ends in by_queue for q in queues_on(broker, ends.numbers)}):
            where = f" for queue {queue.topic}/{queue.queue_id}{of_broker}"
            low, high, begin, end = ((name, ends.of(broker, queue)) for name, ends in by_queue)
            # A time for all queues takes precedence.
            since = begin if options.since is None else first
            until = end if options.until is None else last
            _refuse_reversed(where, since, until, shown_time)
            if since[1] is None and until[1] is None:
                _refuse_reversed(where, low, high, str)


def _refuse_reversed(where: str, start: _Given, stop: _Given, shown: Callable[[int], str]) -> None:
    (begins, low), (ends, high) = start, stop
    # The words for a queue's ends are below 0, and a relative time is not fixed yet.
    if isinstance(low, int) and isinstance(high, int) and low > high >= 0:
        raise reversed_range((spoken(begins), shown(low)), (spoken(ends), shown(high)), where)


def _known(name: str) -> Option:
    folded = name.casefold()
    if folded in _BY_FOLDED_NAME:
        return _BY_FOLDED_NAME[folded]
    if folded in _OF_A_STREAM:
        raise refused_options(
            f"option {name!r} is for a stream: a batch read has no triggers",
            "Use spark.readStream, or split the batch with maxRecordsPerPartition and "
            "maxBytesPerPartition",
        )
    why = _LIVE.get(folded)
    if why is None and re.match(r"(kafka|rocketmq)\.", folded):
        why = f"{_NO_CLIENT}: client settings have no meaning here"
    if why is not None:
        raise refused_options(
            f"option {name!r} is for a client of a live broker", why[0].upper() + why[1:]
        )
    known = [option.name for option in (*OPTIONS, *STREAM_OPTIONS)]
    advice = _SAID_OTHERWISE.get(folded) or nearest(name, known)
    raise refused_options(f"unknown option {name!r}", advice)


def refused_options(reason: str, advice: str) -> InvalidArgumentError:
    """The error for options that are not accepted."""
    return InvalidArgumentError(reason=spoken(reason), advice=advice)


def parse_option(option: Option, value: str) -> Any:
    """The typed value of an option. Raises InvalidArgumentError."""
    try:
        return option.parse(reveal(value))
    except InvalidArgumentError:  # such as of an unknown column
        raise
    except ValueError as refused:
        raise InvalidArgumentError(
            reason=spoken(f"option {option.name!r} {refused}"),
            actual=None if option.secret else repr(value),
            advice=f"It means: {option.meaning}",
        ) from None


_SECRET = {option.name.casefold() for option in OPTIONS if option.secret}


class Secret(str):
    """An option's value that prints as `***`, and is stored as `***` by whoever stores it.

    As a str it has these three characters only. So no report, table, error, manifest or log can
    have more, whatever it does with the value. Only `reveal` returns what was given.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str) -> Secret:
        made = super().__new__(cls, "***")
        made._value = reveal(value)
        return made

    def __getnewargs__(self) -> tuple[str]:
        return (self._value,)  # executors need the value


def reveal(value: str) -> str:
    """The value itself, for whoever opens the store."""
    return value._value if isinstance(value, Secret) else value


def hide_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the source, with a Secret for each value that may hold credentials."""
    return {
        name: Secret(value) if name.casefold() in _SECRET else value
        for name, value in options.items()
    }


def without_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """The options whose values hold no credentials."""
    return {name: value for name, value in options.items() if name.casefold() not in _SECRET}


class HidesSecrets:
    """What the specs of the jobs have in common: `options` of the source, with their secrets hidden."""

    __slots__ = ()
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        """Hide the secrets also of a spec that was made in Python."""
        object.__setattr__(self, "options", hide_secrets(self.options))
