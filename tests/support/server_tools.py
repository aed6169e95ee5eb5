"""A server over a node in a directory of the test's own, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

import warren
from tests.support.waiting import wait_until
from warren.server import Server, ServerSettings

GUEST = pika.PlainCredentials("guest", "guest")


@attrs.frozen
class Served:
    """A node and its server."""

    node: warren.Node
    server: Server

    @property
    def port(self) -> int:
        return self.server.addresses[0][1]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @contextmanager
    def connection(self, **parameters: Any) -> Iterator[pika.BlockingConnection]:
        """A pika connection, closed at the end unless it is."""
        known = {"host": "127.0.0.1", "port": self.port, "credentials": GUEST} | parameters
        connection = pika.BlockingConnection(pika.ConnectionParameters(**known))
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()

    @contextmanager
    def channel(self, **parameters: Any) -> Iterator[BlockingChannel]:
        with self.connection(**parameters) as connection:
            yield connection.channel()


@contextmanager
def served(path: Path, settings: ServerSettings | None = None, **node_settings: Any) -> Iterator[Served]:
    """A server on a free port."""
    with warren.open(path, **node_settings) as node:
        yield Served(node, node.serve(settings, port=0))


def events_until(connection: BlockingConnection, condition: Callable[[], object]) -> None:
    """Handle what the server sends until ``condition`` holds."""

    def holds() -> object:
        return condition() or connection.process_data_events(time_limit=0.05) or condition()

    wait_until(holds, "the server sends what is awaited", interval_s=0)
