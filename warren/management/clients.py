"""The clients of a server: what the management API asks of it. A node without a server has no clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import attrs

from warren.actors.runtime.loop_thread import LoopThread
from warren.server.traffic import Traffic

Document = dict[str, Any]


class Consumers(Protocol):
    """The consumers of a channel."""

    by_tag: dict[str, Any]
    """Each with an ``info()``."""


class Channel(Protocol):
    """A channel of a connection."""

    @property
    def consumers(self) -> Consumers:
        """The consumers that get messages through it."""

    def message_stats(self) -> Mapping[str, int]:
        """The counts of its messages."""

    def info(self) -> Mapping[str, Any]:
        """Under RabbitMQ's names."""


class Connection(Protocol):
    """A client's connection."""

    @property
    def channels(self) -> Mapping[int, Any]:
        """By their numbers."""

    vhost: str
    received_bytes: int
    sent_bytes: int

    def info(self) -> Mapping[str, Any]:
        """Under RabbitMQ's names."""

    def close(self, reason: str) -> Any:
        """Tell the client, and close it."""


class Clients(Protocol):
    """A server."""

    @property
    def connections(self) -> Mapping[str, Any]:
        """By their names."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses on which the server listens."""

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
    def connections(self) -> Mapping[str, Any]:
        """None."""
        return {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """None."""
        return []


_CONNECTION: Final[Mapping[str, Any]] = {
    "auth_mechanism": "PLAIN",
    "channel_max": 2047,
    "channels": 0,
    "client_properties": {},
    "connected_at": 0,
    "frame_max": 131_072,
    "host": "127.0.0.1",
    "peer_cert_issuer": None,
    "peer_cert_subject": None,
    "peer_cert_validity": None,
    "peer_host": "127.0.0.1",
    "peer_port": 0,
    "port": 0,
    "protocol": "AMQP 0-9-1",
    "recv_cnt": 0,
    "recv_oct": 0,
    "send_cnt": 0,
    "send_oct": 0,
    "send_pend": 0,
    "ssl": False,
    "ssl_cipher": None,
    "ssl_hash": None,
    "ssl_key_exchange": None,
    "ssl_protocol": None,
    "state": "running",
    "timeout": 0,
    "type": "network",
    "user": "",
    "vhost": "/",
}
_CHANNEL: Final[Mapping[str, Any]] = {
    "acks_uncommitted": 0,
    "confirm": False,
    "consumer_count": 0,
    "global_prefetch_count": 0,
    "messages_unacknowledged": 0,
    "messages_uncommitted": 0,
    "messages_unconfirmed": 0,
    "number": 0,
    "pending_raft_commands": 0,
    "prefetch_count": 0,
    "state": "running",
    "transactional": False,
    "user": "",
    "vhost": "/",
}
_CONSUMER: Final[Mapping[str, Any]] = {
    "ack_required": True,
    "active": True,
    "activity_status": "up",
    "arguments": {},
    "consumer_tag": "",
    "exclusive": False,
    "prefetch_count": 0,
    "queue": {},
}


def connection_json(name: str, connection: Connection, node: str) -> Document:
    """A connection as the API has it."""
    document = {**_CONNECTION, "name": name, "node": node, **connection.info()}
    document["channels"] = len(connection.channels)
    properties = document.get("client_properties") or {}
    if "connection_name" in properties:
        document.setdefault("user_provided_name", properties["connection_name"])
    document.setdefault("user_who_performed_action", document["user"])
    return document


def connections_of(clients: Clients, node: str) -> Iterator[Document]:
    """All connections, as the API has them."""
    return (connection_json(name, connection, node) for name, connection in list(clients.connections.items()))


def channel_json(name: str, connection: Connection, number: int, channel: Channel, node: str) -> Document:
    """A channel as the API has it; ``name``: its connection's."""
    parent = connection_json(name, connection, node)
    document = {
        **_CHANNEL,
        "name": f"{name} ({number})",
        "node": node,
        "number": number,
        "user": parent["user"],
        "vhost": parent["vhost"],
        "connection_details": {part: parent[part] for part in ("name", "peer_host", "peer_port")},
        **channel.info(),
    }
    document.setdefault("user_who_performed_action", document["user"])
    return document


def channels_of(clients: Clients, node: str, connection: str | None = None) -> Iterator[Document]:
    """All channels, or those of one connection, as the API has them."""
    return (
        channel_json(name, owner, number, channel, node) for name, owner, number, channel in _each(clients, connection)
    )


def _each(clients: Clients, only: str | None) -> Iterator[tuple[str, Any, int, Any]]:
    for name, connection in list(clients.connections.items()):
        if only in (None, name):
            for number, channel in list(connection.channels.items()):
                yield name, connection, number, channel


def consumers_of(clients: Clients, node: str) -> Iterator[Document]:
    """All consumers, as the API has them."""
    for name, connection, number, channel in _each(clients, None):
        consumers = list(channel.consumers.by_tag.items())
        if not consumers:
            continue
        parent = channel_json(name, connection, number, channel, node)
        details = {
            "connection_name": name,
            "name": parent["name"],
            "node": node,
            "number": number,
            "peer_host": parent["connection_details"]["peer_host"],
            "peer_port": parent["connection_details"]["peer_port"],
            "user": parent["user"],
        }
        for tag, consumer in consumers:
            document = {**_CONSUMER, "consumer_tag": tag, "channel_details": details, **consumer.info()}
            if isinstance(document["queue"], str):
                document["queue"] = {"name": document["queue"], "vhost": parent["vhost"]}
            yield document
