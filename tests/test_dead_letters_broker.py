"""Dead letters, limits and expiry beside a real broker: the same scenario on both, and the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import attrs
import pika
import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.differential_sides import without_times
from tests.support.process_tools import Bench
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.dead_letters import is_cycle
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties
from warren.queue_index.queue.variable_queue import QueueFiles

pytestmark = requires_broker

Got = tuple[bytes, Any, bool, str, str]
"""Body, headers without times, redelivered, exchange, routing key."""


class Side(Protocol):
    """What a scenario may do, here and there."""

    def declare(self, queue: str, **arguments: Any) -> None: ...
    def publish(self, queue: str, body: bytes, *, expiration: str | None = None, **properties: Any) -> bool: ...
    def get(self, queue: str, then: str = "ack") -> Got | None: ...
    def later(self, milliseconds: int) -> None: ...
    def ready(self, queue: str) -> int: ...


class There:
    """A RabbitMQ server."""

    def __init__(self, channel: Any, here: list[Got | None]) -> None:
        """``here``: what each get has to return; a message is waited for, however busy the machine is."""
        self.channel = channel
        self._here = iter(here)
        channel.confirm_delivery()

    def declare(self, queue: str, **arguments: Any) -> None:
        self.channel.queue_delete(queue)
        self.channel.queue_declare(queue, durable=True, arguments=_named(arguments))

    def publish(self, queue: str, body: bytes, *, expiration: str | None = None, **properties: Any) -> bool:
        chosen = pika.BasicProperties(delivery_mode=2, expiration=expiration, **properties)
        try:
            self.channel.basic_publish("", queue, body, chosen)
        except pika.exceptions.NackError:
            return False
        return True

    def get(self, queue: str, then: str = "ack") -> Got | None:
        deadline = time.monotonic() + (0.3 if next(self._here) is None else 60)
        while time.monotonic() < deadline:
            method, properties, body = self.channel.basic_get(queue)
            if method is not None:
                if then == "ack":
                    self.channel.basic_ack(method.delivery_tag)
                else:
                    self.channel.basic_reject(method.delivery_tag, requeue=then == "requeue")
                headers = properties.headers
                assert properties.expiration is None or not (headers or {}).get("x-death")
                return body, without_times(headers), method.redelivered, method.exchange, method.routing_key
        return None

    def later(self, milliseconds: int) -> None:
        self.channel.connection.sleep(milliseconds / 1000)

    def ready(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


class Here:
    """The same queues, with the default exchange between them."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.queues: dict[str, QueueProcess] = {}
        self.answers: list[Got | None] = []
        """What the gets returned."""

    def declare(self, queue: str, **arguments: Any) -> None:
        if queue in self.queues:
            self.queues[queue].delete()
        declaration = QueueDeclaration("/", queue, arguments=_named(arguments))

        def parts_of(level: int | None) -> QueueFiles:
            return attrs.evolve(self.bench.parts_of(level), path=f"/queues/{queue}-{level}", queue=queue.encode())

        backing = Backing(parts_of, durable=True, max_priority=declaration.max_priority)
        self.queues[queue] = QueueProcess(QueueContext(declaration, backing, lambda: self.bench.now_us))

    def publish(self, queue: str, body: bytes, *, expiration: str | None = None, **properties: Any) -> bool:
        """Whether no queue refused it."""
        headers = properties.get("headers") or {}
        keys = (queue, *headers.get("CC", ()), *headers.get("BCC", ()))
        kept = {name: value for name, value in headers.items() if name != "BCC"}
        chosen = Properties(**properties | {"delivery_mode": 2, "expiration": expiration, "headers": kept or None})
        envelope = Envelope(b"/", b"", tuple(key.encode() for key in keys), encode_properties(chosen), True)
        for key in keys:
            if key in self.queues:
                self.queues[key].publish_many(
                    envelope,
                    self.bench.ids.one(),
                    [body],
                    expiration_ms=None if expiration is None else int(expiration),
                    priority=chosen.priority or 0,
                    token=queue,
                )
        refused = any(process.context.effects.refused for process in self.queues.values())
        self.settle()
        return not refused

    def settle(self) -> None:
        """Route dead letters until no more come."""
        moved = True
        while moved:
            moved = False
            for queue in self.queues.values():
                for batch in queue.context.drain_effects().dead_letters:
                    moved = True
                    for letter in batch.publications:
                        for key in letter.routing_keys:
                            if key in self.queues and not is_cycle(letter.headers, key):
                                self.queues[key].publish_many(
                                    letter.envelope, self.bench.ids.one(), [letter.body], priority=letter.priority
                                )
                    queue.expiry.safe(batch.number)

    def get(self, queue: str, then: str = "ack") -> Got | None:
        self.answers.append(answer := self._get(queue, then))
        return answer

    def _get(self, queue: str, then: str) -> Got | None:
        process = self.queues[queue]
        taken = process.deliveries.get_many("c", 1, ack_required=True)
        self.settle()
        if not taken:
            return None
        (delivered,) = taken
        if then == "ack":
            process.settlements.ack("c", [delivered.tags])
        else:
            process.settlements.nack("c", [delivered.tags], requeue=then == "requeue")
        self.settle()
        (message,) = delivered.fetched.messages()
        headers = None if message.properties.headers is None else dict(message.properties.headers)
        return (
            message.body,
            without_times(headers),
            delivered.fetched.redelivered,
            message.exchange.decode(),
            message.routing_keys[0].decode(),
        )

    def later(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.bench.later(1)
            for queue in self.queues.values():
                queue.settlements.tick()
            self.settle()

    def ready(self, queue: str) -> int:
        return len(self.queues[queue].backing)


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def many_deaths(side: Side) -> Iterator[Any]:
    """A message that dies of everything, everywhere, and again."""
    side.declare("end")
    side.declare("a", dead_letter_exchange="", dead_letter_routing_key="b")
    side.declare("b", dead_letter_exchange="", dead_letter_routing_key="c")
    side.declare("c", dead_letter_exchange="", dead_letter_routing_key="a")
    side.publish("a", b"1", headers={"mine": 1, "zz": "last"}, expiration="20", content_type="text/plain")
    side.later(600)
    for queue in ("b", "c", "a", "b", "c", "a", "b"):
        yield queue, side.get(queue, "reject")
    yield side.get("c")


def cycle_of_expiries(side: Side) -> Iterator[Any]:
    side.declare("a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl=20)
    side.declare("b", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl=20)
    side.publish("a", b"goes round once")
    side.later(600)
    yield side.ready("a"), side.ready("b")
    side.declare("self", dead_letter_exchange="", message_ttl=500)  # long enough to be got on a busy machine
    side.publish("self", b"rejected, it may")
    yield side.get("self", "reject")
    yield side.get("self", "requeue")
    side.later(1500)
    yield side.ready("self")


def copies(side: Side) -> Iterator[Any]:
    side.declare("copy")
    side.declare("blind")
    side.declare("target")
    side.declare("a", dead_letter_exchange="")
    side.declare("b", dead_letter_exchange="", dead_letter_routing_key="target")
    headers = {"CC": ["copy"], "BCC": ["blind"], "other": True}
    side.publish("b", b"with a key of the queue's own", headers=headers)
    for queue in ("copy", "blind"):
        yield side.get(queue)
    yield side.get("b", "reject")
    for queue in ("target", "copy", "blind"):
        yield side.get(queue)
    side.publish("a", b"with its own keys: back where it was, and to the others", headers=headers)
    for queue in ("copy", "blind"):
        yield side.get(queue)
    yield side.get("a", "reject")
    for queue in ("a", "copy", "blind"):
        yield side.get(queue)


def drop_head(side: Side) -> Iterator[Any]:
    side.declare("dead")
    side.declare("q", max_length=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(5):
        side.publish("q", b"%d" % number, expiration="5000")
    yield from (side.get("dead") for _ in range(2))
    yield side.get("q", "requeue")
    yield from (side.get("q") for _ in range(4))
    side.declare("q", max_length_bytes=6, dead_letter_exchange="", dead_letter_routing_key="dead")
    for body in (b"12", b"34", b"5678", b"", b"far too long"):
        side.publish("q", body)
    yield from (side.get("dead") for _ in range(6))
    yield side.ready("q")


def refusing(side: Side) -> Iterator[Any]:
    side.declare("dead")
    side.declare(
        "q", max_length=2, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    for number in range(4):
        yield side.publish("q", b"%d" % number)
    yield from (side.get("dead") for _ in range(3))
    yield from (side.get("q") for _ in range(3))


def order_of_expiry(side: Side) -> Iterator[Any]:
    side.declare("dead")
    side.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    side.publish("q", b"first", expiration="400")
    side.publish("q", b"second", expiration="1")
    side.publish("q", b"third", expiration="60000")
    side.publish("q", b"fourth", expiration="1")
    yield side.ready("q")
    side.later(600)
    yield side.ready("q")
    yield from (side.get("dead") for _ in range(3))
    yield from (side.get("q") for _ in range(2))
    yield side.get("dead")


def strange_deaths(side: Side) -> Iterator[Any]:
    """Headers written by another program."""
    side.declare("dead")
    side.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    old = {"queue": "q", "reason": "rejected", "exchange": "e", "routing-keys": ["k"]}
    other = {"queue": "z", "reason": "expired"}
    for deaths in (
        "made text of",
        [],
        [old],
        [old, old, other],
        [other, old],
        [other, {**other, "count": 5}],
        [{**old, "count": 7}, other],
    ):
        side.publish("q", b"x", headers={"x-death": deaths, "b": 1, "a": 2})
        yield side.get("q", "reject")
        yield side.get("dead")


def priorities(side: Side) -> Iterator[Any]:
    side.declare("dead")
    side.declare("q", max_priority=3, max_length=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    for priority, body in ((0, b"0"), (9, b"9"), (1, b"1"), (2, b"2"), (None, b"none")):
        side.publish("q", body, priority=priority)
    yield from (side.get("dead") for _ in range(2))
    yield side.get("q", "requeue")
    yield from (side.get("q") for _ in range(4))


def lazy(side: Side) -> Iterator[Any]:
    """What a lazy queue tells of the expiration of what was in it."""
    side.declare("dead")
    arguments: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead", "queue_mode": "lazy"}
    for more in ({}, {"message_ttl": 0}, {"max_length": 0}, {"max_length": 0, "overflow": "reject-publish-dlx"}):
        side.declare("q", **arguments, **more)
        side.publish("q", b"x", expiration="60000")
        if not more:
            yield side.get("q", "requeue")
            yield side.get("q", "reject")
        yield side.get("dead")


SCENARIOS = [
    lazy,
    many_deaths,
    cycle_of_expiries,
    copies,
    drop_head,
    refusing,
    order_of_expiry,
    strange_deaths,
    priorities,
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(Path(tmp_path_factory.mktemp("broker"))) as running:
        running.start()
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_same_answers_as_a_broker(broker: Broker, scenario: Callable[[Side], Iterator[Any]]) -> None:
    side = Here()
    here = list(scenario(side))
    with broker.channel() as channel:
        there = list(scenario(There(channel, side.answers)))
    assert here == there
