"""Gate: holds all of a node's publishers by the same rules, whatever they publish to.

While an *alarm* is set, no publisher passes (:attr:`Gate.reasons`). Otherwise the node's
:class:`~warren.actors.engines.byte_budget.ByteBudget` limits the *bytes* on their way. A publisher that passes has
*reserved* bytes, and hands them over with the message; the actor that takes the message out of its inbox releases them.
Messages between actors are counted and never held.

The budget needs a reading of the memory after some bytes, and after some time. A publisher that finds the last one too
old lets the memory monitor *look*, in its own thread if possible. So a reading never waits for a thread of the pool,
however busy they are, and takes effect before the next message is admitted.
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
"""The monitor looks every second; a publisher that finds the last reading older than this lets it look."""


class Watcher(Protocol):
    """Reads the memory."""

    def look(self, *, here: bool) -> None:
        """Read the memory and act on it: now in the calling thread, or soon in another."""


class Reservation(Future):
    """A place in the line for bytes; answered once they are reserved."""

    __slots__ = ("waiting",)

    def __init__(self, helper: Helper | None, waiting: Waiting) -> None:
        super().__init__(helper)
        self.waiting = waiting


@attrs.define(eq=False, repr=False)
class Gate:
    """The gate of one node. The memory monitor opens and shuts it; any thread may ask."""

    limit: int
    """How many messages may wait for a queue before its publishers have to wait; 0 while the gate is shut."""
    _clock: Clock
    reasons: frozenset[str] = frozenset()
    """The active alarms; the gate is open without any."""
    disk_is_full: bool = False
    """Whether the disk alarm is set because nothing can be written, not only because little is free."""
    watcher: Watcher | None = None
    _credit: int = attrs.field(default=attrs.Factory(lambda self: self.limit, takes_self=True))
    _waiting: deque[Future] = attrs.Factory(deque)  # never replaced: any thread may append
    _lock: threading.Lock = attrs.Factory(threading.Lock)
    _budget: ByteBudget = attrs.Factory(ByteBudget)
    _places: dict[Waiting, Reservation] = attrs.Factory(dict)
    _read_ns: int = attrs.field(default=attrs.Factory(lambda self: self._clock.now_ns(), takes_self=True))

    # ── alarms ──────────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, reasons: frozenset[str]) -> None:
        """Shut the gate for ``reasons``, or open it."""
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
        """Note whether the disk is full; if it has become so, publishers that wait for an alarm try again."""
        newly_full = is_full and not self.disk_is_full
        self.disk_is_full = is_full
        if newly_full:
            with contextlib.suppress(IndexError):
                for _ in range(len(self._waiting)):
                    self._waiting.popleft().set()

    def alarms_cleared(self, pool: Pool) -> Future:
        """Return a future that is answered once no alarm is set."""
        future = Future(pool)
        self._waiting.append(future)
        if not self.reasons:  # it opened meanwhile
            self.set(frozenset())
        return future

    def end(self) -> None:
        """Let all publishers pass from now on: the node is closed, and fails their publishes."""
        with self._lock:
            self._budget.limit_bytes = UNLIMITED_BYTES
        self.watcher = None
        self.set(frozenset())

    # ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def on_the_way_bytes(self) -> int:
        """The bytes that were handed over and not taken yet."""
        return self._budget.on_the_way_bytes

    @property
    def held(self) -> int:
        """The number of publishers that wait for an alarm to be cleared, or for bytes."""
        return len(self._waiting) + len(self._places)

    def reserve(self, size_bytes: int, *, ahead: bool = False, here: bool = True) -> int:
        """Reserve ``size_bytes`` (``ahead``: and some more); return how many are reserved now, 0 if there is no room.

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
        """Return a future that is answered once ``size_bytes`` are reserved. Withdraw it if no longer needed."""
        with self._lock:
            waiting = self._budget.wait(size_bytes)
            place = self._places[waiting] = Reservation(helper, waiting)
        self._let_in(here=False)
        return place

    def take_over(self, place: Reservation) -> int:
        """Hand the bytes reserved for an answered place to the caller; :meth:`withdraw` no longer returns them."""
        with self._lock:
            return self._budget.take_over(place.waiting)

    def withdraw(self, place: Future) -> None:
        """Give up a place; bytes that it has reserved and that were not taken over are given back.

        Futures that are no place in the line are ignored.
        """
        if not isinstance(place, Reservation):
            return
        with self._lock:
            self._places.pop(place.waiting, None)
            self._budget.withdraw(place.waiting)
        self._let_in(here=False)

    def enter(self, size_bytes: int) -> int:
        """Count bytes that an actor hands on itself, without holding them. Returns ``size_bytes``."""
        with self._lock:
            self._budget.enter(size_bytes)
        return size_bytes

    def leave(self, size_bytes: int, *, unused_bytes: int = 0) -> None:
        """Release bytes that were taken or lost, or (``unused_bytes``) never came."""
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
        """Note a reading of the memory. Set the alarms first."""
        with self._lock:
            self._budget.limit_bytes = limit_bytes
            self._budget.note_reading(used_bytes)
        self._read_ns = self._clock.now_ns()
        self._let_in(here=False)

    def look_if_stale(self) -> None:
        """Have the memory read in this thread if the last reading is too old."""
        if self._clock.now_ns() - self._read_ns >= STALE_NS:
            self._look(here=True)

    def look_soon(self) -> None:
        """Have the memory read in another thread: much data has come that has not passed the gate yet."""
        self._look(here=False)

    def _look(self, *, here: bool) -> None:
        if self.watcher is not None:
            self.watcher.look(here=here)

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if the counts contradict each other."""
        with self._lock:
            self._budget.check_invariants()
            if set(self._places) != set(self._budget.line):
                raise RuntimeError("those in line are not those who wait")
