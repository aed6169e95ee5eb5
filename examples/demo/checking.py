"""What must have come back, and whether it did.

*Taken over* messages come first in their queue and are compared part by part with what was read from RabbitMQ's
directory.

*Numbered* messages come after them, from two publishers. The first one, which was killed:

====================================  =======================================================================
confirmed                             each one is there, in order
handed over, confirm never came       may be there (a *survivor*) or not; in order
====================================  =======================================================================

The second one publishes again everything that was not confirmed, and the rest; all of it is there, in order, after the
first one's. A message is right if its encoded bytes are exactly what its number and its publisher make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from examples.demo.numbered import body_of, number_of
from warren.queue_index.message.message_format import Envelope, Message, decode_message, encode_many
from warren.storage.errors import MessageError

_MOST_NAMED = 5
"""How many faults are listed one by one."""


@attrs.define
class Faults:
    """What was wrong, the first few in words."""

    count: int = 0
    named: list[str] = attrs.field(factory=list)

    def add(self, fault: str, count: int = 1) -> None:
        self.count += count
        if len(self.named) < _MOST_NAMED:
            self.named.append(fault)

    def __str__(self) -> str:
        more = f" ({self.count:,} in all)" if self.count > len(self.named) else ""
        return "; ".join(self.named) + more


def together(faults: Iterable[Faults]) -> Faults:
    """All of them as one."""
    every = list(faults)
    named = [fault for one in every for fault in one.named]
    return Faults(sum(one.count for one in every), named[:_MOST_NAMED])


@attrs.frozen
class Check:
    """Something that had to hold."""

    name: str
    held: bool
    detail: str
    """What was wrong; empty where it held."""

    @classmethod
    def of(cls, name: str, faults: Faults) -> Check:
        return cls(name, not faults.count, str(faults) if faults.count else "")

    @classmethod
    def that(cls, name: str, held: bool, otherwise: str) -> Check:
        return cls(name, held, "" if held else otherwise)


@attrs.define
class NumberedCheck:
    """Takes the numbered messages as they are fetched; :meth:`finish` when there are no more."""

    envelopes: Sequence[Envelope]
    """The envelopes of the two publishers."""
    confirmed: int
    """Messages of the first one that were confirmed; the second one begins with this number."""
    total: int
    lost: Faults = attrs.field(factory=Faults)
    """A message that had to be there and was not."""
    misplaced: Faults = attrs.field(factory=Faults)
    """Out of order, or there more often than it was published."""
    damaged: Faults = attrs.field(factory=Faults)
    """Not the bytes that were published."""
    right: int = 0
    """Messages whose bytes were right."""
    survivors: int = 0
    """Messages of the first publisher that are there though unconfirmed."""
    _next: list[int] = attrs.field(init=False)
    """The number that is due, of each publisher."""
    _publisher: int = 0

    def __attrs_post_init__(self) -> None:
        self._next = [0, self.confirmed]

    def take(self, terms: Sequence[bytes], msg_ids: Sequence[bytes]) -> None:
        """Check messages that were fetched in this order: all at once if they are as expected, else one by one."""
        due, count = self._next[self._publisher], len(terms)
        if self._publisher or due + count <= self.confirmed:
            bodies = [body_of(number) for number in range(due, due + count)]
            if encode_many(self.envelopes[self._publisher], b"".join(msg_ids), bodies) == terms:
                self._next[self._publisher] += count
                self.right += count
                return
        for term, msg_id in zip(terms, msg_ids, strict=True):
            self._take_one(term, msg_id)

    def _take_one(self, term: bytes, msg_id: bytes) -> None:
        number = _number_in(term)
        if number is None or not 0 <= number < self.total:
            self.damaged.add(f"a message that is none of ours: {term[:60]!r}")
            return
        for publisher, envelope in enumerate(self.envelopes):
            if encode_many(envelope, msg_id, [body_of(number)])[0] == term:
                self.right += 1
                self._place(publisher, number)
                return
        self.damaged.add(f"message {number:,} is not as it was published")
        self._place(self._publisher, number)

    def _place(self, publisher: int, number: int) -> None:
        due = self._next[publisher]
        if publisher < self._publisher or number < due:
            self.misplaced.add(f"message {number:,} of publisher {publisher + 1} came where {due:,} was due")
            return
        if publisher > self._publisher:
            self._lose_up_to(0, self.confirmed)
            self._publisher = publisher
        self._lose_up_to(publisher, number)
        self._next[publisher] = number + 1
        self.survivors += publisher == 0 and number >= self.confirmed

    def _lose_up_to(self, publisher: int, number: int) -> None:
        """What was due below ``number`` is not there; of the first publisher, only what was confirmed had to be."""
        due = self._next[publisher]
        end = min(number, self.confirmed) if publisher == 0 else number
        if end > due:
            self.lost.add(f"messages {due:,} to {end - 1:,} of publisher {publisher + 1}", end - due)

    def finish(self) -> None:
        """Nothing more comes: what is due now is lost."""
        if self._publisher == 0:
            self._lose_up_to(0, self.confirmed)
        self._lose_up_to(1, self.total)
        self._next = [max(self._next[0], self.confirmed), self.total]


def _number_in(term: bytes) -> int | None:
    try:
        return number_of(decode_message(term).body)
    except MessageError:
        return None


def compare_taken_over(queue: str, expected: Sequence[Message], fetched: Sequence[Message], faults: Faults) -> None:
    """Add to ``faults`` whatever of the messages taken over into ``queue`` is not as it was."""
    if len(expected) != len(fetched):
        faults.add(f"{queue}: {len(fetched):,} messages in place of {len(expected):,}")
    for place, (before, after) in enumerate(zip(expected, fetched, strict=False)):
        names = [field.name for field in attrs.fields(Message) if field.eq]
        differing = [name for name in names if getattr(before, name) != getattr(after, name)]
        if differing:
            faults.add(f"{queue}: message {place} differs in {', '.join(differing)}")
