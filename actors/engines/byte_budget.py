"""ByteBudget: a limit on the bytes of messages in flight in a whole node, with a fair queue for admission.

Bytes are *on the way* from the time they are admitted from a publisher, or handed to a message store, until they are
taken out of an inbox. After that, in a queue's lists, the memory monitor controls them. Nothing else bounds the bytes
on the way, and each is copied once or twice before it is in a file. Therefore at most one part in
:data:`ON_THE_WAY_PART` of the node's memory limit can be on the way, and no more than the last *reading* shows as free.

A reading is out of date as soon as messages arrive. Bytes *granted* since are added to it. When they reach one part in
:data:`READING_PART` of the limit, or leave nothing free, a new reading is needed (:meth:`ByteBudget.wants_reading`). So
readings follow the bytes and not a clock, which may lag on a busy node.

*Alone.* If nothing is on the way, any request is admitted, whatever its size, so a batch larger than the whole budget
passes on its own. What the node itself forwards (dead letters, paged bodies) never waits but is counted
(:meth:`ByteBudget.enter`). No request waits forever, because bytes on the way are worked off without any publisher.

*Fair.* A request that cannot be admitted joins the line. No later request overtakes it, however small.

*Shut.* While an alarm is set, no request is admitted.

Invariants: no count is below 0; nothing in line has been granted; the head of the line could not be admitted when it
was last checked.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

ON_THE_WAY_PART: Final = 16
"""12.5 MiB of 200 MiB. With a larger part the copies exceed the node's limit; with a smaller one threads idle."""

READING_PART: Final = 32

LEAST_BYTES: Final = 1 << 20
"""The minimum of both parts: a node with very little memory still has to handle several messages at a time."""

UNLIMITED_BYTES: Final = 1 << 62

MESSAGE_BYTES: Final = 200
"""What a message takes besides its body and properties: its share of columns, and Python's object headers."""

_AHEAD_BYTES: Final = 1 << 16
_AHEAD_PART: Final = 1024
_OFTEN: Final = 256


@attrs.define(eq=False, repr=False)
class Waiting:
    """A request in line."""

    size_bytes: int
    granted: bool = False
    """Whether its bytes are on the way now."""


@attrs.define(eq=False, repr=False)
class ByteBudget:
    """The bytes of one node. The owner must ensure that only one thread uses it at a time."""

    limit_bytes: int = UNLIMITED_BYTES
    """The node's memory limit."""
    used_bytes: int = 0
    """Memory used, according to the last reading."""
    granted_bytes: int = 0
    """Bytes granted since the last reading."""
    on_the_way_bytes: int = 0
    shut: bool = False
    _line: deque[Waiting] = attrs.field(factory=deque, init=False)

    @property
    def most_bytes(self) -> int:
        """The limit of the bytes on the way."""
        return max(self.limit_bytes // ON_THE_WAY_PART, LEAST_BYTES)

    # ── publishers ──────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, size_bytes: int, *, ahead: bool = False) -> int:
        """Admit ``size_bytes``. Return how many bytes were granted, 0 if there is no room.

        ``ahead``: grant some more for messages that may join this one, if plenty is free.
        """
        if self.shut or self._line or not self._fits(size_bytes):
            return 0
        granted = size_bytes
        if ahead:
            free_bytes = self.most_bytes - self.on_the_way_bytes - size_bytes
            granted += max(0, min(_AHEAD_BYTES, free_bytes // _AHEAD_PART))
        self._grant(granted)
        return granted

    def wait(self, size_bytes: int) -> Waiting:
        """Join the line for ``size_bytes``. :meth:`next_admitted` admits them."""
        waiting = Waiting(size_bytes)
        self._line.append(waiting)
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Leave the line, or give back what was granted unless it was taken over (:meth:`take_over`)."""
        if waiting.granted:
            waiting.granted = False
            self.leave(waiting.size_bytes, unused_bytes=waiting.size_bytes)
        elif waiting in self._line:
            self._line.remove(waiting)

    def take_over(self, waiting: Waiting) -> int:
        """Take over and return the granted bytes. The caller accounts for them with :meth:`leave`."""
        if not waiting.granted:
            raise RuntimeError(f"{waiting} was not granted any bytes")
        waiting.granted = False
        return waiting.size_bytes

    def next_admitted(self) -> Waiting | None:
        """Admit and return the head of the line, if there is room for it now."""
        if self.shut or not self._line or not self._fits(self._line[0].size_bytes):
            return None
        waiting = self._line.popleft()
        waiting.granted = True
        self._grant(waiting.size_bytes)
        return waiting

    def _fits(self, size_bytes: int) -> bool:
        on_the_way_bytes = self.on_the_way_bytes
        if not on_the_way_bytes:
            return True
        return on_the_way_bytes + size_bytes <= self.most_bytes and self._is_free(size_bytes)

    def _is_free(self, size_bytes: int) -> bool:
        return self.used_bytes + self.granted_bytes + self.on_the_way_bytes + size_bytes <= self.limit_bytes

    def _grant(self, size_bytes: int) -> None:
        self.granted_bytes += size_bytes
        self.on_the_way_bytes += size_bytes

    # ── what is on the way ──────────────────────────────────────────────────────────────────────────────────────

    def enter(self, size_bytes: int) -> None:
        """Count bytes that the node itself forwards. They are never held back."""
        self._grant(size_bytes)

    def leave(self, size_bytes: int, *, unused_bytes: int = 0) -> None:
        """Count bytes as taken or lost; ``unused_bytes`` of them were granted and never arrived."""
        self.on_the_way_bytes -= size_bytes
        self.granted_bytes = max(0, self.granted_bytes - unused_bytes)

    # ── readings ────────────────────────────────────────────────────────────────────────────────────────────────

    def wants_reading(self, size_bytes: int = 0) -> bool:
        """Whether the last reading is too old to let ``size_bytes`` (or the head of the line) in by it."""
        granted_bytes = self.granted_bytes
        if granted_bytes >= max(self.limit_bytes // READING_PART, LEAST_BYTES):
            return True
        if self._line:
            size_bytes = self._line[0].size_bytes
        # If hardly anything is free, a reading for every message would cost more than the message.
        return granted_bytes * _OFTEN >= self.limit_bytes and not self._is_free(size_bytes)

    def note_reading(self, used_bytes: int) -> None:
        """Record a new reading."""
        self.used_bytes = used_bytes
        self.granted_bytes = 0

    @property
    def line(self) -> tuple[Waiting, ...]:
        """The waiting requests, oldest first."""
        return tuple(self._line)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the counts contradict each other."""
        if min(self.used_bytes, self.granted_bytes, self.on_the_way_bytes) < 0:
            raise RuntimeError(f"a count is negative: {self}")
        if any(waiting.granted for waiting in self._line):
            raise RuntimeError("a reservation in the line has been granted")
        if self._line and not self.shut and not self.on_the_way_bytes:
            raise RuntimeError("reservations wait although no bytes are on the way")
