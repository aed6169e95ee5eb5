"""What a work takes: seconds of its timed stretches, amounts, and resident memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import psutil


@attrs.define
class Stretch:
    """A timed stretch; an ``amount`` that is only known at its end is set here."""

    amount: float = 0


class Watch:
    """Collects what one work measures, by the names of its values."""

    def __init__(self, pid: int | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.amounts: dict[str, float] = {}
        self.values: dict[str, float] = {}
        """What was measured otherwise than by a rate."""
        self._process = psutil.Process(pid)
        self._rss_before = self._process.memory_info().rss
        self._rss_most = self._rss_before

    @contextmanager
    def timing(self, name: str, amount: float = 0) -> Iterator[Stretch]:
        """Time a stretch that handles ``amount`` (messages, megabytes); stretches of one name add up."""
        stretch = Stretch(amount)
        start = time.perf_counter()
        yield stretch
        seconds = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.amounts[name] = self.amounts.get(name, 0.0) + stretch.amount

    def begin_memory(self) -> None:
        """Growth counts from here."""
        self._rss_before = self._rss_most = self._process.memory_info().rss

    def sample(self) -> None:
        """Look at the memory."""
        self._rss_most = max(self._rss_most, self._process.memory_info().rss)

    @property
    def grown_mb(self) -> float:
        """Resident memory at its most, above the beginning."""
        return (self._rss_most - self._rss_before) / 1e6

    def results(self) -> dict[str, float]:
        """Rates for stretches with amounts, seconds for others; and the other values."""
        rates = {
            name: self.amounts[name] / seconds if self.amounts[name] else seconds
            for name, seconds in self.seconds.items()
        }
        return rates | self.values
