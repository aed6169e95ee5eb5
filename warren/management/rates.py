"""Rates: how fast counters grow, from samples that are taken when somebody asks. A plain object.

Of each thing that is counted a few samples of the last seconds are kept, at least a second apart. A rate is the growth
since the newest sample that is old enough; the first time there is none, and it is 0.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import attrs

WINDOW_S: Final = 5.0
"""What RabbitMQ's rates are over: its statistics come every five seconds."""
_APART_S: Final = 1.0
_KEPT: Final = 8
"""Samples a thing: as many as are surely older than the window together."""

Counters = Mapping[str, float]


@attrs.define
class Rates:
    """The samples of all things of one kind."""

    _samples: dict[Hashable, deque[tuple[float, Counters]]] = attrs.Factory(dict)

    def note(self, key: Hashable, now_s: float, counters: Counters) -> dict[str, float]:
        """Take a sample; returns how fast each counter grows, a second."""
        kept = self._samples.get(key)
        if kept is None:
            kept = self._samples[key] = deque(maxlen=_KEPT)
        rates = _rates(kept, now_s, counters)
        if not kept or now_s - kept[-1][0] >= _APART_S:
            kept.append((now_s, dict(counters)))
        return rates

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Forget all things but these."""
        keys = set(keys)
        for key in [key for key in self._samples if key not in keys]:
            del self._samples[key]

    def __len__(self) -> int:
        return len(self._samples)


def _rates(kept: Iterable[tuple[float, Counters]], now_s: float, counters: Counters) -> dict[str, float]:
    since: tuple[float, Counters] | None = None
    for sample in kept:
        if since is None or now_s - sample[0] >= WINDOW_S:
            since = sample
    if since is None or now_s <= since[0]:
        return dict.fromkeys(counters, 0.0)
    passed_s = now_s - since[0]
    return {name: (value - since[1].get(name, value)) / passed_s for name, value in counters.items()}


def rates_of(counters: Counters, rates: Mapping[str, float]) -> dict[str, Any]:
    """Counters with their rates, as RabbitMQ says them: ``{"publish": 3, "publish_details": {"rate": 0.6}}``."""
    found: dict[str, Any] = {}
    for name, value in counters.items():
        found[name] = value
        found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 3)}
    return found
