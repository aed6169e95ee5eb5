"""Counts: what has happened to a queue since somebody last asked, in messages.

Kept only where a node is recorded (:mod:`warren.actors.recorder_actor`): each call of a queue adds once, whatever the
number of its messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.consumers import Run


@attrs.define(eq=False)
class Counts:
    """One queue's; its actor writes, and takes them when they are asked for."""

    published: int = 0
    """Handed over, those that were refused too."""
    published_bytes: int = 0
    """Of their bodies."""
    persistent: int = 0
    """Of those published."""
    refused: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    """Of those delivered: gone as they went, nobody acks them."""
    redelivered: int = 0
    """Of those delivered."""
    acked: int = 0
    """Those that needed no ack too."""
    requeued: int = 0
    """Given back by consumers, or by channels that closed."""
    rejected: int = 0
    """Given up by consumers, dead letters among them."""
    dead_lettered: int = 0
    purged: int = 0

    # By position, for they are called with every batch.

    def note_published(self, count: int, size_bytes: int, persistent: bool) -> None:
        """Messages were handed over."""
        self.published += count
        self.published_bytes += size_bytes
        if persistent:
            self.persistent += count

    def note_delivered(self, count: int, redelivered: bool, ack_required: bool) -> None:
        """Messages went to a consumer."""
        self.delivered += count
        if redelivered:
            self.redelivered += count
        if not ack_required:
            self.delivered_no_ack += count
            self.acked += count

    def note_acked(self, runs: Sequence[Run]) -> None:
        """A consumer is done with messages."""
        self.acked += runs[0].count if len(runs) == 1 else sum([run.count for run in runs])

    @property
    def any(self) -> bool:
        """Whether there is one that is not 0."""
        return any(getattr(self, name) for name in _NAMES)

    def take(self) -> Counts:
        """What there was; from now on it counts anew."""
        taken = Counts()
        for name in _NAMES:
            setattr(taken, name, getattr(self, name))
            setattr(self, name, 0)
        return taken


_NAMES = tuple(field.name for field in attrs.fields(Counts))
