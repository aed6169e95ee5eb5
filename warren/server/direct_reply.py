"""Direct reply-to: answers that go directly from one client to another, without a queue.

A client consumes from the pseudo-queue :data:`REPLY_TO` and publishes its requests with ``reply_to`` set to it. The
published messages carry an address of that channel; a message published to the default exchange with this address as
the routing key reaches the channel directly. Replies that no client waits for are dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs
from pamqp import commands as c

from warren.amqp.methods import method_of
from warren.server.replies import NOT_FOUND, PRECONDITION_FAILED, Refusal

if TYPE_CHECKING:
    from warren.server.channel import ServerChannel

REPLY_TO: Final = "amq.rabbitmq.reply-to"
_ADDRESS: Final = f"{REPLY_TO}."


@attrs.define
class ReplyAddresses:
    """The channels of a server that wait for replies, by their addresses."""

    _channels: dict[str, ServerChannel] = attrs.Factory(dict)

    def find(self, routing_key: str) -> ServerChannel | None:
        return self._channels.get(routing_key)

    def add(self, channel: ServerChannel) -> str:
        """Return a new address."""
        address = f"{_ADDRESS}{secrets.token_urlsafe(24)}"
        self._channels[address] = channel
        return address

    def remove(self, address: str) -> None:
        self._channels.pop(address, None)


def is_reply_queue(name: str) -> bool:
    """Whether it is the pseudo-queue, or an address."""
    return name == REPLY_TO or name.startswith(_ADDRESS)


def is_address(routing_key: str) -> bool:
    return routing_key.startswith(_ADDRESS)


class ReplyConsumer:
    """The consumer of a channel that consumes from the pseudo-queue."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._tag = ""
        self.address = ""
        """"": not consuming."""

    def begin(self, method: c.Basic.Consume, tag: str) -> None:
        """Raises :class:`Refusal`."""
        if not method.no_ack:
            raise Refusal(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.address:
            raise Refusal(PRECONDITION_FAILED, "reply consumer already set")
        self._tag = tag
        self.address = self._channel.connection.server.replies.add(self._channel)

    def end(self, tag: str | None = None) -> bool:
        """Stop consuming; return whether there was a consumer with that tag (``None``: any)."""
        if not self.address or tag not in (None, self._tag):
            return False
        self._channel.connection.server.replies.remove(self.address)
        self.address = ""
        return True

    def address_for_request(self) -> str:
        """Return the address for a request's ``reply_to``. Raises :class:`Refusal` if the channel does not consume."""
        if not self.address:
            raise Refusal(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return self.address

    def deliver(self, routing_key: str, properties: bytes, bodies: Sequence[bytes]) -> None:
        """Send replies. They are not numbered: each has the tag that the channel's next delivery will get."""
        channel = self._channel
        if not channel.may_send:
            return
        method = method_of(c.Basic.Deliver, consumer_tag=self._tag, exchange="", routing_key=routing_key)
        tags = [channel.consumers.unacked.next_tag] * len(bodies)
        channel.connection.engine.deliver(channel.number, method, tags, properties, bodies)
        channel.connection.flush_soon()


def check_declared(channel: ServerChannel, name: str) -> None:
    """Answer a declaration that asks whether a client waits for replies. Raises :class:`Refusal` if none does."""
    if name != REPLY_TO and channel.connection.server.replies.find(name) is None:
        raise Refusal(NOT_FOUND, f"no queue '{name}' in vhost '{channel.vhost}'")
