"""Direct reply-to: answers that go directly from one client to another, without a queue.

A client consumes from the pseudo-queue ``amq.rabbitmq.reply-to`` and publishes its requests with ``reply_to`` set to
it. The published messages carry an address of that channel; a message published to the default exchange with this
address as the routing key reaches the channel directly. Replies that no client waits for are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pamqp import commands as c

from warren.actors.engines.queue.delivery_tags import DeliveryTags
from warren.amqp.methods import method_of
from warren.server.channels.channel_link import ChannelLink
from warren.server.replies import NOT_FOUND, PRECONDITION_FAILED, Refusal
from warren.server.server_context import REPLY_TO


class ReplyConsumer:
    """The consumer of a channel that consumes from the pseudo-queue."""

    def __init__(self, channel: ChannelLink, tags: DeliveryTags[Any]) -> None:
        self._channel = channel
        self._tags = tags
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
        self.address = self._channel.server.replies.add(self.deliver)

    def end(self, tag: str | None = None) -> bool:
        """Stop consuming; return whether there was a consumer with that tag (``None``: any)."""
        if not self.address or tag not in (None, self._tag):
            return False
        self._channel.server.replies.remove(self.address)
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
        tags = [self._tags.next_tag] * len(bodies)
        channel.connection.engine.deliver(channel.number, method, tags, properties, bodies)
        channel.connection.flush_soon()


def check_declared(channel: ChannelLink, name: str) -> None:
    """Answer a declaration that asks whether a client waits for replies. Raises :class:`Refusal` if none does."""
    if name != REPLY_TO and channel.server.replies.find(name) is None:
        raise Refusal(NOT_FOUND, f"no queue '{name}' in vhost '{channel.vhost}'")
