"""Which bindings of an exchange match a message: a matcher for each type of exchange.

=========  ==========================================================================================================
type       a binding matches a message if
=========  ==========================================================================================================
direct     its key equals the message's
fanout     always
topic      its key, words between dots, matches the message's; ``*`` stands for one word, ``#`` for any number, even 0
headers    the message has all of its arguments as headers, or with ``x-match: any`` one of them; an argument of
           ``None`` matches any value. ``x-…`` arguments count only with ``all-with-x`` and ``any-with-x``
=========  ==========================================================================================================

Those of RabbitMQ's plugins give a message to one binding (:class:`ChoiceMatcher`):

==================  =================================================================================================
type                the binding is chosen
==================  =================================================================================================
x-consistent-hash   by a hash of the key, of the header ``hash-header`` or of the property ``hash-property``. A
                    binding's key is its weight. Of several bindings to one destination the first counts
x-modulus-hash      by a hash of all of the message's keys, modulo the number of bindings, which are sorted
x-random            at random
==================  =================================================================================================

Both hashes are RabbitMQ's: with the same bindings, declared in the same order, a message goes to the same queue.
``x-recent-history`` matches as ``fanout`` does.

A matcher has one writer and any number of readers in any thread; :mod:`warren.actors.engines.declared.routing` says why
that is safe. A reader must only look dictionaries up or copy them, and iterate over copies. The writer must complete
what it adds before one assignment makes it visible.
"""

from __future__ import annotations

import bisect
import calendar
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from warren.actors.engines.declared.exchanges import (
    HASH_HEADER,
    HASH_PROPERTY,
    X_MATCH,
    Binding,
    ExchangeDeclaration,
)
from warren.queue_index.index.erlang_hash import Term, jump_consistent_hash, phash2

Headers = Mapping[str, Any]


class Bound(NamedTuple):
    """The destination of a binding; ``number`` rises from one binding to the next."""

    number: int
    is_queue: bool
    name: str


Leaf = dict[Hashable, Bound]
"""Bindings that match the same messages, by their identity."""


class Matcher(Protocol):
    """The bindings of one exchange."""

    varies: bool
    """Whether messages with the same key may match different bindings."""

    def add(self, binding: Binding, bound: Bound) -> None: ...
    def remove(self, binding: Binding) -> None: ...
    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        """The matching bindings, in order of declaration; a destination may occur several times."""

    def identities(self) -> set[Hashable]:
        """The identities of all bindings; for checks."""


class DirectMatcher:
    """Bindings by routing key."""

    varies = False

    def __init__(self) -> None:
        self._by_key: dict[str, Leaf] = {}

    def add(self, binding: Binding, bound: Bound) -> None:
        leaf = self._by_key.get(binding.routing_key)
        if leaf is None:
            self._by_key[binding.routing_key] = {binding.identity: bound}
        else:
            leaf[binding.identity] = bound

    def remove(self, binding: Binding) -> None:
        leaf = self._by_key[binding.routing_key]
        del leaf[binding.identity]
        if not leaf:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        leaf = self._by_key.get(routing_key)
        return () if leaf is None else list(leaf.copy().values())

    def identities(self) -> set[Hashable]:
        return {identity for leaf in self._by_key.values() for identity in leaf}


class FanoutMatcher:
    """Bindings that all match."""

    varies = False

    def __init__(self) -> None:
        self._all: Leaf = {}

    def add(self, binding: Binding, bound: Bound) -> None:
        self._all[binding.identity] = bound

    def remove(self, binding: Binding) -> None:
        del self._all[binding.identity]

    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        return list(self._all.copy().values())

    def identities(self) -> set[Hashable]:
        return set(self._all)


class TopicNode:
    """A node of the trie: the bindings whose key ends here, and a child for each next word."""

    __slots__ = ("children", "is_hash", "leaf")

    def __init__(self, word: str) -> None:
        self.is_hash = word == "#"
        self.children: dict[str, TopicNode] = {}
        self.leaf: Leaf = {}


class TopicMatcher:
    """A trie of the words of bindings' keys. Matching keeps the set of nodes that the words so far lead to.

    A ``#`` node stays active for any word, and is reached without a word, so a pattern costs at most the number of its
    nodes for each word.
    """

    varies = False

    def __init__(self) -> None:
        self._root = TopicNode("")

    def add(self, binding: Binding, bound: Bound) -> None:
        node, words = self._root, topic_words(binding.routing_key)
        at = 0
        while at < len(words) and (child := node.children.get(words[at])) is not None:
            node, at = child, at + 1
        if at == len(words):
            node.leaf[binding.identity] = bound
            return
        branch = TopicNode(words[-1])
        branch.leaf[binding.identity] = bound
        for above, word in zip(words[at:-1][::-1], words[at + 1 :][::-1], strict=True):
            stem = TopicNode(above)
            stem.children[word] = branch
            branch = stem
        node.children[words[at]] = branch  # visible to readers from now on, and complete

    def remove(self, binding: Binding) -> None:
        path = [self._root]
        words = topic_words(binding.routing_key)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].leaf[binding.identity]
        for word in reversed(words):
            node = path.pop()
            if node.leaf or node.children:
                break
            del path[-1].children[word]

    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        nodes = _with_hashes([self._root])
        for word in topic_words(routing_key):
            following: list[TopicNode] = []
            for node in nodes:
                if node.is_hash:
                    following.append(node)
                if (child := node.children.get("*")) is not None:
                    following.append(child)
                if word not in ("*", "#") and (child := node.children.get(word)) is not None:
                    following.append(child)
            nodes = _with_hashes(following)
        leaves = [node.leaf.copy() for node in nodes if node.leaf]
        if len(leaves) == 1:
            return list(leaves[0].values())
        return sorted(bound for leaf in leaves for bound in leaf.values())

    def identities(self) -> set[Hashable]:
        identities, nodes = set[Hashable](), [self._root]
        for node in nodes:
            identities.update(node.leaf)
            nodes.extend(node.children.values())
        return identities


def _with_hashes(nodes: list[TopicNode]) -> list[TopicNode]:
    """Return the nodes, each once, and the ``#`` nodes that they lead to without a word."""
    reached = dict.fromkeys(nodes)
    waiting = list(reached)
    for node in waiting:
        child = node.children.get("#")
        if child is not None and child not in reached:
            reached[child] = None
            waiting.append(child)
    return waiting


def topic_words(key: str) -> list[str]:
    """Return the words of a topic's key: no words for an empty key, two for ``a.``."""
    return key.split(".") if key else []


ExpectedHeaders = tuple[tuple[str, Any], ...]
"""The headers that a binding expects."""


class HeadersMatcher:
    """Tries one binding after the other, because their arguments cannot be indexed."""

    varies = True

    def __init__(self) -> None:
        self._all: dict[Hashable, tuple[bool, ExpectedHeaders, Bound]] = {}

    def add(self, binding: Binding, bound: Bound) -> None:
        mode = binding.arguments.get(X_MATCH, "all")
        expected = tuple(
            (name, value)
            for name, value in binding.arguments.items()
            if name != X_MATCH and (mode.endswith("-with-x") or not name.startswith("x-"))
        )
        self._all[binding.identity] = (mode.startswith("all"), expected, bound)

    def remove(self, binding: Binding) -> None:
        del self._all[binding.identity]

    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        return [
            bound
            for needs_all, expected, bound in self._all.copy().values()
            if (_has_all if needs_all else _has_any)(headers, expected)
        ]

    def identities(self) -> set[Hashable]:
        return set(self._all)


# Loops, because a generator would cost more than the items it visits: this runs for each binding.


def _has_all(headers: Headers, expected: ExpectedHeaders) -> bool:
    for name, value in expected:
        if name not in headers or not (value is None or _is_same(value, headers[name])):
            return False
    return True


def _has_any(headers: Headers, expected: ExpectedHeaders) -> bool:
    for name, value in expected:  # noqa: SIM110
        if name in headers and (value is None or _is_same(value, headers[name])):
            return True
    return False


def _is_same(expected: Any, value: Any) -> bool:
    """Whether a header has the value that a binding expects: 1 equals 1.0, but a truth value is not a number."""
    if type(expected) is type(value) is str:
        return bool(expected == value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    elif isinstance(value, datetime):
        value = calendar.timegm(value.utctimetuple())
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, Mapping):
        return (
            isinstance(value, Mapping)
            and expected.keys() == value.keys()
            and all(_is_same(item, value[name]) for name, item in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(value, list | tuple) and len(expected) == len(value) and all(map(_is_same, expected, value))
    return not isinstance(value, Decimal) and bool(expected == value)


Choose = Callable[[Sequence[str], bytes, Sequence[Binding]], int]
"""Returns the index of a binding, from a message's keys, its encoded properties, and the bindings, at least one."""


class ChoiceMatcher:
    """Bindings from which one is chosen for each message."""

    def __init__(self, choose: Choose, *, varies: bool) -> None:
        self.varies = varies
        self._choose = choose
        self._all: dict[Hashable, tuple[Binding, Bound]] = {}

    def add(self, binding: Binding, bound: Bound) -> None:
        self._all[binding.identity] = binding, bound

    def remove(self, binding: Binding) -> None:
        del self._all[binding.identity]

    def match(self, routing_key: str, headers: Headers) -> Sequence[Bound]:
        return self.choose((routing_key,), b"")

    def choose(self, routing_keys: Sequence[str], properties: bytes) -> Sequence[Bound]:
        """The binding of a message with these keys, in a sequence that is empty if there are no bindings."""
        entries = list(self._all.copy().values())
        if not entries:
            return ()
        return (entries[self._choose(routing_keys, properties, [binding for binding, _ in entries])][1],)

    def identities(self) -> set[Hashable]:
        return set(self._all)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _by_modulus(routing_keys: Sequence[str], properties: bytes, bindings: Sequence[Binding]) -> int:
    keys: list[Term] = [_encoded(key) for key in routing_keys]
    order = sorted(range(len(bindings)), key=lambda index: _rank(bindings[index]))
    return order[phash2(keys) % len(order)]


def _rank(binding: Binding) -> tuple[bytes, str, bytes]:
    return _encoded(binding.routing_key), binding.destination_type, _encoded(binding.destination)


def _by_consistent_hash(arguments: Mapping[str, Any]) -> Choose:
    header, name = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)

    def choose(routing_keys: Sequence[str], properties: bytes, bindings: Sequence[Binding]) -> int:
        from warren.queue_index.message.hashed_terms import header_term, property_term

        first: dict[tuple[str, str], int] = {}
        for index, binding in enumerate(bindings):
            first.setdefault((binding.destination_type, binding.destination), index)
        ends = list(itertools.accumulate(int(bindings[index].routing_key) for index in first.values()))
        if header is not None:
            term = header_term(properties, header)
        elif name is not None:
            term = property_term(properties, name)
        else:
            term = _encoded(routing_keys[0])
        bucket = jump_consistent_hash(phash2(term), ends[-1]) if ends[-1] > 1 else 0
        return list(first.values())[bisect.bisect_right(ends, bucket)]

    return choose


def new_matcher(exchange: ExchangeDeclaration, random: Callable[[int], bytes]) -> Matcher:
    """The matcher for the bindings of an exchange. ``random`` returns as many random bytes."""
    match exchange.routing_type:
        case "direct":
            return DirectMatcher()
        case "topic":
            return TopicMatcher()
        case "headers":
            return HeadersMatcher()
        case "x-consistent-hash":
            varies = HASH_HEADER in exchange.arguments or HASH_PROPERTY in exchange.arguments
            return ChoiceMatcher(_by_consistent_hash(exchange.arguments), varies=varies)
        case "x-modulus-hash":
            return ChoiceMatcher(_by_modulus, varies=False)
        case "x-random":
            return ChoiceMatcher(
                lambda _keys, _properties, bindings: int.from_bytes(random(8), "big") % len(bindings), varies=True
            )
        case _:  # fanout, x-recent-history
            return FanoutMatcher()
