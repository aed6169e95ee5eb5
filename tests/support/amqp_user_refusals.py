"""What a server refuses a user who may do little, and with which words: as :mod:`tests.support.amqp_refusals`."""

from __future__ import annotations

from typing import Any, Final

from tests.support.amqp_refusals import Refusal


def _administer(method: str, path: str, body: Any) -> tuple[str, dict[str, Any]]:
    return "administer", {"method": method, "path": path, "body": body}


def _refused(kind: str, name: str) -> str:
    return f"403 ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user '@alice'"


def _publish(exchange: str, text: str, **more: Any) -> Refusal:
    message = {"exchange": exchange, "routing_key": "b", "properties": {}, "body": "b", "count": 1}
    return "basic.publish", message | more, text


BEFORE: Final[list[tuple[str, dict[str, Any]]]] = [
    _administer("PUT", "/users/@alice", {"password": "secret", "tags": "monitoring"}),
    _administer("PUT", "/permissions/%2F/@alice", {"configure": "^@", "write": "^@w", "read": "^@r"}),
    _administer("PUT", "/topic-permissions/%2F/@alice", {"exchange": "@w", "write": "^a", "read": ".*"}),
    _administer("PUT", "/topic-permissions/%2F/@alice", {"exchange": "@r", "write": "", "read": "^{username}$"}),
    ("queue.declare", {"queue": "@w", "connection": 1}),
    ("queue.declare", {"queue": "@q", "connection": 1}),
    ("exchange.declare", {"exchange": "@w", "exchange_type": "topic", "connection": 1}),
    ("exchange.declare", {"exchange": "@r", "exchange_type": "topic", "connection": 1}),
    ("exchange.declare", {"exchange": "@x", "exchange_type": "topic", "connection": 1}),
    ("login", {"user": "@alice", "password": "secret", "vhost": "/"}),
]
"""What is there."""

_INVALID: Final = "406 PRECONDITION_FAILED - invalid type 'signedint' for arg '{}' in {} in vhost '/'"

REFUSALS: Final[list[Refusal]] = [
    _publish("nowhere", _refused("exchange", "nowhere")),
    _publish("@wnowhere", "404 NOT_FOUND - no exchange '@wnowhere' in vhost '/'"),
    _publish("", _refused("exchange", "amq.default")),
    _publish("@w", _refused("topic", "b").replace(" in", " in exchange '@w' in")),
    _publish(
        "@w",
        "406 PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was '@alice'",
        routing_key="a",
        properties={"user_id": "guest"},
    ),
    *((verb, {"queue": "@q"}, _refused("queue", "@q")) for verb in ("queue.purge", "basic.get", "basic.consume")),
    ("queue.declare", {"queue": "plain"}, _refused("queue", "plain")),
    ("queue.declare", {"queue": ""}, _refused("queue", "amq.gen-*")),
    ("queue.delete", {"queue": "amq.none"}, _refused("queue", "amq.none")),
    (
        "queue.declare",
        {"queue": "@new", "arguments": {"x-dead-letter-exchange": "@w"}},
        _refused("queue", "@new"),
    ),
    (
        "queue.declare",
        {"queue": "@r", "arguments": {"x-dead-letter-exchange": "@x", "x-max-length": -1}},
        _refused("exchange", "@x"),
    ),
    (
        "queue.declare",
        {"queue": "@new", "arguments": {"x-dead-letter-exchange": 5}},
        _INVALID.format("x-dead-letter-exchange", "queue '@new'"),
    ),
    (
        "exchange.declare",
        {"exchange": "@rx", "exchange_type": "topic", "arguments": {"alternate-exchange": "@x"}},
        _refused("exchange", "@x"),
    ),
    (
        "exchange.declare",
        {"exchange": "@new", "exchange_type": "topic", "arguments": {"alternate-exchange": 5}},
        _INVALID.format("alternate-exchange", "exchange '@new'"),
    ),
    (
        "exchange.delete",
        {"exchange": "amq.topic"},
        "403 ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed",
    ),
    ("exchange.delete", {"exchange": "none"}, _refused("exchange", "none")),
    ("exchange.bind", {"source": "@r", "destination": ""}, _refused("exchange", "amq.default")),
    ("exchange.bind", {"source": "@x", "destination": "@w"}, _refused("exchange", "@x")),
    ("queue.bind", {"queue": "@q", "exchange": "@r"}, _refused("queue", "@q")),
    (
        "queue.bind",
        {"queue": "@w", "exchange": "@r", "routing_key": "a"},
        _refused("topic", "a").replace(" in", " in exchange '@r' in"),
    ),
    (*_administer("PUT", "/vhost-limits/%2F/max-queues", {"value": 1}), "204"),
    (
        "queue.declare",
        {"queue": "@new", "arguments": {"x-dead-letter-exchange": "@x"}},
        "406 PRECONDITION_FAILED - cannot declare queue '@new': queue limit in vhost '/' (1) is reached",
    ),
]
"""As RabbitMQ 3.10.8 does it."""
