"""Channels of a link: questions and their answers in order, and deliveries that are settled.

A channel belongs to one socket; with that it is *over*. What it had delivered goes back to its queue then, and comes
again as redelivered; to settle it means nothing any more and is passed over, for its acks may have been on the way when
the socket was lost, and nobody can know.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.queue.deliveries import Deliveries
from warren.actors.runtime.future import Future
from warren.actors.runtime.leader_follower import Later
from warren.actors.runtime.pool import WrongProcessError
from warren.amqp.connection import Connection
from warren.amqp.framing import MethodRun
from warren.amqp.own_methods import Call, Refused, Settle
from warren.amqp.received import Event, Messages, MethodReceived
from warren.client.calls import error_of, result_of
from warren.client.errors import LinkLostError
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
"""So many consecutive tags and more go as one :class:`~warren.amqp.own_methods.Settle`, which is dearer than an ack,
and any number of what AMQP has no method for."""


class ClientChannel:
    """One channel, from its opening to the end of the socket."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.number = 0
        self.error: WarrenError | None = None
        """Why it is over."""
        self.opened: Future | None = None
        """Answered when it is open on the server's side."""
        self.asked: deque[Future] = deque()
        self.refusal: Exception | None = None
        """The error behind the next nack or the close of the channel, if the host has told it."""

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self.error is None

    def open(self) -> Future:
        """Open it: what to wait for."""
        self.opened = self.link.open(self, self.asked)
        return self.opened

    def ask(self, method: Method) -> Future:
        """Send a method: the answer is the method that answers it (a :class:`Messages` for a ``get``)."""
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
        """Whether it answers what was asked; else it has been dealt with."""
        return True

    def on_messages(self, event: Messages, later: Later) -> None:
        """Messages that nobody asked for one by one."""

    def on_settled(self, run: MethodRun, later: Later) -> None:
        """Confirms."""

    def end(self, error: WarrenError, later: Later) -> None:
        """It is over: whoever waits gets the error."""
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
        """It never gets here: it is over with its socket."""

    def failed(self, error: WarrenError, later: Later) -> None:
        self.end(error, later)


class DeliverySlot(ClientChannel):
    """A channel that messages of one queue come through, as its link knows it.

    It holds on to nobody: who has the messages, or waits for some, holds a :class:`DeliveryChannel`.
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
            later += [(deliveries.put, (one,)) for one in delivered_of(facade, self.vhost, event)]

    def end(self, error: WarrenError, later: Later) -> None:
        super().end(error, later)
        self.link.take_gathered(self)  # it all goes back
        facade = None if self.facade is None else self.facade()
        if facade is not None:
            facade.error = error

    def leave(self, _: Later) -> None:
        """Nobody has what came through it any more."""
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
        if not engine.is_open(number):  # the host has closed it, and says so in what is just being read
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

    Closes itself when nobody is left who could settle any of them.
    """

    def __init__(self, slot: DeliverySlot, name: str) -> None:
        self.slot = slot
        self.name = name
        self.error: WarrenError | None = None
        slot.facade = weakref.ref(self)

    @property
    def queue(self) -> tuple[str, str]:
        """Vhost and name of the queue."""
        return self.slot.vhost, self.slot.queue

    @property
    def alive(self) -> bool:
        """Whether what was delivered through it can still be settled."""
        return self.error is None

    def check_process(self) -> None:
        """Raise :class:`WrongProcessError` in a process that was forked from the one that this was delivered to."""
        if isinstance(self.error, WrongProcessError):
            raise self.error

    def settle(self, outcome: str, tag: int) -> None:
        """Settle one delivery."""
        self._settle(outcome, (tag,), 1)

    def settle_up_to(self, outcome: str, tag: int) -> Steps[None]:
        """Settle all deliveries up to one."""
        method = c.Basic.Ack(tag, True) if outcome == "ack" else c.Basic.Nack(tag, True, outcome == "requeue")
        self.check_process()
        link = self.slot.link
        with link.locked():
            if self.error is None and link.can_send:
                link.send(self.slot.number, method)
        return
        yield

    def settle_many(self, outcome: str, tags: list[int]) -> None:
        """Settle deliveries in one go."""
        self._settle(outcome, tags, len(tags))

    def settle_all(self, outcome: str, tags: range) -> None:
        """Settle a whole batch."""
        self.settle_ranges(outcome, (tags,))

    def settle_ranges(self, outcome: str, tags: Sequence[range]) -> None:
        """Settle stretches of deliveries in one go."""
        self._settle(outcome, tags, sum(map(len, tags)))

    def _settle(self, outcome: str, tags: Sequence[int | range], count: int) -> None:
        slot, link = self.slot, self.slot.link
        with link.locked():
            if self.error is not None or not link.can_send or not count:
                self.check_process()
                return
            last = link.last_gathered
            if isinstance(last, Settlements) and last.channel is slot and last.outcome == outcome:
                last.tags += tags
                new = None
            else:
                new = Settlements(slot, outcome)
                new.tags += tags
            link.gather(new, _SETTLEMENT_BYTES * count, patient=True)

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        """Take one delivery as failed; it comes again after so long."""
        with contextlib.suppress(LinkLostError):  # it has gone back
            result_of((yield self.slot.ask(Call("channel.retry", {"tag": tag, "wait_ms": wait_ms}))))

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        """Have one delivery for so long from now on, where its time is limited. Raises :class:`UnknownTagError`."""
        result_of((yield self.slot.ask(Call("channel.extend", {"tag": tag, "time_ms": time_ms}))))

    def give_back(self, got: Future) -> None:
        """Requeue what a get has brought that nobody waits for any more. For any thread."""
        with contextlib.suppress(WarrenError):
            for delivered in got_of(self, self.slot.vhost, got.get()):
                self.settle_all("requeue", delivered.tags)

    def shut(self, seen_up_to: int | None = None) -> Steps[int]:
        """Give back what is unsettled; returns how many messages that were. ``seen_up_to``: what has a higher delivery
        tag nobody has seen; ``None``: that is not known."""
        slot, requeued = self.slot, 0
        if self.error is None and slot.opened is not None:
            with contextlib.suppress(WarrenError):  # it has all gone back
                requeued = result_of((yield slot.ask(Call("channel.release", {"seen_up_to": seen_up_to}))))
        with slot.link.locked():
            slot.leave([])
        self.error = slot.error
        return requeued

    def __del__(self) -> None:
        if self.error is None:
            link = self.slot.link
            link.abandoned.append(self.slot.leave)
            link.wake()
