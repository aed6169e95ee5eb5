"""The verbs of an exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

from warren.actors.engines.declared.exchanges import DELAYED, ExchangeDeclaration
from warren.actors.engines.declared.routing import carbon_copies
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.hosting.running_node import RunningNode
from warren.queue_index.properties import decode_properties
from warren.storage.errors import WarrenError
from warren.values.messages import LATER, PublishArguments, as_bodies, publish_key
from warren.verbs.operation import Host
from warren.verbs.publishing import (
    PATIENCE_S,
    AsTheyWere,
    Receiver,
    publish_groups,
    publishing,
    remember,
    settled_confirm,
)
from warren.verbs.steps import NamedHandle, Steps, answered

if TYPE_CHECKING:
    from warren.values.scheduling import Schedule

_CACHED_KEYS = 256


class UnroutableError(WarrenError):
    """A mandatory message that would not reach any queue: it was returned."""


class ExchangeHost(Protocol):
    """What carries the messages that are published to an exchange."""

    declaration: ExchangeDeclaration

    @property
    def host(self) -> Host:
        """What hosts the vhost."""

    def new_key(self, routing_key: str, properties: Mapping[str, Any]) -> PublishKey:
        """Return the publish key of messages with these properties."""

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
        """Hand messages over. If they select no queue they are dropped, or (``mandatory``) their confirm fails."""

    def publish_later(
        self, routing_key: str, bodies: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[list[Confirm]]:
        """Hand over messages that are routed when they are due."""

    def publish_group(self, group: AsTheyWere) -> Steps[Confirm | WarrenError]:
        """Hand over messages with the properties that they had; return their confirm, or that they select no queue."""


class ExchangeVerbs:
    """The verbs of one exchange."""

    def __init__(self, host: ExchangeHost) -> None:
        self.host = host
        self._keys: dict[str, PublishKey] = {}

    def __str__(self) -> str:
        return f"{self.host.declaration.name!r} ({self.host.declaration.type})"

    def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Steps[Confirm]:
        """Publish a message to the queues that its key or its headers select; drop it if they select no queue.

        ``delay`` or ``at``: as for a queue's publish; it is routed when it is due.
        ``mandatory``: an unroutable message makes the confirm fail with :class:`UnroutableError`. ``block`` and
        ``timeout``: as for a queue's publish.
        """
        return self.publish_many((body,), routing_key, mandatory=mandatory, block=block, timeout=timeout, **properties)

    def publish_many(
        self,
        bodies: Iterable[bytes],
        routing_key: str = "",
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Steps[Confirm]:
        """Publish messages with the same key and properties, with one confirm for all."""
        if not LATER.isdisjoint(properties):
            return self._publish_later(as_bodies(bodies), routing_key, properties, block, timeout)
        key, checked_bodies = self._key(routing_key, properties), as_bodies(bodies)
        if not checked_bodies:
            return answered(settled_confirm())
        return self.host.publish(
            key, routing_key, checked_bodies, properties, mandatory=mandatory, block=block, timeout=timeout
        )

    def _publish_later(
        self,
        bodies: list[bytes],
        routing_key: str,
        properties: Mapping[str, Any],
        block: bool,
        timeout: float | None,
    ) -> Steps[Confirm]:
        """Hand over messages that are routed when they are due. Those without an id share a new one."""
        from warren.values.scheduling import Scheduled, schedule

        if not bodies:
            return settled_confirm()
        host = self.host.host
        scheduled = schedule(properties, len(bodies), host.now_ms(), host.new_message_id, share_id=True)
        return Scheduled(
            (yield from self.host.publish_later(routing_key, bodies, scheduled, block, timeout)), scheduled
        )

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        """As a queue's verb of that name, but to this exchange; an unroutable group is refused."""
        return publish_groups(groups, self.host.publish_group)

    def _key(self, routing_key: str, properties: PublishArguments) -> PublishKey:
        """Return the publish key of the bodies."""
        if properties:
            return self.host.new_key(routing_key, properties)
        key = self._keys.get(routing_key)
        if key is None:
            if len(self._keys) >= _CACHED_KEYS:
                self._keys.clear()
            key = self._keys[routing_key] = self.host.new_key(routing_key, {})
        return key


def unroutable(declaration: ExchangeDeclaration, routing_key: str) -> UnroutableError:
    """Return the error for a message that selects no queue."""
    return UnroutableError(f"no queue for routing key '{routing_key}' of exchange '{declaration.name}'")


def delays(declaration: ExchangeDeclaration, headers: Mapping[str, Any] | None) -> bool:
    """Whether an exchange is of the type that delays messages, and the headers set a delay."""
    if not headers or declaration.type != DELAYED:
        return False
    from warren.actors.engines.declared.exchanges import delay_of

    return bool(delay_of(headers))


class LocalExchange:
    """An exchange of a node in this process."""

    def __init__(self, node: RunningNode, declaration: ExchangeDeclaration) -> None:
        self.node = self.host = node
        self.declaration = declaration

    def new_key(self, routing_key: str, properties: Mapping[str, Any]) -> PublishKey:
        headers = properties.get("headers")
        keys = [routing_key, *(carbon_copies(headers) if headers else ())]
        if headers and "BCC" in headers:  # blind copies: the header is removed
            headers = {name: value for name, value in headers.items() if name != "BCC"}
            properties = {**properties, "headers": headers}
        if headers and self.declaration.type == DELAYED:
            from warren.actors.engines.declared.exchanges import has_waited

            properties = {**properties, "headers": has_waited(headers)}
        return publish_key(self.declaration.vhost, self.declaration.name, keys, properties)

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
        headers = properties.get("headers")
        if headers and delays(self.declaration, headers):
            find = self._delayed(headers, properties)
        else:
            find = partial(self.route, routing_key, headers, key.envelope.properties)
            remember(self.node, key, bodies)
        is_random = self.node.vhost(self.declaration.vhost).definitions.routing.is_random
        confirms: list[Future] = []
        for part in [[body] for body in bodies] if is_random else [bodies]:
            confirm: Confirm | None = yield publishing(self.node, find, key, part, block=block, timeout=timeout)
            if confirm is None:
                confirm = settled_confirm(unroutable(self.declaration, routing_key) if mandatory else None)
            confirms.append(confirm)
        return cast(Confirm, confirms[0]) if len(confirms) == 1 else CountDown(confirms)

    def _delayed(self, headers: Mapping[str, Any], properties: PublishArguments) -> Callable[[], list[Receiver]]:
        """Return what keeps a message that the exchange delays."""
        from warren.actors.engines.declared.exchanges import delay_of

        delay_ms = delay_of(headers) or 0
        message_id = properties.get("message_id")
        ids = [message_id.encode("utf-8", "surrogateescape")] if message_id else []

        def find() -> list[Receiver]:
            vhost = self.node.vhost(self.declaration.vhost)
            vhost.definitions.exchange(self.declaration.name)
            return [vhost.delayed().receiver(None, self.declaration.name, self.node.now_ms() + delay_ms, ids)]

        return find

    def publish_later(
        self, routing_key: str, bodies: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[list[Confirm]]:
        name = self.declaration.name
        key = self.new_key(routing_key, schedule.properties)

        def find() -> list[Receiver]:
            vhost = self.node.vhost(self.declaration.vhost)
            vhost.definitions.exchange(name)  # raises if it was deleted
            return [vhost.delayed().receiver(routing_key, name, schedule.due_ms, schedule.encoded_ids)]

        return [(yield publishing(self.node, find, key, bodies, block=block, timeout=timeout))]

    def publish_group(self, group: AsTheyWere) -> Steps[Confirm | WarrenError]:
        key, headers = group.key(self.declaration.vhost), decode_properties(group.properties).headers
        routing_key = group.routing_keys[0].decode("utf-8", "surrogateescape")
        confirm: Confirm | None = yield publishing(
            self.node,
            partial(self.route, routing_key, headers, key.envelope.properties),
            key,
            group.bodies,
            timeout=PATIENCE_S,
        )
        return unroutable(self.declaration, routing_key) if confirm is None else confirm

    def route(self, routing_key: str, headers: Mapping[str, Any] | None, properties: bytes = b"") -> list[Receiver]:
        """Return the queues that such a message currently goes to. ``properties``: encoded."""
        vhost = self.node.vhost(self.declaration.vhost)
        keys = (routing_key, *carbon_copies(headers)) if headers else (routing_key,)
        names = vhost.definitions.routing.route_all(self.declaration.name, keys, headers, properties)
        receivers: list[Receiver] = [
            entry.actor.intake for name in names if (entry := vhost.queues.get(name)) is not None
        ]
        return [*receivers, *self.node.streams(vhost.name, names)] if len(receivers) < len(names) else receivers


class ExchangeHandle(NamedHandle[ExchangeVerbs]):
    """The properties of an exchange that need no request."""

    made_by = "node.exchange(name)"

    def _identity(self) -> tuple[object, str, str]:
        return self._verbs.host.host.identity, self._verbs.host.declaration.vhost, self.name

    @property
    def name(self) -> str:
        return self._verbs.host.declaration.name

    @property
    def type(self) -> str:
        """Such as "direct", "fanout", "topic" or "headers"."""
        return self._verbs.host.declaration.type
