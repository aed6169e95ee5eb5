"""Retry: what becomes of messages that come back to a queue, in one value."""

from __future__ import annotations

from typing import Any, Final

import attrs

from warren.storage.call_arguments import checked_class
from warren.storage.errors import InvalidValueError, shown

_MIN_DELAY_S: Final = 0.001


def _share(jitter: Any) -> float:
    if not isinstance(jitter, (int, float)) or isinstance(jitter, bool) or not 0 <= jitter <= 1:
        raise InvalidValueError(f"a retry's jitter is 0 … 1, not {shown(jitter)}")
    return jitter


@checked_class
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
    """The factor by which the wait grows each time (1: constant, 2: doubled); ``None``: it grows by the first wait."""
    max_delay: float | None = None
    """The longest wait, in seconds."""
    jitter: float = attrs.field(default=0.0, converter=_share)
    """By up to which share (0 … 1) a wait is less, another one for each message."""
    dead_letters: str | None = None
    """The queue that dead letters go to; ``None``: where the queue's other arguments say, or nowhere."""

    def __attrs_post_init__(self) -> None:
        """Raise :class:`~warren.errors.InvalidValueError` for a value that no queue takes."""
        for name, lowest in (("multiplier", 1), ("delay", _MIN_DELAY_S), ("max_delay", _MIN_DELAY_S)):
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise InvalidValueError(f"a retry's {name} is at least {lowest}, not {shown(value)}")
        if self.delay is not None and self.max_delay is not None and self.delay > self.max_delay:
            raise InvalidValueError(f"a retry's delay is at most its max_delay, {self.max_delay}, not {self.delay}")

    @property
    def arguments(self) -> dict[str, Any]:
        """As queue arguments."""
        arguments = {
            "x-delivery-limit": self.limit,
            "x-delayed-retry-min": _milliseconds(self.delay),
            "x-delayed-retry-multiplier": self.multiplier,
            "x-delayed-retry-max": _milliseconds(self.max_delay),
            "x-delayed-retry-jitter": round(self.jitter * 100) or None,
            "x-dead-letter-exchange": None if self.dead_letters is None else "",
            "x-dead-letter-routing-key": self.dead_letters,
        }
        return {name: value for name, value in arguments.items() if value is not None}


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
