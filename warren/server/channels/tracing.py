"""ChannelTrace: RabbitMQ's firehose: copies of what a client publishes and gets, for the exchange of traces.

While a vhost is traced, each of its channels has one. A copy has the message's body, the routing key
``publish.EXCHANGE`` or ``deliver.QUEUE``, and all about the message and the client in its headers. It is transient, and
no sender waits for it. Messages that come from the exchange of traces are not traced again. Which vhosts are traced is
not on disk.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from warren.actors.engines.declared.routing import carbon_copies
from warren.amqp.methods import text_of
from warren.hosting.running_node import RunningNode
from warren.queue_index.message.contents import Content
from warren.queue_index.properties import NAMES, Properties, decode_properties
from warren.server.channels.batches import Batch
from warren.storage.errors import WarrenError
from warren.verbs.addressing import address

TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
_MAX_KEY_BYTES: Final = 255


@attrs.frozen(eq=False)
class ChannelTrace:
    """The trace of one channel."""

    _node: RunningNode
    _vhost: str
    _user: str
    _connection: str
    _channel: int

    def published(self, batch: Batch) -> None:
        """Trace messages that a client publishes."""
        source = batch.address.checked.name, batch.address.routing_keys
        queues = batch.route.names if source[0] else source[1]  # by the default exchange even if there is no such queue
        for message in batch.messages():
            self._send(f"publish.{source[0]}", source, message, {"routed_queues": [*map(_value, queues)]})

    def delivered(self, queue: str, content: Content, *, redelivered: bool) -> None:
        """Trace messages that a client gets from a queue."""
        source = text_of(content.exchange), (text_of(content.routing_key),)
        if source[0] == TRACE_EXCHANGE:
            return
        for message in zip(content.properties, content.bodies, strict=True):
            self._send(f"deliver.{queue}", source, message, {"redelivered": int(redelivered)})

    def _send(
        self, trace_key: str, source: tuple[str, tuple[str, ...]], message: tuple[bytes, bytes], further: dict[str, Any]
    ) -> None:
        exchange, routing_keys = source
        encoded, body = message
        try:
            vhost, properties = self._node.vhost(self._vhost), decode_properties(encoded)
            copies = carbon_copies(properties.headers or {})
            headers = {
                "exchange_name": _value(exchange),
                "routing_keys": [_value(key) for key in dict.fromkeys((*routing_keys, *copies))],
                "properties": {name: value for name in NAMES if (value := getattr(properties, name)) is not None},
                "node": self._node.name,
                "vhost": _value(self._vhost),
                "connection": self._connection,
                "channel": self._channel,
                "user": _value(self._user),
                **further,
            }
            short_key = trace_key.encode("utf-8", "surrogateescape")[:_MAX_KEY_BYTES]
            key, keys, _ = address(self._vhost, TRACE_EXCHANGE, text_of(short_key), Properties(headers=headers))
            routing, own = vhost.definitions.routing, key.envelope.properties
            vhost.send_to(routing.route_all(TRACE_EXCHANGE, keys, headers, own, from_node=True), key, body)
        except WarrenError:  # the exchange was deleted, or the message's headers are nested too deeply for one more
            return


def _value(name: str) -> str | bytes:
    """A name in a header; one that is not UTF-8 as bytes."""
    encoded = name.encode(errors="surrogateescape")
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded
