"""RoutingTable: the names of the queues that get a message, from an exchange, a routing key and headers.

:mod:`warren.actors.engines.declared.matching` says which bindings of one exchange match. If a destination is another
exchange, routing goes on from there with the same key; each exchange is visited once. If an exchange has no destination
for a message, its alternate exchange gets it. Each queue is named once, in the order in which exchanges are reached,
and then of their bindings. The default exchange has one destination: the queue that the key names.

**Threads.** A :class:`RoutingTable` has one writer and any number of readers in any thread. Nothing is locked, and no
change copies the table, so the ten-thousandth queue or binding costs no more than the first. That is safe because

- readers only use dictionaries of immutable values, which they look up or copy in one step of the interpreter, and
  never iterate over while they change;
- the writer completes a binding or an exchange before one assignment makes it visible to readers;
- so a message that is routed while a binding is added or removed is routed with it or without it. A resulting name may
  be that of a queue which was deleted meanwhile: publishers must tolerate that in any case.

*The cache* holds the results for an exchange and a key, unless they depend on more than these. The writer replaces it
by an empty one after each change. A reader stores into the cache that it took before the lookup, so no outdated result
gets into a new cache.

An exchange of type ``x-recent-history`` has a :class:`RecentHistory`, in memory only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, NamedTuple

import attrs

from warren.actors.engines.declared.exchanges import (
    DEFAULT_EXCHANGE,
    HISTORY,
    HISTORY_LENGTH,
    Binding,
    ExchangeDeclaration,
)
from warren.actors.engines.declared.matching import Bound, ChoiceMatcher, Headers, Matcher, new_matcher
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError
from warren.queue_index.message.amqp_tables import type_name
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import decode_properties

CACHED_ROUTES: Final = 4096
"""Entries of the cache. It is emptied when it is full: with keys that never come again no cache helps."""
NO_STORE: Final = "x-recent-history-no-store"
_HISTORY_LENGTH: Final = 20
"""How many messages a recent history has by default, as with RabbitMQ."""
_MAX_HISTORY_LENGTH: Final = 1 << 30
CACHED_QUEUES: Final = 64
"""Longer results are not cached, so that the cache's memory stays bounded."""

_NOWHERE: Final[tuple[str, ...]] = ()


@attrs.frozen(eq=False, repr=False)
class Exchange:
    """An exchange that routes: its declaration, its bindings, and its alternate exchange."""

    declaration: ExchangeDeclaration
    matcher: Matcher
    alternate: str | None
    """The exchange that gets the messages for which this one has no destination."""


class Remembered(NamedTuple):
    """A message of a recent history."""

    envelope: Envelope
    expiration_ms: int | None
    priority: int
    body: bytes


class RecentHistory:
    """The last messages that reached an exchange. Any thread may add and read."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        length = declaration.arguments.get(HISTORY_LENGTH, _HISTORY_LENGTH)
        self._messages: deque[Remembered] = deque(maxlen=min(length, _MAX_HISTORY_LENGTH))

    def add(self, envelope: Envelope, expiration_ms: int | None, priority: int, given: Sequence[bytes]) -> None:
        """Note messages, except those with the header :data:`NO_STORE`. ``given``: bodies, or contents if the envelope
        says so."""
        for body in given:
            single, single_body = envelope.with_content(body) if envelope.of_contents else (envelope, body)
            if not _is_not_stored(single.properties):
                self._messages.append(Remembered(single, expiration_ms, priority, single_body))

    def messages(self) -> list[Remembered]:
        """The messages, the oldest first."""
        return list(self._messages.copy())


def _is_not_stored(properties: bytes) -> bool:
    return NO_STORE.encode() in properties and (decode_properties(properties).headers or {}).get(NO_STORE) is True


class RoutingTable:
    """The exchanges and bindings of one vhost, and the names of its queues. For threads see the module."""

    __slots__ = ("_cache", "_exchanges", "_next_number", "_note_drop", "_queues", "_random", "histories", "is_random",
                 "vhost")  # fmt: skip

    def __init__(
        self,
        vhost: str,
        note_drop: Callable[[ExchangeDeclaration, str, str], object],
        random: Callable[[int], bytes] = bytes,
    ) -> None:
        """``note_drop``: called with an exchange, its alternate and the key of a message that no queue gets.
        ``random``: returns as many random bytes."""
        self.vhost = vhost
        self.is_random = False
        """Whether equal messages may go to different queues, because there was an exchange of type ``x-random``."""
        self.histories: dict[str, RecentHistory] = {}
        """By exchange."""
        self._note_drop = note_drop
        self._random = random
        self._queues: dict[str, tuple[str, ...]] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._cache: dict[tuple[str, str], tuple[str, ...]] = {}
        self._next_number = 0

    # ── for any thread ──────────────────────────────────────────────────────────────────────────────────────────

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers: Headers | None = None,
        properties: bytes = b"",
        *,
        from_node: bool = False,
    ) -> tuple[str, ...]:
        """The queues that a message published to ``exchange`` goes to, each once.

        ``properties``: the encoded ones, for exchanges of type ``x-consistent-hash``.
        Raises :class:`NotFoundError` if the exchange does not exist, and :class:`AccessRefusedError` if it is
        internal, unless the node itself publishes (``from_node``): a dead letter.
        """
        if not exchange:
            return self._queues.get(routing_key, _NOWHERE)
        cached = self._cache.get((exchange, routing_key))
        if cached is not None:
            return cached
        return self._look_up(exchange, (routing_key,), headers or {}, properties, from_node)

    def needs_key_only(self, exchange: str, routing_key: str) -> bool:
        """Whether it is known that :meth:`route` needs no more than this exchange and key."""
        return not exchange or (exchange, routing_key) in self._cache

    def route_all(
        self,
        exchange: str,
        routing_keys: Iterable[str],
        headers: Headers | None = None,
        properties: bytes = b"",
        *,
        from_node: bool = False,
    ) -> tuple[str, ...]:
        """The queues of a message with several keys: its own and those of :func:`carbon_copies`.

        All keys are used in each exchange: a binding matches if any of them does.
        """
        keys = tuple(routing_keys)
        if len(keys) == 1:
            return self.route(exchange, keys[0], headers, properties, from_node=from_node)
        if not exchange:
            return tuple(dict.fromkeys(name for key in keys for name in self._queues.get(key, _NOWHERE)))
        return self._look_up(exchange, keys, headers or {}, properties, from_node)

    def _look_up(
        self, name: str, routing_keys: tuple[str, ...], headers: Headers, properties: bytes, from_node: bool
    ) -> tuple[str, ...]:
        cache = self._cache  # before looking: see the module
        start = self._exchanges.get(name)
        if start is None:
            raise NotFoundError(f"no exchange '{name}' in vhost '{self.vhost}'")
        if start.declaration.internal and not from_node:
            raise AccessRefusedError(f"cannot publish to internal {start.declaration}")
        queues: dict[str, None] = {}
        reached, passed_on = self._walk(start, routing_keys, headers, properties, queues)
        names = tuple(queues)
        if not names and passed_on is not None and passed_on.alternate is not None:
            self._note_drop(passed_on.declaration, passed_on.alternate, routing_keys[0])
        # not cached if internal: the result depends on the publisher
        varies = start.declaration.internal or any(exchange.matcher.varies for exchange in reached)
        if not varies and len(names) <= CACHED_QUEUES and len(routing_keys) == 1:
            if len(cache) >= CACHED_ROUTES:
                cache.clear()
            cache[name, routing_keys[0]] = names
        return names

    def remember(self, envelope: Envelope, expiration_ms: int | None, priority: int, given: Sequence[bytes]) -> None:
        """Add published messages to the recent histories of the exchanges that they reach."""
        start = self._exchanges.get(_text(envelope.exchange))
        if start is None or not self.histories:
            return
        properties = b"" if envelope.of_contents else envelope.properties
        headers = (decode_properties(properties).headers if properties else None) or {}
        for reached in self._walk(start, tuple(map(_text, envelope.routing_keys)), headers, properties, {})[0]:
            if (history := self.histories.get(reached.declaration.name)) is not None:
                history.add(envelope, expiration_ms, priority, given)

    def _walk(
        self,
        start: Exchange,
        routing_keys: tuple[str, ...],
        headers: Headers,
        properties: bytes,
        queues: dict[str, None],
    ) -> tuple[list[Exchange], Exchange | None]:
        """Add the queues that a message reaches; return the exchanges, and the last one that used its alternate."""
        seen, waiting = {start.declaration.name}, [start]
        passed_on: Exchange | None = None
        for exchange in waiting:
            matcher = exchange.matcher
            if isinstance(matcher, ChoiceMatcher):
                matches = [*matcher.choose(routing_keys, properties)]
            else:
                matches = [bound for key in routing_keys for bound in matcher.match(key, headers)]
            further: list[str] = []
            if matches:
                queues.update(dict.fromkeys(bound.name for bound in matches if bound.is_queue))
                further = [bound.name for bound in matches if not bound.is_queue]
            elif exchange.alternate is not None:
                further, passed_on = [exchange.alternate], exchange
            for destination in further:
                if destination not in seen and (following := self._exchanges.get(destination)) is not None:
                    waiting.append(following)
                seen.add(destination)
        return waiting, passed_on

    # ── for its writer ──────────────────────────────────────────────────────────────────────────────────────────

    def add_queue(self, name: str) -> None:
        self._queues[name] = (name,)

    def remove_queue(self, name: str) -> None:
        """Remove a queue's name; its bindings are removed separately."""
        del self._queues[name]

    def add_exchange(self, declaration: ExchangeDeclaration, alternate: str | None) -> None:
        if declaration.name != DEFAULT_EXCHANGE:  # which has no bindings, not even as an alternate exchange
            matcher = new_matcher(declaration, self._random)
            self.is_random |= declaration.routing_type == "x-random"
            if declaration.routing_type == HISTORY:
                self.histories[declaration.name] = RecentHistory(declaration)
            self._exchanges[declaration.name] = Exchange(declaration, matcher, alternate)
            self._cache = {}

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """Set or remove the alternate exchange of an exchange, because a policy changed."""
        exchange = self._exchanges.get(name)
        if exchange is not None and exchange.alternate != alternate:
            self._exchanges[name] = attrs.evolve(exchange, alternate=alternate)
            self._cache = {}

    def remove_exchange(self, name: str) -> None:
        """Remove an exchange with the bindings that it is the source of."""
        if name != DEFAULT_EXCHANGE:
            del self._exchanges[name]
            self.histories.pop(name, None)
            self._cache = {}

    def add_binding(self, binding: Binding) -> None:
        bound = Bound(self._next_number, binding.destination_type == "queue", binding.destination)
        self._next_number += 1
        self._exchanges[binding.source].matcher.add(binding, bound)
        self._cache = {}

    def remove_binding(self, binding: Binding) -> None:
        self._exchanges[binding.source].matcher.remove(binding)
        self._cache = {}

    def check_invariants(self, queues: set[str], exchanges: set[str], bindings: set[Hashable]) -> None:
        """Raise ``RuntimeError`` unless it holds exactly these."""
        if {queue for queues_of_key in self._queues.values() for queue in queues_of_key} != queues:
            raise RuntimeError("the default exchange does not lead to the queues that there are")
        if set(self._exchanges) != exchanges - {DEFAULT_EXCHANGE}:
            raise RuntimeError("the routing table's exchanges are not those that there are")
        routed = [exchange.matcher.identities() for exchange in self._exchanges.values()]
        if set().union(*routed) != bindings or sum(map(len, routed)) != len(bindings):
            raise RuntimeError("the routing table's bindings are not those that there are")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def carbon_copies(headers: Headers) -> tuple[str, ...]:
    """Return further routing keys from the headers ``CC`` and ``BCC``; the latter is dropped before storing.

    Raises :class:`ArgumentsError` for anything but lists; items other than strings are ignored.
    """
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name, ())
        if not isinstance(value, list | tuple):
            raise ArgumentsError(f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
        keys += [key for key in value if isinstance(key, str)]
    return tuple(keys)
