"""Messages on their way to the host, until it confirms them.

A message joins the last :class:`PublishRun` if that has not been sent yet and goes to the same place with the
same properties, so that a thread that publishes one by one makes runs; its messages share one confirm. Messages not
confirmed are sent again over the next socket (:mod:`warren.client.resending`): a message may be stored twice when a
host has died, but no confirmed message is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import attrs
from pamqp import commands as c

from warren.actors.queue.intake import PublishKey, PublishRefusedError
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.leader_follower import Later
from warren.amqp.connection import Connection
from warren.amqp.framing import ACK, MethodRun
from warren.amqp.received import Messages
from warren.client.link import Link
from warren.client.resending import RUN_MESSAGES, WINDOW_BYTES, ResendingChannel, Window
from warren.storage.errors import WarrenError

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
    """Makes the error for a returned message; ``None``: returned messages are ignored."""
    size: int = 0
    first_tag: int = 0
    open_below: int = 0
    """Tags below this one are settled."""
    settled: set[int] = attrs.Factory(set)
    """Settled tags from ``open_below`` on."""
    returned: int = 0
    refusal: Exception | None = None
    """Why one of them was refused."""

    @property
    def end(self) -> int:
        return self.first_tag + len(self.bodies)

    def encode(self, engine: Connection) -> None:
        self.channel.encode(self, engine)

    def settle_up_to(self, tag: int) -> bool:
        """Settle all tags up to one; return whether all are settled now."""
        self.open_below = max(self.open_below, min(tag + 1, self.end))
        return self._is_over()

    def settle(self, tag: int) -> bool:
        """Settle one tag; return whether all are settled now."""
        self.settled.add(tag)
        return self._is_over()

    def _is_over(self) -> bool:
        while self.open_below in self.settled:
            self.settled.discard(self.open_below)
            self.open_below += 1
        return self.open_below >= self.end

    def unsettled(self) -> list[bytes]:
        """Return the bodies that have to be sent again."""
        return [
            body
            for tag, body in enumerate(self.bodies, self.first_tag)
            if tag >= self.open_below and tag not in self.settled
        ]


class PublishChannel(ResendingChannel[PublishRun]):
    """A channel in confirm mode."""

    def __init__(self, link: Link, window: Window) -> None:
        super().__init__(link, window)
        self._next_tag = 1

    def select(self) -> Future:
        """Ask for confirms, after :meth:`open`."""
        future = self.ask(c.Confirm.Select())
        self.is_ready = True
        return future

    # ── handing over ────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        """Add a message to the waiting run if its publish key is the same: the fast path."""
        link = self.link
        with link.locked():
            run = link.outbox.last_gathered
            if (
                not isinstance(run, PublishRun)
                or run.key is not key
                or len(run.bodies) >= RUN_MESSAGES
                or self.window.used_bytes >= WINDOW_BYTES
                or link.refusing is not None
            ):
                return None
            size = len(body) + key.overhead_bytes
            run.bodies.append(body)
            run.size += size
            self.window.used_bytes += size
            link.outbox.gather(None, size)
            return run.confirm

    def publish(
        self,
        key: PublishKey,
        publish: c.Basic.Publish,
        bodies: list[bytes],
        unroutable: Callable[[], WarrenError] | None,
        *,
        tries_full_disk: bool,
    ) -> Confirm | Future:
        """Take messages and return their confirm, or a plain future to wait for before trying again."""
        return self.hand_over(
            lambda: PublishRun(self, key, publish, bodies, Confirm(self.link), unroutable, key.size_bytes(bodies)),
            tries_full_disk=tries_full_disk,
        )

    def send(self, run: PublishRun, engine: Connection) -> None:
        run.first_tag = run.open_below = self._next_tag
        self._next_tag += len(run.bodies)
        engine.publish(self.number, run.publish, run.key.envelope.properties, run.bodies)

    # ── the link's side ─────────────────────────────────────────────────────────────────────────────────────────

    def on_messages(self, event: Messages, later: Later) -> None:
        """Handle messages that were returned as unroutable. Their acks come after them."""
        method = event.method
        if not isinstance(method, c.Basic.Return):
            return
        bodies = event.bodies
        for run in self.sent:
            place = run.publish
            if (place.exchange, place.routing_key) == (method.exchange, method.routing_key):
                count = min(len(bodies), len(run.bodies) - run.returned)
                if count and run.bodies[run.returned : run.returned + count] == bodies[:count]:
                    run.returned += count
                    bodies = bodies[count:]
            if not bodies:
                return

    def on_settled(self, run: MethodRun, later: Later) -> None:
        refusal, multiple = None, bool(run.flags & _MULTIPLE)
        if run.index != ACK:
            refusal, self.refusal = self.refusal or PublishRefusedError("the message was refused"), None
        for tag in run.tags:
            self._settle(tag, multiple=multiple, refusal=refusal, later=later)
        self.tell_idle(later)

    def _settle(self, tag: int, *, multiple: bool, refusal: Exception | None, later: Later) -> None:
        sent = self.sent
        if len(sent) == 1 and tag == sent[0].end - 1 and (multiple or tag == sent[0].first_tag):  # all there is
            self.sent = []
            sent[0].refusal = sent[0].refusal or refusal
            self.finish(sent[0], None, later)
            return
        at = bisect_right(sent, tag, key=lambda run: run.first_tag) - 1
        if at < 0:
            return
        first = 0 if multiple else at
        over: list[PublishRun] = []
        for run in sent[first : at + 1]:
            run.refusal = run.refusal or refusal
            if run.settle_up_to(tag) if multiple else run.settle(tag):
                over.append(run)
        for run in over:
            self.finish(run, None, later)
        if over:
            finished_ids = set(map(id, over))
            self.sent = [run for run in sent if id(run) not in finished_ids] if len(over) < at + 1 else sent[at + 1 :]

    def finish(self, run: PublishRun, error: Exception | None, later: Later) -> None:
        if error is None and run.refusal is not None:
            error = run.refusal
        elif error is None and run.returned and run.unroutable is not None:
            error = run.unroutable()
        super().finish(run, error, later)

    def send_again(self, engine: Connection) -> None:
        engine.send(self.number, c.Confirm.Select())
        self.asked.append(Future())
        self._next_tag = 1
        for run in self.sent:
            run.bodies = run.unsettled()
            run.settled.clear()
            run.returned = 0
            self.send(run, engine)
