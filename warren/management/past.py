"""Samples of the past, as requests ask for them: ``lengths_age=600&lengths_incr=5``."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import Any, Final

import attrs

from warren.management.http import HttpError
from warren.management.rates import KEPT_S, RECENT_S, Rates

_KINDS: Final = ("lengths", "msg_rates", "data_rates", "node_stats")
_OF_LENGTHS: Final = frozenset({"messages", "messages_ready", "messages_unacknowledged"})
_OF_DATA: Final = frozenset({"recv_oct", "send_oct"})
_DETAILS: Final = "_details"
MAX_MOMENTS: Final = RECENT_S
"""The most samples of one counter in an answer."""


@attrs.frozen
class Range:
    """How far back samples go, and how far apart they are, in seconds."""

    age_s: int
    incr_s: int

    def samples(self, rates: Rates, key: Hashable, name: str, now_s: float) -> dict[str, Any]:
        """The samples in the details of a counter: ``samples``, ``avg`` and ``avg_rate``."""
        wall_s = time.time()
        last = int(wall_s) // self.incr_s * self.incr_s
        moments = [last - back for back in range(0, self.age_s + 1, self.incr_s)]
        values = rates.samples(key, name, [now_s - (wall_s - moment) for moment in moments])
        passed_s = moments[0] - moments[-1]
        return {
            "samples": [
                {"sample": value, "timestamp": 1000 * moment} for value, moment in zip(values, moments, strict=True)
            ],
            "avg_rate": (values[0] - values[-1]) / passed_s if passed_s else 0.0,
            "avg": sum(values) / len(values),
        }


@attrs.frozen
class Past:
    """The samples of the past that a request asks for."""

    ranges: Mapping[str, Range]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Past:
        """Return the ranges of a query. Raises :class:`HttpError` for samples that are not kept."""
        ranges = {}
        for kind in _KINDS:
            age, incr = query.get(f"{kind}_age", ""), query.get(f"{kind}_incr", "")
            if age.isdecimal() and incr.isdecimal():  # RabbitMQ takes no notice of anything else
                parsed = Range(int(age), int(incr))
                if not 0 < parsed.incr_s <= parsed.age_s <= min(KEPT_S, MAX_MOMENTS * parsed.incr_s):
                    raise HttpError(
                        400,
                        "invalid_range_parameters",
                        f"Invalid range parameters: age {parsed.age_s}, incr {parsed.incr_s}",
                    )
                ranges[kind] = parsed
        return cls(ranges)

    def add(self, document: dict[str, Any], rates: Rates, key: Hashable, now_s: float, others: str) -> None:
        """Put samples into the details of counters. ``others``: the kind of counters whose names do not tell it."""
        for field, details in document.items() if self.ranges else ():
            if field.endswith(_DETAILS):
                name = field.removesuffix(_DETAILS)
                kind = "lengths" if name in _OF_LENGTHS else "data_rates" if name in _OF_DATA else others
                if (past_range := self.ranges.get(kind)) is not None:
                    document[field] = details | past_range.samples(rates, key, name, now_s)


NOTHING: Final = Past({})
