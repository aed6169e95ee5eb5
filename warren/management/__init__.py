"""management: RabbitMQ's management HTTP API, and a web page, over a running node.

Paths, field names, status codes and rights are those of RabbitMQ 3.10.8's management plugin, for what asks such an API:
rabbitmqadmin, Flower, exporters, clients. Needs ``pip install "warrenmq[server]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.management.settings import ManagementSettings

if TYPE_CHECKING:
    from warren.handles.node import Node
    from warren.management.server import ManagementServer

__all__ = ["ManagementSettings", "serve"]


def serve(node: Node, settings: ManagementSettings | None = None, *, port: int | None = None) -> ManagementServer:
    """Serve the management API of a node, and its page, beside this program, until it is stopped or the node's end.

    ``port``: in place of the settings' own. Raises :class:`~warren.server.settings.ListenError`.
    """
    from warren.management.server import ManagementServer

    chosen = ManagementSettings() if settings is None else settings
    server = ManagementServer(node._running, chosen if port is None else chosen.on_port(port))
    server.start()
    return server
