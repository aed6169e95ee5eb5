"""The limits on connections and channels of a vhost and of a user, with RabbitMQ's error texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.server.server import Server


def connection_refused(server: Server, user: str, vhost: str) -> str | None:
    """Return why a user may not open another connection to a vhost; ``None``: it may."""
    actor = server.node.actor
    limit = actor.parameters.vhost_limits(vhost).get("max-connections", -1)
    if 0 <= limit <= sum(connection.vhost == vhost for connection in server.connections.values()):
        return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
    limit = _limit_of(server, user, "max-connections")
    if (
        0
        <= limit
        <= sum(connection.user == user and bool(connection.vhost) for connection in server.connections.values())
    ):
        return f"connection refused for user '{user}': user connection limit ({limit}) is reached"
    return None


def channel_refused(server: Server, user: str) -> str | None:
    """Return why a user may not open another channel; ``None``: it may."""
    limit = _limit_of(server, user, "max-channels")
    if (
        0
        <= limit
        <= sum(len(connection.channels) for connection in server.connections.values() if connection.user == user)
    ):
        return f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
    return None


def _limit_of(server: Server, user: str, name: str) -> int:
    users = server.node.actor.users
    return users[user].limits.get(name, -1) if user in users else -1
