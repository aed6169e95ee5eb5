"""Retry: what becomes of messages that come back to a queue, in one value."""

from __future__ import annotations

from typing import Any

import attrs

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.queue_arguments import MAX_PERIOD_MS


@attrs.frozen(kw_only=True)
class Retry:
    """How often a message may come back to its queue, how long it waits each time, and where it goes then.

    For ``queue(name, retry=…)``; :attr:`arguments` says the same as queue arguments.
    """

    limit: int | None = None
    """How often a message may come back; one time more and it is a dead letter. ``None``: any number."""
    delay: float | None = None
    """Seconds that it waits the first time; ``None``: what failed 1, 2, 4 … seconds, what is given back none."""
    multiplier: int | None = None
    """By what the wait grows each time: 1 not at all, 2 it doubles; ``None``: by the first one."""
    max_delay: float | None = None
    """The longest wait, in seconds."""
    jitter: float = 0.0
    """By up to which share (0 … 1) a wait is less, another one for each message."""
    dead_letters: str | None = None
    """The queue that dead letters go to; ``None``: where the queue's other arguments say, or nowhere."""

    @property
    def arguments(self) -> dict[str, Any]:
        """As queue arguments. Raises :class:`~warren.errors.ArgumentsError`."""
        if not 0 <= self.jitter <= 1:
            raise ArgumentsError(f"a retry's jitter is 0 … 1, not {self.jitter}")
        found = {
            "x-delivery-limit": self.limit,
            "x-delayed-retry-min": _milliseconds("delay", self.delay),
            "x-delayed-retry-multiplier": self.multiplier,
            "x-delayed-retry-max": _milliseconds("max_delay", self.max_delay),
            "x-delayed-retry-jitter": round(self.jitter * 100) or None,
            "x-dead-letter-exchange": None if self.dead_letters is None else "",
            "x-dead-letter-routing-key": self.dead_letters,
        }
        return {name: value for name, value in found.items() if value is not None}


def _milliseconds(name: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0.001 <= seconds <= MAX_PERIOD_MS / 1000:
        raise ArgumentsError(f"a retry's {name} is 0.001 … {MAX_PERIOD_MS // 1000} seconds, not {seconds}")
    return round(seconds * 1000)
