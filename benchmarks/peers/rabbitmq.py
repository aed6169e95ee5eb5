"""RabbitMQ through pika: a durable classic queue, confirms, and acks of many at once where messages come in batches.

Persistent messages are confirmed when they are fsynced. Elsewhere they are transient: then a kill of the broker loses
them. pika's blocking channel waits for each confirm; so messages are published by its asynchronous one, whose loop runs
until all confirms are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika

from benchmarks.peers.peer import Can, Letter, Load, Peer, Place, Promise, Queue, Token
from tests.support.broker import Broker

_PREFETCH = 1000


class RabbitMQ(Peer):
    """A broker for the whole run."""

    title = "RabbitMQ"
    promises = frozenset({Promise.VOLATILE, Promise.FSYNCED})
    does = frozenset({Can.LETTERS, Can.MANY_QUEUES, Can.THREADS})
    most = 5_000
    note = "a server, through pika"

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self.parameters = pika.ConnectionParameters("127.0.0.1", int(place.server.partition("|")[0]), heartbeat=0)
        self.mode = 2 if place.promise is Promise.FSYNCED else 1
        self._connection = pika.BlockingConnection(self.parameters)
        self.channel = self._connection.channel()
        self._queues: list[str] = []
        self._shared: _Publisher | None = None
        self._consumed = ""
        self._deliveries: Any = None

    def queue(self, name: str) -> Queue:
        self.channel.queue_delete(name)  # where another process has left it
        self.channel.queue_declare(name, durable=True)
        self._queues.append(name)
        if self.load.queues == 1:  # several threads may use it, each with a handle of its own
            return _BrokerQueue(self, name, _Publisher(self.parameters))
        self._shared = self._shared or _Publisher(self.parameters)
        return _BrokerQueue(self, name, self._shared)

    def deliveries(self, name: str) -> Any:
        """Those of a consumer of this queue, the only one at a time; a pause means that there are no more."""
        if self._consumed != name:
            self.stop_consuming()
            self.channel.basic_qos(prefetch_count=_PREFETCH)
            self._consumed, self._deliveries = name, self.channel.consume(name, inactivity_timeout=1.0)
        return self._deliveries

    def stop_consuming(self) -> None:
        if self._consumed:
            self._consumed = ""
            self.channel.cancel()

    def close(self) -> None:
        for name in self._queues:
            self.channel.queue_delete(name)
        self._connection.close()

    @classmethod
    def version(cls) -> str:
        return f"3.10.8, pika {pika.__version__}"

    @classmethod
    @contextmanager
    def server(cls, directory: Path) -> Iterator[str]:
        with Broker(directory) as broker:
            broker.start()
            yield f"{broker.amqp_port}|{broker.pid}"

    @classmethod
    def pid(cls, server: str) -> int | None:
        return int(server.partition("|")[2])


class _Publisher:
    """One connection that publishes with confirms; used by one thread."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self._sent = 0
        self._outstanding: dict[int, None] = {}
        self._channel: Any = None
        self._connection = pika.SelectConnection(parameters, on_open_callback=self._opened)
        self._connection.ioloop.start()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, lambda _: self._connection.ioloop.stop())

    def _on_confirm(self, frame: Any) -> None:
        if frame.method.NAME != "Basic.Ack":
            raise RuntimeError("the broker did not take a message")
        tag, outstanding = frame.method.delivery_tag, self._outstanding
        if frame.method.multiple:
            while outstanding and (first := next(iter(outstanding))) <= tag:
                del outstanding[first]
        else:
            outstanding.pop(tag, None)
        if not outstanding:
            self._connection.ioloop.stop()

    def publish(self, queue: str, body: bytes, properties: pika.BasicProperties) -> None:
        self._channel.basic_publish("", queue, body, properties)
        self._sent += 1
        self._outstanding[self._sent] = None

    def settle(self) -> None:
        if self._outstanding:
            self._connection.ioloop.start()


class _BrokerQueue(Queue):
    def __init__(self, peer: RabbitMQ, name: str, publisher: _Publisher) -> None:
        self._peer = peer
        self._name = name
        self._channel = peer.channel
        self._publisher = publisher
        self._properties = pika.BasicProperties(delivery_mode=peer.mode)

    def put(self, body: bytes) -> None:
        self._publisher.publish(self._name, body, self._properties)

    def settle(self) -> None:
        self._publisher.settle()

    def put_many(self, bodies: Sequence[bytes]) -> None:
        super().put_many(bodies)
        self.settle()

    def take(self) -> tuple[Token, bytes] | None:
        self.settle()
        self._peer.stop_consuming()
        method, _, body = self._channel.basic_get(self._name)
        return None if method is None else (method.delivery_tag, body)

    def ack(self, token: Token) -> None:
        self._channel.basic_ack(token)

    def _deliveries(self, count: int) -> list[Any]:
        found = []
        for delivery in self._peer.deliveries(self._name):
            if delivery[0] is None:
                break
            found.append(delivery)
            if len(found) == count:
                break
        return found

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        found = self._deliveries(min(count, _PREFETCH))
        return [method.delivery_tag for method, _, _ in found], [body for _, _, body in found]

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._channel.basic_ack(tokens[-1], multiple=True)

    def send(self, letter: Letter) -> None:
        properties = pika.BasicProperties(
            delivery_mode=self._peer.mode,
            headers=letter.headers,
            message_id=letter.message_id,
        )
        self._publisher.publish(self._name, letter.body, properties)

    def send_many(self, letters: Sequence[Letter]) -> None:
        super().send_many(letters)
        self.settle()

    def receive_many(self, count: int) -> tuple[Sequence[Token], list[Letter]]:
        found = self._deliveries(min(count, _PREFETCH))
        letters = [Letter(body, properties.headers, properties.message_id) for _, properties, body in found]
        return [method.delivery_tag for method, _, _ in found], letters
