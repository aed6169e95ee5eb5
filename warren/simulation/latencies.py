"""Latencies: how long messages waited, from the moment they were to be published until a consumer received them.

During a step, the deliveries are only collected; at its end the latencies of all of them are computed together.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.simulation.units import NS

_BUCKETS_A_DECADE: Final = 200
_SMALLEST_S: Final = 1e-6
_DECADES: Final = 12
Times = npt.NDArray[np.int64]


@attrs.define(eq=False)
class Latencies:
    """Latencies of a queue or group: buckets, 200 a decade, each known to 1.2 %; their sum and largest exactly."""

    counts: Times | None = None
    """By bucket; ``None`` before the first."""
    count: int = 0
    sum_ns: int = 0
    largest_ns: int = 0
    _ids: list[bytes] = attrs.Factory(list)
    _taken_ns: list[Times] = attrs.Factory(list)
    """Of the step so far: messages' ids, and when they were delivered."""

    def add(self, ids: bytes, taken_ns: Times) -> None:
        """Note delivered messages. ``ids``: 16 bytes each; the first half is the time (the other all ones: unknown)."""
        self._ids.append(ids)
        self._taken_ns.append(taken_ns)

    def end_step(self) -> tuple[float, float]:
        """Return the p50 and p99 (seconds) of the step; NaN if nothing was delivered."""
        if not self._ids:
            return math.nan, math.nan
        halves = np.frombuffer(b"".join(self._ids), ">i8").astype(np.int64)
        values = (np.concatenate(self._taken_ns) - halves[::2])[halves[1::2] >= 0]
        self._ids, self._taken_ns = [], []
        if not len(values):
            return math.nan, math.nan
        self.count += len(values)
        self.sum_ns += int(values.sum())
        self.largest_ns = max(self.largest_ns, int(values.max()))
        most = _DECADES * _BUCKETS_A_DECADE
        decades = np.log10(np.maximum(values / NS, _SMALLEST_S) / _SMALLEST_S)
        buckets = np.minimum(np.ceil(decades * _BUCKETS_A_DECADE), most).astype(np.int64)
        counts = np.bincount(buckets, minlength=most + 1)
        self.counts = counts if self.counts is None else self.counts + counts
        p50, p99 = np.percentile(values, (50, 99)) / NS
        return float(p50), float(p99)

    def quantile(self, share: float) -> float:
        """Return the seconds within which that share of all messages was delivered; NaN if there were none."""
        if self.counts is None:
            return math.nan
        bucket = int(np.searchsorted(np.cumsum(self.counts), share * self.count))
        if not bucket:
            return 0.0
        middle_s = _SMALLEST_S * 10 ** ((bucket - 0.5) / _BUCKETS_A_DECADE)
        return min(middle_s, self.largest_ns / NS)  # the last bucket's middle may lie above all that is in it

    @property
    def mean_s(self) -> float:
        return self.sum_ns / self.count / NS if self.count else math.nan
