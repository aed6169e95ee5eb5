"""QueueEarly: messages that were written or delivered outside their queue's turns.

This part of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`) records them afterwards;
:mod:`warren.actors.queue.early_deliveries` and :mod:`warren.actors.engines.queue.read_ahead` describe how they come
about. All are fast paths for single messages: one that is *written ahead* is safe before it is in the queue, one that
is *delivered early* is with its consumer before that, and one that is *read ahead* before it is taken off the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from warren.actors.engines.queue.effects import DeliveredEarly
from warren.actors.engines.queue.expiry import Expiry
from warren.actors.engines.queue.queue_context import PendingConfirms, QueueContext
from warren.actors.engines.queue.queue_settlements import QueueSettlements
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.fetching import Fetched


@attrs.define(eq=False, repr=False)
class QueueEarly:
    """The early messages of one queue. See the module's prose."""

    _context: QueueContext
    _expiry: Expiry
    _confirms: PendingConfirms
    _settlements: QueueSettlements

    @property
    def takes_early(self) -> bool:
        """Whether a message that arrives now may be delivered before it is taken in (:meth:`publish_delivered`)."""
        single = self._context.backing.single
        return single is not None and single.state.is_empty_in_ram

    @property
    def takes_ahead(self) -> bool:
        """Whether messages that arrive now may be written before they are taken in (:meth:`write_ahead`)."""
        context = self._context
        return context.is_plain and context.backing.durable and context.backing.single is not None

    def write_ahead(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> bool:
        """Make messages safe before :meth:`enter_written` takes them in; ``False`` if that is impossible.

        The queue must not be used in between. Raises what a sync raises.
        """
        single = self._context.backing.single
        return single is not None and single.write_ahead(self._context.as_stored(envelope), msg_ids, bodies)

    def enter_written(self, envelope: Envelope, early: DeliveredEarly | None) -> None:
        """Take in what was written ahead, all with this envelope. ``early``: the first messages, if delivered."""
        context = self._context
        envelope = context.as_stored(envelope)
        queue = context.backing.level(0)
        bytes_before = queue.state.bytes
        seq_ids = queue.enter_written(envelope)
        context.touch()
        if (counts := context.counts) is not None:
            counts.note_published(len(seq_ids), queue.state.bytes - bytes_before, envelope.persistent)
        if early is not None:
            self.take_off(early.channel, early.consumer, early.first_tag, [body is None for body in early.bodies])

    def read_ahead(self, count: int) -> Fetched | None:
        """Return at most ``count`` messages at the head that gets may have before :meth:`take_off`."""
        single = self._context.backing.single
        if single is None or not self._context.is_plain or self._expiry.expiring:
            return None
        fetched = single.peek(count)
        return None if fetched is None or fetched.redelivered else fetched

    def take_off(self, channel: str, consumer: str | None, first_tag: int, acked_marks: Sequence[bool]) -> None:
        """Take off the head what a channel already got, under consecutive tags; ``acked_marks``: what was acked."""
        given, tag = [], first_tag
        for fetched in self._context.backing.level(0).fetch_many(len(acked_marks)):
            given.append((tag, fetched.seq_ids))
            tag += fetched.count
            self._note_delivered(fetched.count, consumer, redelivered=fetched.redelivered)
        self._context.consumers.have(channel, consumer, given)
        if acked := [range(first_tag + part.start, first_tag + part.stop) for part in _stretches(acked_marks, of=True)]:
            self._settlements.ack(channel, acked)

    def publish_delivered(
        self, envelope: Envelope, msg_ids: bytes, early: DeliveredEarly, token: object | None
    ) -> None:
        """Take in messages that were already delivered while the queue was empty.

        ``msg_ids``: those of the unacked messages. ``token``: as with
        :meth:`~warren.actors.engines.queue.queue_process.QueueProcess.publish_many`, if this is the last part of its
        publish.
        """
        context = self._context
        envelope = context.as_stored(envelope)
        queue, bodies = context.backing.level(0), early.bodies
        stretches = _stretches([body is None for body in bodies], of=False)
        confirm = token is not None and bool(stretches) and envelope.persistent and context.backing.durable
        bytes_before, given = queue.state.unacked_bytes, []
        for part in stretches:
            part_bodies: Sequence[bytes] = bodies[part.start : part.stop]  # type: ignore[assignment]
            ids, msg_ids = msg_ids[: 16 * len(part)], msg_ids[16 * len(part) :]
            seq_ids = queue.publish_delivered_many(envelope, ids, part_bodies, confirm=confirm and not msg_ids)
            given.append((early.first_tag + part.start, seq_ids))
        context.consumers.have(early.channel, early.consumer, given)
        acked_count = len(bodies) - sum(map(len, stretches))
        queue.note_passed(acked_count)
        context.touch()
        if (counts := context.counts) is not None:
            size_bytes = queue.state.unacked_bytes - bytes_before + early.acked_bytes
            counts.note_published(len(bodies), size_bytes, envelope.persistent)
            counts.acked += acked_count
        self._note_delivered(len(bodies), early.consumer, redelivered=False)
        if token is not None:
            self._confirms.note(0, token, confirm=confirm)

    def _note_delivered(self, count: int, consumer: str | None, *, redelivered: bool) -> None:
        if (counts := self._context.counts) is not None:
            counts.note_delivered(count, redelivered, True)
            counts.got += count if consumer is None else 0


def _stretches(flags: Sequence[bool], *, of: bool) -> list[range]:
    """Return the ranges of consecutive flags that equal ``of``, in order."""
    stretches, low = [], 0
    for end in [*(at for at, flag in enumerate(flags) if flag is not of), len(flags)]:
        if low < end:
            stretches.append(range(low, end))
        low = end + 1
    return stretches
