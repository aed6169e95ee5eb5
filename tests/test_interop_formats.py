"""Classic queues v1, v2 and quorum queues of a real broker: an export of what it left is what it delivers again.

Random workloads (:mod:`tests.test_interop_formats`) fill queues of every format; then the broker is killed, or
stopped, in the act. Its directory is exported; it is started again in its place, which is the only one where its quorum
queues start, and everything is taken from it without acks. Both must be the same, queue by queue, in order.

The restart itself removes some messages, which no queue delivers: those that have expired, that came back more often
than their queue allows, or that exceed its limits now. They are in the files, and go to a dead-letter queue, after what
is there. So do, once more, some that a quorum queue had sent away before: a start goes through its log's end again.

Another seed: ``WARREN_SEED=7 pytest tests/test_interop_formats.py``.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import pika
import pytest

from tests.support.broker import Broker
from tests.support.effort import new_seed
from warren.queue_index.message.amqp_tables import value_to_json
from warren.salvage.export import Selection, export_source
from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.quorum_directory import QuorumDirectory
from warren.salvage.source import open_source

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


pytestmark = pytest.mark.broker

WORKLOADS: Final = 5
"""For each of two runs of the broker."""

STEPS: Final = 100
QUIET_S: Final = 1.0
CHURN: Final = "churn"

Json = dict[str, Any]


class Row(NamedTuple):
    """A message, as far as both sides tell of it."""

    sha256: str
    redelivered: bool
    delivery_count: int | None
    exchange: str
    routing_key: str
    properties: str
    headers: str


@attrs.frozen
class Stored:
    """An exported message, when it expires, and whether the restart sends it away."""

    row: Row
    expiry_us: int | None
    leaves: bool = False


def _sorted(table: Json | None) -> str:
    return json.dumps(table or {}, sort_keys=True)


# ── what warren reads ────────────────────────────────────────────────────────────────────────────────────────────────


def _exported(directory: Path, *, include_acked: bool = False) -> dict[str, list[Stored]]:
    """Everything, by queue."""
    lines: list[bytes | bytearray] = []
    problems: list[Finding] = []
    with open_source(str(directory)) as source:
        export_source(source, Selection(include_acked=include_acked), lines.append, problems.append)
        leaving = {
            (queue.name.decode(), seq_id)
            for vhost in source.vhosts
            for queue in vhost.queues
            if isinstance(queue, QuorumDirectory)
            for seq_id in _leaving(queue)
        }
    assert not problems, "\n".join(map(str, problems))
    queues: dict[str, list[Stored]] = {}
    for line in b"".join(lines).splitlines():
        message = json.loads(line)
        row = Row(
            message["body_sha256"],
            message["redelivered"],
            message.get("delivery_count"),
            message["exchange"],
            message["routing_keys"][0],
            _sorted(message["properties"]),
            _sorted(message["headers"]),
        )
        leaves = (message["queue"], message["seq_id"]) in leaving
        queues.setdefault(message["queue"], []).append(Stored(row, message["expiry_us"], leaves))
    return queues


def _leaving(queue: QuorumDirectory) -> set[int]:
    """Messages that a restart takes because of the queue's limits; an export leaves them in place."""
    machine = queue.chosen().replayed().machine
    return {*machine.messages.past_limit, *machine.messages.past_length}


# ── what the broker delivers ─────────────────────────────────────────────────────────────────────────────────────────


def _drained(broker: Broker, queues: dict[str, Json]) -> dict[str, list[Row]]:
    """All that it delivers, by queue (which are given with their arguments); nothing is acked."""
    broker.wait_for_quorum_queues()
    rows: dict[str, list[Row]] = {queue: [] for queue in queues}
    count = 0

    def take(queue: str, _: object, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        nonlocal count
        count += 1
        is_quorum = queues[queue].get("x-queue-type") == "quorum"
        rows[queue].append(_row(method, properties, body, is_quorum=is_quorum))

    with broker.channel() as channel:
        for queue in queues:
            channel.basic_consume(queue, partial(take, queue))
        before, quiet_since = -1, time.monotonic()
        while before != count or time.monotonic() - quiet_since < QUIET_S:
            if before != count:
                before, quiet_since = count, time.monotonic()
            channel.connection.process_data_events(0.1)
    return rows


def _row(method: Any, properties: pika.BasicProperties, body: bytes, *, is_quorum: bool) -> Row:
    headers = dict(properties.headers or {})
    # A consumer is not informed that no message was left; basic.get is.
    delivery_count = headers.pop("x-delivery-count", 0) if is_quorum else None
    said = {name: value for name, value in vars(properties).items() if value is not None and name != "headers"}
    return Row(
        hashlib.sha256(body).hexdigest(),
        method.redelivered,
        delivery_count,
        method.exchange,
        method.routing_key,
        _sorted(value_to_json(said)),
        _sorted(value_to_json(headers)),
    )


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────


def _compare(
    stored: dict[str, list[Stored]],
    acked_too: dict[str, list[Stored]],
    delivered: dict[str, list[Row]],
    queues: dict[str, Json],
    started_us: int,
) -> None:
    assert set(stored) <= set(queues)
    could_die: dict[str, set[str]] = {}
    for queue, arguments in queues.items():
        bodies = {message.row.sha256 for message in acked_too.get(queue, [])}
        could_die.setdefault(arguments.get(DEAD_KEY, ""), set()).update(bodies)
    for queue in queues:
        expected = [message.row for message in stored.get(queue, []) if not _goes_with_the_restart(message, started_us)]
        found = delivered[queue]
        if queue in could_die:
            died_now = found[len(expected) :]
            assert {row.sha256 for row in died_now} <= could_die[queue], queue
            assert all("x-death" in row.headers for row in died_now), queue
            found = found[: len(expected)]
        for position, (ours, theirs) in enumerate(zip(expected, found, strict=False)):
            assert ours == theirs, f"{queue}, message {position} of {len(expected)} and {len(found)}"
        assert len(expected) == len(found), queue


def _goes_with_the_restart(message: Stored, started_us: int) -> bool:
    """Whether its time was over, or it does not fit into the queue's limits any longer."""
    return message.leaves or (message.expiry_us is not None and message.expiry_us <= started_us)


# ── the test ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _end(broker: Broker, how: str, workloads: list[Workload]) -> None:
    if how == "killed":
        broker.kill()
    else:
        broker.stop()
    for workload in workloads:
        with suppress(pika.exceptions.AMQPError, OSError):
            workload.let_go()


def _run(broker: Broker, how: str, workloads: list[Workload], draw: random.Random) -> int:
    """Work, end, export, start again, compare; returns the messages that were compared."""
    for workload in workloads:
        workload.begin()
        workload.go_on(STEPS)
    for version in (2, 1)[: draw.randint(1, 2)]:
        broker.set_queue_version(CONVERTED, version)
        for workload in workloads:
            workload.go_on(STEPS // 4)
    _end(broker, how, workloads)
    stored, acked_too = (_exported(broker.node_directory, include_acked=acked) for acked in (False, True))
    started_us = time.time_ns() // 1000
    broker.start()
    queues = {queue: arguments for workload in workloads for queue, arguments in workload.queues.items()}
    queues |= {queue: QUORUM for queue in stored if queue == CHURN}
    delivered = _drained(broker, queues)
    _compare(stored, acked_too, delivered, queues, started_us)
    return sum(map(len, delivered.values()))


def test_what_is_exported_is_what_the_broker_delivers_again(broker: Broker) -> None:
    seed = new_seed()
    draw = random.Random(seed)
    broker.start()
    # After the first run a small log: it is closed often, and what it held goes to segments.
    broker.raft = {"wal_max_size_bytes": 1 << 18, "segment_max_entries": 512}
    ends = draw.sample(["killed", "stopped"], 2)
    first = [Workload(broker, f"first-{number}", random.Random(draw.random())) for number in range(WORKLOADS)]
    assert _run(broker, ends[0], first, draw) > 100
    churn(broker, CHURN, 5000, 40)
    second = [Workload(broker, f"second-{number}", random.Random(draw.random())) for number in range(WORKLOADS)]
    assert _run(broker, ends[1], [*second, *first], draw) > 100
    assert list(broker.node_directory.glob("quorum/*/*/snapshots/*/snapshot.dat"))


def test_what_was_out_returns_as_the_new_leader_meets_who_had_it(broker: Broker) -> None:
    """A killed node tells late how far it had come with a queue, and begins there again."""
    broker.start()
    broker.declare("orders", arguments=QUORUM)
    with suppress(pika.exceptions.AMQPError, OSError), broker.channel() as first, broker.channel() as second:
        for channel in (second, first):  # the later process subscribes first
            channel.basic_qos(prefetch_count=2)
            channel.basic_consume("orders", lambda *_: None)
        first.confirm_delivery()
        for number in range(6):
            first.basic_publish("", "orders", b"%d" % number)
        broker.kill()
    expected = [message.row for message in _exported(broker.node_directory)["orders"]]
    broker.start()
    assert _drained(broker, {"orders": QUORUM})["orders"] == expected
    assert [row.delivery_count for row in expected] == [1, 1, 1, 1, 0, 0]
