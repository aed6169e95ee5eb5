"""LinkVhost and LinkExchange: a vhost that another process hosts, and its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pamqp import commands as c

from warren.actors.engines.declared.exchanges import ExchangeDeclaration
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm
from warren.amqp.methods import method_of
from warren.amqp.own_methods import DUE
from warren.client.link_queue import LinkQueue
from warren.client.link_topic import LinkTopic, LinkTransaction
from warren.client.remote import RemoteVhost
from warren.handles.channel import SettlingChannel
from warren.queue_index.message.amqp_tables import LongInteger
from warren.storage.errors import WarrenError
from warren.values.messages import PublishArguments, publish_key
from warren.verbs.exchange_verbs import delays, unroutable
from warren.verbs.operation import DEFINITIONS, Operation
from warren.verbs.publishing import PATIENCE_S, AsTheyWere, settled_confirm
from warren.verbs.steps import Steps

if TYPE_CHECKING:
    from warren.values.scheduling import Schedule
    from warren.verbs.topics.transaction_verbs import HalfPlace

T = TypeVar("T")


class LinkExchange:
    """An exchange whose host is another process; an :class:`~warren.verbs.exchange_verbs.ExchangeHost`."""

    def __init__(self, vhost: RemoteVhost, declaration: ExchangeDeclaration) -> None:
        self.vhost = self.host = vhost
        self.declaration = declaration

    def new_key(self, routing_key: str, properties: Mapping[str, Any]) -> PublishKey:
        # The host makes copies of what the headers say, and takes the blind ones off.
        return publish_key(self.declaration.vhost, self.declaration.name, [routing_key], properties)

    def publish(
        self,
        key: PublishKey,
        routing_key: str,
        bodies: list[bytes],
        properties: PublishArguments,
        *,
        mandatory: bool,
        block: bool,
        timeout: float | None,
    ) -> Steps[Confirm]:
        return self.vhost.publish(
            key,
            _publish(self.declaration.name, routing_key, mandatory=mandatory),
            bodies,
            partial(unroutable, self.declaration, routing_key) if mandatory else None,
            block=block,
            timeout=timeout,
            is_delayed=delays(self.declaration, properties.get("headers")),
        )

    def publish_later(
        self, routing_key: str, bodies: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[list[Confirm]]:
        method, headers = _publish(self.declaration.name, routing_key), schedule.properties.get("headers") or {}
        confirms: list[Confirm] = []
        for body, due_ms in zip(bodies, schedule.due_ms, strict=True):
            properties = {**schedule.properties, "headers": {**headers, DUE: LongInteger(due_ms)}}
            key = self.new_key(routing_key, properties)
            confirm = yield from self.vhost.publish(
                key, method, [body], None, block=block, timeout=timeout, is_delayed=True
            )
            confirms.append(confirm)
        return confirms

    def publish_group(self, group: AsTheyWere) -> Steps[Confirm | WarrenError]:
        routing_key = group.routing_keys[0].decode("utf-8", "surrogateescape")
        return self.vhost.publish(
            group.key(self.declaration.vhost),
            _publish(self.declaration.name, routing_key, mandatory=True),
            group.bodies,
            partial(unroutable, self.declaration, routing_key),
            block=True,
            timeout=PATIENCE_S,
        )


class LinkVhost:
    """A vhost whose host is another process; a :class:`~warren.verbs.vhost_host.VhostHost`.

    Its connection owns the exclusive queues that are declared through it.
    """

    def __init__(self, remote: RemoteVhost, new_remote: Callable[[str], RemoteVhost]) -> None:
        """``new_remote``: makes a connection to a vhost."""
        self.remote = self.host = remote
        self.name = remote.name
        self._new_remote = new_remote

    def perform(self, _: object, operation: Operation[T]) -> Steps[T]:
        return self.remote.perform(operation, self.name)

    def release(self) -> Steps[None]:
        self.remote.check_process()
        yield from self.remote.flush()
        self.remote.release()

    def queue(self, entry: QueueEntry, channel: SettlingChannel | None = None) -> LinkQueue:
        return LinkQueue(self.remote, entry, channel)

    def exchange(self, declaration: ExchangeDeclaration) -> LinkExchange:
        return LinkExchange(self.remote, declaration)

    def vhost(self, name: str) -> LinkVhost:
        return LinkVhost(self._new_remote(name), self._new_remote)

    def topic(self, name: str, queues: int) -> LinkTopic:
        return LinkTopic(self.remote, name, queues)

    def transaction(self, place: HalfPlace) -> LinkTransaction:
        return LinkTransaction(self.remote, place)

    def entries(self, names: list[str]) -> Steps[list[QueueEntry]]:
        return self.remote.perform(Operation(DEFINITIONS["vhost.find_queues"], {"names": names}), self.name)

    def identity_of(self, queue: str) -> object:
        return self  # a handle goes by the name

    def publish_to(
        self, names: list[str], body: bytes, properties: PublishArguments, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        if len(names) > 1:
            properties = {**properties, "headers": {**(properties.get("headers") or {}), "BCC": names[1:]}}
        key = publish_key(self.name, "", names[:1], properties)  # raises what is wrong
        yield from self.remote.within(timeout, self.entries(names))
        if not names:
            return settled_confirm()
        method = _publish("", names[0])
        return (yield from self.remote.publish(key, method, [body], None, block=block, timeout=timeout))


def _publish(exchange: str, routing_key: str, *, mandatory: bool = False) -> c.Basic.Publish:
    return method_of(c.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory)
