"""Times and sizes as a person writes them in a scenario: ``"250ms"``, ``"10min"``, ``"09:30"``, ``"2GB"``."""

from __future__ import annotations

import re
from typing import Final

from warren.actors.engines.information_units import parse_information_unit
from warren.storage.errors import SettingsError, shown

NS: Final = 1_000_000_000
DAY_S: Final = 86_400.0

_SECONDS_OF_UNIT: Final = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": DAY_S,
}  # fmt: skip
_PERIOD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
LONGEST_S: Final = 366 * DAY_S
MOST_BYTES: Final = 1 << 62
"""More than any machine has; what is beyond it is a slip of the hand."""
_BEYOND: Final = 1e300  # infinities, what is no number, and whole numbers too large for a float


class ScenarioError(SettingsError):
    """An invalid scenario: which key, and why."""


def period(value: object) -> float:
    """Return the seconds of a period, from a number of them or a text with its unit. From 0 to a year."""
    if isinstance(value, str) and (match := _PERIOD.fullmatch(value.strip())) and match[2] in _SECONDS_OF_UNIT:
        seconds = round(float(match[1]) * _SECONDS_OF_UNIT[match[2]], 9)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND:
        seconds = float(value)
    else:
        raise ScenarioError(f" must be a time such as 2.5, '250ms' or '10min', not {shown(value)}")
    if not 0.0 <= seconds <= LONGEST_S:
        raise ScenarioError(f" must be 0 s … 366 days, not {shown(value)}")
    return seconds


def clock(value: object) -> float:
    """Return the seconds since midnight of a time of day, ``"HH:MM"`` or ``"HH:MM:SS"``."""
    match = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        if hour <= 24 and minute < 60 and second < 60 and hour * 3600 + minute * 60 + second <= DAY_S:
            return float(hour * 3600 + minute * 60 + second)
    raise ScenarioError(f" must be a time of day such as '09:30', not {shown(value)}")


def moment(value: object, start_of_day_s: float) -> float:
    """Return the seconds from the simulation's start to a moment, which is a period or a time of day.

    A time of day is the next one after the start: from 22:00 it is three hours to 01:00.
    """
    if isinstance(value, str) and ":" in value:
        return (clock(value) - start_of_day_s) % DAY_S
    return period(value)


def amount(value: object) -> int:
    """Return the bytes of some memory, disk or body, from a number of them or a text with RabbitMQ's units."""
    if isinstance(value, bool) or not isinstance(value, int | float) or 0 <= value <= MOST_BYTES:
        try:
            size = parse_information_unit("", value)
        except SettingsError as error:
            raise ScenarioError(str(error)) from None
        if size <= MOST_BYTES:
            return size
    raise ScenarioError(f" must be 0 … {MOST_BYTES} bytes, not {shown(value)}")


def ns(period_s: float) -> int:
    """Return whole nanoseconds."""
    return round(period_s * NS)
