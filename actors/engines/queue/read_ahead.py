"""ReadAhead: messages at the head of a queue that are delivered before a turn has taken them off.

A channel that gets one message after another would otherwise need a turn for each. So a turn that has answered its get,
or has taken off what was delivered, leaves a copy of the queue's head here; the next gets of that channel use it, and
their acks are noted. The queue does not change meanwhile, because every change needs a turn, and a turn begins with
taking off what was delivered here (:meth:`~warren.actors.engines.queue.queue_early.QueueEarly.take_off`), in one run.
The turn comes within the sync interval, and leaves the head here again as long as the gets continue.

As with early deliveries (:mod:`warren.actors.queue.early_deliveries`), all of this happens under the inbox's lock,
while no turn runs.
"""

from __future__ import annotations

from typing import Any, Final

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.queue.effects import Delivered
from warren.queue_index.queue.fetching import Fetched

MOST_AHEAD: Final = 256
"""How many messages may be delivered before a turn is needed."""


class ReadAhead:
    """Messages at the head, for gets of one channel; the first ones may have been delivered."""

    __slots__ = ("_acked", "_fetched", "_tags", "channel", "delivered", "first_tag")

    def __init__(self, channel: str, tags: DeliveryTags[Any], fetched: Fetched) -> None:
        self.channel = channel
        self.delivered = 0
        self.first_tag = tags.next_tag
        self._tags = tags
        self._fetched = fetched
        self._acked = bytearray(fetched.count)

    @property
    def acked(self) -> list[bool]:
        """Whether each delivered message was acked."""
        return [*map(bool, self._acked[: self.delivered])]

    def deliver(self, channel: str) -> Delivered | None:
        """Deliver the next message; ``None`` if that is impossible. The inbox's lock is held."""
        at, tag = self.delivered, self._tags.next_tag
        if at == self._fetched.count or tag != self.first_tag + at or channel != self.channel:
            return None
        delivered = Delivered(None, channel, tag, self._fetched.part(at, 1))
        self._tags.pass_by(1)
        self.delivered = at + 1
        return delivered

    def ack(self, channel: str, tag: int) -> bool:
        """Ack a delivered message; return whether it was one of these. The inbox's lock is held."""
        at = tag - self.first_tag
        if not 0 <= at < self.delivered or channel != self.channel or self._acked[at]:
            return False
        self._acked[at] = True
        return True
