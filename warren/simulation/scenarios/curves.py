"""Rates of messages over time, and the moments at which messages come.

A rate is stored as a cumulated curve: the number of messages up to a time, piecewise linear. The inverse of this curve
maps whole numbers (``constant``) or the points of a unit Poisson process (``poisson``) to times. The same method serves
constant rates, bursts, daily curves and traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.scenarios.forms import by, each, formed, inside, line, named, number, pairs
from warren.simulation.scenarios.units import DAY_S, ScenarioError, clock, period
from warren.storage.errors import shown

Arrivals = Literal["constant", "poisson"]
Floats = npt.NDArray[np.float64]
_FIRST_CHUNK: Final = 64  # of ten thousand slow publishers none holds many
_CHUNK: Final = 4096
_DAILY_STEP_S: Final = 30.0
_FASTEST: Final = 1e9
SHORTEST_BURST_S: Final = 0.001


def per_second(value: Any) -> float:
    """Return a rate in messages a second."""
    return number(value, 0.0, _FASTEST, "0 … 1e9 messages a second")


def _time_of_day(value: Any) -> float:
    """Return the seconds since midnight, fewer than a day has."""
    at_s = clock(value) if isinstance(value, str) else period(value)
    if at_s >= DAY_S:
        raise ScenarioError(f" must be a time of day from 00:00 to 23:59:59, not {shown(value)}")
    return at_s


@attrs.frozen(eq=False)
class Curve:
    """Messages until each of some moments; between them they come evenly.

    ``at_s``: rising, from 0 on. ``messages``: as many, never falling, from 0 on.
    """

    at_s: Floats
    messages: Floats

    @classmethod
    def of_rates(cls, at_s: Sequence[float] | Floats, rates: Sequence[float] | Floats) -> Curve:
        """Return the curve of rates. There is one rate fewer than moments; each holds from its moment to the next."""
        moments = np.asarray(at_s, np.float64)
        steps = np.diff(moments) * np.asarray(rates, np.float64)
        return cls(moments, np.concatenate([[0.0], np.cumsum(steps)]))

    def scaled(self, spans: Sequence[tuple[float, float, float]]) -> Curve:
        """Return the curve with its rate multiplied by a factor within each span: (from, until, factor)."""
        if not spans:
            return self
        edges = np.unique(np.clip([moment for span in spans for moment in span[:2]], 0.0, self.at_s[-1]))
        moments = np.unique(np.concatenate([self.at_s, edges]))
        steps = np.diff(np.interp(moments, self.at_s, self.messages))
        middles = (moments[:-1] + moments[1:]) / 2
        for start, end, factor in spans:
            steps = np.where((middles >= start) & (middles < end), steps * factor, steps)
        return Curve(moments, np.concatenate([[0.0], np.cumsum(steps)]))

    def moments(self, arrivals: Arrivals, rng: np.random.Generator) -> Iterator[Floats]:
        """Return the moments (seconds) at which messages come, in order and in chunks."""
        total, reached, size = float(self.messages[-1]), 0.0, _FIRST_CHUNK
        while reached < total:
            if arrivals == "poisson":
                numbers = reached + np.cumsum(rng.exponential(size=size))
                reached = float(numbers[-1])
            else:
                numbers = reached + np.arange(1.0, size + 1.0)
                reached += size
            size = min(2 * size, _CHUNK)
            numbers = numbers[numbers <= total]
            if len(numbers):
                # The first moment at which that many have come: the beginning of a gap, if there is one.
                yield self._inverse(numbers)

    def _inverse(self, numbers: Floats) -> Floats:
        right = np.searchsorted(self.messages, numbers, side="left")
        left = right - 1
        span = self.messages[right] - self.messages[left]
        share = (numbers - self.messages[left]) / span
        moments: Floats = self.at_s[left] + share * (self.at_s[right] - self.at_s[left])
        return moments


@attrs.frozen(field_transformer=named)
class Constant:
    """Always the same rate."""

    rate: float = attrs.field(converter=per_second)

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        """Return the rate from the simulation's start to its end."""
        return Curve.of_rates([0.0, length_s], [self.rate])


@attrs.frozen(field_transformer=named)
class Bursts:
    """``base`` messages a second, and ``peak`` for ``lasting_s`` every ``every_s``, the first after ``first_s``."""

    base: float = attrs.field(converter=per_second)
    peak: float = attrs.field(converter=per_second)
    every_s: float = attrs.field(converter=period)
    lasting_s: float = attrs.field(converter=period)
    first_s: float = attrs.field(default=0.0, converter=period)

    def __attrs_post_init__(self) -> None:
        if self.every_s < SHORTEST_BURST_S:
            raise ScenarioError(f"every must be at least {SHORTEST_BURST_S} s, not {self.every_s}")
        if not 0.0 < self.lasting_s < self.every_s:
            raise ScenarioError(
                f"lasting must be more than 0 s and less than the time from one burst to the next "
                f"({self.every_s} s), not {self.lasting_s}"
            )

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        moments, rates, at = [0.0], [], self.first_s
        while at < length_s:
            if at > moments[-1]:
                moments.append(at)
                rates.append(self.base)
            moments.append(min(at + self.lasting_s, length_s))
            rates.append(self.peak)
            at += self.every_s
        if moments[-1] < length_s:
            moments.append(length_s)
            rates.append(self.base)
        return Curve.of_rates(moments, rates)


def daily_points(value: Any) -> tuple[tuple[float, float], ...]:
    """Return the points of a daily curve: seconds since midnight, and the rate."""
    times, rates = pairs(value, "time of day", "rate")
    points: list[tuple[float, float]] = []
    for index, (time, rate) in enumerate(zip(times, rates, strict=True)):
        with inside(f"[{index}]"):
            points.append((_time_of_day(time), per_second(rate)))
        if index and points[index][0] <= points[index - 1][0]:
            raise ScenarioError(f"[{index}] must be at a later time of day than the one before, not at {shown(time)}")
    return tuple(points)


@attrs.frozen(field_transformer=named)
class Daily:
    """A rate at some times of the day (seconds since midnight, rising), and evenly from one to the next."""

    points: tuple[tuple[float, float], ...] = attrs.field(converter=daily_points)

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        times = [time for time, _ in self.points]
        rates = [rate for _, rate in self.points]
        moments = np.append(np.arange(0.0, length_s, _DAILY_STEP_S), length_s)
        times_of_day = (start_of_day_s + (moments[:-1] + moments[1:]) / 2) % DAY_S
        return Curve.of_rates(moments, np.interp(times_of_day, times, rates, period=DAY_S))


@attrs.frozen(eq=False, field_transformer=named)
class Trace:
    """Measured rates: each holds from its moment (seconds) to the next; after the last moment, nothing comes."""

    source: str = attrs.field(converter=line)
    at_s: tuple[float, ...] = attrs.field(converter=formed, metadata=by(each, period))
    rates: tuple[float, ...] = attrs.field(converter=formed, metadata=by(each, per_second))
    """One fewer than moments."""

    def __attrs_post_init__(self) -> None:
        if not self.rates or len(self.at_s) != len(self.rates) + 1:
            raise ScenarioError("rates: at least one is needed, and one moment more than rates")
        for index, (earlier, later) in enumerate(zip(self.at_s, self.at_s[1:], strict=False), 1):
            if later <= earlier:
                raise ScenarioError(f"at_s[{index}] must be later than the one before ({earlier} s), not {later} s")

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        moments, rates = list(self.at_s), list(self.rates)
        if moments[0] > 0.0:
            moments, rates = [0.0, *moments], [0.0, *rates]
        if moments[-1] < length_s:
            moments, rates = [*moments, length_s], [*rates, 0.0]
        full_curve = Curve.of_rates(moments, rates)
        if moments[-1] <= length_s:
            return full_curve
        inside = np.asarray([moment for moment in moments if moment < length_s] + [length_s])
        return Curve(inside, np.interp(inside, full_curve.at_s, full_curve.messages))
