"""A request that was admitted: its user, what it asks for, and the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import attrs
from starlette.requests import Request

from warren.actors.engines.declared.permissions import Kind, Right
from warren.actors.engines.declared.users import User, Users
from warren.actors.engines.declared.vhost_definitions import VhostDefinitions
from warren.actors.node.node_registry import NodeRegistry
from warren.aio import bridge
from warren.hosting.running_node import RunningNode
from warren.management.clients import Clients, NoClients
from warren.management.http import not_found, parse_body, read_body
from warren.management.past import Past
from warren.management.samples import Live, NodeSample, QueueSample, Samples
from warren.management.settings import ManagementSettings
from warren.verbs.steps import Steps
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs

T = TypeVar("T")

CLUSTER_ID: Final = "internal_cluster_id"
"""The global parameter with the permanent name that RabbitMQ gives a cluster."""

SHARED: Final = "warren.shared_sample"
"""The key of a request's scope under which the paths of one event share a sample of the node."""

MONITOR_TAGS = frozenset({"administrator", "monitoring"})
POLICYMAKER_TAGS = frozenset({"administrator", "policymaker"})
MANAGEMENT_TAGS = MONITOR_TAGS | POLICYMAKER_TAGS | {"management"}


@attrs.define(eq=False, kw_only=True)
class Managed:
    """The node that an API is about, and what serves it."""

    node: RunningNode
    settings: ManagementSettings = attrs.Factory(ManagementSettings)
    clients: Clients = attrs.Factory(NoClients)
    samples: Samples = attrs.field(init=False)
    live: Live = attrs.field(init=False)
    addresses: list[tuple[str, int]] = attrs.Factory(list)
    """The addresses on which the API itself listens."""
    stopping: asyncio.Event = attrs.Factory(asyncio.Event)
    """Set once: event streams end."""
    _sampling: asyncio.Lock = attrs.Factory(asyncio.Lock)

    def __attrs_post_init__(self) -> None:
        self.samples = Samples(self.node, self.node_name)
        self.live = Live(self.node)

    @property
    def users(self) -> Users:
        """The node's users; any thread may read them."""
        return self.node.registry.users

    @property
    def node_name(self) -> str:
        return self.node.name

    @property
    def cluster_name(self) -> str:
        name = self.node.cluster_name
        return self.settings.cluster_name or name if name == self.node_name else name

    async def sample(self) -> NodeSample:
        """Take a sample of the node."""
        async with self._sampling:
            return await bridge.in_thread(self.samples.take)

    async def sample_queue(self, vhost: str, name: str) -> QueueSample | None:
        """Return the sample of one queue; ``None`` if it does not exist."""
        async with self._sampling:
            return await bridge.in_thread(lambda: self.samples.queue_sample(vhost, name))

    async def change(self, work: Callable[[NodeRegistry], T]) -> T:
        """Change what is declared."""
        return await bridge.run(self.node.change(work))

    async def run(self, steps: Steps[T]) -> T:
        """Run a verb."""
        return await bridge.run(steps)


@attrs.frozen
class Call:
    """One request."""

    managed: Managed
    request: Request
    user: User
    parts: dict[str, str]
    """The parts of the path, by the names in its route."""

    @property
    def node(self) -> RunningNode:
        return self.managed.node

    @property
    def verbs(self) -> NodeVerbs:
        """What can be asked of the node."""
        return NodeVerbs(LocalVhost(self.node))

    @property
    def query(self) -> Any:
        """The query's parameters, the last one of each name."""
        return self.request.query_params

    @property
    def past(self) -> Past:
        """The samples of the past that the request asks for. Raises :class:`HttpError`."""
        return Past.of(self.query)

    async def sample(self) -> NodeSample:
        """A sample of the node; requests with the same :data:`SHARED` have one together."""
        shared: list[NodeSample] = self.request.scope.get(SHARED, [])
        if not shared:
            shared.append(await self.managed.sample())
        return shared[0]

    async def body(self) -> dict[str, Any]:
        """The object in the body. Raises :class:`HttpError`."""
        return parse_body(await self.raw_body())

    async def raw_body(self) -> bytes:
        """Return the body. Raises :class:`HttpError` if it is too long."""
        return await read_body(self.request, self.managed.settings.management_max_http_body_size)

    # ── who ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def has_tag(self, *tags: str) -> bool:
        """Whether the user has one of the tags."""
        return not set(tags).isdisjoint(self.user.tags)

    @property
    def is_administrator(self) -> bool:
        return self.has_tag("administrator")

    @property
    def is_monitor(self) -> bool:
        """Whether the user may see what others do."""
        return self.has_tag(*MONITOR_TAGS)

    def check(self, vhost: str, kind: Kind, name: str, right: Right) -> None:
        """Raise :class:`AccessRefusedError` if the user lacks the right."""
        self.managed.users.check(self.user.name, vhost, kind, name, right)

    def check_topic(self, vhost: str, exchange: str, routing_key: str, right: Literal["write", "read"]) -> None:
        """Raise :class:`AccessRefusedError` if the user may not use this key with a topic exchange."""
        if self.node.vhost(vhost).definitions.exchange(exchange).type == "topic":
            self.managed.users.check_topic(self.user.name, vhost, exchange, routing_key, right)

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def vhosts(self) -> list[str]:
        """All vhosts, including those that are down."""
        return sorted({*self.node.registry.vhosts, *self.node.registry.down})

    @property
    def usable_vhosts(self) -> list[str]:
        """The vhosts that the user may use."""
        return [name for name in self.vhosts if self.managed.users.may_use(self.user.name, name)]

    @property
    def visible_vhosts(self) -> list[str]:
        """The vhosts that the user may see."""
        return self.vhosts if self.is_monitor else self.usable_vhosts

    @property
    def listed_vhosts(self) -> list[str]:
        """Return the vhosts whose queues, exchanges and bindings a list shows; only one, if the request names it.

        Raises :class:`HttpError` if the path names a vhost that does not exist.
        """
        listed = self.vhosts if self.is_administrator else self.usable_vhosts
        vhost = self.one_vhost
        return listed if vhost is None else [name for name in listed if name == vhost]

    def definitions_of(self, vhost: str) -> VhostDefinitions | None:
        """Return the definitions of a vhost; ``None`` if it is down."""
        running = self.node.registry.vhosts.get(vhost)
        return None if running is None else running.definitions

    @property
    def listed_definitions(self) -> list[VhostDefinitions]:
        """The definitions of the vhosts that a list shows, without those that are down."""
        definitions = map(self.definitions_of, self.listed_vhosts)
        return [of_vhost for of_vhost in definitions if of_vhost is not None]

    @property
    def one_vhost(self) -> str | None:
        """The vhost in the path or the header ``x-vhost``; ``None`` without either. Raises :class:`HttpError`."""
        if "vhost" in self.parts:
            return self.vhost
        return self.request.headers.get("x-vhost") or None

    @property
    def vhost(self) -> str:
        """Return the vhost in the path. Raises :class:`HttpError` if it does not exist."""
        name = self.parts["vhost"]
        if name not in self.node.registry.vhosts and name not in self.node.registry.down:
            raise not_found()
        return name

    @property
    def vhost_to_change(self) -> str:
        """The same, for requests to which RabbitMQ answers that the vhost is missing."""
        name = self.parts["vhost"]
        if name not in self.node.registry.vhosts and name not in self.node.registry.down:
            raise not_found("vhost_not_found")
        return name

    def exchange_part(self, name: str) -> str:
        """The name of an exchange in the path; the default one is ``amq.default`` there."""
        exchange = self.parts[name]
        return "" if exchange == "amq.default" else exchange
