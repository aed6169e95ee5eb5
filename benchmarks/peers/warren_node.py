"""warren as its users have it: a node, with its actors, confirms and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np  # noqa: F401 - which warren imports with its first batch: a rate is not one of imports

import warren
from benchmarks.peers.peer import Can, Letter, Load, Peer, Place, Promise, Queue, Token, Topic
from warren.verbs.steps import run

_SYNC: dict[Promise, Literal["os", "group", "always"]] = {
    Promise.VOLATILE: "os",
    Promise.WRITTEN: "os",
    Promise.FSYNCED: "group",
}


class WarrenNode(Peer):
    """``warren.open``."""

    title = "warren"
    distribution = "warrenmq"
    promises = frozenset(Promise)
    does = frozenset(Can)
    imports = "import warren"
    one_message = """
with warren.open({path!r}, sync="os") as node:
    node.queue("one").publish(b"one").wait()
"""
    inspects = ("-m", "warren", "inspect")

    def __init__(self, place: Place, load: Load) -> None:
        super().__init__(place, load)
        self.node = self.open_node(_SYNC[place.promise])

    def open_node(self, sync: Literal["os", "group", "always"]) -> warren.Node:
        return warren.open(self.place.directory, sync=sync)

    def queue(self, name: str) -> Queue:
        return _NodeQueue(self.node.queue(name), persistent=self.place.promise is not Promise.VOLATILE)

    def topic(self, name: str) -> Topic:
        return _NodeTopic(self.node, self.node.topic(name, queues=1))

    def close(self) -> None:
        self.node.close()


class _NodeQueue(Queue):
    def __init__(self, queue: warren.Queue, *, persistent: bool) -> None:
        self._queue = queue
        self._properties: dict[str, Any] = {} if persistent else {"persistent": False}
        self._last: Any = None

    def put(self, body: bytes) -> None:
        self._last = self._queue.publish(body, **self._properties)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._last = self._queue.publish_many(bodies, **self._properties)

    def settle(self) -> None:
        self._last.wait()

    def take(self) -> tuple[Token, bytes] | None:
        delivery = self._queue.get()
        return None if delivery is None else (delivery, delivery.body)

    def ack(self, token: Token) -> None:
        token.ack()

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        deliveries = self._queue.get_many(count)
        return deliveries, deliveries.bodies

    def ack_many(self, tokens: Sequence[Token]) -> None:
        self._queue.ack(tokens)

    def count(self) -> int:
        return len(self._queue)

    def consume(self, count: int) -> Iterator[bytes]:
        with self._queue.consume(prefetch=1000) as consumer:
            for delivery in consumer:
                body = delivery.body
                delivery.ack()
                yield body
                count -= 1
                if not count:
                    break

    @contextmanager
    def receiver(self, *, ack: bool) -> Iterator[Callable[[], bytes]]:
        with self._queue.consume(prefetch=10, auto_ack=not ack) as consumer:

            def receive() -> bytes:
                delivery = consumer.receive()
                if delivery is None:
                    raise RuntimeError("the consumer has ended")
                if ack:
                    delivery.ack()
                return delivery.body

            yield receive

    def send(self, letter: Letter) -> None:
        self._last = self._queue.publish(letter.body, headers=letter.headers, message_id=letter.message_id)

    def send_many(self, letters: Sequence[Letter]) -> None:
        self._last = self._queue.publish_many(
            [letter.body for letter in letters],
            headers=[letter.headers for letter in letters],
            message_id=[letter.message_id for letter in letters],
        )

    def receive_many(self, count: int) -> tuple[Sequence[Token], list[Letter]]:
        deliveries = self._queue.get_many(count)
        columns = deliveries.bodies, *deliveries.columns("headers", "message_id")
        return deliveries, list(map(Letter, *columns))


class _NodeTopic(Topic):
    def __init__(self, node: warren.Node, topic: warren.Topic) -> None:
        self._node = node
        self._topic = topic
        self._reader: Any = None
        self._last: Any = None

    def append(self, body: bytes, key: str) -> None:
        self._last = self._topic.append(body, key=key)

    def append_many(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None:
        self._last = self._topic.append_many(bodies, keys=keys)

    def settle(self) -> None:
        self._last.wait()

    def catch_up(self) -> None:
        run(self._node._running.caught_up(with_index=True))

    def read(self, count: int) -> list[bytes]:
        if self._reader is None:
            self._reader = self._topic.reader("group")
        bodies: list[bytes] = self._reader.read(count).bodies
        if not bodies:
            self._reader.close()
            self._reader = None
        return bodies

    def find(self, key: str) -> bytes:
        return self._topic.find(key, limit=1)[0].body
