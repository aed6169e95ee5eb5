"""What the server refuses, and with which words: those of RabbitMQ 3.10.8. One table, both servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from tests.support.amqp_differential import Side, own_server, real_server
from tests.support.amqp_driver import Driver
from tests.support.amqp_program import REPLY_TO, Step
from tests.support.broker import requires_broker
from warren.actors.queue.intake import QueueGoneError
from warren.queue_index.message.amqp_tables import LongInteger, SingleFloat, Timestamp, UnsignedInteger
from warren.server.replies import reply_of

Refusal = tuple[str, dict[str, Any], str]

_NOT_FOUND: Final = "404 NOT_FOUND - no queue '@no' in vhost '/'"
_DEFAULT: Final = "403 ACCESS_REFUSED - operation not permitted on the default exchange"
_BUSY: Final = "406 PRECONDITION_FAILED - queue '@busy' in vhost '/'"
_LOCKED: Final = (
    "405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '@owned' in vhost '/'. It could be "
    "originally declared on another connection or the exclusive property value does not match that of the original "
    "declaration."
)
_INVALID: Final = "406 PRECONDITION_FAILED - invalid arg '{}' for queue '@new' in vhost '/'"
_INEQUIVALENT: Final = (
    "406 PRECONDITION_FAILED - inequivalent arg '{}' for {} in vhost '/': received {} but current is {}"
)


def _declare(text: str, **arguments: Any) -> Refusal:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return "queue.declare", {"queue": "@new", "arguments": named}, text


def _invalid(name: str, value: Any, why: str) -> Refusal:
    return "queue.declare", {"queue": "@new", "arguments": {name: value}}, f"{_INVALID.format(name)}{why}"


def _again(name: str, received: str, current: str, arguments: dict[str, Any], **fields: Any) -> Refusal:
    text = _INEQUIVALENT.format(name, "queue '@limited'", received, current)
    return "queue.declare", {"queue": "@limited", "arguments": arguments, **fields}, text


def _publish(text: str, **properties: Any) -> Refusal:
    message = {"exchange": "", "routing_key": "@q", "properties": properties, "body": "b", "count": 1}
    return "basic.publish", message, text


def _bind(mode: Any, why: str) -> Refusal:
    where = {"queue": "@q", "exchange": "amq.headers", "arguments": {"x-match": mode}}
    return "queue.bind", where, f"406 PRECONDITION_FAILED - Invalid x-match field {why}"


def _consume(name: str, value: Any, why: str) -> Refusal:
    text = f"406 PRECONDITION_FAILED - invalid arg '{name}' for queue '@q' in vhost '/'{why}"
    return "basic.consume", {"queue": "@q", "arguments": {name: value}}, text


BEFORE: Final[list[tuple[str, dict[str, Any]]]] = [
    ("queue.declare", {"queue": "@q"}),
    ("queue.declare", {"queue": "@limited", "arguments": {"x-max-length": 5}}),
    ("exchange.declare", {"exchange": "@x", "exchange_type": "topic", "arguments": {"alternate-exchange": "a"}}),
    ("exchange.declare", {"exchange": "@internal", "exchange_type": "fanout", "internal": True}),
    ("queue.bind", {"queue": "@q", "exchange": "@x", "routing_key": "a"}),
    ("queue.declare", {"queue": "@busy"}),
    ("basic.qos", {"prefetch_count": 1, "connection": 1}),
    ("basic.consume", {"queue": "@busy", "connection": 1}),
    ("basic.publish", {"exchange": "", "routing_key": "@busy", "properties": {}, "body": "b", "count": 2}),
    ("queue.declare", {"queue": "@owned", "exclusive": True, "connection": 1}),
]
"""What is there."""

_COUNTS: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-queue-version",
)
_OF_OTHERS: Final = ("x-dead-letter-strategy", "x-max-age", "x-max-in-memory-length")
_TYPES: Final[list[tuple[Any, str]]] = [
    (None, "void"),
    (True, "bool"),
    (1.5, "double"),
    (SingleFloat(1.5), "float"),
    ("1", "longstr"),
    (b"1", "binary"),
    ([], "array"),
    ({}, "table"),
    (Timestamp(5), "timestamp"),
]

REFUSALS: Final[list[Refusal]] = [
    *(_invalid(name, value, f': "expected integer, got {kind}"') for name in _COUNTS for value, kind in _TYPES),
    *(_invalid(name, -1, ": {value_negative,-1}") for name in _COUNTS),
    *(_invalid(name, 1, " of queue type rabbit_classic_queue") for name in _OF_OTHERS),
    _invalid("x-message-ttl", 1 << 40, f": {{value_too_large,{1 << 40}}}"),
    _invalid("x-expires", 0, ": {value_zero,0}"),
    _invalid("x-max-priority", 256, ": {max_value_exceeded,256}"),
    _invalid("x-queue-version", 3, ": \"unsupported queue version '3'\""),
    _invalid("x-overflow", "drop-tail", ": invalid_overflow"),
    _invalid("x-overflow", LongInteger(5), ": {unacceptable_type,long}"),
    _invalid("x-overflow", UnsignedInteger(1 << 31), ": {unacceptable_type,unsignedint}"),
    _invalid("x-queue-mode", "eager", ": \"unsupported queue mode 'eager'\""),
    _invalid("x-queue-mode", 5, ": {unacceptable_type,signedint}"),
    _invalid("x-queue-type", "classy", ": \"unsupported queue type 'classy'\""),
    _invalid("x-single-active-consumer", "true", ": {unacceptable_type,longstr}"),
    _invalid("x-dead-letter-routing-key", "a", ": routing_key_but_no_dlx_defined"),
    _declare(
        "406 PRECONDITION_FAILED - invalid type 'void' for arg 'x-dead-letter-exchange' in queue '@new' in vhost '/'",
        x_dead_letter_exchange=None,
    ),
    (
        "queue.declare",
        {"queue": "amq.own"},
        "403 ACCESS_REFUSED - queue name 'amq.own' contains reserved prefix 'amq.*'",
    ),
    ("queue.declare", {"queue": "", "passive": True}, "404 NOT_FOUND - no queue '' in vhost '/'"),
    ("queue.purge", {"queue": "\udcff"}, "501 FRAME_ERROR - Malformed UTF-8 in shortstr"),
    _again("durable", "'true'", "'false'", {"x-max-length": 5}, durable=True),
    _again("x-max-length", "none", "the value '5' of type 'signedint'", {}),
    _again("x-max-length", "'6'", "'5'", {"x-max-length": 6}),
    _again("x-max-length", "none", "'5'", {"x-max-length": None}),
    _again("x-expires", "the value 'undefined' of type 'void'", "none", {"x-max-length": 5, "x-expires": None}),
    (
        "exchange.declare",
        {
            "exchange": "@internal",
            "exchange_type": "fanout",
            "internal": True,
            "arguments": {"alternate-exchange": None},
        },
        _INEQUIVALENT.format(
            "alternate-exchange", "exchange '@internal'", "the value 'undefined' of type 'void'", "none"
        ),
    ),
    _again("x-max-length", "'many'", "'5'", {"x-max-length": "many"}),
    _again("x-message-ttl", "the value '7' of type 'long'", "none", {"x-message-ttl": LongInteger(7)}),
    *((verb, {"queue": "@no"}, _NOT_FOUND) for verb in ("queue.purge", "basic.get", "basic.consume")),
    ("queue.declare", {"queue": "@no", "passive": True}, _NOT_FOUND),
    ("queue.declare", {"queue": "@\rn\no", "passive": True}, _NOT_FOUND),
    *(
        (verb, {"queue": "@n\no"}, "404 NOT_FOUND - no queue '@n\no' in vhost '/'")
        for verb in ("queue.purge", "basic.get", "basic.consume")
    ),
    ("queue.bind", {"queue": "@n\no", "exchange": "amq.direct"}, _NOT_FOUND),
    ("queue.bind", {"queue": "@q", "exchange": "@n\no"}, "404 NOT_FOUND - no exchange '@no' in vhost '/'"),
    *(
        (verb, {"queue": ""}, "404 NOT_FOUND - no previously declared queue")
        for verb in ("queue.purge", "queue.delete", "queue.bind", "queue.unbind", "basic.get", "basic.consume")
    ),
    ("queue.delete", {"queue": "@busy", "if_unused": True, "if_empty": True}, f"{_BUSY} not empty"),
    ("queue.delete", {"queue": "@busy", "if_unused": True}, f"{_BUSY} in use"),
    (
        "basic.consume",
        {"queue": "@busy", "exclusive": True},
        "403 ACCESS_REFUSED - queue '@busy' in vhost '/' in exclusive use",
    ),
    *(
        (verb, {"queue": "@owned", **more}, _LOCKED)
        for verb in ("queue.declare", "queue.delete", "queue.purge", "basic.get", "basic.consume")
        for more in ([{}, {"passive": True}, {"exclusive": True}] if verb == "queue.declare" else [{}])
    ),
    ("exchange.declare", {"exchange": "", "exchange_type": "topic"}, _DEFAULT),
    ("exchange.declare", {"exchange": "@y", "exchange_type": "o"}, "503 COMMAND_INVALID - unknown exchange type 'o'"),
    (
        "exchange.declare",
        {"exchange": "amq.own", "exchange_type": "topic"},
        "403 ACCESS_REFUSED - exchange name 'amq.own' contains reserved prefix 'amq.*'",
    ),
    (
        "exchange.declare",
        {"exchange": "@y", "exchange_type": "topic", "arguments": {"alternate-exchange": 5}},
        "406 PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange '@y' in vhost '/'",
    ),
    (
        "exchange.declare",
        {"exchange": "@x", "exchange_type": "topic"},
        _INEQUIVALENT.format("alternate-exchange", "exchange '@x'", "none", "the value 'a' of type 'longstr'"),
    ),
    (
        "exchange.declare",
        {"exchange": "@x", "exchange_type": "fanout"},
        _INEQUIVALENT.format("type", "exchange '@x'", "'fanout'", "'topic'"),
    ),
    ("exchange.delete", {"exchange": ""}, _DEFAULT),
    *(
        (
            "exchange.delete",
            {"exchange": name},
            f"403 ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed",
        )
        for name in ("amq.fanout", "amq.nowhere")
    ),
    (
        "exchange.delete",
        {"exchange": "@x", "if_unused": True},
        "406 PRECONDITION_FAILED - exchange '@x' in vhost '/' in use",
    ),
    ("queue.bind", {"queue": "@q", "exchange": ""}, _DEFAULT),
    ("queue.bind", {"queue": "@no", "exchange": "@no"}, "404 NOT_FOUND - no exchange '@no' in vhost '/'"),
    ("queue.bind", {"queue": "@no", "exchange": "amq.direct"}, _NOT_FOUND),
    ("exchange.bind", {"source": "amq.direct", "destination": ""}, _DEFAULT),
    ("exchange.bind", {"source": "@no", "destination": "@x"}, "404 NOT_FOUND - no exchange '@no' in vhost '/'"),
    _bind("some", 'value <<"some">>; expected all, any, all-with-x, or any-with-x'),
    _bind("", "value <<>>; expected all, any, all-with-x, or any-with-x"),
    _bind(None, "type void (value undefined); expected longstr"),
    _bind(True, "type bool (value true); expected longstr"),
    _bind({"n": 1}, 'type table (value [{<<"n">>,signedint,1}]); expected longstr'),
    _bind([1, None], "type array (value [{signedint,1},{void,undefined}]); expected longstr"),
    _consume("x-priority", "high", ': "expected integer, got longstr"'),
    _consume("x-cancel-on-ha-failover", 1, ": {unacceptable_type,signedint}"),
    _consume("x-stream-offset", "first", " of queue type rabbit_classic_queue"),
    (
        "basic.consume",
        {"queue": REPLY_TO, "no_ack": False},
        "406 PRECONDITION_FAILED - reply consumer cannot acknowledge",
    ),
    *(
        _publish(f"406 PRECONDITION_FAILED - invalid expiration '{text}': {why}", expiration=text)
        for text, why in {
            "": "no_integer",
            " 1": "no_integer",
            "--1": "no_integer",
            "-1": "{value_negative,-1}",
            "1.5": '{leftover_string,".5"}',
            "12 h": '{leftover_string," h"}',
            "315360000001": "{value_too_large,315360000001}",
        }.items()
    ),
    _publish(
        '406 PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}', headers={"CC": "@q"}
    ),
    _publish(
        "406 PRECONDITION_FAILED - user_id property set to 'nobody' but authenticated user was 'guest'",
        user_id="nobody",
    ),
    _publish(
        "406 PRECONDITION_FAILED - fast reply consumer does not exist",
        reply_to=REPLY_TO,
        user_id="nobody",
        expiration="soon",
    ),
    _publish(
        "406 PRECONDITION_FAILED - user_id property set to 'nobody' but authenticated user was 'guest'",
        user_id="nobody",
        expiration="soon",
    ),
    (
        "basic.publish",
        {"exchange": "", "routing_key": "@q", "immediate": True, "properties": {}, "body": "", "count": 1},
        "540 NOT_IMPLEMENTED - immediate=true",
    ),
    (
        "basic.publish",
        {"exchange": "@internal", "routing_key": "", "properties": {}, "body": "", "count": 1},
        "403 ACCESS_REFUSED - cannot publish to internal exchange '@internal' in vhost '/'",
    ),
    ("basic.qos", {"prefetch_size": 5}, "540 NOT_IMPLEMENTED - prefetch_size!=0 (5)"),
    ("basic.recover", {"requeue": False}, "540 NOT_IMPLEMENTED - requeue=false"),
    ("basic.recover_async", {"requeue": False}, "540 NOT_IMPLEMENTED - requeue=false"),
    ("channel.flow", {"active": False}, "540 NOT_IMPLEMENTED - active=false"),
    ("channel.open", {}, "504 CHANNEL_ERROR - second 'channel.open' seen"),
    ("tx.commit", {}, "406 PRECONDITION_FAILED - channel is not transactional"),
    ("tx.rollback", {}, "406 PRECONDITION_FAILED - channel is not transactional"),
    *(
        (verb, {"delivery_tag": tag}, f"406 PRECONDITION_FAILED - unknown delivery tag {tag}")
        for verb in ("basic.ack", "basic.nack", "basic.reject")
        for tag in (0, 1, (1 << 64) - 1)
    ),
]
"""As RabbitMQ 3.10.8 does it."""


def _administer(method: str, path: str, body: Any) -> tuple[str, dict[str, Any]]:
    return "administer", {"method": method, "path": path, "body": body}


def _refused(kind: str, name: str) -> str:
    return f"403 ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user '@alice'"


def _publish_as_user(exchange: str, text: str, **more: Any) -> Refusal:
    message = {"exchange": exchange, "routing_key": "b", "properties": {}, "body": "b", "count": 1}
    return "basic.publish", message | more, text


USER_BEFORE: Final[list[tuple[str, dict[str, Any]]]] = [
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

_INVALID_TYPE: Final = "406 PRECONDITION_FAILED - invalid type 'signedint' for arg '{}' in {} in vhost '/'"

USER_REFUSALS: Final[list[Refusal]] = [
    _publish_as_user("nowhere", _refused("exchange", "nowhere")),
    _publish_as_user("@wnowhere", "404 NOT_FOUND - no exchange '@wnowhere' in vhost '/'"),
    _publish_as_user("", _refused("exchange", "amq.default")),
    _publish_as_user("@w", _refused("topic", "b").replace(" in", " in exchange '@w' in")),
    _publish_as_user(
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
        _INVALID_TYPE.format("x-dead-letter-exchange", "queue '@new'"),
    ),
    (
        "exchange.declare",
        {"exchange": "@rx", "exchange_type": "topic", "arguments": {"alternate-exchange": "@x"}},
        _refused("exchange", "@x"),
    ),
    (
        "exchange.declare",
        {"exchange": "@new", "exchange_type": "topic", "arguments": {"alternate-exchange": 5}},
        _INVALID_TYPE.format("alternate-exchange", "exchange '@new'"),
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


pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
WHERE = {"connection": 0, "channel": 1}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with own_server(tmp_path_factory.mktemp("node") / "node") as side:
        yield side


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with real_server(tmp_path_factory.mktemp("broker")) as side:
        yield side


Before = tuple[str, dict[str, Any]]


def closings(side: Side, before: Sequence[Before], refusals: Sequence[Refusal]) -> list[str]:
    """What each refusal closed its channel or connection with."""
    methods = [*before, *((verb, arguments) for verb, arguments, _ in refusals)]
    steps = tuple(Step(number, verb, WHERE | arguments) for number, (verb, arguments) in enumerate(methods))
    told = Driver(side.port, side.api).run(steps)
    return [_closing(step, found) for step, found in list(zip(steps, told, strict=True))[len(before) :]]


def _closing(step: Step, found: Any) -> str:
    for where in ("0", "0.1"):
        for name, arguments in found.get(where, ()):
            if name.endswith(".close"):
                return f"{arguments['reply_code']} {arguments['reply_text']}"
    return str(found.get("status", f"nothing: {step} {found}"))


WITH_THEIR_RIGHTS = pytest.mark.parametrize(
    ("before", "refusals"),
    [(BEFORE, REFUSALS), (USER_BEFORE, USER_REFUSALS)],
    ids=["an administrator", "a user who may do little"],
)


@pytest.mark.slow
@WITH_THEIR_RIGHTS
def test_refusals_have_the_broker_s_words(here: Side, before: Sequence[Before], refusals: Sequence[Refusal]) -> None:
    assert closings(here, before, refusals) == [text for _, _, text in refusals]


@requires_broker
@WITH_THEIR_RIGHTS
def test_the_broker_s_refusals_are_these(there: Side, before: Sequence[Before], refusals: Sequence[Refusal]) -> None:
    assert closings(there, before, refusals) == [text for _, _, text in refusals]


def test_a_queue_that_goes_before_the_turn_of_a_request_is_not_found() -> None:
    gone = QueueGoneError("queue 'q' in vhost '/' was deleted")
    assert reply_of(gone) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")
