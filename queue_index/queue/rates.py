"""Rates: how fast messages go in and out, as moving averages, and what follows for the memory they may take.

A sample weighs by the time it covers: after one half-life an old rate counts half. Time is handed in, in nanoseconds,
and counts in whole microseconds.
"""

from __future__ import annotations

import math

import attrs

from warren.storage.settings import Settings

_NEARLY_NOTHING = 0.01  # messages per second below which a queue counts as idle


def moving_average(elapsed_s: float, half_life_s: float, sample: float, average: float) -> float:
    """The average after a sample that covers ``elapsed_s`` seconds."""
    weight = math.exp(elapsed_s * math.log(0.5) / half_life_s)
    return sample * (1 - weight) + average * weight


@attrs.define
class Rates:
    """Messages per second, and the counters since they were last calculated."""

    timestamp_ns: int
    ingress: float = 0.0
    egress: float = 0.0
    ack_ingress: float = 0.0
    ack_egress: float = 0.0
    in_count: int = 0
    out_count: int = 0
    ack_in_count: int = 0
    ack_out_count: int = 0

    @property
    def total(self) -> float:
        return self.egress + self.ingress + self.ack_egress + self.ack_ingress

    @property
    def idle(self) -> bool:
        return max(self.ingress, self.egress, self.ack_ingress, self.ack_egress) < _NEARLY_NOTHING

    @property
    def acks_grow_faster(self) -> bool:
        """Whether pending acks pile up faster than ready messages."""
        return self.ack_ingress - self.ack_egress > self.ingress - self.egress

    def due(self, settings: Settings) -> bool:
        return self.in_count + self.out_count > settings.rate_calculation_threshold

    def update(self, now_ns: int, settings: Settings) -> None:
        """Take the counters in as a sample that ends now."""
        elapsed_s = (now_ns - self.timestamp_ns) // 1000 / 1_000_000
        if elapsed_s > 0:
            half_life = settings.rate_average_half_life_s

            def updated(count: int, rate: float) -> float:
                return moving_average(elapsed_s, half_life, count / elapsed_s, rate)

            self.ingress = updated(self.in_count, self.ingress)
            self.egress = updated(self.out_count, self.egress)
            self.ack_ingress = updated(self.ack_in_count, self.ack_ingress)
            self.ack_egress = updated(self.ack_out_count, self.ack_egress)
        self.in_count = self.out_count = self.ack_in_count = self.ack_out_count = 0
        self.timestamp_ns = now_ns
