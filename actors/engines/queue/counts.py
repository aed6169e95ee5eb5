"""Counts: counters of a queue's messages since counting began.

They exist only in a node that is recorded (:mod:`warren.actors.node.recorder_actor`) or managed. Each call of a queue
adds once, whatever the number of its messages. A recorder takes the changes since its last reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.queue.consumers import Run


@attrs.define(eq=False, repr=False)
class Counts:
    """One queue's counters. Only its actor writes them."""

    published: int = 0
    """Published messages, refused ones included."""
    published_bytes: int = 0
    """The bytes of their bodies."""
    persistent: int = 0
    """Published persistent messages."""
    refused: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    """Delivered messages that need no ack, and are removed on delivery."""
    got: int = 0
    """Delivered messages that need an ack and went to gets, not to consumers."""
    redelivered: int = 0
    """Delivered messages that were redelivered."""
    acked: int = 0
    """Acked messages, and those that needed no ack."""
    requeued: int = 0
    """Messages that consumers, or closed channels, gave back."""
    rejected: int = 0
    """Messages that consumers rejected; they may have become dead letters."""
    dead_lettered: int = 0
    purged: int = 0
    _taken: dict[str, int] = attrs.Factory(dict)

    # Positional arguments, because these are called for every batch.

    def note_published(self, count: int, size_bytes: int, persistent: bool) -> None:
        """Count published messages."""
        self.published += count
        self.published_bytes += size_bytes
        if persistent:
            self.persistent += count

    def note_delivered(self, count: int, redelivered: bool, ack_required: bool) -> None:
        """Count delivered messages."""
        self.delivered += count
        if redelivered:
            self.redelivered += count
        if not ack_required:
            self.delivered_no_ack += count
            self.acked += count

    def note_acked(self, runs: Sequence[Run]) -> None:
        """Count acked messages."""
        self.acked += runs[0].count if len(runs) == 1 else sum([run.count for run in runs])

    @property
    def any(self) -> bool:
        """Whether a counter has changed since the last :meth:`take`."""
        return any(getattr(self, name) != self._taken.get(name, 0) for name in _NAMES)

    def take(self) -> Counts:
        """The changes since the last call."""
        now = {name: getattr(self, name) for name in _NAMES}
        taken = Counts(**{name: count - self._taken.get(name, 0) for name, count in now.items()})
        self._taken = now
        return taken

    def to_json(self) -> dict[str, int]:
        """All counters by name."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in attrs.fields(Counts) if not field.name.startswith("_"))
