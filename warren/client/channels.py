"""Channels of a link: requests with answers in order, and deliveries that are settled.

A channel belongs to one socket and ends with it. Its unsettled deliveries then go back to their queue and come again as
redelivered. Settling them afterwards is ignored: the acks may have been on the way when the socket was lost, so their
fate is unknown. Settling them after the node was closed is an error.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.errors import UnknownTagError
from warren.actors.node.node_errors import ClosedMeanwhileError
from warren.actors.queue.deliveries import Deliveries
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import Later
from warren.actors.runtime.pooled_actor import WrongProcessError
from warren.amqp.connection import Connection
from warren.amqp.framing import MethodRun
from warren.amqp.own_methods import Call, Refused, Settle
from warren.amqp.received import Event, Messages, MethodReceived
from warren.client.calls import error_of, result_of
from warren.client.errors import HostUnresponsiveError, LinkLostError
from warren.client.link import Link
from warren.client.received import delivered_of, got_of
from warren.queue_index.queue.acking import tag_ranges
from warren.storage.errors import WarrenError
from warren.verbs.steps import Steps

_SETTLING: Final[dict[str, c.Basic.Ack | c.Basic.Nack | c.Basic.Reject]] = {
    "ack": c.Basic.Ack(),
    "requeue": c.Basic.Nack(0, False, True),
    "failed": c.Basic.Reject(0, True),
    "reject": c.Basic.Reject(0, False),
}
_SETTLEMENT_BYTES: Final = 21
_STRETCH: Final = 16
"""From this many consecutive tags on, they go as one :class:`~warren.amqp.own_methods.Settle`, which costs more than an
ack; outcomes without an AMQP method always do."""


class ClientChannel:
    """One channel, from its opening to the end of the socket."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = 0
        self.error: WarrenError | None = None
        """Why it is over."""
        self.opened: Future | None = None
        """Answered when the server has opened it."""
        self.asked: deque[Future] = deque()
        self.refusal: Exception | None = None
        """The reason for the next nack or the close of the channel, if the host has sent it."""

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self.error is None

    def open(self) -> Future:
        """Open it; return a future that is answered when it is open."""
        self.opened = self.link.open(self, self.asked)
        return self.opened

    def ask(self, method: Method) -> Future:
        """Send a method; return a future for the method that answers it (a :class:`Messages` for a ``get``)."""
        if self.error is not None:
            future = Future()
            future.fail(self.error)
            return future
        return self.link.ask(self, method, self.asked)

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, event: Event, later: Later) -> None:
        if isinstance(event, MethodReceived):
            if isinstance(event.method, Refused):
                self.refusal = error_of(event.method)
            elif self.is_answer(event.method, later) and self.asked:
                later.append((self.asked.popleft().offer, (event.method,)))
        elif isinstance(event, Messages):
            if isinstance(event.method, c.Basic.GetOk):
                later.append((self.asked.popleft().offer, (event,)))
            else:
                self.on_messages(event, later)
        elif isinstance(event, MethodRun):
            self.on_settled(event, later)

    def is_answer(self, method: Method, later: Later) -> bool:
        """Return whether a method is an answer; otherwise it has been handled."""
        return True

    def on_messages(self, event: Messages, later: Later) -> None:
        """Handle messages that are not answers."""

    def on_settled(self, run: MethodRun, later: Later) -> None:
        """Handle confirms."""

    def end(self, error: WarrenError, later: Later) -> None:
        """End the channel: pending questions fail with the error."""
        self.error = error
        later += [(future.fail, (error,)) for future in self.asked]
        self.asked.clear()

    def closed(self, error: WarrenError, later: Later) -> None:
        if self.asked:  # the first is the one that was refused, the others were not looked at
            later.append((self.asked.popleft().fail, (error,)))
        self.end(LinkLostError(f"the channel was closed: {error}"), later)

    def lost(self, error: WarrenError, later: Later) -> bool:
        self.end(error, later)
        return False

    def rejoin(self, engine: Connection) -> None:
        """Never called: the channel ends with its socket."""

    def failed(self, error: WarrenError, later: Later) -> None:
        self.end(error, later)


class DeliverySlot(ClientChannel):
    """The link's side of a channel for messages of one queue.

    It does not keep its users alive: those that have messages or wait for some hold a :class:`DeliveryChannel`.
    """

    def __init__(self, link: Link, vhost: str, queue: str) -> None:
        super().__init__(link)
        self.vhost = vhost
        self.queue = queue
        self.facade: weakref.ref[DeliveryChannel] | None = None
        self.deliveries: weakref.ref[Deliveries] | None = None

    def on_messages(self, event: Messages, later: Later) -> None:
        facade = None if self.facade is None else self.facade()
        deliveries = None if self.deliveries is None else self.deliveries()
        if facade is not None and deliveries is not None:
            later += [(deliveries.put, (delivered,)) for delivered in delivered_of(facade, self.vhost, event)]

    def end(self, error: WarrenError, later: Later) -> None:
        super().end(error, later)
        self.link.outbox.take_gathered(self)  # it all goes back
        facade = None if self.facade is None else self.facade()
        if facade is not None:
            facade.error = error

    def leave(self, _: Later) -> None:
        """Close the channel: its messages are unreferenced."""
        if self.error is None:
            with contextlib.suppress(LinkLostError):
                self.link.leave(self)
            self.error = LinkLostError("the channel is closed")


class Settlements:
    """Settlements of one channel that wait to be sent."""

    __slots__ = ("channel", "outcome", "tags")

    def __init__(self, channel: DeliverySlot, outcome: str) -> None:
        self.channel = channel
        self.outcome = outcome
        self.tags: list[int | range] = []

    def encode(self, engine: Connection) -> None:
        number, method = self.channel.number, _SETTLING.get(self.outcome)
        if not engine.is_open(number):  # the host has closed it; its close is being read
            return
        few: list[int] = []
        for part in tag_ranges(self.tags):
            if method is not None and len(part) < _STRETCH:
                few += part
                continue
            if few and method is not None:
                engine.settle(number, method, few)
                few = []
            engine.send(number, Settle(self.outcome, part[0], part[-1]))
        if few and method is not None:
            engine.settle(number, method, few)


class DeliveryChannel:
    """The :class:`warren.handles.channel.Channel` that messages of one queue are delivered and settled through.

    Closes itself when it is no longer referenced, as nothing could settle its messages then.
    """

    def __init__(self, slot: DeliverySlot, name: str) -> None:
        self.slot = slot
        self.name = name
        self.error: WarrenError | None = None
        slot.facade = weakref.ref(self)

    @property
    def queue(self) -> tuple[str, str]:
        return self.slot.vhost, self.slot.queue

    @property
    def alive(self) -> bool:
        return self.error is None

    def check_process(self) -> None:
        if isinstance(self.error, WrongProcessError):
            raise self.error

    def check_open(self) -> None:
        """Raise :class:`ClosedError` if the node was closed, and as :meth:`check_process`."""
        self.check_process()
        if (error := self.slot.link.closed) is not None:
            raise ClosedMeanwhileError(str(error))

    def settle(self, outcome: str, tag: int) -> None:
        self._settle(outcome, (tag,), 1)

    def settle_up_to(self, outcome: str, tag: int) -> Steps[None]:
        """Settle all deliveries up to one that this channel delivered. It is not waited for."""
        method = c.Basic.Ack(tag, True) if outcome == "ack" else c.Basic.Nack(tag, True, outcome == "requeue")
        self.check_open()
        link = self.slot.link
        with link.locked():
            if self.error is None and link.outbox.can_send:
                link.outbox.send(self.slot.number, method)
        return
        yield

    def ack_up_to(self, tag: int) -> Steps[None]:
        self.check_open()
        with contextlib.suppress(LinkLostError):  # they have gone back
            result_of((yield self.slot.ask(Call("channel.ack_up_to", {"tag": tag}))))

    def settle_many(self, outcome: str, tags: list[int]) -> None:
        self._settle(outcome, tags, len(tags))

    def settle_all(self, outcome: str, tags: range) -> None:
        self.settle_ranges(outcome, (tags,))

    def settle_ranges(self, outcome: str, tags: Sequence[range]) -> None:
        self._settle(outcome, tags, sum(map(len, tags)))

    def _settle(self, outcome: str, tags: Sequence[int | range], count: int) -> None:
        slot, link = self.slot, self.slot.link
        with link.locked():
            if self.error is not None or not link.outbox.can_send or not count:
                self.check_open()
                return
            last = link.outbox.last_gathered
            if isinstance(last, Settlements) and last.channel is slot and last.outcome == outcome:
                last.tags += tags
                new = None
            else:
                new = Settlements(slot, outcome)
                new.tags += tags
            link.outbox.gather(new, _SETTLEMENT_BYTES * count, patient=True)

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        self.check_open()
        with contextlib.suppress(LinkLostError):  # it has gone back
            result_of((yield self.slot.ask(Call("channel.retry", {"tag": tag, "wait_ms": wait_ms}))))

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        self.check_open()
        try:
            result_of((yield self.slot.ask(Call("channel.extend", {"tag": tag, "time_ms": time_ms}))))
        except LinkLostError:
            raise UnknownTagError(f"unknown delivery tag {tag}: the message has gone back to its queue") from None

    def give_back(self, fetch: Future) -> None:
        """Requeue the messages of a get that was abandoned. Thread-safe."""
        with contextlib.suppress(WarrenError):
            for delivered in got_of(self, self.slot.vhost, fetch.get()):
                self.settle_all("requeue", delivered.tags)

    def shut(self, seen_up_to: int | None = None) -> Steps[int]:
        """Give back what is unsettled; return how many messages that were. ``seen_up_to``: messages with a higher
        delivery tag were not seen by the consumer; ``None``: unknown. Raises :class:`HostUnresponsiveError`."""
        slot, requeued = self.slot, 0
        try:
            if self.error is None and slot.opened is not None:
                requeued = result_of((yield slot.ask(Call("channel.release", {"seen_up_to": seen_up_to}))))
        except HostUnresponsiveError:
            raise
        except WarrenError:  # it has all gone back
            pass
        finally:
            with slot.link.locked():
                slot.leave([])
            self.error = slot.error
        return requeued

    def __del__(self) -> None:
        if self.error is None:
            link = self.slot.link
            link.abandoned.append(self.slot.leave)
            link.wake()
