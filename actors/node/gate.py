"""Gate: where a node's publishers are held, all of them by the same rules, whatever they publish to.

While an *alarm* is set nobody passes (:attr:`Gate.reasons`). Else so many *bytes* may be on their way at a time as the
node's :class:`~warren.actors.engines.byte_budget.ByteBudget` says. Who passes has *reserved* bytes, and hands them over
with the message; the actor that takes it out of its inbox lets them leave. What the actors hand on to each other is
counted and never held.

The budget wants a reading of the memory now and then, in bytes and in time. Whoever finds the last one too old lets the
memory monitor *look*, in his own thread where that may be. So a reading never waits for a thread of the pool, however
busy they are, and is acted on before the next message is let in.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Final, Protocol

import attrs

from warren.actors.clock import NS, Clock
from warren.actors.engines.byte_budget import UNLIMITED_BYTES, ByteBudget, Waiting
from warren.actors.runtime.future import Future, Helper
from warren.actors.runtime.pool import Pool

STALE_NS: Final = 2 * NS
"""The memory monitor looks every second. A publisher who finds that it has not looked for so long lets it."""


class Watcher(Protocol):
    """Who reads the memory."""

    def look(self, *, here: bool) -> None:
        """Read now, and act on it: in the calling thread, or soon in another."""


class Reservation(Future):
    """A place in the line for bytes; answered once they are reserved."""

    __slots__ = ("waiting",)

    def __init__(self, helper: Helper | None, waiting: Waiting) -> None:
        super().__init__(helper)
        self.waiting = waiting


@attrs.define(eq=False, repr=False)
class Gate:
    """One node's. The memory monitor opens and shuts it; any thread may ask."""

    limit: int
    """How many messages may wait for a queue before its publishers have to; 0 while it is shut."""
    _clock: Clock
    reasons: frozenset[str] = frozenset()
    """The alarms that are set; empty: open."""
    disk_is_full: bool = False
    """Whether the disk alarm is set because nothing can be written, and not only because little is free."""
    watcher: Watcher | None = None
    _credit: int = attrs.field(default=attrs.Factory(lambda self: self.limit, takes_self=True))
    _waiting: deque[Future] = attrs.Factory(deque)  # never replaced: any thread may append
    _lock: threading.Lock = attrs.Factory(threading.Lock)
    _budget: ByteBudget = attrs.Factory(ByteBudget)
    _places: dict[Waiting, Reservation] = attrs.Factory(dict)
    _read_ns: int = attrs.field(default=attrs.Factory(lambda self: self._clock.now_ns(), takes_self=True))

    # ── alarms ──────────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, reasons: frozenset[str]) -> None:
        """Shut for ``reasons``, or open."""
        self.reasons = reasons
        self.limit = 0 if reasons else self._credit
        with self._lock:
            self._budget.shut = bool(reasons)
        if not reasons:
            with contextlib.suppress(IndexError):
                while True:
                    self._waiting.popleft().set()
            self._let_in(here=False)

    def note_full_disk(self, *, is_full: bool) -> None:
        """Say whether the disk is full; if it has become so, those who wait for an alarm try again."""
        newly_full = is_full and not self.disk_is_full
        self.disk_is_full = is_full
        if newly_full:
            with contextlib.suppress(IndexError):
                for _ in range(len(self._waiting)):
                    self._waiting.popleft().set()

    def alarms_cleared(self, pool: Pool) -> Future:
        """A future that is answered once no alarm is set."""
        future = Future(pool)
        self._waiting.append(future)
        if not self.reasons:  # it opened meanwhile
            self.set(frozenset())
        return future

    def end(self) -> None:
        """Let everybody pass from now on: the node is closed, and tells so to whoever comes."""
        with self._lock:
            self._budget.limit_bytes = UNLIMITED_BYTES
        self.watcher = None
        self.set(frozenset())

    # ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def on_the_way_bytes(self) -> int:
        """Handed over, and not taken yet."""
        return self._budget.on_the_way_bytes

    @property
    def held(self) -> int:
        """How many wait for an alarm to be cleared, or for bytes."""
        return len(self._waiting) + len(self._places)

    def reserve(self, size_bytes: int, *, ahead: bool = False, here: bool = True) -> int:
        """Let ``size_bytes`` pass; returns how many are reserved now (``ahead``: some more), 0 where there is no room.

        ``here``: whether the calling thread may read the memory.
        """
        if self._clock.now_ns() - self._read_ns < STALE_NS:
            with self._lock:
                if not self._budget.wants_reading(size_bytes):
                    return self._budget.admit(size_bytes, ahead=ahead)
        self._look(here=here)
        with self._lock:
            return self._budget.admit(size_bytes, ahead=ahead)

    def get_in_line(self, size_bytes: int, helper: Helper | None = None) -> Reservation:
        """A future that is answered once ``size_bytes`` are reserved. To be withdrawn where nobody waits any more."""
        with self._lock:
            waiting = self._budget.wait(size_bytes)
            place = self._places[waiting] = Reservation(helper, waiting)
        self._let_in(here=False)
        return place

    def take_over(self, place: Reservation) -> int:
        """What is reserved for a place that was answered is the caller's; it is not given back any more."""
        with self._lock:
            return self._budget.take_over(place.waiting)

    def withdraw(self, place: Future) -> None:
        """Nobody waits for it any more; what it has reserved, and nobody took over, is given back.

        What is no place in the line is left alone.
        """
        if not isinstance(place, Reservation):
            return
        with self._lock:
            self._places.pop(place.waiting, None)
            self._budget.withdraw(place.waiting)
        self._let_in(here=False)

    def enter(self, size_bytes: int) -> int:
        """What an actor hands on itself is on the way, and is not held. Returns ``size_bytes``."""
        with self._lock:
            self._budget.enter(size_bytes)
        return size_bytes

    def leave(self, size_bytes: int, *, unused_bytes: int = 0) -> None:
        """What was reserved or entered has been taken; or it is lost, or (``unused_bytes``) never came."""
        if not size_bytes:
            return
        with self._lock:
            self._budget.leave(size_bytes, unused_bytes=unused_bytes)
        if self._places:
            self._let_in(here=True)

    def _let_in(self, *, here: bool) -> None:
        looked = False
        while self._places:
            with self._lock:
                waiting = self._budget.next_admitted()
                place = None if waiting is None else self._places.pop(waiting, None)
                wants = waiting is None and not self.reasons and self._budget.wants_reading()
            if place is not None:
                place.set()
            elif waiting is None:
                if looked or not wants:
                    return
                looked = True
                self._look(here=here)

    # ── readings ────────────────────────────────────────────────────────────────────────────────────────────────

    def note_reading(self, used_bytes: int, limit_bytes: int) -> None:
        """The memory has been read. Whoever read it sets the alarms first."""
        with self._lock:
            self._budget.limit_bytes = limit_bytes
            self._budget.note_reading(used_bytes)
        self._read_ns = self._clock.now_ns()
        self._let_in(here=False)

    def look_if_stale(self) -> None:
        """Have the memory read in this thread, if it has not been for too long."""
        if self._clock.now_ns() - self._read_ns >= STALE_NS:
            self._look(here=True)

    def look_soon(self) -> None:
        """Have the memory read in another thread: much has come that does not pass here yet."""
        self._look(here=False)

    def _look(self, *, here: bool) -> None:
        if self.watcher is not None:
            self.watcher.look(here=here)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` where the counts contradict each other."""
        with self._lock:
            self._budget.check_invariants()
            if set(self._places) != set(self._budget.line):
                raise RuntimeError("those in line are not those who wait")
