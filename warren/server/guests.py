"""Guests of a node that is not shared: its user's commands, which come by the node's own socket and speak AMQP there.

A program that has a directory for itself starts no server until a client comes. The server then listens nowhere, and
runs until the node is closed. A client that can open the socket could also open the files, so it may do everything.
"""

from __future__ import annotations

import socket
from typing import Final

from warren.hosting.running_node import RunningNode
from warren.server.server import Server
from warren.server.settings import ServerSettings

FOR_GUESTS: Final = ServerSettings(port=None, consumer_timeout=None)


def let_in(node: RunningNode, connection: socket.socket) -> None:
    """Serve a guest; called by one thread, the listener's."""
    server = next(
        (service for service in node.hosted if isinstance(service, Server) and service.settings is FOR_GUESTS), None
    )
    if server is None:
        server = Server(node, FOR_GUESTS)
        server.start()
    server.take(connection, node.path)
