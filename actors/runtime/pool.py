"""Actors on a small shared pool of threads.

An actor is not a thread. It *has a turn* when something waits in its inbox: whoever runs the turn holds the actor's
lock and works off what waits, up to a limit, then puts the actor at the end of the line if there is more. So an idle
actor costs no thread, and ten thousand of them need four.

Who runs turns: the pool's threads (:class:`ThreadPool`), and any thread of the user's that waits for an answer of an
actor that is idle (:meth:`PooledActor.help`, :class:`Asked`), which saves two wake-ups across cores; an event loop's
runs those that are quick (:meth:`PooledActor.quick_turn`). In tests nobody but the test (:class:`HandPool`).

Failure. Pykka lets an actor live whose ``ask`` raised, half-changed. Here what an actor raises is either a *refusal*
(an error of ours for what it was asked, nothing changed), which goes to the caller, or the end of the actor: the caller
gets it, :meth:`PooledActor.on_error` is called, and everything that still waits gets :class:`ActorStoppedError`.
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
from warren.storage.errors import DataError, NoRoomError, StorageError, WarrenError

_LOG = logger("actors")

TURN_ENTRIES: Final = 64
"""Inbox entries of one turn; more would let a busy actor keep others waiting."""


class ActorStoppedError(WarrenError, ActorDeadError):
    """The actor that should have answered has stopped."""


class WrongProcessError(WarrenError):
    """A handle was used in, or sent to, another process than the one that opened the node."""


def _forget_registry() -> None:
    """In a forked child: its parent's actors are not here, nor is the thread that may have held the lock."""
    ActorRegistry._actor_refs_lock = threading.RLock()
    ActorRegistry._actor_refs = []


os.register_at_fork(after_in_child=_forget_registry)


class PooledRef(ActorRef[Any]):
    """An actor's address. Who uses that of an actor that has stopped is told why, in words of ours."""

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
    """Who runs the turns."""

    def holding(self) -> Held:
        """Let no other thread begin what this one brings about, until the block ends."""

    def submit(self, actor: PooledActor) -> None:
        """Let ``actor`` have a turn soon."""

    def help(self, future: Future, deadline: float | None = None) -> None:
        """The calling thread waits for ``future``: do what has to be done for that here."""

    def stop(self) -> None:
        """Run no more turns; come back when none is running."""

    def forget(self, error: WarrenError) -> None:
        """In a forked child: nobody runs turns here; who waits for an answer gets ``error``."""


class ThreadPool:
    """Threads that run turns in the order in which actors got in line; :attr:`PooledActor.goes_first` before them."""

    def __init__(self, threads: int, name: str = "warren") -> None:
        self._line: SimpleQueue[PooledActor | None] = SimpleQueue()
        self._holding = _Holding()
        self._first: deque[PooledActor] = deque()
        self._error: WarrenError | None = None
        self._name = name
        self._threads: list[threading.Thread] = []
        self._waiting_threads = 0
        self._lock = threading.Lock()
        """Guards the threads and how many of them wait."""
        for _ in range(threads):
            self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        uninterrupted(thread.start)

    def submit(self, actor: PooledActor) -> None:
        if (held := self._holding.held) is not None:
            held.actors.append(actor)
            return
        if actor.goes_first:
            self._first.append(actor)
        self._line.put(actor)

    def holding(self) -> Held:
        """Let no thread be woken by what this one does until the block ends: whoever is then finds more at once.

        To be used by a thread that waits for nothing meanwhile. It may run some of the turns itself
        (:meth:`Held.run`, :meth:`Held.run_quick_ones`).
        """
        return Held(self, self._holding)

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Nothing: the threads do it. Where one of them waits itself, they may all be waiting: for what is in line."""
        if self._error is not None:
            raise self._error
        if self._holding.works and deadline is None:
            self._wait(future)

    def _wait(self, future: Future) -> None:
        """Wait as one of the threads. If no other is left, another one stands in meanwhile; one of them ends then."""
        with self._lock:
            self._waiting_threads += 1
            stands_in = self._waiting_threads == len(self._threads)
            if stands_in:
                self._start_thread()
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
    """No threads: turns are run when a test says so, or while it waits for an answer."""

    def __init__(self) -> None:
        self._line: deque[PooledActor] = deque()
        self._holding = _Holding()

    def holding(self) -> Held:
        return Held(self, self._holding)

    def submit(self, actor: PooledActor) -> None:
        held = self._holding.held
        (self._line if held is None else held.actors).append(actor)

    def run_one(self) -> bool:
        """Run the turn of the first in line; whether there was one."""
        if not self._line:
            return False
        actor = self._line.popleft()
        actor.actor_inbox.scheduled = False
        actor.turn()
        return True

    def run(self) -> None:
        """Run turns until nobody waits for one."""
        while self.run_one():
            pass

    def help(self, future: Future, deadline: float | None = None) -> None:
        while not future.done:
            if not self.run_one():
                raise Timeout("nobody is left who could answer")

    def stop(self) -> None:
        self._line.clear()

    def forget(self, error: WarrenError) -> None:
        self._line.clear()


class Asked(Future):
    """An answer that an actor owes. Nothing is asked before :meth:`get` or :meth:`send`.

    A thread that waits does the work itself, in a turn, where no other thread is at the actor; an event loop's does so
    where that is quick.
    """

    __slots__ = ("_actor", "_sent", "taken", "work")

    def __init__(self, actor: PooledActor, work: Callable[[], object]) -> None:
        super().__init__()
        self._actor = actor
        self._sent = False
        self.work = work
        self.taken = False
        """Whether it was done, past the inbox."""

    def send(self) -> None:
        """Ask, and do not wait."""
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
    """Who waits for a turn that no other thread is told of, until the block ends."""

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
        """Run, in this thread, a turn of each of these that waits for one."""
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
    """What a thread holds back, and whether it is one of the pool's."""

    held: Held | None = None
    works: bool = False


class _Flag:
    """What Pykka asks of ``actor_stopped``, without the condition variable of a ``threading.Event``."""

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
    """Whether its turns come before those of others that wait: short ones, on which the others depend."""

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
        """Get in line for a turn; the inbox calls it when the first message comes."""
        self._pool.submit(self)
        if self.actor_stopped.is_set():  # perhaps with its pool: what slipped in is answered here
            self.actor_inbox.scheduled = False
            self.turn()

    def get_in_line(self) -> None:
        """Get in line for a turn, unless it stands there already, whether something waits or not."""
        if not self.actor_inbox.scheduled:
            self.actor_inbox.scheduled = True
            self.schedule()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, asked: Asked) -> None:
        """Do what is asked behind all that waits: in the calling thread if no other is at it, else where it is."""
        if self._turn_thread == threading.get_ident():
            raise RuntimeError(f"{type(self).__name__} waits for its own answer")
        uninterrupted(self._turn, TURN_ENTRIES, asked)
        if not asked.taken:
            self.put(asked)

    def put(self, asked: Asked) -> None:
        """Put what is asked into the inbox, or say why nobody will do it."""
        if self.actor_stopped.is_set():
            asked.fail(self.stopped_error())
        else:
            self.actor_inbox.put(Envelope(Call(asked.work), reply_to=asked))

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Run this actor's turns in the calling thread, until ``future`` is answered or somebody else has to act."""
        if self._turn_thread == threading.get_ident():
            raise RuntimeError(f"{type(self).__name__} waits for its own answer")
        while self.turn() and not future.done and not self.actor_inbox.empty():
            pass
        if not future.done:
            self._pool.help(future)

    def wait_for_turn(self) -> None:
        """Come back when a turn that another thread runs just now is over; at once from within a turn."""
        if self._turn_thread != threading.get_ident():
            with self._turn_lock:
                pass

    def turn(self, entries: int = TURN_ENTRIES) -> bool:
        """Work off up to ``entries`` entries of the inbox; ``False`` where another thread is at it.

        What a signal's handler raises strikes the calling thread when the turn is over
        (:mod:`warren.actors.runtime.interrupts`).
        """
        return uninterrupted(self._turn, entries)

    def has_work(self) -> bool:
        """Whether something waits that is for a turn now."""
        return not self.actor_inbox.empty()

    def quick_turn(self, asked: Asked | None = None) -> bool:
        """Run a turn if it is short and waits for no disk, as an event loop's thread may; whether it has had one."""
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
        """Let the next one have a turn; get in line for it if something waits."""
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
            if stopped.is_set():  # whatever ended the turn: somebody may wait
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
        """Do some work; what it raises is a refusal to the caller, or the end of this actor."""
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
        ) as error:  # no signal's (warren.actors.runtime.interrupts), but whoever's: the state is half-changed
            self._fail(error, future)
            raise
        return None

    def _fail(self, error: BaseException, future: Future | None) -> None:
        self.note_error(error)  # before anybody can see that it has stopped, and asks why
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        where = None if isinstance(error, WarrenError) else error  # ours say it all; of a bug we want to know where
        if not self.is_known(error):
            _LOG.error(
                "%s stops: %s",
                self.describe(),
                error,
                exc_info=where,
                extra=log_event("actor_stopped", error, part=self.describe(), **self.log_fields()),
            )
        try:
            self.on_error(error)
        except Exception:
            _LOG.exception(
                "%s could not even fail",
                self.describe(),
                extra=log_event("actor_broken", part=self.describe(), **self.log_fields()),
            )
        if future is not None:
            future.fail(error)

    def _drain(self) -> None:
        """Answer everything that waits: nobody will."""
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
        """What errors and the log call this actor."""
        return type(self).__name__

    def log_fields(self) -> dict[str, Any]:
        """What its log records say of it, beside :meth:`describe`."""
        return {}

    def stopped_error(self) -> WarrenError:
        """What callers get that come too late."""
        return ActorStoppedError(f"{self.describe()} has stopped")

    def on_receive(self, message: object) -> object:
        """Handle a message that is no :class:`~warren.actors.runtime.inbox.Call`; returns the reply to who asked."""
        raise RuntimeError(f"{self.describe()} cannot handle {message!r}")

    def on_batch(self, entry: PendingBatch) -> None:
        """Handle what single publishes or acks have gathered."""
        raise RuntimeError(f"{self.describe()} gathers nothing")

    def on_turn_end(self) -> None:
        """Called at the end of every turn, whatever it did."""

    def wants_turn(self) -> bool:
        """Whether another turn has something to do although nothing waits in the inbox."""
        return False

    def is_refusal(self, error: Exception) -> bool:
        """Whether what a message met has changed nothing, so that the actor goes on."""
        if isinstance(error, NoRoomError):
            return True
        return isinstance(error, WarrenError) and not isinstance(error, (StorageError, DataError))

    def is_known(self, error: BaseException) -> bool:
        """Whether it stops by what has been logged, and is tried again and again."""
        return False

    def on_refused(self, error: Exception) -> None:
        """A message without a caller was refused."""
        _LOG.warning(
            "%s: %s",
            self.describe(),
            error,
            extra=log_event("request_refused", error, part=self.describe(), **self.log_fields()),
        )

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        """A message came too late: tell whoever waits for what it would have done."""

    def note_error(self, error: BaseException) -> None:
        """What :meth:`stopped_error` is to name."""

    def on_error(self, error: BaseException) -> None:
        """The actor ends by an error; what it owns must be given up as a crash would."""
