"""Messages: published to an exchange, and taken from a queue, as RabbitMQ's API has it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import attrs

from warren.actors.engines.errors import (
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
)
from warren.actors.node.node_context import BlockedError
from warren.actors.queue.intake import PublishRefusedError
from warren.actors.runtime.future import Confirm
from warren.aio import bridge
from warren.handles.channel import DeliveredMessage, SettlingChannel
from warren.management.call import Call
from warren.management.handlers.queues import find_classic
from warren.management.http import (
    ANSWER_BYTES,
    HttpError,
    bad_request,
    closed_with,
    integer,
    not_found,
    refused_in_channel,
    required,
    with_rests,
)
from warren.queue_index.message.amqp_tables import table_to_json
from warren.queue_index.properties import NAMES, Properties
from warren.verbs.addressing import address, delay_in
from warren.verbs.consumer_verbs import spread
from warren.verbs.publishing import Receiver, publishing, remember
from warren.verbs.queue_host import LocalQueue
from warren.verbs.queue_verbs import QueueVerbs

ACK_MODES: Final[Mapping[str, str]] = {
    "ack_requeue_true": "requeue",
    "ack_requeue_false": "ack",
    "reject_requeue_true": "requeue",
    "reject_requeue_false": "reject",
}
"""What is done with the messages that were got."""
MAX_GET: Final = 10_000
"""The most messages of one request."""
PUBLISH_TIMEOUT_S: Final = 30.0
_INTEGERS: Final = frozenset({"delivery_mode", "priority", "timestamp"})


# ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────────


def properties_of(fields: Any) -> Properties:
    """Return the properties in a request. Raises :class:`HttpError`."""
    if not isinstance(fields, Mapping):
        raise bad_request("properties are an object")
    parsed: dict[str, Any] = {}
    for name in NAMES:
        value = fields.get(name)
        if name not in fields:
            continue
        if name == "headers":
            parsed[name] = _table(value)
        elif name in _INTEGERS:
            if not isinstance(value, int) or isinstance(value, bool):
                raise bad_request(["not_int", name])
            parsed[name] = value
        elif not isinstance(value, str):
            raise bad_request(["not_string", name])
        else:
            parsed[name] = value
    return Properties(**parsed)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise bad_request("headers are an object")
    _check_no_null(value)
    return dict(value)


def _check_no_null(value: Any) -> None:
    if value is None:
        raise bad_request("null_not_allowed")
    for element in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_no_null(element)


def properties_json(properties: Properties) -> Any:
    """Return the properties that are set; without any, an empty list, as RabbitMQ does."""
    fields = {name: value for name, value in attrs.asdict(properties, recurse=False).items() if value is not None}
    if "headers" in fields:
        fields["headers"] = table_to_json(fields["headers"])
    return fields or []


# ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def publish(call: Call) -> Any:
    """``/api/exchanges/:vhost/:exchange/publish``: whether the message has reached a queue, once it is safe there."""
    request = await call.body()
    routing_key, properties, payload, encoding = required(
        request, "routing_key", "properties", "payload", "payload_encoding"
    )
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if not isinstance(routing_key, str):
        raise bad_request(["not_string", "routing_key"])
    vhost, exchange = call.vhost, call.exchange_part("exchange")
    checked, body = properties_of(properties), decoded(payload, encoding)
    try:
        routed = await _publish(call, vhost, exchange, routing_key, properties=checked, body=body)
    except RefusedError as error:
        raise bad_request(closed_with(error)) from error
    except PublishRefusedError:
        raise bad_request("rejected Unable to publish message. Check queue limits.") from None
    except BlockedError as error:
        raise HttpError(503, "blocked", str(error)) from error
    return {"routed": routed}


def decoded(payload: str, encoding: Any) -> bytes:
    """The body that a payload stands for. Raises :class:`HttpError`."""
    match encoding:
        case "string":
            return payload.encode(errors="surrogateescape")
        case "base64":
            try:
                return base64.b64decode(payload, validate=True)
            except (binascii.Error, ValueError):
                raise bad_request(["not_base64", payload]) from None
        case _:
            raise bad_request(["unsupported_encoding", encoding])


async def _publish(
    call: Call, vhost: str, exchange: str, routing_key: str, *, properties: Properties, body: bytes
) -> bool:
    user = call.user.name
    call.check(vhost, "exchange", exchange, "write")
    call.check_topic(vhost, exchange, routing_key, "write")
    if properties.user_id not in (None, user) and not call.has_tag("impersonator"):
        raise PreconditionFailedError(
            f"user_id property set to '{properties.user_id!s}' but authenticated user was '{user}'"
        )
    confirm = await _hand_over(call, vhost, exchange, routing_key, properties=properties, body=body)
    if confirm is None:
        return False
    await bridge.safe(confirm)
    return True


async def _hand_over(
    call: Call, vhost: str, exchange: str, routing_key: str, *, properties: Properties, body: bytes
) -> Confirm | None:
    """Publish a message to the queues that it is routed to; return ``None`` if there are no queues."""
    properties, delay = delay_in(call.node.vhost(vhost).definitions.exchange(exchange), properties)
    key, keys, headers = address(vhost, exchange, routing_key, properties)

    if delay is None:
        remember(call.node, key, [body])

    def find_queues() -> list[Receiver]:
        running = call.node.vhost(vhost)
        if delay is not None:
            return [delay.receiver(call.node, vhost, None, exchange)]
        names = running.definitions.routing.route_all(exchange, keys, headers, key.envelope.properties)
        call.managed.clients.traffic.publish(vhost, exchange, 1, len(names))
        entries = [entry for name in names if (entry := running.queues.get(name)) is not None]
        receivers: list[Receiver] = [entry.actor.intake for entry in entries]
        return [*receivers, *call.node.streams(vhost, names)] if len(receivers) < len(names) else receivers

    confirm: Confirm | None = await bridge.admitted(
        publishing(call.node, find_queues, key, [body], timeout=PUBLISH_TIMEOUT_S)
    )
    return confirm


# ── getting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def get(call: Call) -> Any:
    """``/api/queues/:vhost/:queue/get``: get ``count`` messages, or as many as fit in an answer."""
    request = await call.body()
    ack_mode, count, encoding = required(request, "ackmode", "count", "encoding")
    vhost, name = call.vhost, call.parts["queue"]
    at_most, truncate = integer(count), request.get("truncate")
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    limit = None if truncate is None else max(0, integer(truncate))
    if (outcome := ACK_MODES.get(str(ack_mode))) is None:
        raise bad_request(["unknown", ack_mode])
    try:
        call.check(vhost, "queue", name, "read")
        if call.node.registry.streams.find(vhost, name) is not None:
            find_classic(call, "540 basic.get")
        (entry,) = call.node.queues(vhost, [name])
        entry.check_owner(None)
    except NotFoundError as error:
        raise not_found(f"NOT_FOUND - {error}") from error
    except RefusedError as error:
        raise refused_in_channel(error) from error
    verbs = QueueVerbs(LocalQueue(call.node, entry))
    channel, batches = await call.managed.run(verbs.local.get_some(min(MAX_GET, max(0, at_most)), ANSWER_BYTES))
    settled = "requeue"
    try:
        left = (await call.managed.run(verbs.stats()))["messages_ready"] + sum(batch.count for batch in batches)
        deliveries = (message for batch in batches for message in spread(DeliveredMessage, channel, batch))
        shown = (
            message_document(message, left - index, encoding, limit) for index, message in enumerate(deliveries, 1)
        )
        answer = await bridge.in_thread(lambda: list(with_rests(shown)))
        settled = outcome
    finally:
        await _settle(call, channel, batches, settled)
    return answer


async def _settle(call: Call, channel: SettlingChannel, batches: list[Any], outcome: str) -> None:
    for batch in batches:
        if outcome != "requeue":
            channel.settle_all(outcome, batch.tags)
    await call.managed.run(channel.shut())


def message_document(message: DeliveredMessage, left: int, encoding: str, limit: int | None) -> dict[str, Any]:
    """Return a message as JSON. ``left``: how many remain in the queue; ``limit``: the most bytes of body to show."""
    return {
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": left,
        "properties": properties_json(message.properties),
        **payload_json(message.body, encoding, limit),
    }


def payload_json(body: bytes, encoding: str, limit: int | None) -> dict[str, str]:
    """Return a body; as text, if ``encoding`` is ``auto`` and it is UTF-8."""
    shown = body if limit is None or len(body) < limit else body[:limit]
    if encoding == "auto":
        try:
            return {"payload": shown.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(shown).decode(), "payload_encoding": "base64"}
