"""The broker's configuration, `broker.conf` or a mapping of its names, and when it deletes files by it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import javaproperties

from rmq_store.errors import CorruptConfigError, InvalidArgumentError, MissingFileError, nearest
from rmq_store.files.durable_files import read_file
from rmq_store.format.byte_layout import (
    DEFAULT_COMMITLOG_FILE_SIZE,
    DEFAULT_DELAY_LEVELS,
    DEFAULT_MAX_HASH_SLOTS,
    DEFAULT_MAX_INDEX_ITEMS,
    DEFAULT_MAX_MESSAGE_SIZE,
)
from rmq_store.format.queues import (
    DEFAULT_BATCH_QUEUE_FILE_SIZE,
    DEFAULT_QUEUE_FILE_SIZE,
    QUEUE_ENTRY,
)

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OLD_NAMES = {  # spelling up to 4.9, still accepted
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
_UNSET = "null"  # in a configuration that a running broker printed
PATH_SPLITTER = ","  # MixAll.MULTI_PATH_SPLITTER
_OF_SEVERAL_PATHS = ("storePathCommitLog", "readOnlyCommitLogStorePaths")
STORE_TYPES = ("default", "defaultRocksDB")
"""Values of storeType: queues in files, and in RocksDB."""
_MOST_INT = 2**31 - 1  # of Java
_MOST_HOURS = 23
_HOUR_MS = 3_600_000
_QUARTER_MS = _HOUR_MS // 4


def paths_in(setting: str | None) -> list[str]:
    """The paths of a setting that may name several; none if it is not set. A blank beside a comma is part of
    a path (MultiPathMappedFileQueue#getPaths)."""
    return [path for path in (setting or "").strip().split(PATH_SPLITTER) if path]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The broker settings that shape its files, under the broker's own names.

    Sizes are in bytes. The files do not record these settings. None means not set: writers use the
    broker's default, readers infer the value from the files.
    """

    mappedFileSizeCommitLog: int | None = None
    mappedFileSizeConsumeQueue: int | None = None
    mapperFileSizeBatchConsumeQueue: int | None = None
    maxHashSlotNum: int | None = None
    maxIndexNum: int | None = None
    maxMessageSize: int | None = None
    messageDelayLevel: str | None = None
    appendTopicForTimerDeleteKey: bool | None = None
    messageIndexEnable: bool | None = None
    enabledAppendPropCRC: bool | None = None
    autoMessageVersionOnTopicLen: bool | None = None
    enableLmq: bool | None = None
    enableMultiDispatch: bool | None = None
    enableCompaction: bool | None = None
    timerWheelEnable: bool | None = None
    mappedFileSizeTimerLog: int | None = None
    defaultTopicQueueNums: int | None = None
    storeType: str | None = None
    storePathRootDir: str | None = None
    storePathCommitLog: str | None = None
    readOnlyCommitLogStorePaths: str | None = None
    enableDLegerCommitLog: bool | None = None
    storePathDLedgerCommitLog: str | None = None
    dLegerSelfId: str | None = None
    brokerName: str | None = None
    brokerClusterName: str | None = None
    flushDiskType: str | None = None
    flushIntervalCommitLog: int | None = None
    flushCommitLogLeastPages: int | None = None
    flushCommitLogThoroughInterval: int | None = None
    flushIntervalConsumeQueue: int | None = None
    flushConsumeQueueLeastPages: int | None = None
    flushConsumeQueueThoroughInterval: int | None = None
    warmMapedFileEnable: bool | None = None
    fileReservedTime: int | None = None
    deleteWhen: str | None = None
    diskMaxUsedSpaceRatio: int | None = None
    diskSpaceCleanForciblyRatio: int | None = None
    cleanFileForciblyEnable: bool | None = None
    deleteFileBatchMax: int | None = None

    @property
    def flushes_each_append(self) -> bool:
        """Whether an append returns only once the data is on the disk (flushDiskType=SYNC_FLUSH)."""
        kind = self.flushDiskType or "ASYNC_FLUSH"
        if kind not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            known = "SYNC_FLUSH or ASYNC_FLUSH"
            raise InvalidArgumentError(reason="unknown flushDiskType", expected=known, actual=kind)
        return kind == "SYNC_FLUSH"

    @property
    def queues_in_database(self) -> bool | None:
        """Whether a broker keeps its queues in RocksDB, not in files; None if storeType is not set."""
        kind = self.storeType
        return None if kind is None else kind.lower() == STORE_TYPES[1].lower()

    @property
    def flush_interval_log(self) -> float:
        """Seconds between two checks whether the log has enough data to flush."""
        return (self.flushIntervalCommitLog or 500) / 1000

    @property
    def flush_pages_log(self) -> int:
        """Number of unflushed pages (4 KiB) from which a log file is flushed."""
        return 4 if self.flushCommitLogLeastPages is None else self.flushCommitLogLeastPages

    @property
    def flush_thorough_log(self) -> float:
        """Seconds after which the log is flushed regardless of its unflushed pages."""
        return (self.flushCommitLogThoroughInterval or 10_000) / 1000

    @property
    def flush_interval_queues(self) -> float:
        """Seconds between two checks whether queues have enough data to flush."""
        return (self.flushIntervalConsumeQueue or 1000) / 1000

    @property
    def flush_pages_queues(self) -> int:
        """Number of unflushed pages (4 KiB) from which a queue file is flushed."""
        return 2 if self.flushConsumeQueueLeastPages is None else self.flushConsumeQueueLeastPages

    @property
    def flush_thorough_queues(self) -> float:
        """Seconds after which queues, index and checkpoint are flushed regardless of unflushed pages."""
        return (self.flushConsumeQueueThoroughInterval or 60_000) / 1000

    @property
    def commitlog_file_size(self) -> int:
        """Bytes of a CommitLog file."""
        return self.mappedFileSizeCommitLog or DEFAULT_COMMITLOG_FILE_SIZE

    @property
    def queue_file_size(self) -> int:
        """Bytes of a ConsumeQueue file: the configured size, rounded up to whole entries."""
        asked = self.mappedFileSizeConsumeQueue or DEFAULT_QUEUE_FILE_SIZE
        return -(-asked // QUEUE_ENTRY.itemsize) * QUEUE_ENTRY.itemsize

    @property
    def batch_queue_file_size(self) -> int:
        """Bytes of a BatchConsumeQueue file, as configured."""
        return self.mapperFileSizeBatchConsumeQueue or DEFAULT_BATCH_QUEUE_FILE_SIZE

    @property
    def index_slots(self) -> int:
        """Hash slots of an index file."""
        return self.maxHashSlotNum or DEFAULT_MAX_HASH_SLOTS

    @property
    def index_items(self) -> int:
        """Maximum number of items in an index file."""
        return self.maxIndexNum or DEFAULT_MAX_INDEX_ITEMS

    @property
    def max_message_size(self) -> int:
        """Maximum size of a body in bytes."""
        return self.maxMessageSize or DEFAULT_MAX_MESSAGE_SIZE

    @property
    def delay_levels_ms(self) -> dict[int, int]:
        """Delay of each level in ms; levels count from 1 (DefaultMessageStore#parseDelayLevel)."""
        words = (self.messageDelayLevel or DEFAULT_DELAY_LEVELS).split()
        try:
            return {n: int(w[:-1]) * _UNIT_MS[w[-1]] for n, w in enumerate(words, 1)}
        except (KeyError, ValueError) as error:
            raise InvalidArgumentError(
                reason="messageDelayLevel cannot be read",
                expected="numbers with s, m, h or d, such as '1s 5s 10s'",
                actual=self.messageDelayLevel,
            ) from error

    @classmethod
    def of(cls, settings: ConfigLike) -> StoreConfig:
        """The configuration from a StoreConfig, a mapping of the broker's names, or a broker.conf path.

        Raises InvalidArgumentError for an unknown name in a mapping, with the nearest known one. In
        a broker.conf, names that do not shape files are skipped.
        """
        if settings is None:
            return cls()
        if isinstance(settings, StoreConfig):
            return settings
        if not isinstance(settings, Mapping):
            return cls.read(settings)
        names = {field.name for field in fields(cls)}
        for name in settings:
            if _OLD_NAMES.get(name, name) not in names:
                why = f"unknown store config {name!r}"
                raise InvalidArgumentError(reason=why, advice=nearest(name, names))
        return cls(
            **{_OLD_NAMES.get(name, name): _typed(name, settings[name]) for name in settings}
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StoreConfig:
        """The configuration from a broker.conf: Java properties, one `name=value` per line.

        Raises MissingFileError or CorruptConfigError.
        """
        names = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in read_properties(path).items():
            name = _OLD_NAMES.get(name, name)
            if name in names and text.strip() != _UNSET:
                try:
                    values[name] = _typed(name, text)
                except InvalidArgumentError as error:
                    raise CorruptConfigError(
                        path,
                        reason=error.reason,
                        expected=error.expected,
                        actual=repr(text),
                        advice=error.advice,
                    ) from error
        return cls(**values)

    def without_sizes_of_queues(self) -> StoreConfig:
        """A copy without the sizes of files of queues and index: files of before may have others."""
        return replace(
            self,
            mappedFileSizeConsumeQueue=None,
            mapperFileSizeBatchConsumeQueue=None,
            maxHashSlotNum=None,
            maxIndexNum=None,
        )

    def with_defaults_of(self, other: StoreConfig) -> StoreConfig:
        """A copy whose unset values come from `other`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return replace(other, **given)


ConfigLike = StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None
"""Settings of a broker, as they are, by name, or as the path of a broker.conf."""


def _typed(name: str, value: Any) -> Any:
    """`value` converted to the type of config field `name`.

    Raises InvalidArgumentError for a value that a broker reads otherwise (MixAll#properties2Object, which
    trims texts alone), and for a number that fits no store.
    """
    kind = str(StoreConfig.__annotations__[_OLD_NAMES.get(name, name)])
    text = str(value)
    if "bool" in kind:
        if text.lower() not in ("true", "false"):
            raise InvalidArgumentError(
                reason=f"{name} is not a boolean",
                expected="true or false",
                actual=value,
                advice="A broker reads it as false. Correct the value",
            )
        return text.lower() == "true"
    if "int" in kind:
        least = 0 if re.search("Reserved|Ratio|LeastPages", name) else 1
        is_read = re.fullmatch(r"[+-]?\d+", text) and abs(int(text)) <= _MOST_INT
        if not is_read or int(text) < least:
            what = "a whole number above 0" if least else "a whole number"
            raise InvalidArgumentError(
                reason=f"{name} is not {what}",
                actual=value,
                advice="Correct the value"
                if is_read
                else "A broker ignores it and takes its default. Correct the value, or remove it",
            )
        return int(text)
    paths = text.strip().split(PATH_SPLITTER)
    if name in _OF_SEVERAL_PATHS and any(path != path.strip() for path in paths):
        raise InvalidArgumentError(
            reason=f"{name} has a blank beside a comma, which a broker reads as part of the folder's name",
            actual=value,
            advice="Name the folders that the broker used, without blanks beside the commas",
        )
    return text.strip()


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """A file of Java properties as texts. Its names and numbers are ASCII; a comment may be in any encoding.

    Raises MissingFileError, AccessError, CorruptConfigError for a file that is no text, and for an escape
    with which no broker starts.
    """
    try:
        raw = read_file(path)
    except MissingFileError:
        raise MissingFileError(
            path,
            reason="the configuration file does not exist",
            advice="Give the broker.conf that the broker was started with, or omit it: the sizes "
            "are then inferred from the files",
        ) from None
    if b"\0" in raw:
        raise CorruptConfigError(
            path,
            offset=raw.index(b"\0"),
            reason="this is no configuration file, but a binary one",
            expected="lines of name=value",
            advice="Give the broker.conf that the broker was started with",
        )
    try:
        properties: dict[str, str] = javaproperties.loads(raw.decode("utf-8", "replace"))
    except ValueError as error:
        raise CorruptConfigError(
            path,
            reason=f"java.util.Properties cannot read the file: {error}",
            advice="A broker does not start with it. Write a backslash twice",
        ) from None
    return properties


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """When log files are deleted, with the broker's names and defaults. Hours are in local time."""

    fileReservedTime: int = 72  # hours since a file was last written
    deleteWhen: str = "04"  # hours of the day, separated by ;
    # Percent of the disk. Above the first, deletion is always due; above the second, files are
    # deleted at any age, unless cleanFileForciblyEnable is false.
    diskMaxUsedSpaceRatio: int = 75
    diskSpaceCleanForciblyRatio: int = 85
    cleanFileForciblyEnable: bool = True
    deleteFileBatchMax: int = 10  # files per round

    @classmethod
    def of(cls, config: StoreConfig) -> RetentionPolicy:
        """The policy of a configuration, with the broker's defaults.

        Raises InvalidArgumentError for invalid hours.
        """
        asked = {name: getattr(config, name) for name in cls.__dataclass_fields__}
        policy = cls(**{name: value for name, value in asked.items() if value is not None})
        policy.hours()
        return policy

    @property
    def due_above_percent(self) -> int:
        """diskMaxUsedSpaceRatio within the broker's limits (MessageStoreConfig), at most
        `forced_above_percent` (CleanCommitLogService#isSpaceToDelete)."""
        return min(max(self.diskMaxUsedSpaceRatio, 10), self.forced_above_percent)

    @property
    def due_by(self) -> str:
        """The name of the setting that gives `due_above_percent`."""
        by_forced = self.due_above_percent == self.forced_above_percent
        return "diskSpaceCleanForciblyRatio" if by_forced else "diskMaxUsedSpaceRatio"

    @property
    def forced_above_percent(self) -> int:
        """diskSpaceCleanForciblyRatio within the broker's limits (CleanCommitLogService)."""
        return min(max(self.diskSpaceCleanForciblyRatio, 30), 85)

    def expires_at(self, written: int) -> int:
        """From when on a file that was last `written` then may be deleted for its age; both in ms."""
        return written + self.fileReservedTime * _HOUR_MS

    def goes_at(self, written: int, now: int) -> int | None:
        """When a file that was last `written` then is deleted for its age, all in ms: in an hour of
        deleteWhen, not before the quarter of an hour that `now` is in, so that looks in it say the same;
        None without hours."""
        hours, at = self.hours(), max(now - now % _QUARTER_MS, self.expires_at(written))
        # A change of the clock may skip an hour for a day.
        last = at + 2 * (_MOST_HOURS + 1) * _HOUR_MS
        while at < last:
            if time.localtime(at / 1000).tm_hour in hours:
                return at
            at += _QUARTER_MS - at % _QUARTER_MS  # hours of local time begin at a quarter of UTC's
        return None

    def hours(self) -> set[int]:
        """The hours of the day at which the broker deletes."""
        try:
            hours = {int(part) for part in self.deleteWhen.split(";") if part.strip()}
        except ValueError:
            hours = {-1}
        if any(not 0 <= hour <= _MOST_HOURS for hour in hours):
            raise InvalidArgumentError(
                reason=f"deleteWhen={self.deleteWhen!r} is not a list of hours",
                expected="hours of the day separated by ;, such as 04 or 02;14",
            )
        return hours
