"""Decodes the entries of a quorum queue's log. Ra, the library that keeps the log, has these entries::

{'$usr', #{ts => Milliseconds, …}, Command, ReplyMode}            a command to the queue (command_terms)
{noop, #{ts => …}, MachineVersion}                                the first of a new leader
{'$ra_cluster_change', #{ts => …}, #{{Name, Node} => …}, ReplyMode}
undefined                                                         at index 0, and only there

A message has one of two forms, which differ in the tuple's first element (their contents are described in
:mod:`warren.queue_index.message.message_format`)::

    {basic_message, Exchange, RoutingKeys, Content, MsgId, IsPersistent}
    {mc, Protocol, Data, Annotations}                                       from 3.13 on: a container

and the contents of a container depend on the protocol by which the message was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from warren.queue_index.message.message_sizes import container_sizes, content_sizes
from warren.salvage.quorum.fifo.command_terms import command_of, natural
from warren.salvage.quorum.fifo.commands import Body, Command, Decoded, MachineVersion, NewCluster, Nothing, Unknown
from warren.salvage.quorum.fifo.learned_entries import LearnedEntry, learn
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import TermError
from warren.storage.term_walk import parts

MAX_DEPTH: Final = 168
"""Levels of an entry: those of a message, and the five around it."""

MAX_SHAPES: Final = 8
"""The number of shapes that are remembered and tried for each letter."""

_MAX_DIGITS: Final = 19
"""Of an expiration; a broker accepts ten."""

_WITHOUT_EFFECT = frozenset({"$ra_join", "$ra_leave", "$ra_cluster"})


def decode_entry(data: bytes) -> Decoded:
    """The command in the entry ``data``. Raises :class:`TermError` if it is not the term of an entry."""
    match decode(data, max_depth=MAX_DEPTH):
        case ("$usr", dict(meta), command, reply_mode):

            def body_at(element: int) -> Body:
                places = parts(data, parts(data, 1)[2])
                start, end = places[element : element + 2]
                if not isinstance(command, tuple):
                    raise TermError("a command without the expected body")
                return measure(command[element], start, end)

            return Decoded(_ts_ms(meta), command_of(command, reply_mode, body_at))
        case ("noop", dict(meta), version):
            return Decoded(_ts_ms(meta), MachineVersion(natural(version)))
        case ("machine_version", _, version):
            return Decoded(0, MachineVersion(natural(version)))
        case ("$ra_cluster_change", dict(meta), cluster, _):
            return Decoded(_ts_ms(meta) if Atom("ts") in meta else 0, _new_cluster(cluster))
        case "undefined":
            return Decoded(0, Nothing("undefined", False))
        case (Atom() as name, *_):
            return Decoded(0, Nothing(name, False) if name in _WITHOUT_EFFECT else Unknown(name))
        case _:
            raise TermError("a term that is not a log entry")


def _ts_ms(meta: Mapping[Term, Term]) -> int:
    ts = meta.get(Atom("ts"))
    if ts is None:
        raise TermError("an entry without a time")
    return natural(ts)


def _new_cluster(cluster: Term) -> Command:
    """Its members are the keys of a map, or the elements of a list in older versions."""
    members = []
    for member in cluster if isinstance(cluster, dict | list) else ():
        match member:
            case (Atom() as name, Atom() as node):
                members.append((str(name), str(node)))
            case _:
                raise TermError("something else in place of a member of the log")
    if not members:
        raise TermError("a change of the log's members to none")
    return NewCluster(tuple(members))


# ── what a queue reads of a message ──────────────────────────────────────────────────────────────────────────────────


def measure(message: Term, start: int, end: int) -> Body:
    """The message that lies in ``start`` … ``end`` of its entry.

    Raises :class:`TermError` if it is not a message, or one of an unknown protocol.
    """
    match message:
        case ("basic_message", _, _, ("content", _, properties, *_) as content, _, _):
            metadata_size, size = content_sizes(content)
            return Body(start, end, size, _expiration(properties), _priority(properties), metadata_size=metadata_size)
        case ("mc", Atom() as protocol, data, dict(annotations)):
            metadata_size, size = container_sizes(protocol, data)
            return Body(
                start,
                end,
                size,
                _natural(annotations, "ttl"),
                _natural(annotations, "p"),
                _natural(annotations, "delivery_count") or 0,
                metadata_size,
                _natural(annotations, "dt") or 0,
            )
        case bytes():
            return Body(start, end, len(message), None, None)
        case _:
            raise TermError("no message")


def _expiration(properties: Term) -> int | None:
    """A message's own time to live, if its properties are decoded; ``None`` also for a text that is not a number, which
    brokers reject."""
    match properties:
        case ("P_basic", _, _, _, _, _, _, _, bytes(digits), *_) if digits.isdigit() and len(digits) <= _MAX_DIGITS:
            return int(digits)
    return None


def _priority(properties: Term) -> int | None:
    match properties:
        case ("P_basic", _, _, _, _, priority, *_) if type(priority) is int and priority >= 0:
            return priority
    return None


def _natural(annotations: Mapping[Term, Term], name: str) -> int | None:
    value = annotations.get(Atom(name))
    return value if type(value) is int and value >= 0 else None


# ── many entries ─────────────────────────────────────────────────────────────────────────────────────────────────────


class EntryDecoder:
    """Decodes the entries of a log, one after the other; remembers their shapes.

    The result is that of :func:`decode_entry`. Shapes are grouped by the byte at the offset where the first command had
    the first letter of its name (settles and enqueues differ in it), the most recently used first.
    """

    def __init__(self) -> None:
        self._letter_at = 0
        self._shapes: dict[int, list[LearnedEntry]] = {}

    def decode(self, data: bytes) -> Decoded:
        """The command in an entry. Raises :class:`TermError` if it is not the term of an entry."""
        try:
            shapes = self._shapes[data[self._letter_at]]
        except (IndexError, KeyError):
            return self._decode_in_full(data)
        for position, shape in enumerate(shapes):
            decoded = shape.read(data)
            if decoded is not None:
                if position:
                    shapes.insert(0, shapes.pop(position))
                return decoded
        return self._decode_in_full(data)

    def _decode_in_full(self, data: bytes) -> Decoded:
        decoded = decode_entry(data)
        learned = learn(data, decoded.command)
        if learned is not None:
            if not self._shapes:
                self._letter_at = _letter_at(data)
            shapes = self._shapes.setdefault(data[self._letter_at], [])
            shapes.insert(0, learned)
            del shapes[MAX_SHAPES:]
        return decoded


def _letter_at(data: bytes) -> int:
    """Where the name of a command begins."""
    name = parts(data, parts(data, 1)[2])[0]
    return name + (3 if data[name] in (100, 118) else 2)
