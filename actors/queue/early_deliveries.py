"""Early deliveries: messages that go out, or are written, before the queue has taken them in.

A message that waits in the inbox of an empty queue, where nothing stands before it, can be handed to one who asks for
it, or to the one consumer that waits, at once. The next turn takes in what was handed out so, as delivered; it comes
within the sync interval, or as soon as somebody waits for a confirm. What was acked by then is gone: nothing of it is
encoded, written or counted one by one. RabbitMQ does the same with a message that is acked before it was written.

In the same way messages that somebody waits for are *written ahead*: into the journal, at the places that they will
have, and the turn that takes them in finds them there. What of them was acked meanwhile it marks as acked.

So little is done for a message that comes and goes: it joins an :class:`EarlyBatch`, a number says how many of that
were handed out, and an ack takes its body out. All of it happens under the inbox's lock, while nobody runs a turn; a
turn begins by taking out of the inbox, and so finds it done or not. To write takes a turn of its own, a short one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.queue.effects import Delivered, DeliveredEarly
from warren.actors.node.front_end import PublishBatch
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.inbox import Entry, Inbox, PendingBatch
from warren.queue_index.queue.fetching import fetched_alone

MOST_EARLY: Final = 8192
"""So many of one batch go out early, settled or not, or are written, before a turn has to come."""

MOST_AT_ONCE: Final = 16
"""So many are written ahead together; more are quicker taken in."""


class EarlyBatch(PublishBatch):
    """Single publishes that wait together, the first of which may have been handed out.

    They have consecutive delivery tags of one channel. In ``items`` stands ``None`` for one that was acked. The first
    ``written`` of them were written ahead, or are being written.
    """

    __slots__ = ("channel", "consumer", "delivered", "first_tag", "gone", "gone_bytes", "lasts", "written")

    def __init__(self, key: PublishKey, confirm: Confirm) -> None:
        super().__init__(key, confirm)
        self.lasts = key.expiration_ms is None
        """Whether the messages never expire by themselves."""
        self.channel = ""
        self.consumer: str | None = None
        """Whose they are; ``None``: of one who asked for them."""
        self.delivered = 0
        self.first_tag = 0
        self.gone = 0
        """How many were acked."""
        self.gone_bytes = 0
        """The bytes of the bodies of those that were not written."""
        self.written = 0

    @property
    def waits(self) -> bool:
        """Whether one of them was not handed out."""
        return self.delivered < len(self.items)

    def early_written(self) -> DeliveredEarly | None:
        """Those that were handed out and written, as the queue takes them in; ``None`` where there are none."""
        return self._early(0, min(self.written, self.delivered))

    def early(self) -> DeliveredEarly | None:
        """Those that were handed out and not written, as the queue takes them in; ``None`` where there are none."""
        return self._early(self.written, self.delivered)

    def _early(self, low: int, high: int) -> DeliveredEarly | None:
        if low >= high:
            return None
        gone_bytes = self.gone_bytes if low == self.written else 0
        return DeliveredEarly(self.channel, self.consumer, self.first_tag + low, self.items[low:high], gone_bytes)

    def begin_writing(self, confirm_of_next: Confirm) -> tuple[list[bytes], Confirm] | None:
        """The messages that are still to be written, and their confirm; others that join get ``confirm_of_next``.

        ``None`` where they cannot be written ahead. The inbox's lock is held.
        """
        bodies = self.items[self.written :]
        if len(bodies) > MOST_AT_ONCE or self.written >= MOST_EARLY or None in bodies:
            return None
        confirm, self.confirm = self.confirm, confirm_of_next
        self.written += len(bodies)
        return bodies, confirm

    def were_not_written(self, bodies: list[bytes], confirm: Confirm) -> None:
        """They are to be taken in as they are; who waits for them does so with those that joined."""
        key: PublishKey = self.key  # type: ignore[assignment]
        self.written -= len(bodies)
        gone = [body for body, item in zip(bodies, self.items[self.written :], strict=False) if item is None]
        self.gone_bytes += key.envelope.bodies_bytes(gone)
        self.confirm.on_done(confirm.follow)

    def deliver(self, channel: str, consumer: str | None, tags: DeliveryTags[Any], most: int = 1) -> Delivered | None:
        """Hand out the next ones, at most so many, to a channel with these tags; ``None``: that cannot be.

        The inbox's lock is held.
        """
        at, tag = self.delivered, tags.next_tag
        if not at:
            self.channel, self.consumer, self.first_tag = channel, consumer, tag
        elif (
            at >= min(len(self.items), MOST_EARLY)
            or tag != self.first_tag + at
            or channel != self.channel
            or consumer != self.consumer
        ):
            return None
        key: PublishKey = self.key  # type: ignore[assignment]
        bodies = self.items[at : at + most]
        delivered = Delivered(consumer, channel, tag, fetched_alone(key.envelope, bodies))
        tags.pass_by(len(bodies))
        self.delivered = at + len(bodies)
        return delivered

    def ack_range(self, channel: str, tags: range, inbox: Inbox) -> bool:
        """:meth:`ack` for several that were handed out, if all of them were here."""
        low, high = tags.start - self.first_tag, tags.stop - self.first_tag
        if low < 0 or high > self.delivered or low >= high or tags.step != 1 or channel != self.channel:
            return False
        bodies = self.items[low:high]
        if None in bodies:
            return False
        key: PublishKey = self.key  # type: ignore[assignment]
        on_the_way_bytes = key.size_bytes(bodies)
        gone_bytes = key.envelope.bodies_bytes(bodies[max(self.written - low, 0) :])
        nothing = [None] * len(bodies)
        # No call from here on: no interrupt comes between.
        self.items[low:high] = nothing
        self.gone += high - low
        self.gone_bytes += gone_bytes
        self.room_bytes += on_the_way_bytes
        inbox.weight -= high - low
        return True

    def ack(self, channel: str, tag: int, inbox: Inbox) -> bool:
        """Let go of one that was handed out; whether it was here. The inbox's lock is held."""
        at = tag - self.first_tag
        if not 0 <= at < self.delivered or channel != self.channel or (body := self.items[at]) is None:
            return False
        key: PublishKey = self.key  # type: ignore[assignment]
        on_the_way_bytes = len(body) + key.overhead_bytes
        size_bytes = key.envelope.bodies_bytes((body,))
        # No call from here on: no interrupt comes between.
        self.items[at] = None
        self.gone += 1
        if at >= self.written:
            self.gone_bytes += size_bytes
        self.room_bytes += on_the_way_bytes  # for those that will join
        inbox.weight -= 1
        return True


class AckBatch(PendingBatch):
    """Acks that wait together. They only let go of messages, so that what stands behind them can go out before."""

    __slots__ = ()


def only_acks(line: Iterable[Entry], *, beside: EarlyBatch | None) -> bool:
    """Whether all that waits in an inbox is acks, and this batch."""
    for entry in line:  # noqa: SIM110 - of one or two entries, for every message
        if entry is not beside and not isinstance(entry, AckBatch):
            return False
    return True
