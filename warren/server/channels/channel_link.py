"""ChannelLink: what the parts of a channel use of it: who its client is, and the way back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.declared.permissions import Kind, Right
from warren.actors.node.node_registry import NodeRegistry
from warren.aio import bridge
from warren.amqp.framing import LARGE_BYTES, MethodRun
from warren.amqp.received import Messages, MethodReceived
from warren.server.client_link import ClientLink
from warren.server.replies import Refusal

if TYPE_CHECKING:
    from warren.server.channels.tracing import ChannelTrace

Work = Coroutine[Any, Any, None] | None
"""The rest of a method's work, if it has to wait."""
ChannelEvent = Messages | MethodRun | MethodReceived | Callable[[], None]
"""What the client sent, or work to do after everything that came before it."""


class ChannelLink:
    """One channel of a client."""

    def __init__(self, connection: ClientLink, number: int, refuse: Callable[[Exception], None]) -> None:
        """``refuse``: closes the channel for a reason other than one of the client's methods."""
        self.connection = connection
        self.number = number
        self.refuse = refuse
        self.server = connection.server
        self.node = connection.node
        self.vhost = connection.vhost
        self.user = connection.user
        self.transactional = False
        self.last_queue = ""
        """The queue that was declared last: an empty name means it."""
        self.traffic = self.server.traffic.of_channel(self.vhost)
        """The counts of its messages; ``None``: not counted."""
        self.trace: ChannelTrace | None = None
        """What traces its messages, while its vhost is traced."""
        self.note_tracing()
        self.closed = False
        self.is_busy = False
        """Whether a method waits for its end."""
        self.waiting: deque[ChannelEvent] = deque()
        """What comes after that method."""
        self._afterwards: list[Callable[[], None]] = []

    def note_tracing(self) -> None:
        """Begin or stop to trace messages. Any thread may call it."""
        if self.vhost not in self.node.registry.traced:
            self.trace = None
            return
        from warren.server.channels.tracing import ChannelTrace

        self.trace = ChannelTrace(self.node, self.vhost, self.user, self.connection.name, self.number)

    # ── the way back ────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, method: Method) -> None:
        """Send a method, unless the channel is closed."""
        if self.may_send:
            self.connection.engine.send(self.number, method)
            self.connection.flush_soon()

    def send_message(self, method: c.Basic.GetOk | c.Basic.Return, properties: bytes, body: bytes) -> None:
        """Send a message that is not delivered to a consumer, unless the channel is closed."""
        if self.may_send:
            self.connection.engine.send_message(self.number, method, properties, body)
            if len(body) < LARGE_BYTES:
                self.connection.flush_soon()
            else:
                self.connection.flush()

    @property
    def may_send(self) -> bool:
        """Whether answers can still be sent."""
        return not self.closed and self.connection.engine.is_open(self.number)

    # ── order ───────────────────────────────────────────────────────────────────────────────────────────────────

    def in_line(self, todo: Callable[[], None]) -> None:
        """Call ``todo`` after everything that has come is done, unless that closes the channel."""
        self.waiting.append(todo)

    def afterwards(self, todo: Callable[[], None]) -> None:
        """Call ``todo`` after the answer to the current method, or at once if no method is running."""
        if self.is_busy:
            self._afterwards.append(todo)
        else:
            todo()

    def method_answered(self) -> None:
        """Do what was to be done after the answer to the current method."""
        works, self._afterwards = self._afterwards, []
        for work in works:
            work()

    # ── the client ──────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, kind: Kind, name: str, right: Right) -> None:
        """Raise :class:`AccessRefusedError` if the user lacks the right."""
        if self.connection.is_owner:
            return
        self.node.registry.users.check(self.user, self.vhost, kind, name, right)

    @property
    def may_impersonate(self) -> bool:
        """Whether it may publish in the name of another user."""
        return self.connection.is_owner or "impersonator" in self.node.registry.users[self.user].tags

    def check_topic(self, exchange: str, routing_key: str, right: Literal["write", "read"]) -> None:
        """Raise :class:`AccessRefusedError` if the user may not use this key with a topic exchange."""
        if self.connection.is_owner:
            return
        if self.node.vhost(self.vhost).definitions.exchange(exchange).type == "topic":
            self.node.registry.users.check_topic(self.user, self.vhost, exchange, routing_key, right)

    async def change(self, work: Callable[[NodeRegistry], Any]) -> Any:
        """Run ``work`` in the node's actor, and return its result."""
        return await bridge.run(self.node.change(work))

    def queue_name(self, name: str) -> str:
        """Return the name, or for an empty one the name of the queue that was declared last."""
        if name:
            return name
        if not self.last_queue:
            raise Refusal(404, "no previously declared queue")
        return self.last_queue
