"""Times as users write them: what each form means, and what is refused instead of guessed."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from rmq_store.errors import InvalidArgumentError
from rmq_store.text.times import (
    DAY_MS,
    NotATimeError,
    RelativeTime,
    day_of,
    fixed_time,
    iso_time,
    parse_time,
    parse_zone,
    start_of_day,
)

NEWEST = 1795253026_123  # 2026-11-21T09:23:46.123Z
MIDNIGHT = 1795219200_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1795253026123", NEWEST),
        (" 1795253026123 ", NEWEST),
        ("0", 0),
        ("2026-11-21T09:23:46.123Z", NEWEST),
        ("2026-11-21T10:23:46.123+01:00", NEWEST),
        ("2026-11-21T09:23:46.123", NEWEST),
        ("2026-11-21 09:23", MIDNIGHT + (9 * 60 + 23) * 60_000),
        ("2026-11-21", MIDNIGHT),
        ("1969-12-31T23:59:59.999Z", -1),
        ("10:00", MIDNIGHT + 36_000_000),
        ("9:00", MIDNIGHT + 32_400_000),
        ("10:00:30", MIDNIGHT + 36_030_000),
        ("-1h", NEWEST - 3_600_000),
        ("-30m", NEWEST - 1_800_000),
        ("-20s", NEWEST - 20_000),
        ("-2d", NEWEST - 172_800_000),
    ],
)
def test_each_form_of_a_time_has_one_meaning(text: str, ms: int) -> None:
    assert fixed_time(parse_time(text), lambda: NEWEST) == ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1795253026", r"1970-01-21T18:40:53.026Z as milliseconds.*2026-11-21T09:23:46Z as sec"),
        ("5", "1970-01-01T00:00:00.005Z as milliseconds"),
        ("-1", "1969-12-31T23:59:59Z as seconds"),
        ("1795253026123000", r"2026-11-21T09:23:46.123Z as microseconds; give 1795253026123 "),
        ("1795253026123000000", r"as nanoseconds; give 1795253026123 "),
        ("9" * 25, "too large"),
        ("9" * 5000, "too large"),
        ("", "is not a time"),
        ("yesterday", "is not a time"),
        ("25:00", "is not a time"),
        ("1h", "is not a time"),
        ("-1.5h", "is not a time"),
        ("nan", "is not a time"),
        ("١٢:٠٠", "is not a time"),
    ],
)
def test_seconds_and_other_words_are_refused_and_not_taken_for_milliseconds(
    text: str, reason: str
) -> None:
    with pytest.raises(NotATimeError, match=reason):
        parse_time(text)


def test_a_relative_time_needs_a_message_and_stays_after_1970() -> None:
    relative = parse_time("-1h")
    assert isinstance(relative, RelativeTime)
    with pytest.raises(InvalidArgumentError, match="none can be read at the end of the log"):
        relative.at(None)
    far = parse_time("-99999999999999999999d")
    with pytest.raises(InvalidArgumentError, match="before 1970"):
        fixed_time(far, lambda: NEWEST)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("America/Sao_Paulo", date(2018, 11, 1)),  # 4 November begins at 01:00
        ("America/Sao_Paulo", date(2018, 2, 15)),  # 17 February ends an hour later
        ("America/Havana", date(2026, 10, 30)),  # 1 November has its first hour twice
        ("Australia/Lord_Howe", date(2026, 10, 1)),
        ("Asia/Shanghai", date(2026, 11, 20)),
    ],
)
def test_days_of_a_zone_follow_its_clock(name: str, first: date) -> None:
    zone = parse_zone(name)
    begin = int(datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(name)).timestamp())
    for ms in range(begin * 1000, begin * 1000 + 7 * DAY_MS, 900_000):
        day = datetime.fromtimestamp(ms / 1000, ZoneInfo(name)).date()
        assert day_of(ms, zone) == (day - date(1970, 1, 1)).days
        assert start_of_day(day_of(ms, zone), zone) <= ms < start_of_day(day_of(ms, zone) + 1, zone)


@pytest.mark.parametrize("ms", [-(2**63), -(10**15), 253_402_300_799_999, 10**15, 2**63 - 1])
def test_days_beyond_the_calendar_are_those_of_utc(ms: int) -> None:
    day = day_of(ms, parse_zone("Pacific/Kiritimati"))
    assert day == ms // DAY_MS
    assert start_of_day(day + 1, parse_zone("Pacific/Kiritimati")) == (day + 1) * DAY_MS


def test_an_unknown_zone_is_refused_with_the_nearest() -> None:
    with pytest.raises(NotATimeError, match="'Asia/Shanghai'"):
        parse_zone("asia/shangai")
    for name in ("../etc/passwd", "", "/etc/localtime", "Asia"):
        with pytest.raises(NotATimeError):
            parse_zone(name)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "unknown"),
        (0, "never"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (NEWEST, "2026-11-21T09:23:46.123Z"),
        (-(2**62), "-4611686018427387904 ms"),
    ],
)
def test_times_before_1970_are_times(ms: int | None, said: str) -> None:
    assert iso_time(ms) == said
