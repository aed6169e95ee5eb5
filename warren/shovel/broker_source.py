"""A live broker whose queue is emptied: consumed with a prefetch, acked when the destination has it.

What is taken is what was ready at the beginning, or less; messages that are published meanwhile stay. To take not one
more than that, the last acks are held back: while ``goal - prefetch`` messages are acked and ``prefetch`` delivered,
the broker delivers nothing beyond the goal. They go out when the consumer is cancelled.

A queue may run dry before (another consumer, expiry). An empty queue does not announce itself; so if nothing has come
for a moment and nothing is on the way, the broker is asked what is ready. If it has messages and gives none for
:data:`STALLED_S`, another consumer has the queue to itself, and that is an error.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import attrs
from pamqp import commands as c

from warren.amqp.received import Event, Messages, MethodReceived
from warren.salvage.names import from_text
from warren.shovel.connection import Channel, Connection, text
from warren.shovel.errors import ShovelError
from warren.shovel.letter import Letter, Position, carbon_copies, expiration_ms
from warren.shovel.places import SourceQueue

IDLE_S: Final = 0.2
STALLED_S: Final = 15.0


@attrs.define
class BrokerSource:
    """A vhost of a broker."""

    _connection: Connection
    _prefetch: int
    _wall_clock: Callable[[], int]

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        if not names:
            raise ShovelError("AMQP cannot list a broker's queues: name them with --queue")
        return [_ConsumedQueue(self._connection, name, self._prefetch, self._wall_clock) for name in names]


class _ConsumedQueue:
    """One queue; position: 0 and the delivery tag."""

    already = 0

    def __init__(self, connection: Connection, name: bytes, prefetch: int, wall_clock: Callable[[], int]) -> None:
        self.vhost = connection.address.vhost
        self.name = name
        self._connection = connection
        self._prefetch = prefetch
        self._wall_clock = wall_clock
        self._inbox: deque[Letter] = deque()
        self._handed_out = 0
        self._channel: Channel | None = None
        self._tag = ""
        self._is_cancelled = False
        self._acks = _Acks()
        self._ready, self._consumers = self._look()

    def count(self) -> int:
        return self._ready

    def letters(self, limit: int) -> Iterator[Letter | None]:
        goal = min(limit, self._ready)
        if not goal:
            return
        self._consume(min(self._prefetch, goal), goal)
        idle_since = time.monotonic()
        while self._handed_out < goal:
            if self._inbox:
                letter = self._inbox.popleft()
                self._handed_out += 1
                yield letter
                idle_since = time.monotonic()
                continue
            yield None
            self._turn()
            idle_s = time.monotonic() - idle_since
            if not self._inbox and idle_s > IDLE_S and self._handed_out == self._acks.settled:
                ready, consumers = self._look()
                if not ready and not self._inbox:
                    break
                if idle_s > STALLED_S:
                    raise ShovelError(
                        f"{self._connection.address}: {ready:,} messages are ready in {text(self.name)!r}, and none "
                        f"comes: one of its {consumers} consumers has it to itself"
                    )
        self._cancel()

    def settle(self, positions: Sequence[Position]) -> None:
        self._acks.settle([tag for _, tag in positions])
        self._send_acks()

    def finish(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            self._acks.hold_from = None
            for tag, multiple in self._acks.take(all_of_them=True):
                channel.tell(c.Basic.Ack, delivery_tag=tag, multiple=multiple)
            channel.close()  # what was not acked goes back to its old place

    def _look(self) -> tuple[int, int]:
        """How many messages are ready, and how many consumers there are."""
        channel = self._connection.channel()
        answer = channel.call(c.Queue.Declare, queue=text(self.name), passive=True)
        channel.close()
        return answer.message_count, answer.consumer_count

    def _consume(self, prefetch: int, goal: int) -> None:
        channel = self._channel = self._connection.channel(self._on_event)
        channel.call(c.Basic.Qos, prefetch_count=prefetch)
        self._acks.hold_from = goal - prefetch
        self._tag = channel.call(c.Basic.Consume, queue=text(self.name)).consumer_tag

    def _turn(self) -> None:
        if self._channel is not None:
            self._channel.turn(IDLE_S)
            self._channel.check()
        if self._is_cancelled:
            raise ShovelError(f"{self._connection.address}: the queue {text(self.name)!r} is gone")

    def _cancel(self) -> None:
        if self._channel is not None:
            self._channel.call(c.Basic.Cancel, consumer_tag=self._tag)
            self._acks.hold_from = None
            self._send_acks()

    def _send_acks(self) -> None:
        if self._channel is not None:
            for tag, multiple in self._acks.take():
                self._channel.tell(c.Basic.Ack, delivery_tag=tag, multiple=multiple)

    def _on_event(self, event: Event) -> None:
        match event:
            case MethodReceived():  # basic.cancel
                self._is_cancelled = True
            case Messages():
                for alike in event.alike():
                    self._receive(alike)

    def _receive(self, alike: Messages) -> None:
        """Take deliveries that differ in bodies and tags only."""
        method, properties = cast(c.Basic.Deliver, alike.method), alike.properties[0]
        exchange = from_text(method.exchange)
        keys = from_text(method.routing_key or ""), *carbon_copies(properties)
        life_ms = expiration_ms(properties)
        expiry_us = 0 if life_ms is None else self._wall_clock() + 1000 * life_ms  # as if it were published now
        for tag, body in zip(alike.tags, alike.bodies, strict=True):
            self._inbox.append(Letter(exchange, keys, properties, body, expiry_us, (0, tag)))


@attrs.define
class _Acks:
    """Which delivery tags are settled, and which of them are acked."""

    hold_from: int | None = None
    """Maximum number of acks; ``None``: no limit."""
    settled: int = 0
    _acked_up_to: int = 0
    _waiting: set[int] = attrs.field(factory=set)

    def settle(self, tags: Sequence[int]) -> None:
        """These may be acked."""
        self.settled += len(tags)
        self._waiting.update(tags)

    def take(self, *, all_of_them: bool = False) -> list[tuple[int, bool]]:
        """What to ack now: tags, and whether all below are meant too; ``all_of_them``: beyond a gap too."""
        edge = self._acked_up_to
        while edge + 1 in self._waiting and (self.hold_from is None or edge < self.hold_from):
            edge += 1
            self._waiting.remove(edge)
        acks = [(edge, True)] if edge > self._acked_up_to else []
        self._acked_up_to = edge
        if all_of_them:
            acks += [(tag, False) for tag in sorted(self._waiting)]
            self._waiting.clear()
        return acks
