"""server: AMQP 0-9-1 over a running node, for every client that speaks it to a RabbitMQ."""

from __future__ import annotations

from warren.server.server import Server
from warren.server.settings import ServerSettings, TlsSettings

__all__ = ["Server", "ServerSettings", "TlsSettings"]
