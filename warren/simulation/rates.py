"""Rates: how many messages a second, over time; and from them the moments at which messages come.

A rate is a curve that is cumulated: how many messages there were until a time, piecewise linear. Its inverse turns
whole numbers (``constant``) or the points of a unit Poisson process (``poisson``) into moments, so one rule serves
constant rates, bursts, days and traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.units import DAY_S, ScenarioError

Arrivals = Literal["constant", "poisson"]
Floats = npt.NDArray[np.float64]
_CHUNK: Final = 4096
_DAILY_STEP_S: Final = 30.0
_FASTEST: Final = 1e9


def checked_rate(key: str, value: object) -> float:
    """Messages a second."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= _FASTEST:
        raise ScenarioError(f"{key} must be 0 … 1e9 messages a second, not {value!r}")
    return float(value)


@attrs.frozen(eq=False)
class Curve:
    """Messages until each of some moments; between them they come evenly.

    ``at_s``: rising, from 0 on. ``messages``: as many, never falling, from 0 on.
    """

    at_s: Floats
    messages: Floats

    @classmethod
    def of_rates(cls, at_s: Sequence[float] | Floats, rates: Sequence[float] | Floats) -> Curve:
        """``rates``: one fewer than moments, each holding from its moment to the next."""
        moments = np.asarray(at_s, np.float64)
        steps = np.diff(moments) * np.asarray(rates, np.float64)
        return cls(moments, np.concatenate([[0.0], np.cumsum(steps)]))

    def scaled(self, spans: Sequence[tuple[float, float, float]]) -> Curve:
        """The curve with its rate multiplied by a factor within each span: (from, until, factor)."""
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
        """When messages come (seconds), in chunks, in order."""
        total, reached = float(self.messages[-1]), 0.0
        while reached < total:
            if arrivals == "poisson":
                numbers = reached + np.cumsum(rng.exponential(size=_CHUNK))
                reached = float(numbers[-1])
            else:
                numbers = reached + np.arange(1.0, _CHUNK + 1.0)
                reached += _CHUNK
            numbers = numbers[numbers <= total]
            if len(numbers):
                # The first moment at which so many have come: where none come for a while, its beginning.
                yield self._inverse(numbers)

    def _inverse(self, numbers: Floats) -> Floats:
        right = np.searchsorted(self.messages, numbers, side="left")
        left = right - 1
        span = self.messages[right] - self.messages[left]
        share = (numbers - self.messages[left]) / span
        moments: Floats = self.at_s[left] + share * (self.at_s[right] - self.at_s[left])
        return moments


@attrs.frozen
class Constant:
    """Always the same rate."""

    rate: float

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        """The rate from the simulation's start to its end."""
        return Curve.of_rates([0.0, length_s], [self.rate])


@attrs.frozen
class Bursts:
    """``base`` messages a second, and ``peak`` for ``lasting_s`` every ``every_s``, the first after ``first_s``."""

    base: float
    peak: float
    every_s: float
    lasting_s: float
    first_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        if not 0.0 < self.lasting_s < self.every_s:
            raise ScenarioError("bursts must last more than 0 s and less than the time from one to the next (every)")

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


@attrs.frozen
class Daily:
    """A rate at some times of the day (seconds since midnight, rising), and evenly from one to the next."""

    points: tuple[tuple[float, float], ...]

    def __attrs_post_init__(self) -> None:
        times = [time for time, _ in self.points]
        if not times or times != sorted(set(times)):
            raise ScenarioError("a daily curve must have times of day that rise, at least one")

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        times = [time for time, _ in self.points]
        rates = [rate for _, rate in self.points]
        moments = np.append(np.arange(0.0, length_s, _DAILY_STEP_S), length_s)
        of_day = (start_of_day_s + (moments[:-1] + moments[1:]) / 2) % DAY_S
        return Curve.of_rates(moments, np.interp(of_day, times, rates, period=DAY_S))


@attrs.frozen(eq=False)
class Trace:
    """Rates that were measured: each holds from its moment (seconds) to the next; behind the last, nothing comes."""

    source: str
    at_s: tuple[float, ...]
    rates: tuple[float, ...]
    """One fewer than moments."""

    def curve(self, start_of_day_s: float, length_s: float) -> Curve:
        moments, rates = list(self.at_s), list(self.rates)
        if moments[0] > 0.0:
            moments, rates = [0.0, *moments], [0.0, *rates]
        if moments[-1] < length_s:
            moments, rates = [*moments, length_s], [*rates, 0.0]
        whole = Curve.of_rates(moments, rates)
        if moments[-1] <= length_s:
            return whole
        inside = np.asarray([moment for moment in moments if moment < length_s] + [length_s])
        return Curve(inside, np.interp(inside, whole.at_s, whole.messages))


Rate = Constant | Bursts | Daily | Trace
