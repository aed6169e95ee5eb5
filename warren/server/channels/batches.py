"""Batches: messages that came together, divided into those that are handed to their queues together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import attrs
from pamqp import commands as c

from warren.actors.engines.declared.exchanges import ExchangeDeclaration
from warren.actors.queue.intake import PublishKey
from warren.queue_index.message.message_format import body_at_in, properties_in
from warren.storage.errors import WarrenError
from warren.verbs.addressing import Delay
from warren.verbs.publishing import Receiver


@attrs.frozen(eq=False)
class Address:
    """The envelope of messages to one exchange and key, and the keys that they are routed by."""

    key: PublishKey
    routing_keys: tuple[str, ...]
    headers: dict[str, Any] | None
    checked: ExchangeDeclaration
    """The exchange as it was when the user's right was checked."""
    asks: bool = False
    """Whether the message asks for a direct reply."""
    delay: Delay | None = None
    """When it is due; ``None``: now."""


class Route(NamedTuple):
    """Where messages go."""

    receivers: Sequence[Receiver]
    down: WarrenError | None = None
    """Why a queue that should get them cannot, if one is down."""
    names: Sequence[str] = ()
    """The names of the queues."""

    @property
    def coalesces(self) -> bool:
        """Whether all receivers take messages that come together, or none of them."""
        return all(receiver.coalesces for receiver in self.receivers)


class Batch:
    """Messages with the same method and address."""

    __slots__ = ("address", "given", "method", "numbers", "route")

    def __init__(self, method: c.Basic.Publish, address: Address, route: Route) -> None:
        self.method = method
        self.address = address
        self.route = route
        self.given: list[bytes] = []
        """Their bodies, or their contents if the address is one of contents."""
        self.numbers: list[int] = []
        """The numbers under which they are confirmed: each that of a run of messages. None: they are not."""

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield properties and body of each message."""
        envelope = self.address.key.envelope
        for given in self.given:
            if envelope.of_contents:
                yield properties_in(given), given[body_at_in(given) :]
            else:
                yield envelope.properties, given


class Batches:
    """The batches of one event. Each receiver gets its messages in the order in which they were published."""

    __slots__ = ("_last", "_open", "in_order", "routes")

    def __init__(self) -> None:
        self.in_order: list[Batch] = []
        """As they are to be handed over."""
        self.routes: dict[Address, Route] = {}
        """The addresses that were looked up."""
        self._open: dict[tuple[int, Address], Batch] = {}
        """The last batch of each method and address."""
        self._last: dict[int, Batch] = {}
        """The last batch of each receiver, by the receiver's identity."""

    def batch_for(self, method: c.Basic.Publish, address: Address, route: Route) -> Batch:
        """Return the batch that the next message joins: none that other messages to one of its receivers follow."""
        batch = self._open.get((id(method), address))
        receivers = route.receivers
        if (
            batch is None
            or (batch.route is not route and [*batch.route.receivers] != [*receivers])  # of a random exchange
            or any(self._last.get(id(receiver)) is not batch for receiver in receivers)
        ):
            batch = Batch(method, address, route)
            self.in_order.append(batch)
            self._open[id(method), address] = batch
            for receiver in receivers:
                self._last[id(receiver)] = batch
        return batch
