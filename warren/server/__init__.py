"""server: AMQP 0-9-1 over a running node, for every client that speaks it to a RabbitMQ."""

from __future__ import annotations

from warren.server.server import Server
from warren.server.settings import ServerSettings

__all__ = ["Server", "ServerSettings"]
