"""The clients of a server: what the management API asks of it. A node without a server has no clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import attrs

from warren.actors.runtime.loop_thread import LoopThread
from warren.server.connection import ClientConnection
from warren.server.traffic import Traffic

Document = dict[str, Any]


class Clients(Protocol):
    """A server."""

    @property
    def connections(self) -> Mapping[str, ClientConnection]:
        """By their names."""

    @property
    def traffic(self) -> Traffic:
        """What goes through channels and exchanges."""

    @property
    def thread(self) -> LoopThread | None:
        """The thread of its event loop, if it runs."""


@attrs.define(eq=False)
class NoClients:
    """A node that no server runs on."""

    traffic: Traffic = attrs.Factory(Traffic)
    thread: LoopThread | None = None

    @property
    def connections(self) -> Mapping[str, ClientConnection]:
        """None."""
        return {}


def connections_of(clients: Clients) -> Iterator[Document]:
    """All connections, as the API has them."""
    return (connection.info() for connection in list(clients.connections.values()))


def channels_of(clients: Clients) -> Iterator[Document]:
    """All channels, as the API has them."""
    return (
        channel.info()
        for connection in list(clients.connections.values())
        for channel in list(connection.channels.values())
    )


def consumers_of(clients: Clients) -> Iterator[Document]:
    """All consumers, as the API has them."""
    return (
        consumer
        for connection in list(clients.connections.values())
        for channel in list(connection.channels.values())
        for consumer in channel.consumer_infos()
    )
