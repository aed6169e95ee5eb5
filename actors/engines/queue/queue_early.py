"""QueueEarly: what happened to messages outside their queue's turns.

The part of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`) that takes note of it afterwards;
:mod:`warren.actors.queue.early_deliveries` and :mod:`warren.actors.read_ahead` say how it comes about. All are short
ways for messages that come or go one by one: one that is *written ahead* is safe before it is in the queue, one
*delivered early* is with its consumer before, and one *read ahead* is there before it has left its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.actors.engines.queue.effects import DeliveredEarly
from warren.actors.engines.queue.pending_confirms import PendingConfirms
from warren.actors.engines.queue.queue_deliveries import QueueDeliveries
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.fetching import Fetched


@attrs.define(eq=False, repr=False)
class QueueEarly(QueueDeliveries):
    """What is early in one queue. See the module's prose."""

    _pending_confirms: PendingConfirms | None = attrs.field(init=False, default=None)
    is_plain: bool = attrs.field(init=False)
    """Nothing to be looked at when messages come: :attr:`takes_all`, and no keys that they bring along."""
    takes_all: bool = attrs.field(init=False)
    """Whether messages that come all have the same place: no time to live of the queue's own, no limits, no levels."""
    _is_watched: bool = attrs.field(init=False, default=False)

    @property
    def takes_early(self) -> bool:
        """Whether a message that comes now may go out before it was taken in (:meth:`publish_delivered`)."""
        single = self.backing.single
        return single is not None and single.is_empty_in_ram

    @property
    def takes_ahead(self) -> bool:
        """Whether messages that come now may be written before they are taken in (:meth:`write_ahead`)."""
        return self.is_plain and self.backing.durable and self.backing.single is not None

    def lone_consumer(self, held: int) -> Consumer | None:
        """The only consumer there is, if it acks what it gets and has room for more than ``held`` messages."""
        return self._consumers.lone(held)

    def tags(self, channel: str) -> DeliveryTags[Any]:
        """A channel's delivery tags, for a message that it gets early."""
        return self._consumers.channel(channel)

    def write_ahead(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
        """Make some messages safe that :meth:`enter_written` takes in; ``False``: these cannot be so.

        Nothing else may be asked of the queue meanwhile. Raises what a sync raises.
        """
        single = self.backing.single
        return single is not None and single.write_ahead(envelope, msg_ids, bodies)

    def enter_written(self, envelope: Envelope, early: DeliveredEarly | None) -> None:
        """Take in what was written ahead, all with this envelope. ``early``: its first message, if delivered."""
        queue = self.backing.level(0)
        bytes_before = queue.state.bytes
        seq_ids = queue.enter_written(envelope)
        self.touch()
        if (counts := self.counts) is not None:
            counts.note_published(len(seq_ids), queue.state.bytes - bytes_before, envelope.persistent)
        if early is not None:
            self.take_off(early.channel, early.consumer, early.first_tag, [body is None for body in early.bodies])

    def read_ahead(self, count: int) -> Fetched | None:
        """At most ``count`` messages at the head that gets may have before :meth:`take_off` takes them."""
        single = self.backing.single
        if single is None or not self.is_plain or self._expiry.expiring:
            return None
        found = single.peek(count)
        return None if found is None or found.redelivered else found

    def take_off(self, channel: str, consumer: str | None, first_tag: int, gone: Sequence[bool]) -> None:
        """Take off the head what a channel has got already, under consecutive tags; ``gone``: which of it was acked."""
        given, tag = [], first_tag
        for fetched in self.backing.level(0).fetch_many(len(gone)):
            given.append((tag, fetched.seq_ids))
            tag += fetched.count
            self._note_early(fetched.count, consumer, redelivered=fetched.redelivered)
        self._consumers.have(channel, consumer, given)
        if acked := [range(first_tag + part.start, first_tag + part.stop) for part in _stretches(gone, of=True)]:
            self.ack(channel, acked)

    def publish_delivered(
        self, envelope: Envelope, msg_ids: bytes, early: DeliveredEarly, token: object | None
    ) -> None:
        """Take in messages that have gone out already, while the queue was empty. ``msg_ids``: of those not acked yet.

        ``token``: as with :meth:`publish_many`, where no others of its publish follow.
        """
        queue, bodies = self.backing.level(0), early.bodies
        stretches = _stretches([body is None for body in bodies], of=False)
        confirm = token is not None and bool(stretches) and envelope.persistent and self.backing.durable
        bytes_before, given = queue.state.unacked_bytes, []
        for part in stretches:
            some: Sequence[bytes] = bodies[part.start : part.stop]  # type: ignore[assignment]
            ids, msg_ids = msg_ids[: 16 * len(part)], msg_ids[16 * len(part) :]
            seq_ids = queue.publish_delivered_many(envelope, ids, some, confirm=confirm and not msg_ids)
            given.append((early.first_tag + part.start, seq_ids))
        self._consumers.have(early.channel, early.consumer, given)
        gone = len(bodies) - sum(map(len, stretches))
        queue.note_passed(gone)
        self.touch()
        if (counts := self.counts) is not None:
            size_bytes = queue.state.unacked_bytes - bytes_before + early.gone_bytes
            counts.note_published(len(bodies), size_bytes, envelope.persistent)
            counts.acked += gone
        self._note_early(len(bodies), early.consumer, redelivered=False)
        if token is not None:
            self._note_confirm(0, token, confirm=confirm)

    def _note_early(self, count: int, consumer: str | None, *, redelivered: bool) -> None:
        if (counts := self.counts) is not None:
            counts.note_delivered(count, redelivered, True)
            counts.got += count if consumer is None else 0

    def _note_confirm(self, level: int, token: object, *, confirm: bool) -> None:
        """Answer a publish: when it is safe, or at once where it never can be."""
        if not confirm:
            self.effects.confirmed.append(token)
            return
        if self._pending_confirms is None:
            self._pending_confirms = PendingConfirms()
        self._pending_confirms.add(level, token)

    def touch(self) -> None:
        """Note that the queue was used: it was declared again, or its status was read."""
        self._used_at_us = self._wall_clock()


def _stretches(gone: Sequence[bool], *, of: bool) -> list[range]:
    """Where those stand that were acked, or that were not: stretches, in order."""
    stretches, low = [], 0
    for end in [*(at for at, acked in enumerate(gone) if acked is not of), len(gone)]:
        if low < end:
            stretches.append(range(low, end))
        low = end + 1
    return stretches
