"""Actors on a small shared pool of threads.

An actor is not a thread. It *has a turn* when something waits in its inbox: the thread that runs the turn holds the
actor's lock, handles waiting entries up to a limit, then puts the actor at the end of the line if there are more. So an
idle actor costs no thread, and ten thousand of them need four.

Turns are run by the pool's threads (:class:`ThreadPool`), and by any user thread that waits for an answer of an idle
actor (:meth:`PooledActor.help`, :class:`Asked`), which saves two wake-ups across cores. The thread of an event loop
runs quick turns (:meth:`PooledActor.quick_turn`). In tests only the test runs turns (:class:`HandPool`).

Failure. In Pykka an actor whose ``ask`` raised lives on, half-changed. Here an exception is either a *refusal* (an
error of ours, nothing changed), which goes to the caller, or the end of the actor: the caller gets it,
:meth:`PooledActor.on_error` is called, and everything that still waits gets :class:`ActorStoppedError`.
"""

from __future__ import annotations

import os
import threading
from _queue import SimpleQueue  # the C module: a user's own queue.py does not stand in front of it
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

import pykka
from pykka import ActorDeadError, ActorRef, ActorRegistry, Timeout
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from warren.actors.log_events import log_event, logger
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Call, Inbox, PendingBatch
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import DataError, NoRoomError, SettingsError, StorageError, WarrenError

_LOG = logger("actors")

TURN_ENTRIES: Final = 64
"""The most inbox entries that one turn handles; more would let a busy actor keep others waiting."""


class ActorStoppedError(WarrenError, ActorDeadError):
    """The actor that should have answered has stopped."""


class WrongProcessError(WarrenError):
    """A handle was used in, or sent to, another process than the one that opened the node."""


def _forget_registry() -> None:
    """In a forked child, drop the parent's actors, and replace the lock, whose holder may not exist here."""
    ActorRegistry._actor_refs_lock = threading.RLock()
    ActorRegistry._actor_refs = []


os.register_at_fork(after_in_child=_forget_registry)


class PooledRef(ActorRef[Any]):
    """An actor's address. Using that of a stopped actor raises an error of ours that names the reason."""

    def tell(self, message: Any) -> None:
        if self.actor_stopped.is_set():
            error = self._why()
            raise error if isinstance(error, ActorStoppedError) else ActorStoppedError(str(error))
        self.actor_inbox.put(Envelope(message))

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        future = Future()
        if self.actor_stopped.is_set():
            future.fail(self._why())
        else:
            self.actor_inbox.put(Envelope(message, reply_to=future))
        return future.get(timeout=timeout) if block else future

    def _why(self) -> WarrenError:
        owner = self.actor_inbox.owner if isinstance(self.actor_inbox, Inbox) else None
        return owner.stopped_error() if isinstance(owner, PooledActor) else ActorStoppedError(f"{self} has stopped")


class Pool(Protocol):
    """Runs the turns."""

    def holding(self) -> Held:
        """Return a context manager that delays turns scheduled by this thread until the block ends."""

    def submit(self, actor: PooledActor) -> None:
        """Schedule a turn of ``actor``."""

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Do what has to be done in the calling thread, which waits for ``future``."""

    def stop(self) -> None:
        """Run no more turns; return when none is running."""

    def forget(self, error: WarrenError) -> None:
        """Stop running turns in a forked child; further waits raise ``error``."""


class ThreadPool:
    """Threads that run turns in the order of submission; :attr:`PooledActor.goes_first` before others."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._line: SimpleQueue[PooledActor | None] = SimpleQueue()
        self._holding = _Holding()
        self._first: deque[PooledActor] = deque()
        self._error: WarrenError | None = None
        self._name = name
        self._threads: list[threading.Thread] = []
        self._waiting_threads = 0
        self._lock = threading.Lock()
        """Guards ``_threads`` and ``_waiting_threads``."""
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

    def submit(self, actor: PooledActor) -> None:
        if (held := self._holding.held) is not None:
            held.actors.append(actor)
            return
        if actor.goes_first:
            self._first.append(actor)
        self._line.put(actor)

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
        """Wait as one of the threads. If all threads wait now, start another one; one thread ends afterwards."""
        with self._lock:
            self._waiting_threads += 1
            stands_in = self._waiting_threads == len(self._threads)
            if stands_in:
                uninterrupted(self._start_thread)
        try:
            answered = threading.Semaphore(0)
            future.on_done(lambda _: answered.release())
            answered.acquire()
        finally:
            with self._lock:
                self._waiting_threads -= 1
            if stands_in:
                self._line.put(None)

    def _work(self) -> None:
        self._holding.works = True
        while (actor := self._line.get()) is not None:
            while (first := self._next_first()) is not None:
                self._run_turn(first)
            if not actor.goes_first:
                self._run_turn(actor)
        with self._lock:
            self._threads.remove(threading.current_thread())

    def _run_turn(self, actor: PooledActor) -> None:
        actor.actor_inbox.scheduled = False
        actor.turn()

    def _next_first(self) -> PooledActor | None:
        try:
            return self._first.popleft()
        except IndexError:
            return None

    def stop(self) -> None:
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._line.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def forget(self, error: WarrenError) -> None:
        self._line, self._error = SimpleQueue(), error


class HandPool:
    """No threads: turns run when a test calls :meth:`run`, or while it waits for an answer."""

    def __init__(self) -> None:
        self._line: deque[PooledActor] = deque()
        self._holding = _Holding()

    def holding(self) -> Held:
        return Held(self, self._holding)

    def submit(self, actor: PooledActor) -> None:
        held = self._holding.held
        (self._line if held is None else held.actors).append(actor)

    def run_one(self) -> bool:
        """Run the turn of the first in line; return whether there was one."""
        if not self._line:
            return False
        actor = self._line.popleft()
        actor.actor_inbox.scheduled = False
        actor.turn()
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


class Asked(Future):
    """An answer that an actor owes. The request is made by :meth:`get` or :meth:`send`.

    A waiting thread does the work itself, in a turn, unless another thread runs one; the thread of an event loop does
    so if the turn is quick.
    """

    __slots__ = ("_actor", "_sent", "taken", "work")

    def __init__(self, actor: PooledActor, work: Callable[[], object]) -> None:
        super().__init__()
        self._actor = actor
        self._sent = False
        self.work = work
        self.taken = False
        """Whether the work was done without going through the inbox."""

    def send(self) -> None:
        """Make the request without waiting."""
        if not self._sent:
            self._sent = True
            self._actor.quick_turn(self)
            if not self.taken:
                self._actor.put(self)

    def get(self, *, timeout: float | None = None) -> Any:
        if not self._sent:
            self._sent = True
            self._actor.do(self)
        return super().get(timeout=timeout)


class Held:
    """Collects the actors that are scheduled during the block, and submits them when it ends."""

    __slots__ = ("_holding", "_pool", "actors")

    def __init__(self, pool: Pool, holding: _Holding) -> None:
        self._pool = pool
        self._holding = holding
        self.actors: list[PooledActor] = []

    def __enter__(self) -> Held:
        self._holding.held = self
        return self

    def __exit__(self, *error: object) -> None:
        self._holding.held = None
        for actor in self.actors:
            self._pool.submit(actor)

    def run(self, *actors: PooledActor) -> None:
        """Run, in this thread, a turn of each of ``actors`` that is scheduled."""
        waiting, self.actors = self.actors, []
        for actor in waiting:
            if actor not in actors:
                self.actors.append(actor)
                continue
            actor.actor_inbox.scheduled = False
            if (not actor.actor_inbox.empty() or actor.wants_turn()) and not actor.turn():
                actor.get_in_line()

    def run_quick_ones(self) -> None:
        """Run, in this thread, the turns that are quick and wait for no disk (:meth:`PooledActor.quick_turn`)."""
        waiting, self.actors = self.actors, []
        for actor in waiting:
            actor.actor_inbox.scheduled = False
            if (not actor.actor_inbox.empty() or actor.wants_turn()) and not actor.quick_turn():
                actor.get_in_line()


class _Holding(threading.local):
    """Per thread: what it holds back, and whether it belongs to the pool."""

    held: Held | None = None
    works: bool = False


class _Flag:
    """Has the methods that Pykka uses of ``actor_stopped``, without the condition variable of a ``threading.Event``."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True


class PooledActor(pykka.Actor):
    """An actor that has turns. Subclasses handle messages in ``on_receive`` and pending batches in ``on_batch``."""

    actor_inbox: Inbox
    goes_first: ClassVar[bool] = False
    """Whether its turns run before those of other actors: short turns, on which the others depend."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.actor_stopped = _Flag()  # type: ignore[assignment]
        self._actor_ref = PooledRef(self)
        self.actor_inbox.owner = self
        self._pool = pool
        self._turn_lock = threading.Lock()
        self._turn_thread: int | None = None
        self._turn_is_quick = False
        self._started = False

    @staticmethod
    def _create_actor_inbox() -> Inbox:
        return Inbox()

    @staticmethod
    def _create_future() -> Future:
        return Future()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.scheduled = True
        self._pool.submit(self)

    def schedule(self) -> None:
        """Submit a turn; the inbox calls it when the first message comes."""
        self._pool.submit(self)
        if self.actor_stopped.is_set():  # its pool may have stopped too: answer late messages here
            self.actor_inbox.scheduled = False
            self.turn()

    def get_in_line(self) -> None:
        """Submit a turn, whether something waits or not, unless one is submitted already."""
        if not self.actor_inbox.scheduled:
            self.actor_inbox.scheduled = True
            self.schedule()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, asked: Asked) -> None:
        """Do the work after all waiting entries: in this thread if no other runs a turn, else through the inbox."""
        if self._turn_thread == threading.get_ident():
            raise RuntimeError(f"{type(self).__name__} waits for its own answer")
        uninterrupted(self._turn, TURN_ENTRIES, asked)
        if not asked.taken:
            self.put(asked)

    def put(self, asked: Asked) -> None:
        """Put the request into the inbox, or fail it if the actor has stopped."""
        if self.actor_stopped.is_set():
            asked.fail(self.stopped_error())
        else:
            self.actor_inbox.put(Envelope(Call(asked.work), reply_to=asked))

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Run this actor's turns in the calling thread until ``future`` is answered or another thread has to act."""
        if self._turn_thread == threading.get_ident():
            raise RuntimeError(f"{type(self).__name__} waits for its own answer")
        while self.turn() and not future.done and not self.actor_inbox.empty():
            pass
        if not future.done:
            self._pool.help(future)

    def wait_for_turn(self) -> None:
        """Wait for the end of a turn that another thread is running; return at once from within a turn."""
        if self._turn_thread != threading.get_ident():
            with self._turn_lock:
                pass

    def turn(self, entries: int = TURN_ENTRIES) -> bool:
        """Handle up to ``entries`` entries of the inbox; return ``False`` if another thread runs a turn.

        An exception of a signal handler is raised in the calling thread when the turn is over
        (:mod:`warren.actors.runtime.interrupts`).
        """
        return uninterrupted(self._turn, entries)

    def has_work(self) -> bool:
        """Whether something waits that a turn can handle now."""
        return not self.actor_inbox.empty()

    def quick_turn(self, asked: Asked | None = None) -> bool:
        """Run a turn if it is short and waits for no disk, as an event loop requires; return whether it ran."""
        return False

    def _turn(self, entries: int, asked: Asked | None = None, is_quick: bool = False) -> bool:
        if not self._turn_lock.acquire(blocking=False):
            return False
        self._turn_thread = threading.get_ident()
        self._turn_is_quick = is_quick
        try:
            self._work(entries, asked)
        finally:
            self.end_turn()
        return True

    def end_turn(self) -> None:
        """Allow the next turn; submit one if something waits."""
        self._turn_thread = None
        self._turn_lock.release()
        if self.has_work() or self.wants_turn():
            self.get_in_line()

    def _work(self, entries: int, asked: Asked | None) -> None:
        inbox, stopped = self.actor_inbox, self.actor_stopped
        try:
            if not self._started and not stopped.is_set():
                self._started = True
                self._guard(None, self.on_start, refusable=False)
            while entries and not stopped.is_set():
                entries -= 1
                entry = inbox.take()
                if entry is None:
                    break
                if isinstance(entry, PendingBatch):
                    self._guard(None, self.on_batch, entry)
                else:
                    self._handle(entry)
            if asked is not None and entries and not stopped.is_set():
                asked.taken = True
                asked.helped_by(self)
                asked.answer_with(self._guard(asked, asked.work))
            if not stopped.is_set():
                self._guard(None, self.on_turn_end, refusable=False)
        finally:
            if stopped.is_set():  # whatever ended the turn: callers may be waiting
                inbox.scheduled = False
                self._drain()

    def _handle(self, envelope: Envelope[Any]) -> None:
        reply_to = envelope.reply_to
        future = reply_to if isinstance(reply_to, Future) else None
        answer = self._guard(future, self._handle_receive, envelope.message)
        if future is not None:
            future.answer_with(answer)

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, Call):
            return message.work()
        return self._stop() if isinstance(message, _ActorStop) else self.on_receive(message)

    def _guard(self, future: Future | None, work: Any, *args: Any, refusable: bool = True) -> Any:
        """Call ``work``. An exception is either a refusal, which goes to the caller, or ends this actor."""
        try:
            return work(*args)
        except Exception as error:
            if not refusable or not self.is_refusal(error):
                self._fail(error, future)
            elif future is not None:
                future.fail(error)
            else:
                self.on_refused(error)
        except (
            BaseException
        ) as error:  # not from a signal (warren.actors.runtime.interrupts), but the state is half-changed
            self._fail(error, future)
            raise
        return None

    def _fail(self, error: BaseException, future: Future | None) -> None:
        self.note_error(error)  # before callers can see that it has stopped, and ask why
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        # Our errors are complete; a bug needs its traceback.
        exc_info = None if isinstance(error, WarrenError) else error
        if not self.is_known(error):
            _LOG.error(
                "%s stops: %s",
                self.describe(),
                error,
                exc_info=exc_info,
                extra=log_event("actor_stopped", error, part=self.describe(), **self.log_fields()),
            )
        try:
            self.on_error(error)
        except Exception:
            _LOG.exception(
                "%s: the cleanup after its failure failed too",
                self.describe(),
                extra=log_event("actor_broken", part=self.describe(), **self.log_fields()),
            )
        if future is not None:
            future.fail(error)

    def _drain(self) -> None:
        """Answer everything that waits with the error."""
        while (entry := self.actor_inbox.take()) is not None:
            if isinstance(entry, PendingBatch):
                self.on_undelivered(entry, self.stopped_error())
            elif isinstance(entry.reply_to, Future):
                if isinstance(entry.message, _ActorStop):
                    entry.reply_to.set(None)
                else:
                    entry.reply_to.fail(self.stopped_error())
                    self.on_undelivered(entry.message, self.stopped_error())
            else:
                self.on_undelivered(entry.message, self.stopped_error())

    # ── for subclasses ──────────────────────────────────────────────────────────────────────────────────────────

    def describe(self) -> str:
        """Return the name of this actor in errors and the log."""
        return type(self).__name__

    def log_fields(self) -> dict[str, Any]:
        """Return fields for its log records, in addition to :meth:`describe`."""
        return {}

    def stopped_error(self) -> WarrenError:
        """Return the error for callers that come too late."""
        return ActorStoppedError(f"{self.describe()} has stopped")

    def on_receive(self, message: object) -> object:
        """Handle a message that is no :class:`~warren.actors.runtime.inbox.Call`; return the reply."""
        raise RuntimeError(f"{self.describe()} cannot handle {message!r}")

    def on_batch(self, entry: PendingBatch) -> None:
        """Handle a batch of single publishes or acks."""
        raise RuntimeError(f"{self.describe()} gathers nothing")

    def on_turn_end(self) -> None:
        """Called at the end of every turn."""

    def wants_turn(self) -> bool:
        """Whether another turn has something to do although the inbox is empty."""
        return False

    def is_refusal(self, error: Exception) -> bool:
        """Whether the error left the state unchanged, so that the actor goes on."""
        if isinstance(error, NoRoomError):
            return True
        return isinstance(error, WarrenError) and not isinstance(error, (StorageError, DataError))

    def is_known(self, error: BaseException) -> bool:
        """Whether the error has been logged before and the actor is restarted repeatedly."""
        return False

    def on_refused(self, error: Exception) -> None:
        """Handle the refusal of a message without a caller."""
        _LOG.warning(
            "%s: %s",
            self.describe(),
            error,
            extra=log_event("request_refused", error, part=self.describe(), **self.log_fields()),
        )

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        """Fail what a message that came too late would have answered."""

    def note_error(self, error: BaseException) -> None:
        """Note the error that :meth:`stopped_error` is to name."""

    def on_error(self, error: BaseException) -> None:
        """Release what the actor owns as a crash would; called when an error ends it."""
