"""What a queue may be declared as, and when two declarations are of the same queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, requires_broker
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.queue_arguments import MAX_PERIOD_MS
from warren.actors.engines.errors import ArgumentsError

GOOD: list[dict[str, Any]] = [
    {},
    {"x-message-ttl": 0},
    {"x-message-ttl": MAX_PERIOD_MS},
    {"x-expires": 1},
    {"x-max-length": 0, "x-max-length-bytes": 1 << 40},
    {"x-overflow": "drop-head"},
    {"x-overflow": "reject-publish"},
    {"x-overflow": "reject-publish-dlx"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
    {"x-dead-letter-exchange": "no.such.exchange"},
    {"x-queue-mode": "lazy"},
    {"x-queue-version": 2},
    {"x-max-priority": 0},
    {"x-max-priority": 255},
    {"x-single-active-consumer": False},
    {"x-queue-type": "classic"},
    {"unknown": [1, {"nested": True}], "x-unknown": None},
]
BAD: list[dict[str, Any]] = [
    {"x-message-ttl": -1},
    {"x-message-ttl": MAX_PERIOD_MS + 1},
    {"x-message-ttl": "100"},
    {"x-message-ttl": True},
    {"x-message-ttl": 1.5},
    {"x-expires": 0},
    {"x-expires": -5},
    {"x-max-length": -1},
    {"x-max-length-bytes": "many"},
    {"x-overflow": "drop-tail"},
    {"x-overflow": 1},
    {"x-dead-letter-exchange": 5},
    {"x-dead-letter-routing-key": "without an exchange"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
    {"x-queue-mode": "eager"},
    {"x-queue-version": 3},
    {"x-max-priority": 256},
    {"x-max-priority": -1},
    {"x-single-active-consumer": 1},
    {"x-queue-type": "unheard of"},
    {"x-max-age": "1D"},
]
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"x-message-ttl": 5}, {"x-message-ttl": 6}),
    ({"x-message-ttl": 5}, {}),
    ({}, {"x-message-ttl": 5}),
    ({}, {"x-expires": 1 << 33}),
    ({"x-queue-mode": "lazy"}, {}),
    ({"x-queue-mode": "lazy"}, {"x-queue-mode": "default"}),
    ({"x-single-active-consumer": True}, {"x-single-active-consumer": False}),
    ({}, {"x-single-active-consumer": True}),
    ({"x-max-length": 1, "x-message-ttl": 1}, {"x-max-length": 2, "x-message-ttl": 2}),
]
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"unknown": 1}, {}),
    ({"x-queue-type": "classic"}, {}),
    ({}, {"x-queue-type": "classic"}),
    ({"x-message-ttl": 5, "x-max-length": 1}, {"x-max-length": 1, "x-message-ttl": 5}),
]


@pytest.mark.parametrize("arguments", GOOD)
def test_arguments_that_a_classic_queue_takes(arguments: dict[str, Any]) -> None:
    assert QueueDeclaration("/", "q", arguments=arguments).arguments == arguments


@pytest.mark.parametrize("arguments", BAD)
def test_arguments_that_are_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentsError, match=r"invalid (arg|type) .*'x-.* queue 'q' in vhost '/'"):
        QueueDeclaration("/", "q", arguments=arguments)


@pytest.mark.parametrize("arguments", [{1: 2}, {b"x": 1}, {"x": {1: 2}}, {"x": [{None: 2}]}, {"x" * 256: 1}], ids=str)
def test_an_argument_has_a_name_that_is_a_short_string(arguments: Any) -> None:
    with pytest.raises(ArgumentsError, match="an argument's name cannot be"):
        QueueDeclaration("/", "q", arguments=arguments)


@pytest.mark.parametrize(("current", "received"), SAME)
def test_equivalent_declarations(current: dict[str, Any], received: dict[str, Any]) -> None:
    assert (
        QueueDeclaration("/", "q", arguments=current).equivalent(QueueDeclaration("/", "q", arguments=received)) is None
    )


@pytest.mark.parametrize(("current", "received"), DIFFERENT)
def test_different_declarations_are_told_apart(current: dict[str, Any], received: dict[str, Any]) -> None:
    text = QueueDeclaration("/", "q", arguments=current).equivalent(QueueDeclaration("/", "q", arguments=received))
    assert text is not None
    assert text.startswith("inequivalent arg 'x-")


def test_kind_is_compared_too() -> None:
    plain = QueueDeclaration("/", "q")
    assert plain.equivalent(QueueDeclaration("/", "q", durable=False)) == (
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"
    )
    assert "auto_delete" in str(plain.equivalent(QueueDeclaration("/", "q", auto_delete=True)))
    assert "exclusive" in str(plain.equivalent(QueueDeclaration("/", "q", exclusive=True)))


def test_arguments_are_a_copy_that_nobody_changes() -> None:
    arguments: dict[str, Any] = {"list": [1], "x-message-ttl": 5}
    declaration = QueueDeclaration("/", "q", arguments=arguments)
    arguments["list"].append(2)
    arguments["x-message-ttl"] = 6
    assert declaration.arguments == {"list": [1], "x-message-ttl": 5}
    with pytest.raises(TypeError):
        declaration.arguments["x-message-ttl"] = 7  # type: ignore[index]
    assert hash(declaration) == hash(QueueDeclaration("/", "q", arguments={"list": [1], "x-message-ttl": 5}))


def test_views() -> None:
    none = QueueDeclaration("/", "q")
    assert (none.message_ttl_ms, none.expires_ms, none.max_length, none.max_length_bytes) == (None,) * 4
    assert (none.overflow, none.queue_mode, none.max_priority) == ("drop-head", "default", None)
    assert (none.dead_letter_exchange, none.dead_letter_routing_key, none.single_active_consumer) == (None, None, False)
    arguments = {
        "x-message-ttl": 1,
        "x-expires": 2,
        "x-max-length": 3,
        "x-max-length-bytes": 4,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "k",
        "x-queue-mode": "lazy",
        "x-max-priority": 5,
        "x-single-active-consumer": True,
    }
    all_ = QueueDeclaration("/", "q", arguments=arguments)
    assert (all_.message_ttl_ms, all_.expires_ms, all_.max_length, all_.max_length_bytes) == (1, 2, 3, 4)
    assert (all_.overflow, all_.queue_mode, all_.max_priority) == ("reject-publish", "lazy", 5)
    assert (all_.dead_letter_exchange, all_.dead_letter_routing_key, all_.single_active_consumer) == ("", "k", True)


def test_definition_as_json_and_back() -> None:
    declaration = QueueDeclaration("v", "q", auto_delete=True, arguments={"x-message-ttl": 5, "list": [1, {"a": None}]})
    said = json.loads(json.dumps(declaration.to_json()))
    assert said == {
        "name": "q",
        "vhost": "v",
        "durable": True,
        "auto_delete": True,
        "arguments": {"x-message-ttl": 5, "list": [1, {"a": None}]},
    }
    assert QueueDeclaration.from_json({**said, "type": "classic"}) == declaration


@pytest.mark.parametrize("wrong", [{"name": 5}, {"durable": 1}, {"arguments": []}, {"arguments": {"x-expires": 0}}])
def test_definition_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentsError):
        QueueDeclaration.from_json(QueueDeclaration("/", "q").to_json() | wrong)


def test_name_too_long() -> None:
    QueueDeclaration("/", "é" * 127)
    with pytest.raises(ArgumentsError):
        QueueDeclaration("/", "é" * 128)


@requires_broker
def test_a_broker_takes_and_refuses_the_same(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.start()
        connection = broker.connect()

        def declared(arguments: dict[str, Any]) -> str | None:
            channel = connection.channel()
            try:
                channel.queue_declare("q", durable=True, arguments=arguments)
            except pika.exceptions.ChannelClosedByBroker as error:
                return str(error.reply_text)
            channel.close()
            return None

        def deleted() -> None:
            channel = connection.channel()
            channel.queue_delete("q")
            channel.close()

        for arguments in GOOD:
            assert declared(arguments) is None, arguments
            deleted()
        for arguments in BAD:
            if any(isinstance(value, float) for value in arguments.values()):
                continue  # the client cannot say it
            assert "PRECONDITION_FAILED - invalid" in str(declared(arguments)), arguments
        for current, received in SAME + DIFFERENT:
            assert declared(current) is None
            said = QueueDeclaration("/", "q", arguments=current).equivalent(
                QueueDeclaration("/", "q", arguments=received)
            )
            assert declared(received) == (None if said is None else f"PRECONDITION_FAILED - {said}")
            deleted()
        connection.close()
