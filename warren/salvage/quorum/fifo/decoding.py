"""Decodes the entries of a quorum queue's log. Ra, the library that keeps the log, has these entries::

{'$usr', #{ts => Milliseconds, …}, Command, ReplyMode}            a command to the queue (command_terms)
{noop, #{ts => …}, MachineVersion}                                the first of a new leader
{'$ra_cluster_change', #{ts => …}, #{{Name, Node} => …}, ReplyMode}
undefined                                                         at index 0, and only there
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from warren.salvage.quorum.fifo.bodies import measure
from warren.salvage.quorum.fifo.command_terms import command_of, natural
from warren.salvage.quorum.fifo.commands import Body, Command, Decoded, MachineVersion, NewCluster, Nothing, Unknown
from warren.salvage.quorum.fifo.entry_shapes import PID_BYTES
from warren.salvage.quorum.fifo.learned_entries import LearnedEntry, learn
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import TermError
from warren.storage.term_walk import parts

MAX_DEPTH: Final = 168
"""Levels of an entry: those of a message, and the five around it."""

MAX_WIDE: Final = 8
"""The number of shapes that are remembered and tried for each letter."""
MAX_NARROW: Final = 4
"""The same for each process."""
MAX_PROCESSES: Final = 1024
"""With narrow shapes."""

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


class EntryDecoder:
    """Decodes the entries of a log, one after the other; remembers their shapes.

    The result is that of :func:`decode_entry`. The shapes that are tried first are *narrow*, of the process whose pid
    ends the entry. Then follow those that entries of any process may have. Both are grouped by the byte at the offset
    where the first command had the first letter of its name (settles and enqueues differ in it).
    """

    def __init__(self) -> None:
        self._letter_at = 0
        self._by_letter: dict[int, _Shapes] = {}

    def decode(self, data: bytes) -> Decoded:
        """The command in an entry. Raises :class:`TermError` if it is not the term of an entry."""
        try:
            shapes = self._by_letter[data[self._letter_at]]
        except (IndexError, KeyError):
            return self._decode_in_full(data)
        narrow = shapes.narrow.get(data[-PID_BYTES:])
        decoded = None
        if narrow:
            decoded = narrow[0].read(data) or _read(narrow, data)
        if decoded is None:
            decoded = _read(shapes.wide, data)
            if decoded is None:
                return self._decode_in_full(data)
            shapes.learn_narrow(data, decoded.command)
        return decoded

    def _decode_in_full(self, data: bytes) -> Decoded:
        decoded = decode_entry(data)
        learned = learn(data, decoded.command, narrow=False)
        if learned is not None:
            if not self._by_letter:
                self._letter_at = _letter_at(data)
            wide = self._by_letter.setdefault(data[self._letter_at], _Shapes()).wide
            wide.insert(0, learned)
            del wide[MAX_WIDE:]
        return decoded


def _read(shapes: list[LearnedEntry], data: bytes) -> Decoded | None:
    """Read an entry with the first shape that fits, which is tried first the next time."""
    for position, shape in enumerate(shapes):
        decoded = shape.read(data)
        if decoded is not None:
            if position:
                shapes.insert(0, shapes.pop(position))
            return decoded
    return None


class _Shapes:
    """The shapes of commands that begin with the same letter."""

    def __init__(self) -> None:
        self.wide: list[LearnedEntry] = []
        """The most recently used first."""
        self.narrow: dict[bytes, list[LearnedEntry]] = {}
        """By the last bytes of their entries."""

    def learn_narrow(self, data: bytes, command: Command) -> None:
        """Learn the shape of an entry, unless there are enough: then the wide ones read it."""
        process = data[-PID_BYTES:]
        shapes = self.narrow.get(process)
        if shapes is None:
            if len(self.narrow) == MAX_PROCESSES:
                return
            shapes = self.narrow[process] = []
        if len(shapes) < MAX_NARROW:
            learned = learn(data, command, narrow=True)
            if learned is not None:
                shapes.append(learned)


def _letter_at(data: bytes) -> int:
    """Where the name of a command begins."""
    name = parts(data, parts(data, 1)[2])[0]
    return name + (3 if data[name] in (100, 118) else 2)
