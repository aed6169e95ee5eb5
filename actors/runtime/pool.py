"""The pools that run the turns of actors (:mod:`warren.actors.runtime.pooled_actor`): threads, or a test's hand."""

from __future__ import annotations

import threading
from _queue import SimpleQueue  # the C module: a user's own queue.py does not stand in front of it
from collections import deque
from typing import Final, Protocol

from pykka import Timeout

from warren.actors.runtime.future import Future
from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.pooled_actor import Line, Turns
from warren.storage.errors import SettingsError, WarrenError

_PATIENCE_S: Final = 30.0
"""Turns that go on for this long are taken to be endless."""


class Pool(Line, Protocol):
    """Runs the turns."""

    def holding(self) -> Held:
        """Return a context manager that delays turns scheduled by this thread until the block ends."""

    def stop(self) -> None:
        """Run no more turns; return when none is running."""

    def forget(self, error: WarrenError) -> None:
        """Stop running turns in a forked child; further waits raise ``error``."""


class ThreadPool:
    """Threads that run turns in the order of submission; :attr:`PooledActor.goes_first` before others."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._line: SimpleQueue[Turns | None] = SimpleQueue()
        self._holding = _Holding()
        self._first: deque[Turns] = deque()
        self._error: WarrenError | None = None
        self._name = name
        self._threads: list[threading.Thread] = []
        self._waiting_threads = 0
        self._spare_threads = 0
        """How many threads are to end; each that takes ``None`` out of the line ends if there are any."""
        self._lock = threading.Lock()
        """Guards the threads and their numbers."""
        try:
            for _ in range(threads):
                uninterrupted(self._start_thread)
        except RuntimeError as error:
            started = len(self._threads)
            self.stop()
            raise SettingsError(f"threads cannot be {threads}: after {started} the system says: {error}") from error

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def submit(self, turns: Turns) -> None:
        if (held := self._holding.held) is not None:
            held.waiting.append(turns)
            return
        if turns.actor.goes_first:
            self._first.append(turns)
        self._line.put(turns)

    def holding(self) -> Held:
        """Wake no thread for turns that this thread schedules, until the block ends, so that they find more to do at
        once.

        The calling thread must not wait for anything meanwhile. It may run some of the turns itself (:meth:`Held.run`,
        :meth:`Held.run_quick_ones`).
        """
        return Held(self, self._holding)

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Let the threads do the work. If one of them waits itself, make sure that another thread can run turns."""
        if self._error is not None:
            raise self._error
        if self._holding.works and deadline is None:
            self._wait(future)

    def _wait(self, future: Future) -> None:
        """Wait as one of the threads. If all others wait or are to end, keep or start one; one ends afterwards."""
        with self._lock:
            self._waiting_threads += 1
            needs_another = self._waiting_threads == len(self._threads) - self._spare_threads
            if needs_another and self._spare_threads:
                self._spare_threads -= 1
            elif needs_another:
                uninterrupted(self._start_thread)
        try:
            answered = threading.Semaphore(0)
            future.on_done(lambda _: answered.release())
            answered.acquire()
        finally:
            with self._lock:
                self._waiting_threads -= 1
                self._spare_threads += needs_another
            if needs_another:
                self._line.put(None)

    def _work(self) -> None:
        self._holding.works = True
        while (turns := self._line.get()) is not None or not self._is_spare():
            while (first := self._next_first()) is not None:
                self._run_turn(first)
            if turns is not None and not turns.actor.goes_first:
                self._run_turn(turns)

    def _is_spare(self) -> bool:
        """Whether this thread is to end; then it is no longer one of the threads."""
        with self._lock:
            if not self._spare_threads:
                return False
            self._spare_threads -= 1
            self._threads.remove(threading.current_thread())
            return True

    def _run_turn(self, turns: Turns) -> None:
        turns.inbox.scheduled = False
        turns.run()

    def _next_first(self) -> Turns | None:
        try:
            return self._first.popleft()
        except IndexError:
            return None

    def stop(self) -> None:
        with self._lock:
            threads = list(self._threads)
            self._spare_threads = len(threads)
        for _ in threads:
            self._line.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def forget(self, error: WarrenError) -> None:
        self._line, self._error = SimpleQueue(), error


class SettlingPool(ThreadPool):
    """A thread pool with :meth:`settle`, for a manual clock. Turns run by a user's own thread are not counted."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._waiting = 0
        self._changed = threading.Condition()
        super().__init__(threads, name)

    def submit(self, turns: Turns) -> None:
        if self._holding.held is None:
            with self._changed:
                self._waiting += 1
        super().submit(turns)

    def _run_turn(self, turns: Turns) -> None:
        try:
            super()._run_turn(turns)
        finally:
            with self._changed:
                self._waiting -= 1
                if not self._waiting:
                    self._changed.notify_all()

    def settle(self) -> None:
        """Wait until no turn is left. Raises :class:`Timeout` if turns cause further turns endlessly."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._waiting, _PATIENCE_S):
                raise Timeout(f"turns go on for {_PATIENCE_S:.0f} seconds")


class HandPool:
    """No threads: turns run when a test calls :meth:`run`, or while it waits for an answer."""

    def __init__(self) -> None:
        self._line: deque[Turns] = deque()
        self._holding = _Holding()

    def holding(self) -> Held:
        return Held(self, self._holding)

    def submit(self, turns: Turns) -> None:
        held = self._holding.held
        (self._line if held is None else held.waiting).append(turns)

    def run_one(self) -> bool:
        """Run the turn of the first in line; return whether there was one."""
        if not self._line:
            return False
        turns = self._line.popleft()
        turns.inbox.scheduled = False
        turns.run()
        return True

    def run(self) -> None:
        """Run turns until the line is empty."""
        while self.run_one():
            pass

    def help(self, future: Future, deadline: float | None = None) -> None:
        while not future.done:
            if not self.run_one():
                raise Timeout("no thread is left that could answer")

    def stop(self) -> None:
        self._line.clear()

    def forget(self, error: WarrenError) -> None:
        self._line.clear()


class Held:
    """Collects the turns that are scheduled during the block, and submits them when it ends."""

    __slots__ = ("_holding", "_pool", "waiting")

    def __init__(self, pool: Pool, holding: _Holding) -> None:
        self._pool = pool
        self._holding = holding
        self.waiting: list[Turns] = []

    def __enter__(self) -> Held:
        self._holding.held = self
        return self

    def __exit__(self, *error: object) -> None:
        self._holding.held = None
        for turns in self.waiting:
            self._pool.submit(turns)

    def run(self, *chosen: Turns) -> None:
        """Run, in this thread, those of the ``chosen`` turns that are scheduled."""
        waiting, self.waiting = self.waiting, []
        for turns in waiting:
            if turns not in chosen:
                self.waiting.append(turns)
                continue
            turns.inbox.scheduled = False
            if (not turns.inbox.empty() or turns.actor.wants_turn()) and not turns.run():
                turns.submit()

    def run_quick_ones(self) -> None:
        """Run, in this thread, the turns that are quick and wait for no disk (:meth:`Shortcuts.quick_turn`)."""
        waiting, self.waiting = self.waiting, []
        for turns in waiting:
            turns.inbox.scheduled = False
            shortcuts = turns.shortcuts
            has_more = not turns.inbox.empty() or turns.actor.wants_turn()
            if has_more and (shortcuts is None or not shortcuts.quick_turn()):
                turns.submit()


class _Holding(threading.local):
    """Per thread: what it holds back, and whether it belongs to the pool."""

    held: Held | None = None
    works: bool = False
