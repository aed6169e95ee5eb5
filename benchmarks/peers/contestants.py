"""Who takes part, in the order of the tables."""

from __future__ import annotations

import importlib
from typing import Final

from benchmarks.peers.peer import Peer

OURS: Final = ("warren", "plain")
BARE: Final = ("bare", "file")
"""What is no store, but what a store stands on."""

PEERS: Final = {
    "warren": "warren_node:WarrenNode",
    "plain": "warren_object:PlainObject",
    "bare": "bare:Bare",
    "file": "file:BareFile",
    "sqlite": "sqlite:Sqlite",
    "persist-queue": "persist_queue:PersistQueue",
    "persist-queue-ack": "persist_queue:PersistAckQueue",
    "litequeue": "litequeue:LiteQueues",
    "diskcache": "diskcache:DiskcacheDeque",
    "huey": "huey:HueyStorage",
    "redis": "redis:RedisStreams",
    "rabbitmq": "rabbitmq:RabbitMQ",
    "queuelib": "queuelib:Queuelib",
    "queue.Queue": "standard:StandardQueue",
    "deque": "standard:StandardDeque",
}
"""By name: the class, and the module of this package that it is in."""


def peer_class(name: str) -> type[Peer]:
    """Raises :class:`ImportError` where what it needs is not installed."""
    module, _, kind = PEERS[name].partition(":")
    found: type[Peer] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), kind)
    return found
