"""Servers of a test's own, and clients of them: one over a node in a directory, and web processes of gunicorn."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
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


WORKERS = 2


@contextmanager
def gunicorn(place: Path, application: str, *options: str) -> Iterator[str]:
    """A server of an application, ``module:name``, in a directory, with two workers; the path of its socket."""
    command = [sys.executable, "-m", "gunicorn", "-w", str(WORKERS), "-b", "unix:web", *options, application]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=place, stderr=log)
    try:
        yield str(place / "web")
    finally:
        server.terminate()
        assert server.wait(60) == 0, (place / "log").read_text()


def ask(path: str, what: object) -> int:
    """Ask for ``/what``: which process has answered, 0 where none could."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        try:
            connection.connect(path)
            web = http.client.HTTPConnection("web")
            web.sock = connection
            web.request("GET", f"/{what}")
            return int(web.getresponse().read())
        except (OSError, http.client.HTTPException):
            return 0
