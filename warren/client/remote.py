"""RemoteVhost: one link, and the channels that all handles of a vhost share: for requests, and for messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
from pamqp.base import Frame as Method

from warren.actors.node.node_context import BlockedError
from warren.actors.node.node_errors import ClosedError
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm, Future
from warren.client.appending import ConfirmedCalls
from warren.client.calls import call_of, result_of
from warren.client.channels import ClientChannel
from warren.client.errors import LinkLostError
from warren.client.link import Link
from warren.client.publishing import PublishChannel
from warren.client.resending import ResendingChannel, Window
from warren.storage.errors import WarrenError
from warren.verbs.operation import Operation
from warren.verbs.steps import Steps, Within, bounded, run

_DEFAULT_EXCHANGE: Final = ""
K = TypeVar("K")
T = TypeVar("T")


@attrs.frozen
class NoGate:
    """Replaces a node's gate, which a handle checks on its fast path of publishing: never closed here."""

    limit: int = 1


class RemoteVhost:
    """A vhost of a node that another process hosts. The owner of the exclusive queues that are declared through it."""

    gate: Final = NoGate()
    link: Link
    window: Window
    _control: ClientChannel | None
    _publishers: dict[str, PublishChannel]
    _calls: ConfirmedCalls | None

    def __init__(
        self,
        new_link: Callable[[], Link],
        name: str,
        path: str = "",
        on_release: Callable[[RemoteVhost], None] = lambda _: None,
    ) -> None:
        """``path``: the directory's; ``on_release``: called when it was released."""
        self._new_link = new_link
        self._on_release = on_release
        self.path = path
        self.name = name
        self.topic_queues: dict[str, int] = {}
        """How many queues topics have, as far as known here."""
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self.link = self._new_link()
        self.topology = self.link.topology
        self.forget()

    @property
    def identity(self) -> object:
        """An object that is equal for all handles on this node, whose vhosts each have an object of this class."""
        return self.path

    def check_process(self) -> None:
        """Raise :class:`ClosedError` if the node was closed. A handle of the parent process may be used: it makes a
        connection of its own after a fork."""
        if self.link.closed is not None:
            raise self.link.closed.with_traceback(None)  # each raise would add to it

    def move_at_fork(self, verbs: Any, new_host: Callable[[], Any]) -> None:
        """Do nothing: a forked child makes a connection of its own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def new_message_id(self) -> str:
        """Return a unique message id."""
        return uuid.uuid4().hex

    def close(self, error: WarrenError) -> None:
        """Leave for good: all later requests fail with ``error``."""
        self.closed = True
        self.link.close(error)

    def release(self) -> None:
        """Leave, with the exclusive queues that were declared here. The next request makes another connection."""
        self.link.close(ClosedError("the vhost was released"))
        self._on_release(self)
        self._begin()

    def within(self, timeout: float | None, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``; raise :class:`HostUnresponsiveError` after ``timeout`` seconds (``None``: never), as soon as
        the host is silent."""
        return bounded(steps, timeout, self.link.silence)

    def control(self) -> Steps[ClientChannel]:
        """Return the channel for requests, opening it if needed."""
        if not self.link.outbox.can_send:
            yield self.link.ready()
        channel = self._control
        if channel is None or not channel.alive:
            channel = self._control = ClientChannel(self.link)
            channel.open()
        if channel.opened is not None and not channel.opened.done:
            yield channel.opened
        return channel

    def ask(self, method: Method) -> Steps[Any]:
        """Send a method and return the answer; send it again if the connection is lost meanwhile."""
        while True:
            try:
                channel = yield from self.control()
                return (yield channel.ask(method))
            except LinkLostError:
                continue

    def perform(self, operation: Operation[T], of: str) -> Steps[T]:
        """Let the host perform an operation on what has the name ``of``; return its answer."""
        definition = operation.definition
        if definition.flushes:
            yield from self.flush()
        self.topology.forget(operation, of)
        result: T = definition.decode(result_of((yield from self.ask(call_of(operation, of)))))
        self.topology.note(operation, of, result)
        return result

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publisher_now(self, exchange: str = _DEFAULT_EXCHANGE) -> PublishChannel | None:
        """Return the channel that messages to an exchange go through, if it is open."""
        channel = self._publishers.get(exchange)
        return channel if channel is not None and channel.error is None and channel.is_ready else None

    def publisher(self, exchange: str = _DEFAULT_EXCHANGE) -> Steps[PublishChannel]:
        """Return the channel that messages to an exchange go through, opening it if needed."""
        while (channel := self.publisher_now(exchange)) is None:
            try:
                yield self.link.ready()
                channel = PublishChannel(self.link, self.window)
                yield channel.open()
                yield channel.select()
            except LinkLostError:
                continue
            self._publishers.setdefault(exchange, channel)
            if self._publishers[exchange].error is not None:
                self._publishers[exchange] = channel
        return channel

    def publish(
        self,
        key: PublishKey,
        method: Any,
        bodies: list[bytes],
        unroutable: Callable[[], WarrenError] | None,
        *,
        block: bool,
        timeout: float | None,
        is_delayed: bool = False,
    ) -> Steps[Confirm]:
        """Hand messages over once there is room. Raises :class:`BlockedError` if that takes longer than
        ``timeout``, or at once without ``block``.

        ``is_delayed``: they are due later; on a full disk they are refused instead of waiting for room.
        """
        exchange = method.exchange
        return self._hand_over(
            lambda: self.publisher_now(exchange),
            lambda: self.publisher(exchange),
            lambda channel: channel.publish(key, method, bodies, unroutable, tries_full_disk=is_delayed),
            block,
            timeout,
        )

    def room(self, timeout: float | None) -> Steps[None]:
        """Wait until messages can be handed over without waiting. Raises :class:`BlockedError`."""
        return self._room(self.publisher, timeout)

    def room_for_calls(self, timeout: float | None) -> Steps[None]:
        """The same for calls that are confirmed."""
        return self._room(self.open_calls, timeout)

    def _room(self, opened: Callable[[], Steps[ResendingChannel[Any]]], timeout: float | None) -> Steps[None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            channel = yield from self.within(timeout, opened())
            wait = channel.wait_for_room()
            if wait is None:
                return
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise BlockedError(self._why())
            yield Within(wait, left_s)

    def hand_over(
        self, give: Callable[[ConfirmedCalls], Confirm | Future], *, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        """The same for calls that are confirmed."""
        return self._hand_over(self._calls_now, self.open_calls, give, block, timeout)

    def _calls_now(self) -> ConfirmedCalls | None:
        calls = self._calls
        return calls if calls is not None and calls.error is None and calls.is_ready else None

    def open_calls(self) -> Steps[ConfirmedCalls]:
        """Return the channel of confirmed calls, opening it if needed."""
        while (calls := self._calls_now()) is None:
            try:
                yield self.link.ready()
                calls = ConfirmedCalls(self.link, self.window)
                yield calls.open()
            except LinkLostError:
                continue
            calls.is_ready = True
            if self._calls_now() is None:
                self._calls = calls
        return calls

    def _hand_over(
        self,
        now: Callable[[], K | None],
        opened: Callable[[], Steps[K]],
        give: Callable[[K], Confirm | Future],
        block: bool,
        timeout: float | None,
    ) -> Steps[Confirm]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            channel = now()
            if channel is None:
                if not block:
                    raise BlockedError("the connection to the node's host is only just being made")
                channel = yield from self.within(timeout, opened())
            result = give(channel)
            if isinstance(result, Confirm):
                return result
            left_s = None if deadline is None else deadline - time.monotonic()
            if not block or (left_s is not None and left_s <= 0):
                raise BlockedError(self._why())
            yield Within(result, left_s)

    def _why(self) -> str:
        return f"publishers are blocked: {self.link.blocked}" if self.link.blocked else "too much is on its way"

    def flush(self) -> Steps[WarrenError | None]:
        """Wait until everything published is confirmed or has failed; return the error if the host is silent."""
        channels: list[ResendingChannel[Any]] = [*self._publishers.values()]
        if self._calls is not None:
            channels.append(self._calls)
        waits = [wait for channel in channels if not (wait := channel.settled()).done]
        for wait in waits:
            yield wait
        return self.link.given_up if waits else None

    def forget(self) -> None:
        """Forget all channels: they were the last link's or, in a forked child, are the parent's."""
        self._control = None
        self._publishers = {}
        self._calls = None
        self.window = Window()


@attrs.frozen
class Publishing:
    """A publish that does not wait: called by the fast path of a handle's publish."""

    steps: Steps[Confirm]

    def get(self) -> Confirm:
        return run(self.steps)
