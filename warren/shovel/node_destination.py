"""An open node as a shovel's destination.

It is filled through its own verbs, as if the messages were published. So they count towards its limits, enter the
levels of a priority queue and wake consumers; times to live start again. Messages keep their exchange, keys and encoded
properties. *Into the queue* (the default): a message goes into the queue of its name, which is declared durable if it
is missing; if that is a stream, it is appended to the stream's topic. *As published*: it goes to its exchange with its
key, and the node's bindings decide; an unroutable message is refused.

Messages are held until the pump asks for outcomes. Those that differ only in their bodies are published together, and
all of them are safe before any is reported as safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import attrs

from warren.actors.engines.errors import NotFoundError, PreconditionFailedError
from warren.actors.node.node_context import BlockedError
from warren.handles.node import Node, Vhost
from warren.salvage.names import from_text, to_text
from warren.shovel.letter import Letter
from warren.shovel.places import HeldLetters, Intake
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.exchange_verbs import ExchangeVerbs
from warren.verbs.publishing import PATIENCE_S, AsTheyWere
from warren.verbs.queue_verbs import QueueVerbs
from warren.verbs.steps import run

if TYPE_CHECKING:
    from warren.handles.topic import Topic
    from warren.verbs.topics.topic_append import AppendManyConfirm

Publish = Callable[[Sequence[AsTheyWere]], "Sequence[str | None]"]
"""Publishes groups of messages; of each why it was refused, or ``None``."""


@attrs.define
class NodeDestination:
    """An open node."""

    _node: Node
    as_published: bool = False
    _vhosts: dict[str, Vhost] = attrs.field(factory=dict)
    _topics: dict[bytes, dict[bytes, str]] = attrs.field(factory=dict)
    """Of the streams of each vhost."""

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        home = self._vhost(to_text(vhost))
        if self.as_published:
            exchanges = _Exchanges(home)
            return HeldLetters(
                lambda letters: _outcomes(letters, exchanges.publish, lambda letter: letter.routing_keys)
            )
        try:
            publish: Publish = partial(_publish, home.queue(to_text(name))._verbs)
        except PreconditionFailedError:
            if (topic := self.topic_of(vhost, name)) is None:
                raise
            publish = partial(_append, self._node.topic(topic), to_text(vhost))
        return HeldLetters(
            lambda letters: _outcomes(letters, publish, lambda letter: letter.keys_at(source_name, name))
        )

    def topic_of(self, vhost: bytes, name: bytes) -> str | None:
        """Return the topic of a stream; ``None`` if there is no stream of this name."""
        if vhost not in self._topics:
            streams = self._node.stats()["vhosts"].get(to_text(vhost), {}).get("streams", {})
            self._topics[vhost] = {from_text(stream): row["topic"] for stream, row in streams.items()}
        return self._topics[vhost].get(name)

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
            self._publishers[exchange] = partial(_publish, self._vhost.exchange(to_text(exchange))._verbs)
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


def _publish(verbs: QueueVerbs | ExchangeVerbs, groups: Sequence[AsTheyWere]) -> Sequence[str | None]:
    return run(verbs.publish_as_they_were(groups))


def _append(topic: Topic, vhost: str, groups: Sequence[AsTheyWere]) -> Sequence[str | None]:
    """Append messages to a stream's topic, encoded as the stream does it."""
    from warren.actors.topics.streams import around_body
    from warren.msg_store.commit_log.commit_log_format import decode_properties

    confirms: list[AppendManyConfirm | WarrenError] = []
    for group in groups:
        try:
            around, ahead = around_body(group.key(vhost).envelope)
            bodies = [ahead + body for body in group.bodies]
            fields = decode_properties(around)
            confirms.append(topic.append_many(bodies, queue=0, properties=fields, timeout=PATIENCE_S))
        except (MessageError, BlockedError) as error:
            confirms.append(error)
    return [_outcome(confirm) for confirm in confirms]


def _outcome(confirm: AppendManyConfirm | WarrenError) -> str | None:
    try:
        if isinstance(confirm, WarrenError):
            raise confirm
        confirm.wait()
    except WarrenError as error:
        return str(error)
    return None
