"""Numbers, times and names as text for pictures and reports, and the scale of an axis of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

from warren.salvage.names import printable


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    for unit, name in units:
        if abs(value) >= unit:
            return f"{_digits(value / unit)}{name}"
    return _digits(value)


def _digits(value: float) -> str:
    """Return a number with three significant digits, and no zeros at the end of a fraction."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count_text(count: float) -> str:
    """Return a number of messages: ``850``, ``12.5k``, ``3.2M``."""
    return _scaled(count, ((1e9, "G"), (1e6, "M"), (1e3, "k"))) if abs(count) >= 1e4 else f"{count:,.10g}"


def bytes_text(size: float) -> str:
    """Return bytes as ``1.2 GB``, in units of a thousand, as scenarios have them."""
    return (
        _scaled(size, ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB")))
        if abs(size) >= 1e3
        else f"{size:.3g} B"
    )


def time_text(seconds: float) -> str:
    """Return a time that something took: ``3.2 ms``, ``45 s``, ``12 min``."""
    if not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0 s"
    for least, unit, name in _TIMES:
        if seconds >= least:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds * 1e6)} µs"


_TIMES: Final = (
    (2 * 86400, 86400, "d"), (7200, 3600, "h"), (120, 60, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"),
)  # fmt: skip
"""The least seconds for which a unit is used, the unit's seconds, and its name."""


def share_text(share: float) -> str:
    """Return a share as ``42 %``."""
    return f"{share * 100:.3g} %"


def short(name: str, letters: int = 36) -> str:
    """Return a name that fits above a panel."""
    name = printable(name)
    keep = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[:keep]}…{name[-keep:]}"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_STEPS: Final = {
    "seconds": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60),
    "minutes": (1, 2, 5, 10, 15, 20, 30, 60),
    "hours": (1, 2, 3, 4, 6, 12, 24),
    "days": (1, 2, 5, 7, 14, 30, 60),
}


def _of_day(at_s: float, *, seconds: bool) -> str:
    """Return a time of day. Without ``seconds``, they are named only if they are not 0."""
    whole = round(at_s)
    text = f"{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}"
    return f"{text}:{whole % 60:02d}" if seconds or whole % 60 else text


@attrs.frozen
class TimeScale:
    """How moments (seconds from the start, from 0 to ``length_s``) are written."""

    length_s: float
    start_s: float = 0.0
    """The time of day at which the simulation began; other than midnight, moments are times of day."""

    @property
    def is_clock(self) -> bool:
        """Whether moments are times of day."""
        return self.start_s > 0.0 and 150.0 <= self.length_s <= 2 * 86400.0

    @property
    def unit(self) -> tuple[float, str]:
        """The seconds in the unit of the axis, and the unit's name."""
        return next(((size, name) for size, name in _UNITS if self.length_s >= 2.5 * size), _UNITS[-1])

    @property
    def label(self) -> str:
        return "time of day" if self.is_clock else f"time, {self.unit[1]}"

    def ticks(self, most: int) -> list[float]:
        """Return the moments to be labelled, at most about ``most``."""
        unit_s, name = self.unit
        span = self.length_s / unit_s
        step = next((size for size in _STEPS[name] if span / size <= most), span / most) * unit_s
        first = -(self.start_s % step) % step if self.is_clock else 0.0
        return [first + number * step for number in range(math.floor((self.length_s - first) / step + 1e-9) + 1)]

    def text(self, at_s: float) -> str:
        """Return a moment as the axis names it."""
        if self.is_clock:
            return _of_day(self.start_s + at_s, seconds=False)
        return f"{at_s / self.unit[0]:.6g}"

    def moment_text(self, at_s: float) -> str:
        """Return a moment by itself: to the second, or with its unit."""
        if self.is_clock:
            return _of_day(self.start_s + at_s, seconds=self.length_s <= 3600.0)
        return f"{self._in_units(at_s)} {self._short_unit}"

    def span_text(self, start_s: float, end_s: float | None) -> str:
        """Return the words for a span. ``None``: it did not end."""
        if end_s is None:
            return f"from {self.moment_text(start_s)}"
        start = self.moment_text(start_s) if self.is_clock else self._in_units(start_s)
        return f"from {start} to {self.moment_text(end_s)}"

    def _in_units(self, at_s: float) -> str:
        unit_s, name = self.unit
        if name == "minutes":  # to the second, as a watch has it: 0:20
            return f"{round(at_s) // 60}:{round(at_s) % 60:02d}"
        return f"{round(at_s / unit_s, 1 if self.length_s >= 20 * unit_s else 2):g}"

    @property
    def _short_unit(self) -> str:
        return {"seconds": "s", "minutes": "min", "hours": "h", "days": "d"}[self.unit[1]]
