"""Small terms of a quorum queue's state: queues, messages, keys, numbers.

All functions raise :class:`TermError` for any other term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from warren.salvage.quorum.fifo.commands import ConsumerKey, Pid
from warren.salvage.quorum.fifo.ready_queues import QueuedMessage
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, pid_key
from warren.storage.errors import TermError

PACKED_INDEX_BITS: Final = 44
"""4.3's: of a message's index, if one number has it below the message's size."""
_PACKED_SIZE_BITS: Final = 15


def queue_of(term: Term) -> list[Term]:
    """``{Length, Rear, Front}``, or ``{Length, {Rear, Front}}``, in its order."""
    match term:
        case (_, rear, front):
            return rear_front((rear, front))
        case (_, pair):
            return rear_front(pair)
        case _:
            raise TermError("something else in place of a queue")


def rear_front(term: Term) -> list[Term]:
    match term:
        case (rear, front):
            return [*as_list(front), *reversed(as_list(rear))]
        case _:
            raise TermError("something else in place of a queue's two lists")


def message_of(term: Term) -> QueuedMessage:
    if type(term) is int and 0 <= term < 1 << (PACKED_INDEX_BITS + _PACKED_SIZE_BITS):
        return QueuedMessage(term & (1 << PACKED_INDEX_BITS) - 1, term >> PACKED_INDEX_BITS)
    if not isinstance(term, ImproperList):
        raise TermError("something else in place of a message")
    match (*term.elements, term.tail):
        case (index, dict(header)):
            count = natural(header.get(Atom("delivery_count"), 0))
            acquired = natural(header.get(Atom("acquired_count"), 0))
            size, expiry = header.get(Atom("size")), header.get(Atom("expiry"))
            return QueuedMessage(natural(index), natural(size), optional(expiry), count, acquired)
        case (index, size):
            return QueuedMessage(natural(index), natural(size))
        case (index, size, expiry):
            return QueuedMessage(natural(index), natural(size), natural(expiry))
        case _:
            raise TermError("something else in place of a message's header")


def old_message_of(term: Term) -> QueuedMessage:
    """Read a message up to 3.13, which does not distinguish acquisitions from failed deliveries."""
    message = message_of(term)
    return message._replace(acquired_count=message.delivery_count) if message.delivery_count else message


def key_of(term: Term) -> ConsumerKey:
    match term:
        case (bytes(tag), pid):
            return tag, pid_of(pid)
        case _:
            return natural(term)


def record(term: Term, name: str, fields: int) -> tuple[Term, ...]:
    if not isinstance(term, tuple) or len(term) != fields or term[0] != name:
        raise TermError(f"something else in place of a {name} of {fields} fields")
    return term


def as_map(term: Term) -> Mapping[Term, Term]:
    if not isinstance(term, Mapping):
        raise TermError("something else in place of a map")
    return term


def as_list(term: Term) -> Sequence[Term]:
    if not isinstance(term, list):
        raise TermError("something else in place of a list")
    return term


def integer(term: Term | None) -> int:
    if type(term) is not int:
        raise TermError("something else in place of a number")
    return term


def natural(term: Term | None) -> int:
    if integer(term) < 0:
        raise TermError("a number below 0")
    return integer(term)


def optional(term: Term | None) -> int | None:
    return None if term is None or term == "undefined" else integer(term)


def pid_of(term: Term) -> Pid:
    if not isinstance(term, Opaque):
        raise TermError("something else in place of a pid")
    return pid_key(term.encoded)
