"""A pytest plugin: a RabbitMQ for a test, without one. It comes with the package; there is nothing to switch on.

``warren_broker`` is a server of the test's own, on a free port, over a node in a temporary directory. A program under
test connects to its ``url`` with the client that it has; the test looks into its ``node``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import pytest

if TYPE_CHECKING:
    from warren import Node
    from warren.server import Server


@attrs.frozen
class WarrenBroker:
    """What ``warren_broker`` is."""

    node: Node
    """The node: what it has can be read and changed here, beside the clients."""
    server: Server
    """The server over it: its ``connections``, and ``close`` of each."""

    @property
    def host(self) -> str:
        """The address that it listens on, the loopback one."""
        return self.server.addresses[0][0]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server.addresses[0][1]

    @property
    def url(self) -> str:
        """For any AMQP 0-9-1 client: the user guest, who may do everything, and the vhost "/"."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"


@pytest.fixture
def warren_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenBroker]:
    """A server that speaks AMQP 0-9-1 as RabbitMQ does, with nothing in it, until the test ends."""
    import warren  # noqa: PLC0415 - a test run that does not use it does not pay for it

    with warren.open(tmp_path_factory.mktemp("warren") / "node", sync="os") as node:
        yield WarrenBroker(node, node.serve(port=0))
