"""A pytest plugin: nodes for tests, and a RabbitMQ without one. It comes with the package; nothing is to switch on.

``warren_node`` is a node in memory, ``warren_node_dir`` one in a temporary directory; both are
:class:`warren.testing.TestNode`: time stands still in them until the test lets it pass, they see what becomes of each
message (``warren_messages``), and they can be killed. ``@pytest.mark.warren(sync="always")`` gives them settings.

``warren_broker`` is a server of the test's own, on a free port, over a node in a temporary directory. A program under
test connects to its ``url`` with the client that it has; the test looks into its ``node``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import pytest

if TYPE_CHECKING:
    from warren import Node
    from warren.server import Server
    from warren.testing import TestNode
    from warren.values.seen_messages import QueueMessages


_NODES = ("warren_node", "warren_node_dir")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "warren(**settings): settings of the test's warren_node and warren_node_dir")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its queues saw."""
    report = yield
    if call.when == "call" and report.failed:
        for name in _NODES:
            node = getattr(item, "funcargs", {}).get(name)
            if node is not None and (story := node.story()):
                report.sections.append((f"{name}: what became of messages", story))
    return report


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test's marks say, the closest last."""
    settings: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("warren"))):
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.warren takes settings by keyword, not {mark.args[0]!r}")
        settings |= mark.kwargs
    return settings


@pytest.fixture
def warren_node(request: pytest.FixtureRequest) -> Iterator[TestNode]:
    """A node in memory, with nothing in it; its clock stands still until ``warren_node.advance(seconds)``."""
    from warren.testing import TestNode

    with TestNode(**_settings(request)) as node:
        yield node


@pytest.fixture
def warren_node_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestNode]:
    """The same in a temporary directory, its ``path``, for what is to be found there."""
    from warren.testing import TestNode

    with TestNode(tmp_path_factory.mktemp("warren") / "node", **_settings(request)) as node:
        yield node


@pytest.fixture
def warren_messages(request: pytest.FixtureRequest) -> Callable[..., QueueMessages]:
    """``warren_messages("jobs")``: what became of the messages of a queue of ``warren_node``, or of
    ``warren_node_dir`` where the test uses that one."""
    in_directory = "warren_node_dir" in request.fixturenames and "warren_node" not in request.fixturenames
    node: TestNode = request.getfixturevalue("warren_node_dir" if in_directory else "warren_node")
    return node.messages


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
    import warren

    with warren.open(tmp_path_factory.mktemp("warren") / "node", sync="os") as node:
        yield WarrenBroker(node, node.serve(port=0))
