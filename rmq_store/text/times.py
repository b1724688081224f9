"""Parse and format times. Commands, jobs and the Spark source take a time in the same forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from rmq_store.errors import LOG, InvalidArgumentError, nearest

TIME_FORMS = (
    "ms, ISO 8601 (UTC if without a zone), 10:00 on the newest message's day (UTC), or -1h: an hour "
    "before it"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_ZERO = _EPOCH.toordinal()
LATEST_MS = 61_851_600_000_000
"""The last time that is a datetime in every zone, and as long before 1970 (year 10): ms."""
LEAST_MS = 10**11  # March 1973: before any broker, and as seconds after any
MOST_MS = 10**14  # the year 5138; microseconds of today are more
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_UNITS_MS = {"s": 1000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}


class NotATimeError(ValueError):
    """The reason why a text is not a time, as the rest of a sentence: "'5' is not ..."."""


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """A time that only a store's newest message fixes: `ago` ms before it, or `of_day` ms after
    the start of its day in UTC."""

    text: str
    ago: int | None = None
    of_day: int | None = None

    def at(self, newest: int | None) -> int:
        """The time in ms since the epoch. `newest`: the storeTimestamp of the newest message. Raises
        InvalidArgumentError if there is no message, and for a time before 1970."""
        if newest is None:
            raise InvalidArgumentError(
                reason=f"the time {self.text!r} is relative to the newest message, and none can be "
                "read at the end of the log",
                advice="Give milliseconds since 1970 or ISO 8601",
            )
        if self.of_day is not None:
            return newest - newest % DAY_MS + self.of_day
        assert self.ago is not None
        if self.ago > newest:
            raise InvalidArgumentError(
                reason=f"the time {self.text!r} is before 1970",
                advice=f"The newest message was stored at {iso_time(newest)}",
            )
        return newest - self.ago


Time = int | RelativeTime
"""Milliseconds since the epoch, or a time that the newest message of a store fixes."""


def parse_time(text: str) -> Time:
    """A time from one of four forms.

    - digits: milliseconds since the epoch;
    - ISO 8601, in UTC if without a zone;
    - `10:00` or `10:00:30`: of the day of the store's newest message, in UTC;
    - `-1h`, `-30m`, `-20s`, `-2d`: before the store's newest message.

    Raises NotATimeError for other text, and for digits that are seconds, microseconds or less.
    """
    said = text.strip()
    if re.fullmatch(r"-?[0-9]+", said):
        number = int(said) if len(said) <= 20 else 10**20  # Python limits the digits of a number
        why = why_not_ms(number)
        if why is not None:
            raise NotATimeError("; give ".join(why))
        return number
    of_day = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", said)
    if of_day is not None:
        hours, minutes, seconds = (int(part or 0) for part in of_day.groups())
        return RelativeTime(said, of_day=((hours * 60 + minutes) * 60 + seconds) * 1000)
    ago = re.fullmatch(r"-([0-9]+)([smhd])", said)
    if ago is not None:
        return RelativeTime(said, ago=int(ago[1]) * _UNITS_MS[ago[2]])
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", said))
    except ValueError:
        raise NotATimeError(f"is not a time; give {TIME_FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def fixed_time(time: Time | None, newest: Callable[[], int | None]) -> int | None:
    """A time in ms; None if not given. `newest` is called only for a relative time."""
    return time.at(newest()) if isinstance(time, RelativeTime) else time


def fixed_range(
    since: Time | None,
    until: Time | None,
    newest: Callable[[], int | None] = lambda: None,
    names: tuple[str, str] = ("--since", "--until"),
) -> tuple[int | None, int | None]:
    """A half-open range of times in ms, as `fixed_time`; an empty one has no message.

    Raises InvalidArgumentError if it ends before it begins. Between a fixed and a relative time it is
    empty then: nothing is new in the store.
    """
    first, stop = fixed_time(since, newest), fixed_time(until, newest)
    if first is None or stop is None or first <= stop:
        return first, stop
    if isinstance(since, RelativeTime) is isinstance(until, RelativeTime):
        raise reversed_range((names[0], shown_time(first)), (names[1], shown_time(stop)))
    times = iso_time(first), iso_time(stop)
    LOG.warning("no message is in the range: it begins at %s and ends at %s", *times)
    fixed = stop if isinstance(since, RelativeTime) else first
    return fixed, fixed


def reversed_range(
    start: tuple[str, str], stop: tuple[str, str], where: str = ""
) -> InvalidArgumentError:
    """The error for a range that ends before it begins, by the names and values of its two limits."""
    return InvalidArgumentError(
        reason=f"{start[0]} has {start[1]}{where}, and {stop[0]} has {stop[1]}",
        advice="Give an end that is not before the start",
    )


def why_not_ms(number: int) -> tuple[str, ...] | None:
    """Why a number is no time of a broker in milliseconds, as the rest of a sentence: it only has a meaning
    in another unit; then what to give, if that is known. None if it is one, and for 0, which is the same in
    every unit."""
    if number == 0 or LEAST_MS <= abs(number) < MOST_MS:
        return None
    if abs(number) < LEAST_MS:
        as_ms, as_seconds = _iso_of(number), _iso_of(number * 1000)
        return (
            f"is {as_ms} as milliseconds, which is what it means here, and {as_seconds} as seconds",
            f"the one you mean as ISO 8601: {as_seconds} or {as_ms}",
        )
    for unit, per_ms in (("microseconds", 1000), ("nanoseconds", 1_000_000)):
        if abs(number) < MOST_MS * per_ms:
            return (
                f"is no time of a store as milliseconds, and {_iso_of(number // per_ms)} as {unit}",
                f"{number // per_ms} for that",
            )
    return ("is too large for a time in milliseconds",)


def _iso_of(ms: int) -> str:
    return utc_text(_EPOCH + timedelta(milliseconds=ms), "milliseconds" if ms % 1000 else "seconds")


def utc_text(at: datetime, digits: str = "milliseconds") -> str:
    """A moment as ISO 8601 in UTC, with a Z; one without a zone is in the zone of this process."""
    return at.astimezone(timezone.utc).isoformat(timespec=digits).replace("+00:00", "Z")


def parse_zone(name: str) -> tzinfo:
    """A time zone by its IANA name. Raises NotATimeError for one that this machine does not know."""
    if name == "UTC":
        return timezone.utc  # known without a database of zones
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        known = nearest(name, available_timezones() | {"UTC"})
        raise NotATimeError(f"is no time zone that this machine knows. {known}") from None


def day_of(ms: int, zone: tzinfo) -> int:
    """The day of a time, since 1970; in UTC for a time that no datetime has."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone).date().toordinal() - _DAY_ZERO
    except OverflowError:
        return ms // DAY_MS


def start_of_hour(ms: int, zone: tzinfo) -> int:
    """The time (ms) at which the hour of a time begins; in UTC for a time that no datetime has."""
    try:
        shift = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone).utcoffset() or timedelta()
    except OverflowError:
        shift = timedelta()
    return ms - (ms + shift // timedelta(milliseconds=1)) % HOUR_MS


def start_of_day(day: int, zone: tzinfo) -> int:
    """The time (ms) at which a day since 1970 begins; in UTC for a day that no datetime has."""
    try:
        midnight = datetime.combine(_EPOCH + timedelta(days=day), time.min, zone)
    except OverflowError:
        return day * DAY_MS
    return (midnight - _EPOCH) // timedelta(milliseconds=1)


def iso_time(ms: int | None) -> str:
    if ms is None:
        return "unknown"
    return "never" if ms == 0 else shown_time(ms)


def shown_minute(ms: int, zone: tzinfo) -> str:
    """A time in a zone, to the minute; the number with its unit beyond the year 9999."""
    try:
        return f"{(_EPOCH + timedelta(milliseconds=ms)).astimezone(zone):%Y-%m-%d %H:%M}"
    except OverflowError:
        return f"{ms} ms"


def shown_time(ms: int) -> str:
    """A time as ISO 8601, in UTC; the number with its unit beyond the year 9999."""
    try:
        return utc_text(_EPOCH + timedelta(milliseconds=ms))
    except OverflowError:
        return f"{ms} ms"


def shown_duration(ms: int) -> str:
    """A time span in its two largest units, such as `2 h 13 min`; below a minute in seconds."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    left = ms // 1000
    words: list[str] = []
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count or words:
            words.append(f"{count:,} {unit}")
    return " ".join(words[:2])
