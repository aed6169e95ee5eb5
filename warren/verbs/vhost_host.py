"""Hosts of vhosts: what performs a vhost's operations, and makes the hosts of its queues and exchanges.

:class:`LocalVhost` is a vhost of this process. In a guest of a shared directory it is a
:class:`warren.client.link_vhost.LinkVhost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from warren.actors.engines.declared.exchanges import ExchangeDeclaration
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm
from warren.handles.channel import SettlingChannel
from warren.hosting.running_node import RunningNode
from warren.values.messages import PublishArguments, publish_key
from warren.verbs.exchange_verbs import ExchangeHost, LocalExchange
from warren.verbs.operation import Host, Operation
from warren.verbs.publishing import publishing, settled_confirm
from warren.verbs.queue_host import LocalQueue, QueueHost
from warren.verbs.steps import Steps, answered

if TYPE_CHECKING:
    from warren.verbs.topics.topic_host import LocalTopic, TopicHost
    from warren.verbs.topics.transaction_verbs import HalfPlace, LocalTransaction, TransactionHost

T = TypeVar("T")


class VhostHost(Protocol):
    """What performs a vhost's operations, and makes the hosts of its queues and exchanges."""

    name: str

    @property
    def host(self) -> Host:
        """The node, or the link to the process that hosts it."""

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        """Perform an operation; return its answer."""

    def release(self) -> Steps[None]:
        """Delete the exclusive queues that were declared through this object, which owns them."""

    def queue(self, entry: QueueEntry, channel: SettlingChannel | None = None) -> QueueHost:
        """Return the host of a queue. ``channel``: that of its parent's gets, in a forked child."""

    def exchange(self, declaration: ExchangeDeclaration) -> ExchangeHost:
        """Return the host of an exchange."""

    def vhost(self, name: str) -> VhostHost:
        """Return the host of another vhost of the node."""

    def topic(self, name: str, queues: int) -> TopicHost:
        """Return the host of a topic with this many queues."""

    def transaction(self, place: HalfPlace) -> TransactionHost:
        """Return the host of a prepared message."""

    def entries(self, names: list[str]) -> Steps[list[QueueEntry]]:
        """Return the entries of queues. Raises :class:`NotFoundError`."""

    def identity_of(self, queue: str) -> object:
        """Return an object that identifies a queue: another queue of that name has another one. Raises
        :class:`NotFoundError` if the queue is known not to exist."""

    def publish_to(
        self, names: list[str], body: bytes, properties: PublishArguments, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        """Publish one message to several queues."""


class LocalVhost:
    """A vhost of a node in this process. It owns the exclusive queues that are declared through it."""

    def __init__(self, node: RunningNode, name: str = "/", owner: object | None = None) -> None:
        """``owner``: the connection of another process, which owns the exclusive queues instead."""
        self.node = self.host = node
        self.name = name
        self.owner = self if owner is None else owner

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        return operation.performed_by(verbs)

    def release(self) -> Steps[None]:
        yield from self.node.change(lambda registry: registry.release(self.owner))

    def queue(self, entry: QueueEntry, channel: SettlingChannel | None = None) -> LocalQueue:
        return LocalQueue(self.node, entry)

    def exchange(self, declaration: ExchangeDeclaration) -> LocalExchange:
        return LocalExchange(self.node, declaration)

    def vhost(self, name: str) -> LocalVhost:
        return LocalVhost(self.node, name)

    def topic(self, name: str, queues: int) -> LocalTopic:
        from warren.verbs.topics.topic_host import LocalTopic

        return LocalTopic(self.node, name)

    def transaction(self, place: HalfPlace) -> LocalTransaction:
        from warren.verbs.topics.transaction_verbs import LocalTransaction

        return LocalTransaction(self.node, place)

    def entries(self, names: list[str]) -> Steps[list[QueueEntry]]:
        return answered(self.node.queues(self.name, names))

    def identity_of(self, queue: str) -> object:
        [entry] = self.node.queues(self.name, [queue])
        return entry

    def publish_to(
        self, names: list[str], body: bytes, properties: PublishArguments, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        node = self.node
        sent: Confirm | None = yield publishing(
            node,
            lambda: [entry.actor.intake for entry in node.queues(self.name, names)],
            publish_key(self.name, "", names, properties),
            [body],
            block=block,
            timeout=timeout,
        )
        return settled_confirm() if sent is None else sent
