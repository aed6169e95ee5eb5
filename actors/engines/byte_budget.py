"""ByteBudget: how many bytes of messages may be on their way in a whole node, and whose turn it is to add to them.

*On the way* is what was admitted from a publisher, or handed to a message store, and not taken yet: it lies in an
inbox. Behind that, in a queue's lists, the memory monitor sees to it. What is on the way has no other bound in bytes,
and each of its bytes is copied once or twice before it is in a file. So of the memory that the node may use, one part
in :data:`ON_THE_WAY_PART` can be on the way, and no more than is free according to the last *reading*.

A reading is out of date as soon as messages come. What was *granted* since is counted on top of it; when that is one
part in :data:`READING_PART` of the limit, or when by that count nothing is free, somebody has to read anew
(:meth:`ByteBudget.wants_reading`). So the reading follows the bytes, not a clock that may stand behind a busy node.

*Alone.* Where nothing is on the way, whoever comes is let in, however much it brings: a batch larger than the whole
budget gets through, by itself. What the node hands on itself, dead letters and paged bodies, never waits, and is
counted (:meth:`ByteBudget.enter`). So nobody waits for ever: what is on the way is worked off without any publisher.

*Fair.* Who cannot be let in gets in line; nobody passes him, however little it brings.

*Shut.* While an alarm is set nobody is let in.

Invariants: nothing is counted below 0; what is in line has been granted nothing; its head could not be let in when that
was last looked at.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

ON_THE_WAY_PART: Final = 16
"""Of 200 MiB, 12.5 MiB. A larger part, and its copies take a node beyond its limit; a smaller one, and threads idle."""

READING_PART: Final = 32

LEAST_BYTES: Final = 1 << 20
"""Both parts are at least this: a node with hardly any memory still has to do more than one message at a time."""

UNLIMITED_BYTES: Final = 1 << 62

MESSAGE_BYTES: Final = 200
"""What a message takes beside its body and its properties: its share of columns, and Python's own headers."""

_AHEAD_BYTES: Final = 1 << 16
_AHEAD_PART: Final = 1024
_OFTEN: Final = 256


@attrs.define(eq=False, repr=False)
class Waiting:
    """One in line."""

    size_bytes: int
    granted: bool = False
    """Whether its bytes are on the way now."""


@attrs.define(eq=False, repr=False)
class ByteBudget:
    """The bytes of one node. Its owner sees to it that one thread at a time is in it."""

    limit_bytes: int = UNLIMITED_BYTES
    """What the node may use of the memory."""
    used_bytes: int = 0
    """As last read."""
    granted_bytes: int = 0
    """Let in since then."""
    on_the_way_bytes: int = 0
    shut: bool = False
    _line: deque[Waiting] = attrs.field(factory=deque, init=False)

    @property
    def most_bytes(self) -> int:
        """So much may be on the way."""
        return max(self.limit_bytes // ON_THE_WAY_PART, LEAST_BYTES)

    # ── publishers ──────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, size_bytes: int, *, ahead: bool = False) -> int:
        """Let so many bytes in; returns how many are on the way for it now, 0 where there is no room.

        ``ahead``: and some more for messages that may join this one, as long as there is plenty.
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
        """Get in line for so many bytes. :meth:`next_admitted` lets them in."""
        waiting = Waiting(size_bytes)
        self._line.append(waiting)
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Leave the line, or give back what was granted, unless somebody took it over: nobody waits any more."""
        if waiting.granted:
            waiting.granted = False
            self.leave(waiting.size_bytes, unused_bytes=waiting.size_bytes)
        elif waiting in self._line:
            self._line.remove(waiting)

    def take_over(self, waiting: Waiting) -> int:
        """The bytes that one was granted are the caller's: what he has done with them he says in :meth:`leave`."""
        if not waiting.granted:
            raise RuntimeError(f"{waiting} has been granted nothing")
        waiting.granted = False
        return waiting.size_bytes

    def next_admitted(self) -> Waiting | None:
        """Let in the head of the line, if there is room for it now."""
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
        """The node itself hands so many bytes on. Whoever does is never held."""
        self._grant(size_bytes)

    def leave(self, size_bytes: int, *, unused_bytes: int = 0) -> None:
        """So many bytes have been taken, or are lost; ``unused_bytes`` of them were granted and never came."""
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
        # Read for every message where hardly anything is free, a reading would cost more than the message.
        return granted_bytes * _OFTEN >= self.limit_bytes and not self._is_free(size_bytes)

    def note_reading(self, used_bytes: int) -> None:
        """Somebody has read how much is used."""
        self.used_bytes = used_bytes
        self.granted_bytes = 0

    @property
    def line(self) -> tuple[Waiting, ...]:
        """Who waits, first come first."""
        return tuple(self._line)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where the counts contradict each other."""
        if min(self.used_bytes, self.granted_bytes, self.on_the_way_bytes) < 0:
            raise RuntimeError(f"less than nothing is used, granted or on the way: {self}")
        if any(waiting.granted for waiting in self._line):
            raise RuntimeError("one in line has been let in")
        if self._line and not self.shut and not self.on_the_way_bytes:
            raise RuntimeError("somebody waits though nothing is on the way")
