"""Leading: who of many threads reads one socket.

One thread at a time *leads*: it waits at the socket, reads, and answers the futures of all. A thread that waits for an
answer leads where nobody does, so what it asks for costs one round trip and no switch of threads; else it follows, and
is woken by its answer or to lead. Where nobody waits, the *reader* leads, a thread for that. While threads come and go
it does not compete with them: it looks after them every few milliseconds, and leads again when none came meanwhile.
It also connects: where there is no socket nobody leads but it.

*Locks*, in the order in which they may be taken: ``_lock``, then those of futures and of deliveries. It is held for a
few instructions and calls of the system that do not wait, never while something is waited for. What calls others
(callbacks of futures, deliveries) is collected (:data:`Later`) and called without it. Whoever leads holds no lock: the
one who leads is a token, so that an interrupt between two instructions leaves nobody leading for ever.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from _queue import Empty, SimpleQueue  # the C module: see the pool
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import StorageError, WarrenError, shortly

_LOG = logger("client")

TICK_S: Final = 0.005
"""So long the reader leaves the socket to threads that come and go."""
SILENCE_TICK_S: Final = 1.0
"""How often a thread at the socket looks how long the other end has been silent."""
LINGER_S: Final = 0.0005
"""Messages and acks that follow a write so soon leave together."""

Later = list[tuple[Callable[..., object], tuple[Any, ...]]]
"""What is to be called without the lock, in this order."""


def call_later(later: Later) -> None:
    """Call it."""
    for function, arguments in later:
        function(*arguments)


def new_lock() -> threading.Lock:
    """A lock, for those who know no threads."""
    return threading.Lock()


class _Bell:
    """A semaphore that an interrupt leaves whole: one of ``threading`` may keep its lock then, or lose it."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rung.put(None)

    def heard(self, timeout: float | None = None) -> bool:
        """Wait for one ring, at most so many seconds; whether it came."""
        try:
            self._rung.get(timeout=timeout)
        except Empty:
            return False
        return True


class _Token:
    """One turn at leading."""


class Leading(ABC):
    """The threads at one socket after the other."""

    closed: WarrenError | None = None
    """Why nobody can use it any more."""
    silence_limit_s: float
    """After this time without data :meth:`too_silent` is called."""

    def begin(self) -> None:
        """As nobody had ever used it."""
        self._lock = threading.Lock()
        self._park = _Bell()
        self._poll = select.poll()
        self._woken: socket.socket | None = None
        self._waker: socket.socket | None = None
        """What is sent here wakes who waits at the socket; there once somebody wants one."""
        self._thread: threading.Thread | None = None
        self._leader: _Token | None = None
        self._followers: deque[_Bell] = deque()
        self._helped = 0
        self._is_deep = self._is_ticking = False
        self.connection: socket.socket | None = None
        self.is_joining = False
        """Whether the reader is to connect."""
        self.is_lazy = False
        """Whether something is to leave soon."""
        self.abandoned: deque[Callable[[Later], object]] = deque()
        """What is to be done with the lock held, soon: for those that may not take it, as a ``__del__``."""
        self.silent_s = 0.0
        """For how long nothing came while a thread was at the socket. Time during which this process was suspended
        counts for no more than :data:`SILENCE_TICK_S`."""
        self._looked_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether there is a socket."""
        return self.connection is not None

    @property
    def is_reader(self) -> bool:
        """Whether the calling thread is the reader: it waits for no answer."""
        return threading.current_thread() is self._thread

    @property
    @abstractmethod
    def is_stuck(self) -> bool:
        """Whether the socket had no room for all."""

    @abstractmethod
    def join(self) -> None:
        """The reader's: connect."""

    @abstractmethod
    def fail(self, error: WarrenError) -> None:
        """Say to all who wait that they wait in vain."""

    @abstractmethod
    def break_off(self, error: WarrenError) -> None:
        """The same, where something has happened that should not; the next one who asks gets another socket."""

    @abstractmethod
    def too_silent(self) -> None:
        """Nothing came for :attr:`silence_limit_s`. Called without the lock."""

    @abstractmethod
    def receive(self, connection: socket.socket, later: Later) -> None:
        """Read what there is. Called with the lock held."""

    @abstractmethod
    def flush(self) -> None:
        """Write what there is, as far as the socket takes it. Called with the lock held."""

    @abstractmethod
    def flush_lazy(self) -> None:
        """The same, where something was to leave soon. Called with the lock held."""

    def watch(self, connection: socket.socket) -> None:
        """There is a socket; called with the lock held."""
        self.connection, self.is_joining = connection, False
        self.silent_s, self._looked_s = 0.0, time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        if self._woken is not None:
            self._poll.register(self._woken, select.POLLIN)

    def locked(self) -> threading.Lock:
        """For those whose state the lock guards, too: channels, publishers."""
        return self._lock

    def wait_for_leader(self, patience_s: float) -> None:
        """Come back when nobody is at the socket, which was shut down; or after that time."""
        deadline = time.monotonic() + patience_s
        while self._leader is not None and time.monotonic() < deadline:
            time.sleep(TICK_S / 10)

    def stop_reader(self) -> None:
        """Let the reader end, once :attr:`closed` is set."""
        self.wake()
        self._park.ring()
        if self._thread is not None and not self.is_reader:
            self._thread.join()
        for end in (self._woken, self._waker):
            if end is not None:
                end.close()

    def ask_to_join(self) -> None:
        """Let the reader connect; called with the lock held."""
        uninterrupted(self._ask_to_join)

    def _ask_to_join(self) -> None:
        self.is_joining = True
        if self._thread is None:
            self._start_reader()
        self.wake()

    def _start_reader(self) -> None:
        """An interrupt waits: nobody could wait for the end of a thread that is half begun."""
        try:
            woken, waker = socket.socketpair()
        except OSError as error:
            raise StorageError(f"no socket to wake the reader of a connection: {error.strerror}") from error
        thread = threading.Thread(target=self._read, name="warren-client", daemon=True)
        self._woken, self._waker, self._thread = woken, waker, thread
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had
            self._woken, self._waker, self._thread = None, None, None
            woken.close()
            waker.close()
            raise

    def help(self, future: Future, deadline: float | None = None) -> None:
        """The calling thread waits for ``future``: it leads, or follows."""
        if self.is_reader:
            raise RuntimeError("the thread that answers waits for an answer")
        self._helped += 1
        token = _Token()
        while not future.done:
            try:
                with self._lock:
                    if self.is_up:
                        self.flush_lazy()
                        if self._leader is None:
                            self._leader = token
                if self._leader is token:
                    self._lead(future, deadline)
                elif not self._follow(future, deadline):
                    return
            finally:
                if self._leader is token:
                    self._leader = None
                self._promote()
            if deadline is not None and not future.done and time.monotonic() >= deadline:
                return

    def wait_for_turn(self) -> None:
        """Nothing: what has come was read by who helped."""
        return

    def hurry_up(self) -> None:
        """Somebody waits who cannot help."""
        with self._lock:
            self.flush_lazy()

    def _follow(self, future: Future, deadline: float | None) -> bool:
        """Wait until there is an answer, or nobody leads; ``False`` when the time is over."""
        waiter = _Bell()

        def answered(_: Future) -> None:
            waiter.ring()

        self._followers.append(waiter)
        future.on_done(answered)
        try:
            if self._leader is None and self.is_up:
                return True
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return waiter.heard(left)
        finally:
            future.forget(answered)
            with contextlib.suppress(ValueError):
                self._followers.remove(waiter)

    def _promote(self) -> None:
        """Nobody leads: let another one; where there is no socket, let the reader see to it."""
        if self._leader is None:
            if self.is_up:
                with contextlib.suppress(IndexError):
                    self._followers.popleft().ring()
                    return
            if self._is_deep:
                self._is_deep = False
                self._park.ring()

    def _lead(self, future: Future | None, deadline: float | None = None) -> None:
        """Read, until ``future`` is answered, the time is over or the socket lost; as the reader (``None``), until
        somebody waits."""
        helped = self._helped
        while future is None or not future.done:
            with self._lock:
                if self.connection is None:
                    return
                connection, poll = self.connection, self._poll
                poll.modify(connection, select.POLLIN | (select.POLLOUT if self.is_stuck else 0))
                wait_s = 2 * LINGER_S if self.is_lazy else SILENCE_TICK_S
            if deadline is not None:
                wait_s = min(wait_s, max(0.0, deadline - time.monotonic()))
            ready = poll.poll(wait_s * 1000)
            uninterrupted(self._attend, connection, ready)
            if future is None and (self._helped != helped or self._followers):
                return
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _attend(self, connection: socket.socket | None, ready: list[tuple[int, int]]) -> None:
        """Do what there is to do at the socket, and what was put off."""
        later: Later = []
        with self._lock:
            if connection is None or self.connection is connection:
                readable = False
                for descriptor, _ in ready:
                    if self._woken is not None and descriptor == self._woken.fileno():
                        with contextlib.suppress(OSError):
                            self._woken.recv(4096, socket.MSG_DONTWAIT)
                    else:
                        readable = True
                while self.abandoned:
                    self.abandoned.popleft()(later)
                if readable and connection is not None:
                    self.silent_s = 0.0
                    self.receive(connection, later)
                elif connection is not None:
                    self._count_silence()
                if self.is_lazy or self.is_stuck:
                    self.flush()
        call_later(later)
        if self.silent_s > self.silence_limit_s and self.is_up:
            self.too_silent()

    def _count_silence(self) -> None:
        now_s = time.monotonic()
        self.silent_s += min(now_s - self._looked_s, SILENCE_TICK_S)
        self._looked_s = now_s

    def wake(self) -> None:
        """Let whoever leads look; where nobody does, the reader. Takes no lock."""
        if self._waker is not None:
            with contextlib.suppress(OSError):
                self._waker.send(b"!", socket.MSG_DONTWAIT)
        if self._is_deep and self._leader is None:
            self._is_deep = False
            self._park.ring()

    def _read(self) -> None:
        try:
            while self.closed is None:
                try:
                    self._read_on()
                except Exception as error:
                    _LOG.exception("the reading of a connection failed", extra=log_event("link_failed", error))
                    self.break_off(WarrenError(f"the connection failed: {shortly(error)}"))
        finally:
            self._promote()

    def _read_on(self) -> None:
        if not self.is_up:
            if self.is_joining:
                self.join()
            else:
                self._rest()
            self._promote()
            return
        token = _Token()
        with self._lock:
            if self._leader is None:
                self._leader = token
        if self._leader is token:
            try:
                self._lead(None)
            finally:
                self._leader = None
                self._promote()
        else:
            self._rest()
        self._is_ticking = True
        helped = None
        while helped != self._helped and self.is_up and self.closed is None:
            helped = self._helped
            self._park.heard(TICK_S)
            if self.is_lazy or self.abandoned:
                self._attend(None, [])
        self._is_ticking = False
        if self.is_lazy:  # who has put something off in this moment has not woken anybody
            self._attend(None, [])

    def _rest(self) -> None:
        """Wait until nobody leads, or there is something to do."""
        self._is_deep = True
        is_idle = self._leader is not None if self.is_up else not self.is_joining
        if is_idle and self.closed is None:
            self._park.heard()
        self._is_deep = False
