"""ServerChannel: one channel of a client's connection.

Methods are handled in order. Some (publishes, acks) are handled at once; a method that has to wait for an actor
is a coroutine, and later methods queue up after it. A refusal closes the channel, and drops the waiting methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.errors import COMMAND_INVALID, ProtocolError
from warren.amqp.framing import ACK, NACK, MethodRun
from warren.amqp.own_methods import Call, Credit, Request, RequestOk, Settle
from warren.amqp.received import Messages, MethodReceived
from warren.server.channels import declarations
from warren.server.channels.channel_link import ChannelEvent, ChannelLink, Work
from warren.server.channels.consuming import ChannelConsumers
from warren.server.channels.gets import ChannelGets
from warren.server.channels.publishing import ChannelPublisher
from warren.server.channels.settlements import ChannelSettlements, UnackedAge
from warren.server.client_link import ClientLink
from warren.server.replies import NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.share import Share

if TYPE_CHECKING:
    from warren.server.channels import guest_calls


@attrs.frozen(eq=False)
class Ends:
    """What a channel's connection does when the channel ends."""

    failed: Callable[[int, Exception, int], None]
    """Called with the channel's number, an error, and the index of the method that failed (0: none)."""
    closed: Callable[[int], None]
    """Called with the number of a channel that its client has closed."""


class ServerChannel:
    """One channel."""

    def __init__(self, connection: ClientLink, number: int, share: Share, ends: Ends) -> None:
        self.link = ChannelLink(connection, number, self.refuse)
        self.settlements = ChannelSettlements(self.link)
        self.consumers = ChannelConsumers(self.link, self.settlements)
        self.gets = ChannelGets(self.link, self.settlements)
        self.publisher = ChannelPublisher(self.link, self.consumers.replies)
        self._share = share
        self._ends = ends
        self._guest_calls: guest_calls.GuestCalls | None = None
        self._age = UnackedAge()
        self._idle: list[Any] = []

    # ── what comes ──────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: ChannelEvent) -> None:
        """Handle an event, or queue it up."""
        if self.link.closed:
            self._answer_close(event)
            return
        if self.link.is_busy:
            self.link.waiting.append(event)
            if len(self.link.waiting) > MAX_WAITING_EVENTS:
                self.link.connection.hold(self)
            return
        work = self._try(event)
        if work is not None:
            self.link.is_busy = True
            self.link.connection.start(self._work_off(event, work))

    def _try(self, event: ChannelEvent) -> Work:
        try:
            match event:
                case Messages():
                    return self.publisher.publish(event)
                case MethodRun():
                    self._settle(event)
                    return None
                case MethodReceived(_, method):
                    if type(method) in declarations.METHODS:
                        return declarations.perform(self.link, method)
                    return METHODS.get(type(method), _refuse)(self, method)
                case _:
                    event()
                    return None
        except Exception as error:
            self._fail(event, error)
            return None

    def _settle(self, run: MethodRun) -> None:
        if run.index == ACK:
            self.settlements.settle("ack", run.tags, multiple=bool(run.flags & 1))
        elif run.index == NACK:
            self.settlements.settle("requeue" if run.flags & 2 else "reject", run.tags, multiple=bool(run.flags & 1))
        else:
            self.settlements.settle("failed" if run.flags & 1 else "reject", run.tags, multiple=False)

    async def _work_off(self, event: ChannelEvent, work: Work) -> None:
        """Wait for a method to end, then handle the events that came meanwhile."""
        while True:
            if work is not None:
                try:
                    await work
                except Exception as error:
                    self._fail(event, error)
            self.link.method_answered()
            if work is not None:
                await self._share.has_room()
            if self.link.closed or not self.link.waiting:
                break
            event = self.link.waiting.popleft()
            if len(self.link.waiting) <= MAX_WAITING_EVENTS // 2:
                self.link.connection.release(self)
            work = self._try(event)
        self.link.is_busy = False
        self.link.connection.release(self)
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)
        self.link.connection.flush_soon()

    def _fail(self, event: ChannelEvent, error: Exception) -> None:
        if self.link.closed:
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
        if not self.link.closed:
            self._refuse(error, 0)

    def _refuse(self, error: Exception, index: int) -> None:
        dropped = list(self.link.waiting)
        self.abandon()
        self._ends.failed(self.link.number, error, index)
        for event in dropped:
            self._answer_close(event)

    def look_for_timeout(self, now_s: float, timeout_ms: int) -> None:
        """Close the channel if a delivery has been unacked for too long."""
        unacked = self.settlements.unacked
        if not self.link.closed and self._age.tick(now_s, unacked.oldest, unacked.next_tag) * 1000 > timeout_ms:
            reason = (
                f"delivery acknowledgement on channel {self.link.number} timed out. "
                f"Timeout value used: {timeout_ms} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            )
            self.refuse(Refusal(PRECONDITION_FAILED, reason))

    def _answer_close(self, event: ChannelEvent) -> None:
        """After a refusal, answer only a close: the client waits for that."""
        connection = self.link.connection
        match event:
            case MethodReceived(number, c.Channel.Close()) if connection.engine.is_closing(number):
                connection.engine.send(number, c.Channel.CloseOk())
                connection.flush_soon()

    def abandon(self) -> None:
        """Drop waiting methods, and give back what the channel holds."""
        if not self.link.closed:
            self.link.closed = True
            self.link.waiting.clear()
            self.link.connection.start(self.release())

    async def _all_done(self) -> None:
        """Handle everything that has come."""
        if self.link.is_busy:
            waiter = self.link.server.loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def all_answered(self) -> None:
        """Handle everything that has come, and wait until what was published is safe."""
        await self._all_done()
        await self.publisher.all_told()
        if self._guest_calls is not None:
            await self._guest_calls.all_told()

    async def finish(self) -> None:
        """Handle everything that has come, then give everything back."""
        await self._all_done()
        if not self.link.closed:
            self.link.closed = True
            await self.release()

    async def release(self) -> None:
        """End the channel: give back what it holds. Its counts stay in the server's sums."""
        counted, self.link.traffic = self.message_stats(), None
        self.link.server.traffic.channel_closed(self.link.vhost, counted)
        self.publisher.roll_back()
        await self.consumers.release()
        if self._guest_calls is not None:
            await self._guest_calls.release()

    def has_closed(self) -> None:
        """The client has closed it: answer."""
        link = self.link
        self._ends.closed(link.number)
        if link.connection.engine.is_open(link.number):
            link.connection.engine.send(link.number, c.Channel.CloseOk())
        link.connection.flush_soon()

    def message_stats(self) -> dict[str, int]:
        """The counts of its messages."""
        confirms = self.publisher.confirms
        return (
            {} if self.link.traffic is None else self.link.traffic.to_json(0 if confirms is None else confirms.settled)
        )

    def guest_calls(self) -> guest_calls.GuestCalls:
        """The state between the calls of a process that shares the directory."""
        from warren.server.channels import guest_calls

        if self._guest_calls is None:
            self._guest_calls = guest_calls.GuestCalls(self.link, self.consumers, self.gets, self.settlements)
        return self._guest_calls

    def info(self) -> dict[str, Any]:
        """Return what RabbitMQ's management shows of a channel."""
        link, publisher, settlements = self.link, self.publisher, self.settlements
        connection, peer = link.connection, link.connection.peer
        return {
            "acks_uncommitted": len(settlements.uncommitted),
            "confirm": publisher.confirms is not None,
            "consumer_count": len(self.consumers.by_tag),
            "global_prefetch_count": settlements.together.limit,
            "messages_unacknowledged": len(settlements.unacked),
            "messages_uncommitted": len(publisher.uncommitted),
            "messages_unconfirmed": 0 if publisher.confirms is None else publisher.confirms.open,
            "number": link.number,
            "pending_raft_commands": 0,
            "prefetch_count": self.consumers.prefetch,
            "state": "running",
            "transactional": link.transactional,
            "user": link.user,
            "vhost": link.vhost,
            "name": f"{connection.name} ({link.number})",
            "node": link.node.name,
            "connection_details": {
                "name": connection.name,
                "peer_host": peer.peer_host if peer else "",
                "peer_port": peer.peer_port if peer else 0,
            },
            "message_stats": self.message_stats(),
            "user_who_performed_action": link.user,
        }

    def consumer_infos(self) -> list[dict[str, Any]]:
        """Return what RabbitMQ's management shows of each consumer of the channel."""
        channel = self.info()
        connection = channel["connection_details"]
        details = {
            "connection_name": connection["name"],
            "name": channel["name"],
            "node": channel["node"],
            "number": channel["number"],
            "peer_host": connection["peer_host"],
            "peer_port": connection["peer_port"],
            "user": channel["user"],
        }
        return [
            {
                "ack_required": not consumer.no_ack,
                "active": consumer.active,
                "activity_status": "up",
                "arguments": consumer.arguments,
                "consumer_tag": consumer.tag,
                "exclusive": consumer.exclusive,
                "prefetch_count": consumer.prefetch,
                "queue": {"name": consumer.queue, "vhost": channel["vhost"]},
                "channel_details": details,
            }
            for consumer in list(self.consumers.by_tag.values())
        ]


MAX_WAITING_EVENTS: Final = 256
"""When more events than this wait for a method to end, the socket is not read."""


def _refuse(_: ServerChannel, method: Method) -> Work:
    raise ProtocolError(COMMAND_INVALID, "unimplemented method", method.index)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _close(channel: ServerChannel, _: c.Channel.Close) -> None:
    channel.link.closed = True
    await channel.release()
    channel.has_closed()


def _flow(channel: ServerChannel, method: c.Channel.Flow) -> Work:
    if not method.active:
        raise ProtocolError(NOT_IMPLEMENTED, "active=false", method.index)
    channel.link.send(c.Channel.FlowOk(True))
    return None


def _confirm_select(channel: ServerChannel, method: c.Confirm.Select) -> Work:
    if channel.link.transactional:
        raise Refusal(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publisher.select_confirms()
    if not method.nowait:
        channel.link.send(c.Confirm.SelectOk())
    return None


def _tx_select(channel: ServerChannel, _: c.Tx.Select) -> Work:
    if channel.publisher.confirms is not None:
        raise Refusal(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.link.transactional = True
    channel.link.send(c.Tx.SelectOk())
    return None


def _check_transactional(channel: ServerChannel) -> None:
    if not channel.link.transactional:
        raise Refusal(PRECONDITION_FAILED, "channel is not transactional")


def _tx_commit(channel: ServerChannel, _: c.Tx.Commit) -> Work:
    _check_transactional(channel)
    return _commit(channel)


async def _commit(channel: ServerChannel) -> None:
    complete = await channel.publisher.commit()
    channel.settlements.commit()
    if not complete:
        raise Refusal(PRECONDITION_FAILED, "partial tx completion")
    channel.link.send(c.Tx.CommitOk())


def _tx_rollback(channel: ServerChannel, _: c.Tx.Rollback) -> Work:
    _check_transactional(channel)
    channel.publisher.roll_back()
    channel.settlements.roll_back()
    channel.link.send(c.Tx.RollbackOk())
    return None


def _call_verb(channel: ServerChannel, method: Call) -> Work:
    from warren.server.channels import guest_calls

    return guest_calls.call_verb(channel.guest_calls(), method)


METHODS: Final[dict[type[Method], Callable[[ServerChannel, Any], Work]]] = {
    c.Channel.Close: _close,
    c.Channel.Flow: _flow,
    Request: lambda channel, method: channel.link.send(RequestOk()),
    c.Confirm.Select: _confirm_select,
    c.Tx.Select: _tx_select,
    c.Tx.Commit: _tx_commit,
    c.Tx.Rollback: _tx_rollback,
    c.Basic.Qos: lambda channel, method: channel.consumers.set_qos(method),
    c.Basic.Consume: lambda channel, method: channel.consumers.consume(method),
    c.Basic.Cancel: lambda channel, method: channel.consumers.cancel(method),
    c.Basic.CancelOk: lambda channel, method: None,
    c.Basic.Get: lambda channel, method: channel.gets.get(method),
    c.Basic.Recover: lambda channel, method: channel.settlements.recover(method, answer=True),
    Call: _call_verb,
    Credit: lambda channel, method: channel.consumers.add_credit(method),
    Settle: lambda channel, method: channel.settlements.settle_stretch(method),
    c.Basic.RecoverAsync: lambda channel, method: channel.settlements.recover(method, answer=False),
}
