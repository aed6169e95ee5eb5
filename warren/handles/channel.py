"""Channel: the path on which messages of one queue are delivered and settled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from warren.actors.engines.queue.effects import Delivered
from warren.actors.queue.intake import SettleKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Future
from warren.actors.runtime.pooled_actor import WrongProcessError
from warren.queue_index.queue.acking import tag_ranges
from warren.queue_index.queue.fetching import DELIVERY_COUNT, Fetched, FetchedAgain
from warren.storage.errors import WarrenError
from warren.values.messages import ReceivedMessage, milliseconds
from warren.verbs.instrumentation import HOOK
from warren.verbs.steps import ProcessBound, Steps, call


class SettlingChannel(Protocol):
    """What settles the messages that it delivered: a :class:`Channel`, or one to the process that hosts the node."""

    name: str

    @property
    def queue(self) -> tuple[str, str]:
        """Vhost and name of the queue."""

    @property
    def alive(self) -> bool:
        """Whether what was delivered through it can still be settled."""

    def check_process(self) -> None:
        """Raise :class:`WrongProcessError` in a process that was forked from the one that this was delivered to."""

    def settle(self, outcome: str, tag: int) -> None:
        """Settle one delivery."""

    def settle_up_to(self, outcome: str, tag: int) -> Steps[None]:
        """Settle all deliveries up to one."""

    def ack_up_to(self, tag: int) -> Steps[None]:
        """Ack all deliveries up to one; 0: all. Raises :class:`UnknownTagError` if there was no such delivery."""

    def settle_many(self, outcome: str, tags: list[int]) -> None:
        """Settle deliveries in one message."""

    def settle_all(self, outcome: str, tags: range) -> None:
        """Settle a whole batch."""

    def settle_ranges(self, outcome: str, tags: Sequence[range]) -> None:
        """Settle stretches of deliveries in one message."""

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        """Return one delivery as failed; it comes again after ``wait_ms``."""

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        """Let one delivery's ack timeout, if any, end ``time_ms`` from now. Raises :class:`UnknownTagError`."""

    def shut(self, seen_up_to: int | None = None) -> Steps[int]:
        """Give back what is unsettled; return how many messages that were. ``seen_up_to``: messages with a higher
        delivery tag were not seen by the consumer; ``None``: unknown."""


class Channel:
    """The channel of a consumer, or of a handle for its gets, in the process that hosts the node.

    Closes itself when its deliveries and its consumer or handle are gone: nothing could settle its messages then.
    """

    __slots__ = ("_actor", "_intake", "_keys", "_open", "name")

    def __init__(self, actor: QueueActor, name: str) -> None:
        self._actor = actor
        self._intake = actor.intake
        self._open = True
        self.name = name
        self._keys = {outcome: SettleKey(name, outcome) for outcome in ("ack", "requeue", "failed", "reject", "retry")}

    @property
    def actor(self) -> QueueActor:
        """The queue's actor. Raises why it has ended: its deliveries have gone back to the queue."""
        if self._actor.actor_stopped.is_set():
            raise self._actor.stopped_error()
        return self._actor

    @property
    def queue(self) -> tuple[str, str]:
        return self._actor.declaration.vhost, self._actor.declaration.name

    @property
    def alive(self) -> bool:
        return not self._actor.actor_stopped.is_set()

    def check_process(self) -> None:
        if not self._intake.alive and isinstance(error := self._actor.stopped_error(), WrongProcessError):
            raise error

    def get_early(self, most: int = 1) -> Delivered | None:
        """Return up to ``most`` messages at the head, if they are available without a turn of the queue."""
        return self._intake.fast.get(self.name, most, self._requeue)

    def _requeue(self, delivered: Delivered) -> None:
        self.settle_all("requeue", delivered.tags)

    def settle(self, outcome: str, tag: int) -> None:
        intake = self._intake if self._intake.alive else self.actor.intake
        intake.settle(self._keys[outcome], tag)

    def settle_up_to(self, outcome: str, tag: int) -> Steps[None]:
        actor = self.actor
        yield call(actor, lambda: actor.queue_turn.settle_up_to(self.name, outcome, tag))

    def ack_up_to(self, tag: int) -> Steps[None]:
        return self.settle_up_to("ack", tag)

    def settle_many(self, outcome: str, tags: list[int]) -> None:
        self.settle_ranges(outcome, tag_ranges(tags))

    def settle_all(self, outcome: str, tags: range) -> None:
        self.settle_ranges(outcome, (tags,))

    def settle_ranges(self, outcome: str, tags: Sequence[range]) -> None:
        if len(tags) == 1 and len(tags[0]) == 1:
            self.settle(outcome, tags[0].start)
        else:
            self.actor.intake.settle_ranges(self._keys[outcome], tags)

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        actor = self.actor
        yield call(actor, lambda: actor.queue_turn.retry_in(self.name, (range(tag, tag + 1),), wait_ms))

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        actor = self.actor
        yield call(actor, lambda: actor.queue_turn.extend(self.name, tag, time_ms))

    def give_back(self, fetch: Future) -> None:
        """Requeue the messages of a get that was abandoned. Thread-safe."""
        with contextlib.suppress(WarrenError):  # the queue is gone, and has its messages back
            for delivered in () if fetch.error is not None else fetch.get():
                self.settle_all("requeue", delivered.tags)

    def shut(self, seen_up_to: int | None = None) -> Steps[int]:
        if not self._open or self._actor.actor_stopped.is_set():
            return 0
        self._open = False
        requeued: int = yield call(self._actor, lambda: self._actor.consumers.close_channel(self.name, seen_up_to))
        return requeued

    def __del__(self) -> None:
        if self._open and self._intake.alive:
            self._intake.let_go(self.name)


class StoredAs(NamedTuple):
    """A message's entry in its queue. ``expiry_us``: since the epoch, 0 for never."""

    seq_id: int
    msg_id: bytes
    expiry_us: int
    encoded: bytes


class DeliveredMessage(ReceivedMessage, ProcessBound):
    """A message that was delivered, to be settled once."""

    __slots__ = ("_channel", "_settled", "delivery_tag", "redelivered")

    def __init__(self, channel: SettlingChannel, delivered: Delivered, index: int, body: bytes | None) -> None:
        # What ReceivedMessage.__init__ sets, without a call: this runs for every message.
        self._fetched = delivered.fetched
        self._index = index
        self._body = body
        self._decoded = None
        self._channel = channel
        self._settled = not delivered.first_tag
        self.delivery_tag = delivered.first_tag + index if delivered.first_tag else 0
        """Rises by one per delivery; 0 if no ack is expected."""
        self.redelivered = delivered.fetched.redelivered
        """Whether it may have been delivered before."""

    @property
    def delivery_count(self) -> int:
        """How often it was delivered before and came back; 0: this is its first delivery."""
        fetched = self._fetched
        if isinstance(fetched, FetchedAgain):
            return fetched.delivery_counts[self._index]
        header = super().headers.get(DELIVERY_COUNT) if self.redelivered else None  # of a queue in another process
        return header if isinstance(header, int) else 0

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers; for a message that came back with ``x-delivery-count``, as with quorum queues."""
        headers, count = super().headers, self.delivery_count if isinstance(self._fetched, FetchedAgain) else 0
        return {**headers, DELIVERY_COUNT: count} if count else headers

    def mark_settled(self) -> bool:
        """Mark it as settled by the caller; return whether it was unsettled. Raises :class:`WrongProcessError`."""
        self._channel.check_process()
        unsettled, self._settled = not self._settled, True
        return unsettled

    @property
    def _verbs(self) -> DeliveryVerbs:
        return DeliveryVerbs(self)

    @property
    def channel(self) -> SettlingChannel:
        return self._channel

    @property
    def settled(self) -> bool:
        """Whether it was settled, or need not be."""
        return self._settled

    @property
    def stored(self) -> StoredAs:
        """The message's entry in its queue."""
        fetched, index = self._fetched, self._index
        if not isinstance(fetched, Fetched):
            raise TypeError("a delivery is of what was fetched")
        return StoredAs(fetched.seq_ids[index], fetched.msg_id(index), fetched.expiry_us(index), fetched.term(index))


class DeliveryVerbs:
    """The verbs of one delivery."""

    __slots__ = ("message",)

    def __init__(self, message: DeliveredMessage) -> None:
        self.message = message

    def ack(self, *, multiple: bool = False) -> Steps[None]:
        """Ack the message: it is deleted. ``multiple``: and all that this channel delivered before it."""
        return self._settle("ack", multiple)

    def nack(self, *, requeue: bool = True, multiple: bool = False) -> Steps[None]:
        """Return it to its place in the queue, or (without ``requeue``) to the dead letters."""
        return self._settle("requeue" if requeue else "reject", multiple)

    def reject(self, *, requeue: bool = False) -> Steps[None]:
        """AMQP's basic.reject: to the dead letters, or (with ``requeue``) back to its place in the queue as failed."""
        return self._settle("failed" if requeue else "reject", multiple=False)

    def _settle(self, outcome: str, multiple: bool) -> Steps[None]:
        message = self.message
        if message.mark_settled():
            if multiple:
                yield from message.channel.settle_up_to(outcome, message.delivery_tag)
            else:
                message.channel.settle(outcome, message.delivery_tag)

    def retry(self, delay: float | None = None) -> Steps[None]:
        """Return it as failed to its place in the queue, to come again after ``delay`` seconds.

        ``None``: as the queue's retry arguments say; without any after 1 second, the next time after 2, then 4, up to
        5 minutes.
        """
        message, wait_ms = self.message, None if delay is None else milliseconds("a retry's delay", delay)
        if not message.mark_settled():
            return
        if wait_ms is None:
            message.channel.settle("retry", message.delivery_tag)
        else:
            yield from message.channel.retry_in(message.delivery_tag, wait_ms)

    def extend(self, seconds: float) -> Steps[None]:
        """Keep it for ``seconds`` from now on, if an ack timeout would end before.

        Raises :class:`UnknownTagError` if it is settled, or has gone back to its queue already.
        """
        message = self.message
        return message.channel.extend(message.delivery_tag, milliseconds("a time", seconds))


def settle(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
    """Settle many deliveries, with one message per channel."""
    if HOOK.instrumentation is None:
        _settle(deliveries, outcome)
    else:
        unsettled = [delivery for delivery in deliveries if not delivery.settled]
        with HOOK.instrumentation.settling(unsettled, outcome):
            _settle(unsettled, outcome)


def _settle(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
    tags: dict[SettlingChannel, list[int]] = {}
    channel, channel_tags = None, []
    for delivery in deliveries:
        if not delivery._settled:
            if delivery._channel is not channel:  # most come from one channel
                channel = delivery._channel
                channel.check_process()
                channel_tags = tags.setdefault(channel, [])
            delivery._settled = True
            channel_tags.append(delivery.delivery_tag)
    for channel, channel_tags in tags.items():
        channel.settle_many(outcome, channel_tags)
