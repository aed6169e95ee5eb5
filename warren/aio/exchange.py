"""Exchange: the one of :mod:`warren.exchange`, for coroutines."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Unpack

from actors import future
from actors.engines.exchanges import ExchangeDeclaration
from actors.queue_actor import QueueActor
from warren import exchange
from warren.aio.publishing import Confirm, admitted, admitted_now, safe
from warren.exchange import give, nowhere, size_of
from warren.messages import PublishArguments, as_bodies, as_body
from warren.node import Node


class Exchange:
    """One exchange."""

    def __init__(self, node: Node, declaration: ExchangeDeclaration) -> None:
        self._node = node
        self.plain = exchange.Exchange(node, declaration)
        """The same exchange, for threads."""

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def type(self) -> str:
        """ "direct", "fanout", "topic" or "headers"."""
        return self.plain.type

    def __repr__(self) -> str:
        return f"<warren.aio.Exchange {self.name!r} ({self.type})>"

    async def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> None:
        """Publish a message to the queues that its key or its headers lead to; come back when it is safe in all.

        One that leads nowhere is dropped; with ``mandatory`` it raises :class:`UnroutableError`. Waits for room first,
        at most ``timeout`` seconds, as a queue's publish does: nothing was taken where it raises
        :class:`BlockedError`.
        """
        await self.publish_many([as_body(body)], routing_key, mandatory=mandatory, timeout=timeout, **properties)

    async def publish_many(
        self,
        bodies: Iterable[bytes],
        routing_key: str = "",
        *,
        mandatory: bool = False,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> None:
        """Publish messages with the same key and properties, and come back when all are safe."""
        key, found = self.plain.key(routing_key, properties), as_bodies(bodies)
        if not found:
            await safe(self._nowhere(routing_key, mandatory=False))
            return
        actors, reserved_bytes = await admitted(
            lambda: self._route(routing_key, properties), lambda actors: size_of(actors, key, found), timeout
        )
        if actors:
            await safe(give(self._node, actors, key, found, reserved_bytes, here=False))
        else:
            await safe(self._nowhere(routing_key, mandatory=mandatory))

    def publish_nowait(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        mandatory: bool = False,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        key, bodies = self.plain.key(routing_key, properties), [as_body(body)]
        actors = self._route(routing_key, properties)
        if actors:
            to_all = functools.partial(give, self._node, actors, key, bodies, here=False)
            return Confirm(admitted_now(actors, size_of(actors, key, bodies), to_all))
        return Confirm(self._nowhere(routing_key, mandatory=mandatory))

    def _route(self, routing_key: str, properties: PublishArguments) -> list[QueueActor]:
        return [cell.actor for cell in self.plain.route(routing_key, properties.get("headers"))]

    def _nowhere(self, routing_key: str, *, mandatory: bool) -> future.Confirm:
        return nowhere(self.plain, routing_key, mandatory)
