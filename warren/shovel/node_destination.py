"""A node's directory that is filled through the node's own verbs, as if the messages were published.

So they count towards its limits, enter the levels of a priority queue and wake consumers; times to live start again.
Messages keep their exchange, keys and encoded properties. *Into the queue* (the default): a message goes into the queue
of its name, which is declared durable if it is missing. *As published*: it goes to its exchange with its key, and the
node's bindings decide; an unroutable message is refused.

Messages are held until the pump asks for outcomes. Those that differ only in their bodies are published together, and
all of them are safe before any is reported as safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import attrs

from warren.actors.engines.errors import NotFoundError
from warren.handles.node import Node, Vhost
from warren.salvage.names import to_text
from warren.shovel.letter import Letter
from warren.shovel.places import HeldLetters, Intake
from warren.verbs.publishing import AsTheyWere
from warren.verbs.steps import run

Publish = Callable[[Sequence[AsTheyWere]], "Sequence[str | None]"]
"""Publishes groups of messages; of each why it was refused, or ``None``."""


@attrs.define
class NodeDestination:
    """An open node."""

    _node: Node
    as_published: bool = False
    _vhosts: dict[str, Vhost] = attrs.field(factory=dict)

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        home = self._vhost(to_text(vhost))
        if self.as_published:
            exchanges = _Exchanges(home)
            return HeldLetters(
                lambda letters: _outcomes(letters, exchanges.publish, lambda letter: letter.routing_keys)
            )
        verbs = home.queue(to_text(name))._verbs

        def publish(groups: Sequence[AsTheyWere]) -> Sequence[str | None]:
            return run(verbs.publish_as_they_were(groups))

        return HeldLetters(
            lambda letters: _outcomes(letters, publish, lambda letter: letter.keys_at(source_name, name))
        )

    def _vhost(self, name: str) -> Vhost:
        if name not in self._vhosts:
            self._vhosts[name] = self._node if name == "/" else self._node.vhost(name)
        return self._vhosts[name]


@attrs.define
class _Exchanges:
    """The exchanges of a vhost."""

    _vhost: Vhost
    _publishers: dict[bytes, Publish] = attrs.field(factory=dict)

    def publish(self, groups: Sequence[AsTheyWere]) -> Sequence[str | None]:
        outcomes: list[str | None] = []
        for exchange, group_iterator in groupby(groups, key=lambda group: group.exchange):
            exchange_groups = list(group_iterator)
            try:
                outcomes += self._publisher(exchange)(exchange_groups)
            except NotFoundError as error:
                outcomes += [str(error)] * len(exchange_groups)
        return outcomes

    def _publisher(self, exchange: bytes) -> Publish:
        if exchange not in self._publishers:
            verbs = self._vhost.exchange(to_text(exchange))._verbs
            self._publishers[exchange] = lambda groups: run(verbs.publish_as_they_were(groups))
        return self._publishers[exchange]


def _outcomes(
    letters: Sequence[Letter], publish: Publish, routing_keys: Callable[[Letter], tuple[bytes, ...]]
) -> list[str | None]:
    """Publish letters that differ only in their bodies together; return why each was refused, or ``None``."""

    def address(letter: Letter) -> tuple[bytes, tuple[bytes, ...], bytes]:
        return letter.exchange, routing_keys(letter), letter.properties

    groups = [
        AsTheyWere(exchange, keys, properties, [letter.body for letter in group])
        for (exchange, keys, properties), group in groupby(letters, key=address)
    ]
    refusals = zip(groups, publish(groups), strict=True)
    return [refusal for group, refusal in refusals for _ in group.bodies]
