"""Moving messages from wherever they stand in a queue to another queue or an exchange.

A message is moved as dead letters are: the queue keeps it as unacked until it is safe at its target. A crash on the
way may leave it in both places, but never loses it. If the target queue refuses it, it goes back to its old place and
the move ends.

*Home* is where a dead letter came from: the queue that it died in, with the exchange and routing key that it had there;
if that queue no longer exists, wherever that exchange and key lead. It goes back as it was, without ``x-death`` and the
other headers about its death.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.engines.queue.dead_letters import DEATHS, FIRST_DEATH
from warren.actors.engines.queue.effects import Delivered
from warren.actors.queue.inspecting import chosen_ids
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm
from warren.handles.channel import Channel
from warren.hosting.running_node import RunningNode
from warren.queue_index.message.contents import Content, contents_of
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, content_of
from warren.queue_index.properties import Properties, decode_properties
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.addressing import address
from warren.verbs.exchange_verbs import LocalExchange, UnroutableError
from warren.verbs.publishing import Receiver, publishing
from warren.verbs.selecting import Done, Target
from warren.verbs.steps import Steps, call

PATIENCE_S: Final = 30.0
"""The longest wait for room where messages go."""
_UNSEEN: Final = 0
"""No message of the channel was seen by a consumer, so requeueing one does not count as a delivery."""
_numbers = itertools.count(1)


@attrs.frozen
class _Route:
    """Where messages go."""

    key: PublishKey
    find: Callable[[], list[Receiver]]

    @property
    def _shared(self) -> tuple[Any, ...]:
        """The values that messages must share to be handed over together; other properties may differ."""
        envelope = self.key.envelope
        shared = self.key.expiration_ms, self.key.priority, envelope.persistent
        return envelope.exchange, envelope.routing_keys, shared, self.find()

    def joins(self, other: _Route) -> bool:
        """Whether messages take the same route as others, to queues that take all that come together, or none."""
        shared = self._shared
        return shared == other._shared and all(
            isinstance(queue, QueueIntake) and queue.coalesces for queue in shared[-1]
        )


@attrs.define(eq=False)
class _Parcel:
    """Messages that are handed over together: the encoded properties and bodies of each content, and their tags."""

    route: _Route
    tags: list[range]
    contents: list[tuple[bytes, Sequence[bytes]]]

    @property
    def given(self) -> tuple[PublishKey, list[bytes]]:
        """Return them in the form that a queue takes."""
        if len(self.contents) == 1:
            return self.route.key, [*self.contents[0][1]]
        key = self.route.key
        envelope = attrs.evolve(key.envelope, properties=b"", of_contents=True)
        given = [content_of(properties, body) for properties, bodies in self.contents for body in bodies]
        return PublishKey(envelope, key.expiration_ms, key.priority), given


def take(channel: Channel, chosen: dict[int, dict[int, bytes]]) -> Steps[list[Delivered]]:
    """Take the messages that are ready, through a channel. Interrupted or cancelled, it takes none."""
    actor = channel.actor
    taken = call(actor, lambda: actor.queue_turn.take(channel.name, chosen))
    try:
        batches: list[Delivered] = yield taken
    except BaseException:
        taken.on_done(channel.give_back)
        raise
    return batches


@attrs.frozen
class Move:
    """A move of messages from a queue to a target."""

    _node: RunningNode
    _queue: QueueEntry
    _to: Target

    def move(self, ids: list[str]) -> Steps[Done]:
        """Move the messages that are ready. Raises an error that concerns all of them before any is touched."""
        self._check()
        chosen = chosen_ids(ids)
        if not chosen:
            return 0, ""
        channel = Channel(self._queue.actor, f"move-{next(_numbers)}")
        batches = yield from take(channel, chosen)
        sent: list[tuple[list[range], Confirm]] = []
        moved, why = 0, ""
        try:
            try:
                for parcel in self._parcels(batches):
                    key, given = parcel.given
                    confirm: Confirm | None = yield publishing(
                        self._node, parcel.route.find, key, given, timeout=PATIENCE_S
                    )
                    if confirm is None:
                        raise _unroutable(key)
                    sent.append((parcel.tags, confirm))
            except WarrenError as error:
                why = str(error)
            while sent:
                tags, confirm = sent[0]
                try:
                    yield confirm
                except WarrenError as error:
                    why = why or str(error)
                else:
                    channel.settle_ranges("ack", tags)
                    moved += sum(map(len, tags))
                del sent[0]
        except BaseException:
            _finish_later(channel, sent)
            raise
        yield from channel.shut(_UNSEEN)
        return moved, why

    def _check(self) -> None:
        if self._to is None:
            return
        exchange, name = self._to
        declaration = self._queue.declaration
        if exchange:
            self._node.vhost(declaration.vhost).definitions.exchange(exchange)
        elif name == declaration.name:
            raise ArgumentsError("a queue's messages are moved to another one")
        elif not self._receivers(name):
            raise NotFoundError(f"no queue '{name}' in vhost '{declaration.vhost}'")

    def _parcels(self, batches: list[Delivered]) -> Iterator[_Parcel]:
        """Group messages by their routes, in order, without those that stay or cannot be read."""
        last: _Parcel | None = None
        for tags, content in _contents(batches):
            route = self._route(content)
            if route is None:
                continue
            properties = route.key.envelope.properties
            small = all(len(body) <= MAX_FRAGMENT_BYTES for body in content.bodies)
            if last is not None and small and route.joins(last.route):
                last.tags.append(tags)
                last.contents.append((properties, content.bodies))
                continue
            if last is not None:
                yield last
                last = None
            if small and route.joins(route):
                last = _Parcel(route, [tags], [(properties, content.bodies)])
            else:
                for tag, body in zip(tags, content.bodies, strict=True):
                    yield _Parcel(route, [range(tag, tag + 1)], [(properties, [body])])
        if last is not None:
            yield last

    def _route(self, content: Content) -> _Route | None:
        """Return where a message goes. ``None``: it stays, as its origin is unknown or gone, or it cannot be read."""
        try:
            properties = decode_properties(content.properties[0])
        except MessageError:
            return None
        if self._to is None:
            return self._route_home(properties)
        exchange, routing_key = self._to
        if exchange:
            return self._route_through(exchange, routing_key, properties, content.properties[0])
        key = address(self._queue.declaration.vhost, "", routing_key, properties, content.properties[0])[0]
        return _Route(key, lambda: self._receivers(routing_key))

    def _route_through(
        self, exchange: str, routing_key: str, properties: Properties, encoded: bytes | None = None
    ) -> _Route:
        vhost = self._queue.declaration.vhost
        key, _, headers = address(vhost, exchange, routing_key, properties, encoded)
        through = LocalExchange(self._node, self._node.vhost(vhost).definitions.exchange(exchange))
        return _Route(key, lambda: through.route(routing_key, headers, key.envelope.properties))

    def _route_home(self, properties: Properties) -> _Route | None:
        headers = dict(properties.headers or {})
        deaths = headers.get(DEATHS)
        death = deaths[0] if isinstance(deaths, list) and deaths else None
        if not isinstance(death, Mapping) or not death.get("queue"):
            return None
        for name in (DEATHS, *FIRST_DEATH):
            headers.pop(name, None)
        properties = attrs.evolve(properties, headers=headers or None)
        queue, exchange = _text(death["queue"]), _text(death.get("exchange", ""))
        keys = death.get("routing-keys")
        routing_key = _text(keys[0]) if isinstance(keys, list) and keys else queue
        declaration = self._queue.declaration
        if self._receivers(queue) and queue != declaration.name:
            key = address(declaration.vhost, exchange, routing_key, properties)[0]
            return _Route(key, lambda: self._receivers(queue))
        if not exchange or not self._node.vhost(declaration.vhost).definitions.has("exchange", exchange):
            return None
        route = self._route_through(exchange, routing_key, properties)
        return route if route.find() else None

    def _receivers(self, name: str) -> list[Receiver]:
        """Return the queue or stream with that name, if there is one."""
        vhost = self._node.vhost(self._queue.declaration.vhost)
        entry = vhost.queues.get(name)
        return [*self._node.streams(vhost.name, [name])] if entry is None else [entry.actor.intake]


def _contents(batches: list[Delivered]) -> Iterator[tuple[range, Content]]:
    """Group messages that differ only in their bodies, with their tags, without those that cannot be read."""
    for delivered in batches:
        tag = delivered.first_tag
        for content in contents_of(delivered.fetched):
            for alike in () if content is None else content.alike():
                count = len(alike.bodies)
                yield range(tag, tag + count), alike
                tag += count
            tag += content is None


def _finish_later(channel: Channel, sent: list[tuple[list[range], Confirm]]) -> None:
    """Ack the messages that get safe, then close the channel, which requeues the rest. Waits for nothing."""
    left = [confirm for _, confirm in sent]

    def close() -> None:
        if channel.alive:
            actor = channel.actor
            actor.call_soon(lambda: actor.consumers.close_channel(channel.name, _UNSEEN))

    def settle(tags: list[range], confirm: Any) -> None:
        if channel.alive and confirm.error is None:
            channel.settle_ranges("ack", tags)
        left.pop()
        if not left:
            close()

    for tags, confirm in sent:
        confirm.on_done(functools.partial(settle, tags))
    if not sent:
        close()


def _unroutable(key: PublishKey) -> UnroutableError:
    routing_key, exchange = _text(key.envelope.routing_keys[0]), _text(key.envelope.exchange)
    return UnroutableError(f"no queue for routing key '{routing_key}' of exchange '{exchange}'")


def _text(value: object) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
