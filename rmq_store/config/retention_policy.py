"""When a broker deletes the files of its log, by its configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError

_MOST_HOURS = 23
_HOUR_MS = 3_600_000
_QUARTER_MS = _HOUR_MS // 4


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
    def due_above(self) -> int:
        """diskMaxUsedSpaceRatio within the broker's limits (MessageStoreConfig)."""
        return min(max(self.diskMaxUsedSpaceRatio, 10), 95)

    @property
    def forced_above(self) -> int:
        """diskSpaceCleanForciblyRatio within the broker's limits (CleanCommitLogService)."""
        return min(max(self.diskSpaceCleanForciblyRatio, 30), 85)

    def old_enough_from(self, written: int) -> int:
        """From when on a file that was last `written` then may be deleted for its age; both in ms."""
        return written + self.fileReservedTime * _HOUR_MS

    def goes_at(self, written: int, now: int) -> int | None:
        """When a file that was last `written` then is deleted for its age, from `now` on, all in ms: in an
        hour of deleteWhen; None without hours."""
        hours, at = self.hours(), max(now, self.old_enough_from(written))
        last = (
            at + 2 * (_MOST_HOURS + 1) * _HOUR_MS
        )  # a change of the clock may skip an hour for a day
        while at < last:
            if time.localtime(at / 1000).tm_hour in hours:
                return at
            at += _QUARTER_MS - at % _QUARTER_MS  # hours of local time begin at a quarter of UTC's
        return None

    def hours(self) -> set[int]:
        """The hours of the day at which the broker deletes."""
        try:
            found = {int(part) for part in self.deleteWhen.split(";") if part.strip()}
        except ValueError:
            found = {-1}
        if any(not 0 <= hour <= _MOST_HOURS for hour in found):
            raise InvalidArgumentError(
                reason=f"deleteWhen={self.deleteWhen!r} is not a list of hours",
                expected="hours of the day separated by ;, such as 04 or 02;14",
            )
        return found
