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

import attrs

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_receivers import QueueReceivers
from warren.actors.engines.queue.queue_syncs import QueueSyncs
from warren.actors.engines.queue.queue_turn_host import TurnContext
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
        """Ack a delivered message; return whether it was read ahead. The inbox's lock is held."""
        at = tag - self.first_tag
        if not 0 <= at < self.delivered or channel != self.channel or self._acked[at]:
            return False
        self._acked[at] = True
        return True


@attrs.define(eq=False, repr=False)
class HeadReader:
    """Decides at each turn's end whether to read ahead, and for which channel."""

    _context: TurnContext
    _syncs: QueueSyncs
    _receivers: QueueReceivers
    _got_ns: int = -1 << 62
    """When a get of one message last returned one."""
    _acks_on: str | None = None
    """The channel that has acked since then, whose acks will need a sync."""
    _reads_on: str | None = None
    """The channel that may get more: it got two messages in quick succession, or got one after acking the last."""
    _ahead_of: str | None = None
    """The channel for which the last turn left messages."""
    _pays: bool = True
    """Whether any of the messages last left this way were taken."""

    def note_got(self, channel: str) -> None:
        """Note that a channel got a single message, to be acked."""
        now_ns = self._context.clock.now_ns()
        soon = now_ns < self._got_ns + self._context.sync_interval_ns
        self._reads_on = channel if soon or (self._pays and channel == self._acks_on) else None
        self._got_ns, self._acks_on = now_ns, None

    def note_acked(self, channel: str) -> None:
        """Note that a channel acked messages."""
        self._acks_on = channel
        if channel == self._ahead_of:
            self._reads_on = channel

    def read(self) -> ReadAhead | None:
        """At a turn's end: messages at the head, for a channel that gets them one by one. The next turn, which comes
        soon, begins with :meth:`take_off`."""
        channel, self._reads_on = self._reads_on, None
        if channel is None and self._ahead_of is not None:
            self._pays = False
        self._ahead_of = None
        process = self._context.process
        if channel is None or self._receivers.by_tag or self._syncs.waits_for_room:
            return None
        fetched = process.early.read_ahead(MOST_AHEAD)
        if fetched is None:
            return None
        self._syncs.arm()
        self._ahead_of = channel
        return ReadAhead(channel, process.consumers.channel(channel), fetched)

    def take_off(self, ahead: ReadAhead) -> None:
        """Take what was read ahead and delivered off the queue."""
        acked = ahead.acked
        self._context.worked = True
        self._reads_on, self._pays = ahead.channel, True
        if any(acked):
            self._syncs.settled, self._acks_on = True, ahead.channel
        self._context.process.context.touch()
        self._context.process.early.take_off(ahead.channel, None, ahead.first_tag, acked)
