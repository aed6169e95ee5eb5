"""Random workloads for a real broker, with queues of every format side by side.

A *workload* is a set of queues under one prefix, and a few *clients*, each with a connection and a channel of its own
and with messages outstanding. What it does is drawn from a generator that is handed in; when the broker answers is not
in its hands, so the same seed does not leave the same files twice.

Bounds that make the outcome one that files can tell: no process holds more than :data:`MOST_OUTSTANDING` messages of
basic.get, for above 32 the broker returns them in an order that no file tells; a time to live is over before the next
start, or long after it; only quorum queues have a length limit, for their files say it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import attrs
import pika  # type: ignore[import-untyped]

from tests.support.broker import Broker

MOST_OUTSTANDING: Final = 24
CLIENTS: Final = 3
FANOUT: Final = "fan"
SHORT_MS, LONG_MS = (1, 20, 100), 3_600_000

DEAD_V2, DEAD_QUORUM = "dead-v2", "dead-quorum"
CONVERTED: Final = "converted"
V2: Final = {"x-queue-version": 2}
QUORUM: Final = {"x-queue-type": "quorum"}
LAZY: Final = {"x-queue-mode": "lazy"}

KINDS: Final[dict[str, dict[str, Any]]] = {
    "v1": {},
    "v1-lazy": LAZY,
    "v1-dead": {"x-dead-letter-routing-key": DEAD_QUORUM},
    "v2": V2,
    "v2-lazy": V2 | LAZY,
    "v2-priority": V2 | {"x-max-priority": 3},
    "v2-ttl": V2 | {"x-message-ttl": 100, "x-dead-letter-routing-key": DEAD_QUORUM},
    "v2-dead": V2 | {"x-dead-letter-routing-key": DEAD_V2},
    CONVERTED: {},
    f"{CONVERTED}-lazy": LAZY,
    "quorum": QUORUM,
    "quorum-limit": QUORUM | {"x-delivery-limit": 2, "x-dead-letter-routing-key": DEAD_V2},
    "quorum-no-return": QUORUM | {"x-delivery-limit": 0, "x-dead-letter-routing-key": DEAD_QUORUM},
    "quorum-length": QUORUM | {"x-max-length": 25, "x-dead-letter-routing-key": DEAD_QUORUM},
    "quorum-bytes": QUORUM | {"x-max-length-bytes": 30_000},
    "quorum-ttl": QUORUM | {"x-message-ttl": 100, "x-dead-letter-routing-key": DEAD_V2},
    "quorum-long-ttl": QUORUM | {"x-message-ttl": LONG_MS, "x-delivery-limit": 5},
    "quorum-safe-dead": QUORUM
    | {"x-delivery-limit": 1, "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"}
    | {"x-dead-letter-routing-key": DEAD_V2},
    "quorum-single": QUORUM | {"x-single-active-consumer": True},
}
"""Arguments; dead letters go through the default exchange, to the workload's own queue of that kind."""

ALWAYS: Final[dict[str, dict[str, Any]]] = {DEAD_V2: V2, DEAD_QUORUM: QUORUM}
DEAD_KEY: Final = "x-dead-letter-routing-key"


def churn(broker: Broker, queue: str, count: int, kept: int) -> None:
    """Pass ``count`` messages through a quorum queue, acking all but the last: its log gets cut at a snapshot."""
    broker.declare(queue, arguments=QUORUM)
    with broker.channel() as channel:
        for number in range(count):
            channel.basic_publish("", queue, b"%d" % number)
        channel.basic_qos(prefetch_count=100)
        left = count - kept
        for method, _, _ in channel.consume(queue):
            left -= 1
            if not left % 20 or not left:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if not left:
                return


@attrs.define
class Client:
    """A connection, its channel, and the deliveries that it has not answered: (delivery tag, queue)."""

    connection: Any
    channel: Any
    confirms: bool
    outstanding: list[tuple[int, str]] = attrs.field(factory=list)
    consumers: dict[str, str] = attrs.field(factory=dict)
    """Tag → queue."""

    @classmethod
    def open(cls, broker: Broker, *, confirms: bool) -> Client:
        connection = broker.connect()
        client = cls(connection, connection.channel(), confirms)
        if confirms:
            client.channel.confirm_delivery()
        return client

    def on_message(self, queue: str, _: object, method: Any, *__: object) -> None:
        self.outstanding.append((method.delivery_tag, queue))

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):
            self.connection.close()


@attrs.define
class Workload:
    """Queues and their users; it can be begun, continued any number of times, and ended."""

    broker: Broker
    prefix: str
    random: random.Random
    queues: dict[str, dict[str, Any]] = attrs.field(init=False)
    """Name → arguments."""
    clients: list[Client] = attrs.field(factory=list)
    published: int = 0

    def __attrs_post_init__(self) -> None:
        chosen = {kind: KINDS[kind] for kind in self.random.sample(list(KINDS), 6)} | ALWAYS
        self.queues = {f"{self.prefix}.{kind}": self._arguments(of) for kind, of in chosen.items()}

    def _arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if DEAD_KEY not in arguments:
            return arguments
        return arguments | {"x-dead-letter-exchange": "", DEAD_KEY: f"{self.prefix}.{arguments[DEAD_KEY]}"}

    @property
    def exchange(self) -> str:
        return f"{self.prefix}.{FANOUT}"

    def begin(self) -> None:
        """Declare what is missing, and connect."""
        self.clients = [Client.open(self.broker, confirms=number == 0) for number in range(CLIENTS)]
        channel = self.clients[0].channel
        channel.exchange_declare(self.exchange, "fanout", durable=True)
        for queue in self.queues:
            self._declare(queue)
        for queue in self.random.sample(list(self.queues), 3):
            channel.queue_bind(queue, self.exchange)

    def go_on(self, steps: int) -> None:
        """Take ``steps`` random steps."""
        actions: dict[Callable[[], None], float] = {
            self._publish: 6,
            self._fan_out: 1,
            self._get: 5,
            self._consume: 1,
            self._settle: 6,
            self._cancel: 0.5,
            self._reconnect: 0.4,
            self._purge: 0.3,
            self._redeclare: 0.2,
        }
        for action in self.random.choices(list(actions), list(actions.values()), k=steps):
            try:
                action()
                for client in self.clients:
                    if client.consumers:
                        client.connection.process_data_events(0)
            except pika.exceptions.AMQPError:  # this server's channels may break when a quorum queue is declared again
                self._revive()

    def let_go(self) -> None:
        """Close the connections, or what is left of them."""
        for client in self.clients:
            client.close()
        self.clients = []

    def _revive(self) -> None:
        """Connect again what is closed; the queues are all there again."""
        for number, client in enumerate(self.clients):
            if not client.channel.is_open:
                client.close()
                self.clients[number] = Client.open(self.broker, confirms=client.confirms)
        for queue in self.queues:
            self._declare(queue)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _declare(self, queue: str) -> None:
        self.clients[0].channel.queue_declare(queue, durable=True, arguments=self.queues[queue])

    def _publish(self) -> None:
        client, queue = self._client(), self._queue()
        for _ in range(self.random.choice((1, 3, 20))):
            client.channel.basic_publish("", queue, self._body(), self._properties())

    def _fan_out(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self._client().channel.basic_publish(self.exchange, "", self._body(), self._properties())

    def _get(self) -> None:
        client, queue = self._client(), self._queue()
        if "x-single-active-consumer" in self.queues[queue]:  # the broker has no basic.get there
            return
        for _ in range(self.random.randint(1, 8)):
            if len(client.outstanding) >= MOST_OUTSTANDING:
                return
            is_acked = self.random.random() < 0.1
            method, _, _ = client.channel.basic_get(queue, auto_ack=is_acked)
            if method is not None and not is_acked:
                client.outstanding.append((method.delivery_tag, queue))

    def _consume(self) -> None:
        client, queue = self._client(), self._queue()
        if len(client.consumers) < 3:
            client.channel.basic_qos(prefetch_count=self.random.choice((1, 4, 15)))
            priority = {"x-priority": self.random.randint(-1, 2)} if self.random.random() < 0.3 else {}
            tag = client.channel.basic_consume(queue, partial(client.on_message, queue), arguments=priority)
            client.consumers[tag] = queue

    def _settle(self) -> None:
        client = self._client()
        channel = client.channel
        if client.outstanding and self.random.random() < 0.15:
            self._settle_multiple(client)
        self.random.shuffle(client.outstanding)
        count = self.random.randint(0, len(client.outstanding))
        chosen, client.outstanding = client.outstanding[:count], client.outstanding[count:]
        how = self.random.choice(("ack", "requeue", "drop", "mixed"))
        for tag, _ in chosen:
            match self.random.choice(("ack", "requeue", "drop")) if how == "mixed" else how:
                case "ack":
                    channel.basic_ack(tag)
                case "requeue":
                    channel.basic_nack(tag, requeue=True)
                case "drop":
                    channel.basic_reject(tag, requeue=False)

    def _settle_multiple(self, client: Client) -> None:
        """All up to one of them, in one command for each consumer."""
        last, _ = self.random.choice(client.outstanding)
        client.outstanding = [(tag, queue) for tag, queue in client.outstanding if tag > last]
        if self.random.random() < 0.3:
            client.channel.basic_ack(last, multiple=True)
        else:
            client.channel.basic_nack(last, multiple=True, requeue=self.random.random() < 0.7)

    def _cancel(self) -> None:
        client = self._client()
        if client.consumers:
            tag = self.random.choice(list(client.consumers))
            del client.consumers[tag]
            with suppress(pika.exceptions.AMQPError):
                client.channel.basic_cancel(tag)

    def _reconnect(self) -> None:
        number = self.random.randrange(CLIENTS)
        self.clients[number].close()
        self.clients[number] = Client.open(self.broker, confirms=number == 0)

    def _purge(self) -> None:
        self.clients[0].channel.queue_purge(self._queue())

    def _redeclare(self) -> None:
        queue = self._queue()
        self.clients[0].channel.queue_delete(queue)
        self._declare(queue)

    # ── choices ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _client(self) -> Client:
        return self.random.choice(self.clients)

    def _queue(self) -> str:
        return self.random.choice(list(self.queues))

    def _body(self) -> bytes:
        self.published += 1
        name = f"{self.prefix}/{self.published};".encode()
        match self.random.choices(("small", "empty", "page", "large", "huge"), (20, 1, 2, 1, 0.1))[0]:
            case "empty":
                return b""
            case "page":  # around what is embedded, and what is not
                return name + self.random.randbytes(self.random.randint(3900, 4300))
            case "large":
                return name + self.random.randbytes(self.random.randint(5_000, 40_000))
            case "huge":
                return name + self.random.randbytes(300_000)
            case _:
                return name + self.random.randbytes(self.random.randint(0, 200))

    def _properties(self) -> pika.BasicProperties:
        draw = self.random
        some: dict[str, Any] = {
            "content_type": "text/plain",
            "content_encoding": "gzip",
            "priority": draw.randint(0, 5),
            "correlation_id": f"c{draw.random()}",
            "reply_to": "answers",
            "message_id": f"m{self.published}",
            "timestamp": draw.randrange(1 << 33),
            "type": "Ω",
            "app_id": "",
            "headers": self._headers(),
        }
        chosen = {name: value for name, value in some.items() if draw.random() < 0.3}
        if draw.random() < 0.1:
            chosen["expiration"] = str(draw.choice((*SHORT_MS, LONG_MS, LONG_MS)))
        return pika.BasicProperties(delivery_mode=draw.choice((1, 2, 2, 2, 2)), **chosen)

    def _headers(self) -> dict[str, Any]:
        draw = self.random
        some: dict[str, Any] = {
            "n": draw.randint(-(1 << 31), (1 << 63) - 1),
            "text": "Kaninchenbau ✓" * draw.randint(0, 5),
            "deep": {"list": [1, "two", True, {"three": None}], "of": {}},
            "yes": True,
            "x-mine": [],
        }
        return {name: value for name, value in some.items() if draw.random() < 0.4}
