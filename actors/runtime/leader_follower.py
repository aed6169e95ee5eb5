"""Leading: how many threads share the reading of one socket.

One thread at a time *leads*: it waits at the socket, reads, and answers the futures of all threads. A thread that waits
for an answer leads if no other thread does; its request then costs one round trip and no thread switch. Otherwise it
follows, and is woken by its answer or to lead. If no thread waits, a dedicated thread, the *reader*, leads. While
threads come and go, the reader does not compete with them: it checks every few milliseconds, and leads again if none
came meanwhile. The reader also connects: without a socket only the reader acts.

*Locks*, in the order in which they may be taken: ``_lock``, then those of futures and of deliveries. ``_lock`` is held
for a few instructions and non-blocking system calls, never while waiting. Calls to other code (callbacks of futures,
deliveries) are collected (:data:`Later`) and made without the lock. Leadership is not a lock but a token, so an
interrupt between two instructions cannot leave it taken for ever.
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
"""How long the reader leaves the socket to threads that come and go before it checks again."""
SILENCE_TICK_S: Final = 1.0
"""How often a thread at the socket checks how long the other end has been silent."""
LINGER_S: Final = 0.0005
"""Messages and acks that follow a write within this time are sent together."""

Later = list[tuple[Callable[..., object], tuple[Any, ...]]]
"""Calls to make without the lock, in this order."""


def call_later(later: Later) -> None:
    """Make the collected calls."""
    for function, arguments in later:
        function(*arguments)


def new_lock() -> threading.Lock:
    """Return a lock, for modules that do not import ``threading``."""
    return threading.Lock()


class _Bell:
    """A semaphore that survives an interrupt; that of ``threading`` may keep its lock then, or lose it."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rung.put(None)

    def heard(self, timeout: float | None = None) -> bool:
        """Wait for one ring, at most ``timeout`` seconds; return whether it came."""
        try:
            self._rung.get(timeout=timeout)
        except Empty:
            return False
        return True


class _Token:
    """Identifies one turn at leading."""


class Leading(ABC):
    """The threads that share one socket."""

    closed: WarrenError | None = None
    """Why the socket is closed for good."""
    silence_limit_s: float
    """After this time without data :meth:`too_silent` is called."""

    def begin(self) -> None:
        """Set the initial state."""
        self._lock = threading.Lock()
        self._park = _Bell()
        self._poll = select.poll()
        self._woken: socket.socket | None = None
        self._waker: socket.socket | None = None
        """Sending to it wakes the thread at the socket; created when the reader starts."""
        self._thread: threading.Thread | None = None
        self._leader: _Token | None = None
        self._followers: deque[_Bell] = deque()
        self._helped = 0
        self._is_deep = self.is_ticking = False
        self.connection: socket.socket | None = None
        self.is_joining = False
        """Whether the reader is to connect."""
        self.is_lazy = False
        """Whether data waits to be sent soon."""
        self.abandoned: deque[Callable[[Later], object]] = deque()
        """Work to do soon with the lock held, for code that may not take it, such as ``__del__``."""
        self.silent_s = 0.0
        """For how long nothing came while a thread was at the socket. Time during which this process was suspended
        counts as at most :data:`SILENCE_TICK_S`."""
        self._looked_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether there is a socket."""
        return self.connection is not None

    @property
    def is_reader(self) -> bool:
        """Whether the calling thread is the reader, which never waits for an answer."""
        return threading.current_thread() is self._thread

    @property
    @abstractmethod
    def is_stuck(self) -> bool:
        """Whether the socket could not take all data."""

    @abstractmethod
    def join(self) -> None:
        """Connect; called by the reader."""

    @abstractmethod
    def fail(self, error: WarrenError) -> None:
        """Fail everything that waits for an answer."""

    @abstractmethod
    def break_off(self, error: WarrenError) -> None:
        """Like :meth:`fail`, after an unexpected error; the next request opens another socket."""

    @abstractmethod
    def too_silent(self) -> None:
        """Called without the lock when nothing came for :attr:`silence_limit_s`."""

    @abstractmethod
    def receive(self, connection: socket.socket, later: Later) -> None:
        """Read the available data. Called with the lock held."""

    @abstractmethod
    def flush(self) -> None:
        """Write as much of the pending data as the socket takes. Called with the lock held."""

    @abstractmethod
    def flush_lazy(self) -> None:
        """Write data that was to be sent soon. Called with the lock held."""

    def watch(self, connection: socket.socket) -> None:
        """Use ``connection`` from now on; called with the lock held."""
        self.connection, self.is_joining = connection, False
        self.silent_s, self._looked_s = 0.0, time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        if self._woken is not None:
            self._poll.register(self._woken, select.POLLIN)

    def locked(self) -> threading.Lock:
        """The lock, for channels and publishers, whose state it guards too."""
        return self._lock

    def wait_for_leader(self, patience_s: float) -> None:
        """Wait until no thread is at the socket, which was shut down, or that time has passed."""
        deadline = time.monotonic() + patience_s
        while self._leader is not None and time.monotonic() < deadline:
            time.sleep(TICK_S / 10)

    def stop_reader(self) -> None:
        """End the reader, once :attr:`closed` is set."""
        self.wake()
        self._park.ring()
        if self._thread is not None and not self.is_reader:
            self._thread.join()
        for end in (self._woken, self._waker):
            if end is not None:
                end.close()

    def ask_to_join(self) -> None:
        """Tell the reader to connect; called with the lock held."""
        uninterrupted(self._ask_to_join)

    def _ask_to_join(self) -> None:
        self.is_joining = True
        if self._thread is None:
            self._start_reader()
        self.wake()

    def _start_reader(self) -> None:
        """Start the reader. Interrupts are held back, because a half-started thread could not be joined."""
        try:
            woken, waker = socket.socketpair()
        except OSError as error:
            raise StorageError(f"no socket to wake the reader of a connection: {error.strerror}") from error
        thread = threading.Thread(target=self._read, name="warren-client", daemon=True)
        self._woken, self._waker, self._thread = woken, waker, thread
        try:
            thread.start()
        except RuntimeError:  # no thread available
            self._woken, self._waker, self._thread = None, None, None
            woken.close()
            waker.close()
            raise

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Wait for ``future`` in the calling thread, which leads or follows."""
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
        """Do nothing: what has come was read by the threads that helped."""
        return

    def hurry_up(self) -> None:
        """Flush for a waiter that cannot help."""
        with self._lock:
            self.flush_lazy()

    def _follow(self, future: Future, deadline: float | None) -> bool:
        """Wait until there is an answer or no thread leads; ``False`` on timeout."""
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
        """If no thread leads, wake a follower to lead; without a follower or a socket, wake the reader."""
        if self._leader is None:
            if self.is_up:
                with contextlib.suppress(IndexError):
                    self._followers.popleft().ring()
                    return
            if self._is_deep:
                self._is_deep = False
                self._park.ring()

    def _lead(self, future: Future | None, deadline: float | None = None) -> None:
        """Read until ``future`` is answered, the time is over or the socket is lost; as the reader (``None``), until a
        thread waits."""
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
        """Handle the events of the socket, and deferred work."""
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
        """Wake the leader, or the reader if no thread leads. Takes no lock."""
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
                    _LOG.exception("reading from a connection failed", extra=log_event("link_failed", error))
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
        self.is_ticking = True
        helped = None
        while helped != self._helped and self.is_up and self.closed is None:
            helped = self._helped
            self._park.heard(TICK_S)
            if self.is_lazy or self.abandoned:
                self._attend(None, [])
        self.is_ticking = False
        if self.is_lazy:  # a thread that deferred a write at this moment has not woken the reader
            self._attend(None, [])

    def _rest(self) -> None:
        """Wait until no thread leads, or there is something to do."""
        self._is_deep = True
        is_idle = self._leader is not None if self.is_up else not self.is_joining
        if is_idle and self.closed is None:
            self._park.heard()
        self._is_deep = False
