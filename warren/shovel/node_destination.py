"""A node's directory that is filled through the node's own verbs, as if the messages were published.

So they count towards its limits, enter the levels of a priority queue and wake consumers; times to live start again.
Messages keep their exchange, keys and encoded properties. *Into the queue* (the default): a message goes into the queue
of its name, which is declared durable if it is missing. *As published*: it goes to its exchange with its key, and the
node's bindings decide; an unroutable message is refused.

Messages are held until the pump asks for outcomes. Those that differ only in their bodies are published together, and
all of them are safe before any is reported as safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import attrs

from warren.actors.engines.errors import NotFoundError
from warren.handles.node import Node, Vhost
from warren.salvage.names import to_text
from warren.shovel.letter import Letter
from warren.shovel.places import Intake, Outcome
from warren.verbs.publishing import AsTheyWere
from warren.verbs.steps import run

HELD: Final = 256
HELD_BYTES: Final = 4 << 20
"""Letters that are published together: up to this many, or about this many bytes."""

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
            return _Intake(_Exchanges(home).publish, lambda letter: letter.routing_keys)
        verbs = home.queue(to_text(name))._verbs

        def keys(letter: Letter) -> tuple[bytes, ...]:
            """The default exchange's are names of queues, and follow a queue that is renamed."""
            if not letter.exchange and letter.routing_keys[0] == source_name:
                return (name, *letter.routing_keys[1:])
            return letter.routing_keys

        return _Intake(lambda groups: run(verbs.publish_as_they_were(groups)), keys)

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


@attrs.define(eq=False)
class _Intake:
    """One queue, or what leads to queues."""

    _publish: Publish
    _routing_keys: Callable[[Letter], tuple[bytes, ...]]
    _held: list[Letter] = attrs.field(factory=list)
    _held_bytes: int = 0
    _numbered: int = 0
    _settled: int = 0
    renamed_exchanges: int = 0

    def put(self, letter: Letter) -> int:
        self._held.append(letter)
        self._held_bytes += len(letter.body)
        self._numbered += 1
        return self._numbered

    def work(self, *, wait: bool) -> list[Outcome]:
        if not self._held or (not wait and len(self._held) < HELD and self._held_bytes < HELD_BYTES):
            return []
        letters, self._held, self._held_bytes = self._held, [], 0
        outcomes = []
        groups = list(self._grouped(letters))
        for group, refusal in zip(groups, self._publish(groups), strict=True):
            for _ in group.bodies:
                self._settled += 1
                outcomes.append(Outcome(self._settled, refusal))
        return outcomes

    def _grouped(self, letters: Iterable[Letter]) -> Iterator[AsTheyWere]:
        def address(letter: Letter) -> tuple[bytes, tuple[bytes, ...], bytes]:
            return letter.exchange, self._routing_keys(letter), letter.properties

        for (exchange, keys, properties), of_group in groupby(letters, key=address):
            yield AsTheyWere(exchange, keys, properties, [letter.body for letter in of_group])

    def close(self) -> None:
        """Drop messages whose outcome was not requested: they are still at the source."""
