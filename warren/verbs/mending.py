"""Mending: taking messages out of a queue from wherever they stand, to delete them or to move them elsewhere.

A *walk* goes through a queue page by page, chooses messages, and processes those chosen in a page before it goes on, so
it takes the memory of one page. It ignores messages that arrive after it began: a message that died again could go
round for ever. It also leaves messages that consumers have.

A message is *moved* as dead letters are: the queue keeps it as unacked until it is safe at its target. A crash on the
way may leave it in both places, but never loses it. If the target queue refuses it, it goes back to its old place and
the walk ends.

*Home* is where a dead letter came from: the queue that it died in, with the exchange and routing key that it had there;
if that queue no longer exists, wherever that exchange and key lead. It goes back as it was, without ``x-death`` and the
other headers about its death.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.engines.queue.dead_letters import DEATHS, FIRST_DEATH
from warren.actors.engines.queue.effects import Delivered
from warren.actors.queue.inspecting import wanted_of
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.future import Confirm
from warren.handles.channel import Channel
from warren.queue_index.message.contents import Content, contents_of
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, content_of
from warren.queue_index.properties import Properties, decode_properties
from warren.storage.errors import InvalidValueError, MessageError, WarrenError
from warren.verbs.addressing import address
from warren.verbs.exchange_verbs import ExchangeVerbs, UnroutableError
from warren.verbs.mending_verbs import MendingVerbs, Place, Selected, Where, test_of
from warren.verbs.publishing import Receiver, publishing
from warren.verbs.steps import Steps, call

IDS: Final = 32
"""At most this many messages that were given by id are processed at a time: their sizes are unknown."""
PATIENCE_S: Final = 30.0
"""The longest wait for room where messages go."""
_UNSEEN: Final = 0
"""No message of the channel was seen by a consumer, so requeueing one does not count as a delivery."""
_numbers = itertools.count(1)

Target: TypeAlias = tuple[str, str] | None
"""Where messages go: an exchange and a routing key (for the exchange "", a queue's name); ``None``: home."""
Done: TypeAlias = tuple[int, str]
"""How many messages were processed, and what ended it early; "": nothing."""
Act: TypeAlias = Callable[[list[str]], Steps[Done]]


class NotMovedError(WarrenError):
    """Messages could not be moved because the target did not take them. They stay in their queue."""


def target_of(to: object) -> Target:
    """Return the target of a queue, of its name, or of an exchange and a routing key."""
    if isinstance(to, tuple) and len(to) == 2 and all(isinstance(one, str) for one in to):
        return to
    name = getattr(to, "name", to)
    if not isinstance(name, str):
        raise InvalidValueError(f"messages go to a queue, or to an (exchange, routing key), not to {to!r:.100}")
    return "", name


@attrs.define(eq=False, repr=False)
class Walk:
    """One walk through a queue; :meth:`steps` goes to its end, :meth:`step` through one page."""

    _verbs: MendingVerbs
    _act: Act
    _where: Where | None = None
    _ids: list[str] | None = None
    """Look only at these messages, in this order."""
    _limit: int | None = None
    """The walk ends when it has processed this many messages."""
    looked: int = 0
    chosen: int = 0
    done: int = 0
    _after: Place | None = None
    _ends: dict[int, int] | None = None
    _begun: bool = False

    def __attrs_post_init__(self) -> None:
        if self._where is not None and self._ids is not None:
            raise InvalidValueError("either where or ids")
        test_of(self._where)
        wanted_of(self._ids or ())

    def steps(self) -> Steps[int]:
        """Walk to the end; return how many messages were safely processed."""
        while (yield from self.step()):
            pass
        yield from self._verbs.sync()
        return self.done

    def step(self) -> Steps[bool]:
        """Walk through one page; return whether there may be more. Raises :class:`NotMovedError`."""
        if not self._begun:
            self._begun = True
            yield from self._act([])  # raises an error even if there are no messages
        left = None if self._limit is None else self._limit - self.done
        if left is not None and left <= 0:
            return False
        if self._ids is not None:
            count = IDS if left is None else min(IDS, left)
            chosen, self._ids = self._ids[:count], self._ids[count:]
            self.looked += len(chosen)
            more = bool(self._ids)
        else:
            chosen = yield from self._chosen(left)
            more = self._after is not None
        if chosen:
            self.chosen += len(chosen)
            done, why = yield from self._act(chosen)
            self.done += done
            if why:
                were = "message was" if self.done == 1 else "messages were"
                raise NotMovedError(f"{why}; {self.done} {were} moved before that, the others are where they were")
        return more

    def _chosen(self, left: int | None) -> Steps[list[str]]:
        if self._ends is None:
            self._ends = yield from self._verbs.ends()
        found: Selected = yield from self._verbs.select(self._where, self._after, self._ends)
        self.looked += found.looked
        self._after, ids = found.after, found.ids
        if left is not None and len(ids) > left:
            ids = ids[:left]
            level, seq_id, _ = ids[-1].split(":")
            self._after = int(level), int(seq_id)
        return ids


# ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Way:
    """A route of messages."""

    key: PublishKey
    find: Callable[[], list[Receiver]]

    @property
    def _alike(self) -> tuple[Any, ...]:
        """The values that messages must share to be handed over together; other properties may differ."""
        envelope = self.key.envelope
        shared = self.key.expiration_ms, self.key.priority, envelope.persistent
        return envelope.exchange, envelope.routing_keys, shared, self.find()

    def joins(self, other: _Way) -> bool:
        """Whether messages go the same way as others, to queues that take all that come together, or none."""
        found = self._alike
        return found == other._alike and all(isinstance(one, QueueActor) and one.coalesces for one in found[-1])


@attrs.define(eq=False)
class _Parcel:
    """Messages that are handed over together: the encoded properties and bodies of each content, and their tags."""

    way: _Way
    tags: list[range]
    contents: list[tuple[bytes, Sequence[bytes]]]

    @property
    def given(self) -> tuple[PublishKey, list[bytes]]:
        """Return them in the form that a queue takes."""
        if len(self.contents) == 1:
            return self.way.key, [*self.contents[0][1]]
        key = self.way.key
        envelope = attrs.evolve(key.envelope, properties=b"", of_contents=True)
        given = [content_of(properties, body) for properties, bodies in self.contents for body in bodies]
        return PublishKey(envelope, key.expiration_ms, key.priority), given


def take(channel: Channel, wanted: dict[int, dict[int, bytes]]) -> Steps[list[Delivered]]:
    """Take the messages that are ready, through a channel. Interrupted or cancelled, it takes none."""
    actor = channel.actor
    got = call(actor, lambda: actor.queue_turn.take(channel.name, wanted))
    try:
        batches: list[Delivered] = yield got
    except BaseException:
        got.on_done(channel.give_back)
        raise
    return batches


def move(verbs: MendingVerbs, ids: list[str], to: Target) -> Steps[Done]:
    """Move the messages that are ready. Raises an error that concerns all of them before any is touched."""
    _check(verbs, to)
    wanted = wanted_of(ids)
    if not wanted:
        return 0, ""
    channel = Channel(verbs.actor, f"move-{next(_numbers)}")
    batches = yield from take(channel, wanted)
    sent: list[tuple[list[range], Confirm]] = []
    moved, why = 0, ""
    try:
        try:
            for parcel in _parcels(verbs, to, batches):
                key, given = parcel.given
                confirm: Confirm | None = yield publishing(verbs.node, parcel.way.find, key, given, timeout=PATIENCE_S)
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


def _finish_later(channel: Channel, sent: list[tuple[list[range], Confirm]]) -> None:
    """Ack the messages that get safe, then close the channel, which requeues the rest. Waits for nothing."""
    left = [confirm for _, confirm in sent]

    def close() -> None:
        if channel.alive:
            actor = channel.actor
            actor.call_soon(lambda: actor.close_channel(channel.name, _UNSEEN))

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


def _parcels(verbs: MendingVerbs, to: Target, batches: list[Delivered]) -> Iterator[_Parcel]:
    """Group messages by their routes, in order, without those that stay or cannot be read."""
    last: _Parcel | None = None
    for tags, content in _contents(batches):
        way = _way(verbs, to, content)
        if way is None:
            continue
        properties = way.key.envelope.properties
        small = all(len(body) <= MAX_FRAGMENT_BYTES for body in content.bodies)
        if last is not None and small and way.joins(last.way):
            last.tags.append(tags)
            last.contents.append((properties, content.bodies))
            continue
        if last is not None:
            yield last
            last = None
        if small and way.joins(way):
            last = _Parcel(way, [tags], [(properties, content.bodies)])
        else:
            for tag, body in zip(tags, content.bodies, strict=True):
                yield _Parcel(way, [range(tag, tag + 1)], [(properties, [body])])
    if last is not None:
        yield last


def _contents(batches: list[Delivered]) -> Iterator[tuple[range, Content]]:
    """Group messages that differ only in their bodies, with their tags, without those that cannot be read."""
    for delivered in batches:
        tag = delivered.first_tag
        for content in contents_of(delivered.fetched):
            count = 1 if content is None else len(content.bodies)
            if content is not None:
                yield range(tag, tag + count), content
            tag += count


def _check(verbs: MendingVerbs, to: Target) -> None:
    if to is None:
        return
    exchange, name = to
    if exchange:
        verbs.node.vhost(verbs.entry.declaration.vhost).definitions.exchange(exchange)
    elif name == verbs.entry.declaration.name:
        raise ArgumentsError("a queue's messages are moved to another one")
    elif not _queue(verbs, name):
        raise NotFoundError(f"no queue '{name}' in vhost '{verbs.entry.declaration.vhost}'")


def _queue(verbs: MendingVerbs, name: str) -> list[Receiver]:
    """Return the queue or stream with that name, if there is one."""
    vhost = verbs.node.vhost(verbs.entry.declaration.vhost)
    entry = vhost.queues.get(name)
    return [*verbs.node.streams(vhost.name, [name])] if entry is None else [entry.actor]


def _way(verbs: MendingVerbs, to: Target, content: Content) -> _Way | None:
    """Return where a message goes. ``None``: it stays, because its origin is unknown or gone, or it cannot be read."""
    try:
        properties = decode_properties(content.properties)
    except MessageError:
        return None
    if to is None:
        return _way_home(verbs, properties, content)
    exchange, routing_key = to
    if not exchange:
        key = address(verbs.entry.declaration.vhost, "", routing_key, properties, content.properties)[0]
        return _Way(key, lambda: _queue(verbs, routing_key))
    return _way_through(verbs, exchange, routing_key, properties, content.properties)


def _way_through(
    verbs: MendingVerbs, exchange: str, routing_key: str, properties: Properties, encoded: bytes | None = None
) -> _Way:
    vhost = verbs.entry.declaration.vhost
    key, _, headers = address(vhost, exchange, routing_key, properties, encoded)
    through = ExchangeVerbs(verbs.node, verbs.node.vhost(vhost).definitions.exchange(exchange))
    return _Way(key, lambda: through.route(routing_key, headers))


def _way_home(verbs: MendingVerbs, properties: Properties, content: Content) -> _Way | None:
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
    vhost = verbs.entry.declaration.vhost
    if _queue(verbs, queue) and queue != verbs.entry.declaration.name:
        key = address(vhost, exchange, routing_key, properties)[0]
        return _Way(key, lambda: _queue(verbs, queue))
    if not exchange or not verbs.node.vhost(vhost).definitions.has("exchange", exchange):
        return None
    way = _way_through(verbs, exchange, routing_key, properties)
    return way if way.find() else None


def _text(value: object) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
