"""Rates and past samples: how counters grow. A plain object.

For each counter, the samples of the last ten minutes are kept, five seconds apart (of a time without changes, only the
first and the last one), and those of the last hour, one a minute. They are taken by a clock, and at requests. A rate is
the growth since the newest sample that is at least five seconds old, or else since the oldest one; without any sample
it is 0.0.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import attrs

APART_S: Final = 5.0
"""The interval of RabbitMQ's rates: its statistics come every five seconds."""
KEPT_S: Final = 3600
"""How far samples go back."""
RECENT_S: Final = 600
"""How far samples go back that are :data:`APART_S` apart; older ones are :data:`OLDER_APART_S` apart."""
OLDER_APART_S: Final = 60
MAX_SAMPLES: Final = 100_000
"""The limit for all things of one kind together: each has its share, and always enough for a rate."""
_FOR_A_RATE: Final = 8

Counters = Mapping[str, float]
Sample = tuple[float, "array[float]"]


@attrs.define
class _Series:
    names: tuple[str, ...]
    samples: deque[Sample] = attrs.Factory(deque)
    older: deque[Sample] = attrs.Factory(deque)
    """The last sample of each minute."""
    is_cut: bool = False
    """Whether samples before the first one were dropped."""

    def note(self, now_s: float, values: array[float], at_most: int) -> None:
        samples = self.samples
        if len(samples) > 1:
            (before_s, before), (last_s, last) = samples[-2], samples[-1]
            if last_s - before_s < APART_S or before == last == values:
                samples.pop()
        samples.append((now_s, values))
        while len(samples) > at_most or (len(samples) > 1 and samples[1][0] < now_s - RECENT_S):
            self._retire(samples.popleft())
        while len(self.older) > at_most or (len(self.older) > 1 and self.older[1][0] < now_s - KEPT_S):
            self.older.popleft()
            self.is_cut = True

    def _retire(self, sample: Sample) -> None:
        if self.older and self.older[-1][0] // OLDER_APART_S == sample[0] // OLDER_APART_S:
            self.older.pop()
        self.older.append(sample)

    def rates(self, now_s: float, values: array[float]) -> dict[str, float]:
        since: Sample | None = None
        for sample in reversed(self.samples):
            since = sample
            if now_s - sample[0] >= APART_S:
                break
        if since is None or now_s <= since[0]:
            return dict.fromkeys(self.names, 0.0)
        passed_s = now_s - since[0]
        return {
            name: (value - before) / passed_s for name, value, before in zip(self.names, values, since[1], strict=True)
        }


@attrs.define
class Rates:
    """The samples of all things of one kind."""

    _series: dict[Hashable, _Series] = attrs.Factory(dict)

    def note(self, key: Hashable, now_s: float, counters: Counters) -> dict[str, float]:
        """Take a sample; returns how fast each counter grows, a second."""
        names, values = tuple(counters), array("d", counters.values())
        series = self._series.get(key)
        if series is None or series.names != names:
            series = self._series[key] = _Series(names)
        rates = series.rates(now_s, values)
        series.note(now_s, values, self._at_most)
        return rates

    def note_unchanged(self, key: Hashable, now_s: float) -> None:
        """Take a sample of a thing whose counters are those of the sample before."""
        series = self._series[key]
        series.note(now_s, series.samples[-1][1], self._at_most)

    @property
    def _at_most(self) -> int:
        return max(_FOR_A_RATE, MAX_SAMPLES // len(self._series))

    def samples(self, key: Hashable, name: str, moments_s: Iterable[float]) -> list[float]:
        """A counter at moments, the newest one first; 0 before the first sample.

        Between samples that are further apart than usual, as on a machine that is too busy for more, it grows evenly.
        """
        series = self._series.get(key)
        if series is None or name not in series.names:
            return [0 for _ in moments_s]
        column, values = series.names.index(name), list[float]()
        samples = [*series.older, *series.samples]  # a copy: others may take samples meanwhile
        newest_first, first = reversed(samples), samples[0] if series.is_cut else None
        later, sample = None, next(newest_first, first)
        for moment_s in moments_s:
            while sample is not None and sample is not first and sample[0] > moment_s:
                later, sample = sample, next(newest_first, first)
            values.append(_between(sample, later, moment_s, column))
        return values

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Forget all things but these."""
        keys = set(keys)
        for key in [key for key in self._series if key not in keys]:
            del self._series[key]

    def __len__(self) -> int:
        return len(self._series)


def _between(sample: Sample | None, later: Sample | None, moment_s: float, column: int) -> float:
    """A counter at a moment after ``sample`` and before ``later``, the next one."""
    if sample is None:
        return 0
    value = sample[1][column]
    if later is not None and moment_s > sample[0] and later[0] - sample[0] > 2 * APART_S:
        share = (moment_s - sample[0]) / (later[0] - sample[0])
        value = round(value + share * (later[1][column] - value))
    return int(value) if float(value).is_integer() else value


def rates_of(counters: Counters, rates: Mapping[str, float]) -> dict[str, Any]:
    """Counters with their rates, as RabbitMQ writes them: ``{"publish": 3, "publish_details": {"rate": 0.6}}``."""
    fields: dict[str, Any] = {}
    for name, value in counters.items():
        fields[name] = value
        fields[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 3)}
    return fields
