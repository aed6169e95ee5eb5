"""Counts: what has happened to a queue since it is counted, in messages.

Kept only for a node that is recorded (:mod:`warren.actors.node.recorder_actor`) or managed.
Each call of a queue adds once, whatever the number of its messages. A recorder takes what has come since it last did.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.queue.consumers import Run


@attrs.define(eq=False, repr=False)
class Counts:
    """One queue's; its actor writes."""

    published: int = 0
    """Handed over, those that were refused too."""
    published_bytes: int = 0
    """Of their bodies."""
    persistent: int = 0
    """Of those published."""
    refused: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    """Of those delivered: removed on delivery, without an ack."""
    got: int = 0
    """Of those delivered that are to be acked: asked for, not consumed."""
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
    _taken: dict[str, int] = attrs.Factory(dict)

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
        """Whether anything has happened since they were taken."""
        return any(getattr(self, name) != self._taken.get(name, 0) for name in _NAMES)

    def take(self) -> Counts:
        """What has happened since the last time."""
        now = {name: getattr(self, name) for name in _NAMES}
        taken = Counts(**{name: count - self._taken.get(name, 0) for name, count in now.items()})
        self._taken = now
        return taken

    def to_json(self) -> dict[str, int]:
        """All that has happened, by name."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in attrs.fields(Counts) if not field.name.startswith("_"))
