"""Messages on their way to the host, until it confirms them.

What is handed over joins the last :class:`PublishRun` while that has not been sent and goes to the same place with the
same properties, so that a thread that publishes one by one makes runs; its messages share one confirm. What was sent
is kept until it is confirmed, and is sent again, in order, over the next socket where this one is lost. So a message
may be there twice when a host has died, and none is missing that was confirmed.

A *window* bounds what waits here; publishers wait for room in it, and while the host says that an alarm is set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import attrs
from pamqp import commands as c

from warren.actors.future import Confirm, Future
from warren.actors.handing_over import PublishKey, PublishRefusedError
from warren.actors.leading import Later
from warren.amqp.connection import Connection
from warren.amqp.framing import ACK, MethodRun
from warren.amqp.received import Messages
from warren.client.channels import ClientChannel
from warren.client.link import Link
from warren.storage.errors import WarrenError

WINDOW_BYTES: Final = 16 << 20
"""Messages that are not confirmed take at most so much here."""
RUN_MESSAGES: Final = 4096
"""So many messages share a confirm at most."""
_MULTIPLE: Final = 1


@attrs.define(eq=False)
class PublishRun:
    """Messages that differ in their bodies only."""

    channel: PublishChannel
    key: PublishKey
    publish: c.Basic.Publish
    bodies: list[bytes]
    confirm: Confirm
    unroutable: Callable[[], WarrenError] | None
    """What a message that came back means; ``None``: that does not matter."""
    size: int = 0
    first_tag: int = 0
    open_below: int = 0
    """Tags below this one are settled."""
    settled: set[int] = attrs.Factory(set)
    """And these."""
    returned: int = 0
    refused: bool = False

    @property
    def end(self) -> int:
        return self.first_tag + len(self.bodies)

    def encode(self, engine: Connection) -> None:
        self.channel.encode(self, engine)

    def settle_up_to(self, tag: int) -> bool:
        """Whether all is settled now."""
        self.open_below = max(self.open_below, min(tag + 1, self.end))
        return self._is_over()

    def settle(self, tag: int) -> bool:
        """The same for one message."""
        self.settled.add(tag)
        return self._is_over()

    def _is_over(self) -> bool:
        while self.open_below in self.settled:
            self.settled.discard(self.open_below)
            self.open_below += 1
        return self.open_below >= self.end

    def unsettled(self) -> list[bytes]:
        """The bodies that have to be sent again."""
        return [
            body
            for tag, body in enumerate(self.bodies, self.first_tag)
            if tag >= self.open_below and tag not in self.settled
        ]


class Window:
    """What one link has on its way, in bytes, and who waits until it is less. Guarded by the link's lock."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._waiting: list[Future] = []

    def wait(self, link: Link) -> Future:
        future = Future(link)
        self._waiting.append(future)
        return future

    def give_back(self, size: int, later: Later) -> None:
        self.used_bytes -= size
        if self.used_bytes <= WINDOW_BYTES // 2:
            self.open(later)

    def open(self, later: Later) -> None:
        later += [(future.offer, (None,)) for future in self._waiting]
        self._waiting.clear()


class PublishChannel(ClientChannel):
    """A channel in confirm mode. It outlives its socket, with all that is not confirmed."""

    def __init__(self, link: Link, window: Window) -> None:
        super().__init__(link)
        self.window = window
        self.idle: list[Future] = []
        """Who waits until everything is confirmed."""
        self._next_tag = 1
        self._sent: list[PublishRun] = []
        self.is_confirming = False

    def select(self) -> Future:
        """Ask for confirms; behind :meth:`open`."""
        future = self.ask(c.Confirm.Select())
        self.is_confirming = True
        return future

    # ── handing over ────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        """The fast path: let a message join the run that waits, where it is of its kind."""
        link = self.link
        with link.locked():
            run = link.last_gathered
            if (
                not isinstance(run, PublishRun)
                or run.key is not key
                or len(run.bodies) >= RUN_MESSAGES
                or self.window.used_bytes >= WINDOW_BYTES
            ):
                return None
            size = len(body) + key.overhead_bytes
            run.bodies.append(body)
            run.size += size
            self.window.used_bytes += size
            link.gather(None, size)
            return run.confirm

    def hand_over(
        self,
        key: PublishKey,
        publish: c.Basic.Publish,
        bodies: list[bytes],
        unroutable: Callable[[], WarrenError] | None,
    ) -> Confirm | Future:
        """Take messages; a future that is no confirm says what to wait for before that."""
        link = self.link
        with link.locked():
            if self.error is not None:
                raise self.error
            if link.blocked or self.window.used_bytes >= WINDOW_BYTES:
                return self.window.wait(link)
            run = PublishRun(self, key, publish, bodies, Confirm(link), unroutable, key.size_bytes(bodies))
            self.window.used_bytes += run.size
            link.gather(run, run.size)
            return run.confirm

    def wait_for_room(self) -> Future | None:
        """What to wait for before messages are taken; ``None``: they are."""
        with self.link.locked():
            if self.link.blocked or self.window.used_bytes >= WINDOW_BYTES:
                return self.window.wait(self.link)
        return None

    def encode(self, run: PublishRun, engine: Connection) -> None:
        """Send a run for the first time."""
        self._sent.append(run)
        self._send(run, engine)

    def _send(self, run: PublishRun, engine: Connection) -> None:
        run.first_tag = run.open_below = self._next_tag
        self._next_tag += len(run.bodies)
        engine.publish(self.number, run.publish, run.key.envelope.properties, run.bodies)

    def settled(self) -> Future:
        """Answered once everything that was handed over is confirmed, or cannot be."""
        future = Future(self.link)
        with self.link.locked():
            if self._sent or self.link.has_gathered(self):
                self.idle.append(future)
                return future
        future.set()
        return future

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def on_messages(self, event: Messages, later: Later) -> None:
        """Messages that came back: nobody has them. Their acks come behind them."""
        method = event.method
        if not isinstance(method, c.Basic.Return):
            return
        bodies = event.bodies
        for run in self._sent:
            place = run.publish
            if (place.exchange, place.routing_key) == (method.exchange, method.routing_key):
                count = min(len(bodies), len(run.bodies) - run.returned)
                if count and run.bodies[run.returned : run.returned + count] == bodies[:count]:
                    run.returned += count
                    bodies = bodies[count:]
            if not bodies:
                return

    def on_settled(self, run: MethodRun, later: Later) -> None:
        refused, multiple = run.index != ACK, bool(run.flags & _MULTIPLE)
        for tag in run.tags:
            self._settle(tag, multiple=multiple, refused=refused, later=later)
        if not self._sent and self.idle and not self.link.has_gathered(self):
            later += [(future.offer, (None,)) for future in self.idle]
            self.idle.clear()

    def _settle(self, tag: int, *, multiple: bool, refused: bool, later: Later) -> None:
        sent = self._sent
        at = bisect_right(sent, tag, key=lambda one: one.first_tag) - 1
        if at < 0:
            return
        first = 0 if multiple else at
        over: list[PublishRun] = []
        for run in sent[first : at + 1]:
            run.refused |= refused
            if run.settle_up_to(tag) if multiple else run.settle(tag):
                over.append(run)
        for run in over:
            self._finish(run, None, later)
        if over:
            gone = set(map(id, over))
            self._sent = [run for run in sent if id(run) not in gone] if len(over) < at + 1 else sent[at + 1 :]

    def _finish(self, run: PublishRun, error: WarrenError | None, later: Later) -> None:
        if error is None and run.refused:
            error = PublishRefusedError("the queue is full, and refuses what is published")
        elif error is None and run.returned and run.unroutable is not None:
            error = run.unroutable()
        later.append((run.confirm.offer, (None,)) if error is None else (run.confirm.fail, (error,)))
        self.window.give_back(run.size, later)

    def unblocked(self, later: Later) -> None:
        """The host's alarms are over."""
        self.window.open(later)

    def closed(self, error: WarrenError, later: Later) -> None:
        """The host did not like a message: which one is not known, and none of them is safe."""
        self._give_up(error, later)
        super().closed(error, later)

    def _give_up(self, error: WarrenError, later: Later) -> None:
        gathered = [one for one in self.link.take_gathered(self) if isinstance(one, PublishRun)]
        runs = [*self._sent, *gathered]
        self._sent = []
        for run in runs:
            self._finish(run, error, later)
        self.window.open(later)
        later += [(future.offer, (None,)) for future in self.idle]
        self.idle.clear()

    def lost(self, error: WarrenError, later: Later) -> bool:
        if self.is_confirming and self.error is None:
            later += [(future.fail, (error,)) for future in self.asked]
            self.asked.clear()
            self.window.open(later)
            return True
        return super().lost(error, later)

    def rejoin(self, engine: Connection) -> None:
        """Send everything again that is not confirmed."""
        engine.send(self.number, c.Confirm.Select())
        self.asked.append(Future())
        self._next_tag = 1
        for run in self._sent:
            run.bodies = run.unsettled()
            run.settled.clear()
            run.returned = 0
            self._send(run, engine)

    def failed(self, error: WarrenError, later: Later) -> None:
        self._give_up(error, later)
        super().failed(error, later)
