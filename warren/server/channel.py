"""ServerChannel: one channel of a client's connection.

Methods are handled in order. Some (publishes, acks) are handled at once; a method that has to wait for an actor
is a coroutine, and later methods queue up after it. A refusal closes the channel, and drops the waiting methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.declared.permissions import Kind, Right
from warren.actors.node.node_actor import NodeActor
from warren.aio import bridge
from warren.amqp.errors import COMMAND_INVALID, ProtocolError
from warren.amqp.framing import ACK, LARGE_BYTES, NACK, MethodRun
from warren.amqp.own_methods import Call, Credit, Request, RequestOk, Settle
from warren.amqp.received import Messages, MethodReceived
from warren.hosting.running_node import RunningNode
from warren.server import topology
from warren.server.consuming import ChannelConsumers
from warren.server.direct_reply import ReplyConsumer
from warren.server.publishing import ChannelPublisher
from warren.server.replies import NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.unacked_age import UnackedAge

if TYPE_CHECKING:
    from warren.hosting.running_node import RunningNode
    from warren.server import own_calls
    from warren.server.connection import ClientConnection

Work = Coroutine[Any, Any, None] | None
"""The rest of a method's work, if it has to wait."""
ChannelEvent = Messages | MethodRun | MethodReceived | Callable[[], None]
"""What the client sent, or work to do after everything that came before it."""


class ServerChannel:
    """One channel."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.node: RunningNode = connection.node
        self.vhost = connection.vhost
        self.user = connection.user
        self.transactional = False
        self.last_queue = ""
        """The queue that was declared last: an empty name means it."""
        self.traffic = connection.server.traffic.of_channel(self.vhost)
        """The counts of its messages; ``None``: not counted."""
        self.publisher: ChannelPublisher = ChannelPublisher(self)
        self.consumers: ChannelConsumers = ChannelConsumers(self)
        self.replies = ReplyConsumer(self)
        self._own_calls: own_calls.OwnCalls | None = None
        self.closed = False
        self._age = UnackedAge()
        self._busy = False
        self._waiting: deque[ChannelEvent] = deque()
        self._idle: list[Any] = []
        self._afterwards: list[Callable[[], None]] = []

    # ── what comes ──────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: ChannelEvent) -> None:
        """Handle an event, or queue it up."""
        if self.closed:
            self._answer_close(event)
            return
        if self._busy:
            self._waiting.append(event)
            if len(self._waiting) > MAX_WAITING_EVENTS:
                self.connection.hold(self)
            return
        work = self._try(event)
        if work is not None:
            self._busy = True
            self.connection.start(self._work_off(event, work))

    def _try(self, event: ChannelEvent) -> Work:
        try:
            match event:
                case Messages():
                    return self.publisher.publish(event)
                case MethodRun():
                    self._settle(event)
                    return None
                case MethodReceived(_, method):
                    return METHODS.get(type(method), _refuse)(self, method)
                case _:
                    event()
                    return None
        except Exception as error:
            self._fail(event, error)
            return None

    def _settle(self, run: MethodRun) -> None:
        if run.index == ACK:
            self.consumers.settle("ack", run.tags, multiple=bool(run.flags & 1))
        elif run.index == NACK:
            self.consumers.settle("requeue" if run.flags & 2 else "reject", run.tags, multiple=bool(run.flags & 1))
        else:
            self.consumers.settle("failed" if run.flags & 1 else "reject", run.tags, multiple=False)

    async def _work_off(self, event: ChannelEvent, work: Work) -> None:
        """Wait for a method to end, then handle the events that came meanwhile."""
        while True:
            if work is not None:
                try:
                    await work
                except Exception as error:
                    self._fail(event, error)
            afterwards, self._afterwards = self._afterwards, []
            for todo in afterwards:
                todo()
            if work is not None:
                await self.connection.has_room()
            if self.closed or not self._waiting:
                break
            event = self._waiting.popleft()
            if len(self._waiting) <= MAX_WAITING_EVENTS // 2:
                self.connection.release(self)
            work = self._try(event)
        self._busy = False
        self.connection.release(self)
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)
        self.connection.flush_soon()

    def _fail(self, event: ChannelEvent, error: Exception) -> None:
        if self.closed:
            return
        match event:
            case MethodRun():
                index = event.index
            case Messages() | MethodReceived():
                index = event.method.index
            case _:
                index = 0
        self._refuse(error, index)

    def refuse(self, error: Exception) -> None:
        """Close the channel for a reason other than one of the client's methods."""
        if not self.closed:
            self._refuse(error, 0)

    def _refuse(self, error: Exception, index: int) -> None:
        dropped = list(self._waiting)
        self.abandon()
        self.connection.failed(self.number, error, index)
        for event in dropped:
            self._answer_close(event)

    def look_for_timeout(self, now_s: float, timeout_ms: int) -> None:
        """Close the channel if a delivery has been unacked for too long."""
        unacked = self.consumers.unacked
        if not self.closed and self._age.tick(now_s, unacked.oldest, unacked.next_tag) * 1000 > timeout_ms:
            reason = (
                f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {timeout_ms} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            )
            self.refuse(Refusal(PRECONDITION_FAILED, reason))

    def _answer_close(self, event: ChannelEvent) -> None:
        """After a refusal, answer only a close: the client waits for that."""
        connection = self.connection
        match event:
            case MethodReceived(number, c.Channel.Close()) if connection.engine.is_closing(number):
                connection.engine.send(number, c.Channel.CloseOk())
                connection.flush_soon()

    def abandon(self) -> None:
        """Drop waiting methods, and give back what the channel holds."""
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            self.connection.start(self.release())

    async def _all_done(self) -> None:
        """Handle everything that has come."""
        if self._busy:
            waiter = self.connection.server.loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def all_answered(self) -> None:
        """Handle everything that has come, and wait until what was published is safe."""
        await self._all_done()
        await self.publisher.all_told()
        if self._own_calls is not None:
            await self._own_calls.all_told()

    async def finish(self) -> None:
        """Handle everything that has come, then give everything back."""
        await self._all_done()
        if not self.closed:
            self.closed = True
            await self.release()

    async def release(self) -> None:
        """End the channel: give back what it holds. Its counts stay in the server's sums."""
        counted, self.traffic = self.message_stats(), None
        self.connection.server.traffic.channel_closed(self.vhost, counted)
        self.publisher.roll_back()
        await self.consumers.release()
        if self._own_calls is not None:
            await self._own_calls.release()

    def message_stats(self) -> dict[str, int]:
        """The counts of its messages."""
        confirms = self.publisher.confirms
        return {} if self.traffic is None else self.traffic.to_json(0 if confirms is None else confirms.settled)

    # ── for its parts ───────────────────────────────────────────────────────────────────────────────────────────

    def own_calls(self) -> own_calls.OwnCalls:
        """The state between the calls of a process that shares the directory."""
        from warren.server import own_calls

        if self._own_calls is None:
            self._own_calls = own_calls.OwnCalls(self)
        return self._own_calls

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

    def in_line(self, todo: Callable[[], None]) -> None:
        """Call ``todo`` after everything that has come is done, unless that closes the channel."""
        self._waiting.append(todo)

    def afterwards(self, todo: Callable[[], None]) -> None:
        """Call ``todo`` after the answer to the current method, or at once if no method is running."""
        if self._busy:
            self._afterwards.append(todo)
        else:
            todo()

    @property
    def may_send(self) -> bool:
        """Whether answers can still be sent."""
        return not self.closed and self.connection.engine.is_open(self.number)

    def check(self, kind: Kind, name: str, right: Right) -> None:
        """Raise :class:`AccessRefusedError` if the user lacks the right."""
        if self.connection.is_owner:
            return
        self.node.actor.users.check(self.user, self.vhost, kind, name, right)

    @property
    def may_impersonate(self) -> bool:
        """Whether it may publish in the name of another user."""
        return self.connection.is_owner or "impersonator" in self.node.actor.users[self.user].tags

    def check_topic(self, exchange: str, routing_key: str, right: Literal["write", "read"]) -> None:
        """Raise :class:`AccessRefusedError` if the user may not use this key with a topic exchange."""
        if self.connection.is_owner:
            return
        if self.node.vhost(self.vhost).definitions.exchange(exchange).type == "topic":
            self.node.actor.users.check_topic(self.user, self.vhost, exchange, routing_key, right)

    async def change(self, work: Callable[[NodeActor], Any]) -> Any:
        """Run ``work`` in the node's actor, and return its result."""
        return await bridge.run(self.node.change(work))

    def queue_name(self, name: str) -> str:
        """Return the name, or for an empty one the name of the queue that was declared last."""
        if name:
            return name
        if not self.last_queue:
            raise Refusal(404, "no previously declared queue")
        return self.last_queue

    def info(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a channel."""
        connection, consumers = self.connection, self.consumers
        connection_info = connection.info()
        return {
            "name": f"{connection.name} ({self.number})",
            "number": self.number,
            "node": self.node.name,
            "user": self.user,
            "vhost": self.vhost,
            "state": "running",
            "transactional": self.transactional,
            "confirm": self.publisher.confirms is not None,
            "consumer_count": len(consumers.by_tag),
            "messages_unacknowledged": len(consumers.unacked),
            "messages_unconfirmed": 0 if self.publisher.confirms is None else self.publisher.confirms.open,
            "messages_uncommitted": len(self.publisher.uncommitted),
            "acks_uncommitted": len(consumers.uncommitted),
            "prefetch_count": consumers.prefetch,
            "global_prefetch_count": consumers.together.limit,
            "message_stats": self.message_stats(),
            "connection_details": {
                "name": connection.name,
                "peer_host": connection_info["peer_host"],
                "peer_port": connection_info["peer_port"],
            },
        }


MAX_WAITING_EVENTS: Final = 256
"""When more events than this wait for a method to end, the socket is not read."""


def _refuse(_: ServerChannel, method: Method) -> Work:
    raise ProtocolError(COMMAND_INVALID, "unimplemented method", method.index)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _close(channel: ServerChannel, _: c.Channel.Close) -> None:
    channel.closed = True
    await channel.release()
    connection = channel.connection
    connection.channels.pop(channel.number, None)
    if connection.engine.is_open(channel.number):
        connection.engine.send(channel.number, c.Channel.CloseOk())
    connection.flush_soon()


def _flow(channel: ServerChannel, method: c.Channel.Flow) -> Work:
    if not method.active:
        raise ProtocolError(NOT_IMPLEMENTED, "active=false", method.index)
    channel.send(c.Channel.FlowOk(True))
    return None


def _confirm_select(channel: ServerChannel, method: c.Confirm.Select) -> Work:
    if channel.transactional:
        raise Refusal(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publisher.select_confirms()
    if not method.nowait:
        channel.send(c.Confirm.SelectOk())
    return None


def _tx_select(channel: ServerChannel, _: c.Tx.Select) -> Work:
    if channel.publisher.confirms is not None:
        raise Refusal(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.transactional = True
    channel.send(c.Tx.SelectOk())
    return None


def _check_transactional(channel: ServerChannel) -> None:
    if not channel.transactional:
        raise Refusal(PRECONDITION_FAILED, "channel is not transactional")


def _tx_commit(channel: ServerChannel, _: c.Tx.Commit) -> Work:
    _check_transactional(channel)
    return _commit(channel)


async def _commit(channel: ServerChannel) -> None:
    complete = await channel.publisher.commit()
    channel.consumers.commit()
    if not complete:
        raise Refusal(PRECONDITION_FAILED, "partial tx completion")
    channel.send(c.Tx.CommitOk())


def _tx_rollback(channel: ServerChannel, _: c.Tx.Rollback) -> Work:
    _check_transactional(channel)
    channel.publisher.roll_back()
    channel.consumers.roll_back()
    channel.send(c.Tx.RollbackOk())
    return None


def _call_verb(channel: ServerChannel, method: Call) -> Work:
    from warren.server import own_calls

    return own_calls.call_verb(channel, method)


METHODS: Final[dict[type[Method], Callable[[ServerChannel, Any], Work]]] = {
    c.Channel.Close: _close,
    c.Channel.Flow: _flow,
    Request: lambda channel, method: channel.send(RequestOk()),
    c.Confirm.Select: _confirm_select,
    c.Tx.Select: _tx_select,
    c.Tx.Commit: _tx_commit,
    c.Tx.Rollback: _tx_rollback,
    c.Exchange.Declare: topology.declare_exchange,
    c.Exchange.Delete: topology.delete_exchange,
    c.Exchange.Bind: topology.bind_exchange,
    c.Exchange.Unbind: topology.unbind_exchange,
    c.Queue.Declare: topology.declare_queue,
    c.Queue.Delete: topology.delete_queue,
    c.Queue.Purge: topology.purge_queue,
    c.Queue.Bind: topology.bind_queue,
    c.Queue.Unbind: topology.unbind_queue,
    c.Basic.Qos: lambda channel, method: channel.consumers.set_qos(method),
    c.Basic.Consume: lambda channel, method: channel.consumers.consume(method),
    c.Basic.Cancel: lambda channel, method: channel.consumers.cancel(method),
    c.Basic.CancelOk: lambda channel, method: None,
    c.Basic.Get: lambda channel, method: channel.consumers.get(method),
    c.Basic.Recover: lambda channel, method: channel.consumers.recover(method, answer=True),
    Call: _call_verb,
    Credit: lambda channel, method: channel.consumers.add_credit(method),
    Settle: lambda channel, method: channel.consumers.settle_stretch(method),
    c.Basic.RecoverAsync: lambda channel, method: channel.consumers.recover(method, answer=False),
}
