"""Exchange: where messages are published that are routed by their key or their headers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from actors.door import admit
from actors.engines.exchanges import ExchangeDeclaration
from actors.engines.routing import carbon_copies
from actors.future import Confirm, CountDown, Future
from actors.handing_over import PublishKey
from actors.queue_actor import QueueActor
from actors.running_vhost import QueueCell
from storage.errors import WarrenError
from warren.messages import PublishArguments, as_bodies, as_body, publish_key
from warren.process_bound import ProcessBound

if TYPE_CHECKING:
    from warren.node import Node

_CACHED_KEYS = 256


class UnroutableError(WarrenError):
    """A mandatory message that no queue would have got: it was returned."""


class Exchange(ProcessBound):
    """One exchange."""

    def __init__(self, node: Node, declaration: ExchangeDeclaration) -> None:
        self._node = node
        self._declaration = declaration
        self._keys: dict[str, PublishKey] = {}

    @property
    def name(self) -> str:
        return self._declaration.name

    @property
    def type(self) -> str:
        """ "direct", "fanout", "topic" or "headers"."""
        return self._declaration.type

    def __repr__(self) -> str:
        return f"<warren.Exchange {self.name!r} ({self.type})>"

    def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Publish a message to the queues that its key or its headers lead to; one that leads nowhere is dropped.

        ``mandatory``: one that leads nowhere comes back as an :class:`UnroutableError` of the confirm.
        """
        key = self.key(routing_key, properties)
        cells = self.route(routing_key, properties.get("headers"))
        if not cells:
            return nowhere(self, routing_key, mandatory)
        return hand_over(self._node, cells, key, [as_body(body)], block=block, timeout=timeout)

    def publish_many(
        self,
        bodies: Iterable[bytes],
        routing_key: str = "",
        *,
        mandatory: bool = False,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Publish messages with the same key and properties, with one confirm for all."""
        key = self.key(routing_key, properties)
        cells = self.route(routing_key, properties.get("headers"))
        found = as_bodies(bodies)
        if not cells or not found:
            return nowhere(self, routing_key, mandatory and bool(found))
        return hand_over(self._node, cells, key, found, block=block, timeout=timeout)

    def route(self, routing_key: str, headers: Mapping[str, Any] | None) -> list[QueueCell]:
        """The queues that such a message goes to now."""
        self._node.check_process()
        vhost = self._node.actor.vhost(self._declaration.vhost)
        keys = (routing_key, *carbon_copies(headers)) if headers else (routing_key,)
        names = vhost.definitions.routing.route_all(self.name, keys, headers)
        return [cell for name in names if (cell := vhost.cells.get(name)) is not None]

    def key(self, routing_key: str, properties: PublishArguments) -> PublishKey:
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
        return publish_key(_bytes(self._declaration.vhost), _bytes(self.name), tuple(map(_bytes, keys)), properties)


def hand_over(
    node: Node, cells: Sequence[QueueCell], key: PublishKey, bodies: list[bytes], *, block: bool, timeout: float | None
) -> Confirm:
    """Give the same messages to each of the queues, under the same ids."""
    actors = [cell.actor for cell in cells]
    if not actors:
        return CountDown([])
    to_all = functools.partial(give, node, actors, key, bodies)
    return admit(actors, size_of(actors, key, bodies), to_all, block=block, timeout=timeout)


def size_of(actors: Sequence[QueueActor], key: PublishKey, bodies: Sequence[bytes]) -> int:
    """What messages take on their way to queues: each encodes them for itself."""
    return len(actors) * key.size_bytes(bodies)


def give(
    node: Node,
    actors: Sequence[QueueActor],
    key: PublishKey,
    bodies: list[bytes],
    reserved_bytes: int,
    *,
    here: bool = True,
) -> Confirm:
    """:func:`hand_over` to those that have room. ``here``: whether this thread may do the queues' work."""
    if len(actors) == 1:
        [actor] = actors
        if len(bodies) == 1:
            return actor.publish(key, bodies[0], reserved_bytes, here=here)
        return actor.publish_many(key, bodies, reserved_bytes, here=here)
    msg_ids = node.new_msg_ids(len(bodies))
    parts: list[Future] = []
    each_bytes = reserved_bytes // max(len(actors), 1)
    try:
        for actor in actors:
            reserved_bytes -= each_bytes
            parts.append(actor.publish_many(key, bodies, each_bytes, msg_ids=msg_ids, here=here))
    except BaseException:
        node.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
        raise
    return CountDown(parts)


def nowhere(exchange: Exchange, routing_key: str, mandatory: bool) -> Confirm:
    """The confirm of a message that no queue gets."""
    confirm = Confirm()
    if mandatory:
        confirm.fail(UnroutableError(f"no queue for routing key '{routing_key}' of exchange '{exchange.name}'"))
    else:
        confirm.set()
    return confirm


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
