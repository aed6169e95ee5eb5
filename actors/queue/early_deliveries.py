"""Early deliveries: messages that are handed out, or written, before the queue has taken them in.

A message in the inbox of an empty queue, with nothing before it, can be handed at once to a caller that fetches, or to
the only waiting consumer. The next turn takes in such messages as delivered; it comes within the sync interval, or as
soon as a caller waits for a confirm. Messages acked by then are gone: they are not encoded, written or counted one by
one. RabbitMQ does the same with a message that is acked before it was written.

In the same way, messages whose confirm is waited for are *written ahead*: into the journal, at their final places. The
turn that takes them in finds them there, and marks those that were acked meanwhile as acked.

So a message that comes and goes costs little: it joins an :class:`EarlyBatch`, counters say how many of the batch were
written and handed out, and an ack removes its body. All of this happens under the inbox's lock, while no thread runs a
turn; a turn begins by taking the batch out of the inbox, so it sees each step as done or not done. Writing takes a
short turn of its own. The states of a message in the inbox, and what the next turn does:

======================  ==================================  ========================================================
state                   next states                         the turn that takes it in
======================  ==================================  ========================================================
waiting                 delivered, written                  publishes it
delivered               acked                               publishes it as pending (``publish_delivered``)
acked                                                       counts it
written                 written and delivered               enters its position (``enter_written``)
written and delivered   written and acked                   enters its position, and makes it pending (``take_off``)
written and acked                                           the same, and acks it
======================  ==================================  ========================================================

:class:`~warren.actors.queue.fast_paths.FastPaths` decides when a message may be delivered (``_batch_to_deliver``) and
written (``batch_to_write``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.queue.effects import Delivered, DeliveredEarly
from warren.actors.node.backpressure import PublishBatch
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.inbox import Entry, Inbox, PendingBatch
from warren.queue_index.queue.fetching import fetched_alone

MOST_EARLY: Final = 8192
"""How many messages of one batch may be handed out early, settled or not, or be written, before a turn has to come."""

MOST_AT_ONCE: Final = 16
"""How many messages are written ahead together; more are taken in faster."""


class EarlyBatch(PublishBatch):
    """Single publishes that wait together; the first ones may have been handed out.

    They have consecutive delivery tags of one channel. In ``items``, acked messages are replaced by ``None``. The first
    ``written`` messages were written ahead, or are being written.
    """

    __slots__ = ("acked_bytes", "acked_count", "channel", "consumer", "delivered", "first_tag", "lasts", "written")

    key: PublishKey

    def __init__(self, key: PublishKey, confirm: Confirm) -> None:
        super().__init__(key, confirm)
        self.lasts = key.expiration_ms is None
        """Whether the messages have no expiration of their own."""
        self.channel = ""
        self.consumer: str | None = None
        """The consumer that has them; ``None`` if they were fetched with ``get``."""
        self.delivered = 0
        self.first_tag = 0
        self.acked_count = 0
        """The number of acked messages."""
        self.acked_bytes = 0
        """The body bytes of acked messages that were not written."""
        self.written = 0

    @property
    def waits(self) -> bool:
        """Whether a message has not been handed out."""
        return self.delivered < len(self.items)

    def early_written(self) -> DeliveredEarly | None:
        """Return the messages that were handed out and written, for the queue to take in, or ``None``."""
        return self._early(0, min(self.written, self.delivered))

    def early(self) -> DeliveredEarly | None:
        """Return the messages that were handed out and not written, for the queue to take in, or ``None``."""
        return self._early(self.written, self.delivered)

    def _early(self, low: int, high: int) -> DeliveredEarly | None:
        if low >= high:
            return None
        acked_bytes = self.acked_bytes if low == self.written else 0
        return DeliveredEarly(self.channel, self.consumer, self.first_tag + low, self.items[low:high], acked_bytes)

    def begin_writing(self, confirm_of_next: Confirm) -> tuple[list[bytes], Confirm] | None:
        """Return the unwritten messages and their confirm; messages that join later get ``confirm_of_next``.

        Returns ``None`` if they cannot be written ahead. The inbox's lock must be held.
        """
        bodies = self.items[self.written :]
        if len(bodies) > MOST_AT_ONCE or self.written >= MOST_EARLY or None in bodies:
            return None
        confirm, self.confirm = self.confirm, confirm_of_next
        self.written += len(bodies)
        return bodies, confirm

    def were_not_written(self, bodies: list[bytes], confirm: Confirm) -> None:
        """Note that they could not be written ahead; their confirm follows that of the messages that joined later."""
        key = self.key
        self.written -= len(bodies)
        settled_bodies = [body for body, item in zip(bodies, self.items[self.written :], strict=False) if item is None]
        self.acked_bytes += key.envelope.bodies_bytes(settled_bodies)
        self.confirm.on_done(confirm.follow)

    def deliver(self, channel: str, consumer: str | None, tags: DeliveryTags[Any], most: int = 1) -> Delivered | None:
        """Hand out the next messages, at most ``most``, to a channel with these tags; ``None`` if that is impossible.

        The inbox's lock must be held.
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
        key = self.key
        bodies = self.items[at : at + most]
        delivered = Delivered(consumer, channel, tag, fetched_alone(key.envelope, bodies))
        tags.pass_by(len(bodies))
        self.delivered = at + len(bodies)
        return delivered

    def ack_range(self, channel: str, tags: range, inbox: Inbox) -> bool:
        """Like :meth:`ack`, for several messages; does nothing unless all of them are here."""
        low, high = tags.start - self.first_tag, tags.stop - self.first_tag
        if low < 0 or high > self.delivered or low >= high or tags.step != 1 or channel != self.channel:
            return False
        bodies = self.items[low:high]
        if None in bodies:
            return False
        key = self.key
        on_the_way_bytes = key.size_bytes(bodies)
        acked_bytes = key.envelope.bodies_bytes(bodies[max(self.written - low, 0) :])
        nothing = [None] * len(bodies)
        # No call from here on, so no interrupt can come between.
        self.items[low:high] = nothing
        self.acked_count += high - low
        self.acked_bytes += acked_bytes
        self.room_bytes += on_the_way_bytes
        inbox.weight -= high - low
        return True

    def ack(self, channel: str, tag: int, inbox: Inbox) -> bool:
        """Remove an acked message that was handed out; return whether it was here. The inbox's lock must be held."""
        at = tag - self.first_tag
        if not 0 <= at < self.delivered or channel != self.channel or (body := self.items[at]) is None:
            return False
        key = self.key
        on_the_way_bytes = len(body) + key.overhead_bytes
        size_bytes = key.envelope.bodies_bytes((body,))
        # No call from here on, so no interrupt can come between.
        self.items[at] = None
        self.acked_count += 1
        if at >= self.written:
            self.acked_bytes += size_bytes
        self.room_bytes += on_the_way_bytes  # for messages that join later
        inbox.weight -= 1
        return True


class AckBatch(PendingBatch):
    """Acks that wait together. They only remove messages, so messages that come after them may go out first."""

    __slots__ = ()


def only_acks(line: Iterable[Entry], *, beside: EarlyBatch | None) -> bool:
    """Whether the inbox holds only acks, and this batch."""
    for entry in line:  # noqa: SIM110 - of one or two entries, for every message
        if entry is not beside and not isinstance(entry, AckBatch):
            return False
    return True
