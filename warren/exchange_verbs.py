"""What can be asked of an exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from warren.actors.engines.exchanges import ExchangeDeclaration
from warren.actors.engines.routing import carbon_copies
from warren.actors.future import Confirm
from warren.actors.handing_over import PublishKey, PublishRefusedError
from warren.messages import PublishArguments, as_bodies, publish_key
from warren.publishing import AsTheyWere, Receiver, outcomes_of, publishing, settled_confirm
from warren.queue_index.properties import decode_properties
from warren.running_node import RunningNode
from warren.steps import Handle, Steps
from warren.storage.errors import MessageError, WarrenError

_CACHED_KEYS = 256


class UnroutableError(WarrenError):
    """A mandatory message that no queue would have got: it was returned."""


class ExchangeVerbs:
    """The verbs of one exchange."""

    def __init__(self, node: RunningNode, declaration: ExchangeDeclaration) -> None:
        self.node = node
        self.declaration = declaration
        self._keys: dict[str, PublishKey] = {}

    def __str__(self) -> str:
        return f"{self.declaration.name!r} ({self.declaration.type})"

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
        """Publish a message to the queues that its key or its headers lead to; one that leads nowhere is dropped.

        ``mandatory``: one that leads nowhere comes back as an :class:`UnroutableError` of the confirm. ``block`` and
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
        key, found = self._key(routing_key, properties), as_bodies(bodies)
        if not found:
            return settled_confirm()
        headers = properties.get("headers")
        confirm: Confirm | None = yield publishing(
            self.node, lambda: self.route(routing_key, headers), key, found, block=block, timeout=timeout
        )
        if confirm is not None:
            return confirm
        return settled_confirm(self._unroutable(routing_key) if mandatory else None)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        """As a queue's verb of that name does; the exchange is this one, and a group that leads nowhere is refused."""
        confirms: list[Confirm | WarrenError] = []
        for group in groups:
            try:
                key, headers = group.key(self.declaration.vhost), decode_properties(group.properties).headers
                routing_key = group.routing_keys[0].decode("utf-8", "surrogateescape")
                confirm: Confirm | None = yield publishing(
                    self.node, partial(self.route, routing_key, headers), key, group.bodies
                )
                confirms.append(self._unroutable(routing_key) if confirm is None else confirm)
            except (MessageError, PublishRefusedError) as error:
                confirms.append(error)
        return (yield from outcomes_of(confirms))

    def _unroutable(self, routing_key: str) -> UnroutableError:
        return UnroutableError(f"no queue for routing key '{routing_key}' of exchange '{self.declaration.name}'")

    def route(self, routing_key: str, headers: Mapping[str, Any] | None) -> list[Receiver]:
        """The queues that such a message goes to now."""
        self.node.check_process()
        vhost = self.node.vhost(self.declaration.vhost)
        keys = (routing_key, *carbon_copies(headers)) if headers else (routing_key,)
        names = vhost.definitions.routing.route_all(self.declaration.name, keys, headers)
        found: list[Receiver] = [entry.actor for name in names if (entry := vhost.queues.get(name)) is not None]
        return [*found, *self.node.streams(vhost.name, names)] if len(found) < len(names) else found

    def _key(self, routing_key: str, properties: PublishArguments) -> PublishKey:
        """What goes around the bodies."""
        if properties:
            return self._new_key(routing_key, properties)
        key = self._keys.get(routing_key)
        if key is None:
            if len(self._keys) >= _CACHED_KEYS:
                self._keys.clear()
            key = self._keys[routing_key] = self._new_key(routing_key, {})
        return key

    def _new_key(self, routing_key: str, properties: PublishArguments) -> PublishKey:
        headers = properties.get("headers")
        keys = [routing_key, *(carbon_copies(headers) if headers else ())]
        if headers and "BCC" in headers:  # a blind copy is blind: the header goes
            properties = {**properties, "headers": {name: one for name, one in headers.items() if name != "BCC"}}
        return publish_key(self.declaration.vhost, self.declaration.name, keys, properties)


class ExchangeHandle(Handle[ExchangeVerbs]):
    """What is known of an exchange without asking anybody."""

    @property
    def name(self) -> str:
        return self._verbs.declaration.name

    @property
    def type(self) -> str:
        """ "direct", "fanout", "topic" or "headers"."""
        return self._verbs.declaration.type
