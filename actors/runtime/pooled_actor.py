"""Actors that have turns.

An actor is not a thread. It *has a turn* when something waits in its inbox: the thread that runs the turn holds the
actor's lock, handles waiting entries up to a limit, then puts the actor at the end of the line if there are more
(:class:`Turns`). So an idle actor costs no thread, and ten thousand of them need four.

Turns are run by the threads of a pool (:mod:`warren.actors.runtime.pool`), and by any user thread that waits for an
answer of an idle actor (:meth:`Turns.help`, :class:`Asked`), which saves two wake-ups across cores. The thread of an
event loop runs quick turns (:meth:`Shortcuts.quick_turn`).

Failure. In Pykka an actor whose ``ask`` raised lives on, half-changed. Here an exception is either a *refusal* (an
error of ours, nothing changed), which goes to the caller, or the end of the actor: the caller gets it,
:meth:`PooledActor.on_error` is called, and everything that still waits gets :class:`ActorStoppedError`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, TypeVar

import pykka
from pykka import ActorDeadError, ActorRef, ActorRegistry
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from warren.actors.log_events import Named, log_event, logger
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Call, ControlCall, Inbox, PendingBatch
from warren.actors.runtime.interrupts import uninterrupted
from warren.storage.errors import DataError, NoRoomError, StorageError, WarrenError

_LOG = logger("actors")

A = TypeVar("A", bound="PooledActor")
R = TypeVar("R")

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
        return actor_of_ref(self, PooledActor).stopped_error()


def actor_of_ref(ref: ActorRef[Any], kind: type[A]) -> A:
    """Return the actor of a reference, which is a ``kind``."""
    inbox = ref.actor_inbox
    turns = inbox.owner if isinstance(inbox, Inbox) else None
    actor = turns.actor if isinstance(turns, Turns) else None
    if not isinstance(actor, kind):
        raise TypeError(f"{ref} is no {kind.__name__}")
    return actor


class Line(Protocol):
    """Where actors stand that have a turn to come."""

    def submit(self, turns: Turns) -> None:
        """Schedule a turn of an actor."""

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Do what has to be done in the calling thread, which waits for ``future``."""


class Asked(Future):
    """An answer that an actor owes. The request is made by :meth:`get` or :meth:`send`.

    A waiting thread does the work itself, in a turn, unless another thread runs one; the thread of an event loop does
    so if the turn is quick.
    """

    __slots__ = ("_sent", "_turns", "taken", "work")

    def __init__(self, actor: PooledActor, work: Callable[[], object]) -> None:
        super().__init__()
        self._turns = actor.turns
        self._sent = False
        self.work = work
        self.taken = False
        """Whether the work was done without going through the inbox."""

    def send(self) -> None:
        """Make the request without waiting."""
        if not self._sent:
            self._sent = True
            turns = self._turns
            if turns.shortcuts is not None:
                turns.shortcuts.quick_turn(self)
            if not self.taken:
                turns.put(self)

    def get(self, *, timeout: float | None = None) -> Any:
        if not self._sent:
            self._sent = True
            self._turns.do(self)
        return super().get(timeout=timeout)


class Shortcuts(Protocol):
    """What an actor does between its turns, or instead of one.

    A queue does: :mod:`~warren.actors.queue.queue_shortcuts`.
    """

    def has_work(self) -> bool:
        """Whether something waits in the inbox that a turn can handle now."""

    def quick_turn(self, asked: Asked | None = None) -> bool:
        """Run a turn if it is short and waits for no disk, as an event loop requires; return whether it ran."""

    def begin_turn(self, asked: Asked | None) -> bool:
        """Called at the start of every turn but the first, even of a stopped actor; return whether the turn is over."""


class Turns:
    """The turns of one actor: one thread at a time works off its inbox."""

    __slots__ = ("_started", "_thread", "actor", "inbox", "is_quick", "line", "lock", "shortcuts")

    def __init__(self, actor: PooledActor, line: Line) -> None:
        self.actor = actor
        self.inbox = actor.actor_inbox
        self.line = line
        """The pool that runs them."""
        self.lock = threading.Lock()
        """Held during a turn."""
        self._thread: int | None = None
        self.is_quick = False
        """Whether the turn that is running must wait for no disk."""
        self.shortcuts: Shortcuts | None = None
        self._started = False

    # ── being scheduled ─────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self) -> None:
        """Submit a turn; the inbox calls it when the first message comes."""
        self.line.submit(self)
        if self.actor.actor_stopped.is_set():  # its pool may have stopped too: answer late messages here
            self.inbox.scheduled = False
            self.run()

    def submit(self) -> None:
        """Submit a turn, whether something waits or not, unless one is submitted already."""
        if not self.inbox.scheduled:
            self.inbox.scheduled = True
            self.schedule()

    def hurry_up(self) -> None:
        """Run a turn in a thread of the pool, for a waiter that cannot help."""
        self.submit()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, work: Callable[[], R], *, first: bool = False) -> R:
        """Call ``work`` in a turn, after all waiting messages or (``first``) before data; wait for its result."""
        result: R = self.actor.actor_ref.ask(ControlCall(work) if first else Call(work), block=True)
        return result

    def do(self, asked: Asked) -> None:
        """Do the work after all waiting entries: in this thread if no other runs a turn, else through the inbox."""
        if self._thread == threading.get_ident():
            raise RuntimeError(f"{type(self.actor).__name__} waits for its own answer")
        uninterrupted(self.attempt, TURN_ENTRIES, asked)
        if not asked.taken:
            self.put(asked)

    def put(self, asked: Asked) -> None:
        """Put the request into the inbox, or fail it if the actor has stopped."""
        if self.actor.actor_stopped.is_set():
            asked.fail(self.actor.stopped_error())
        else:
            self.inbox.put(Envelope(Call(asked.work), reply_to=asked))

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Run this actor's turns in the calling thread until ``future`` is answered or another thread has to act."""
        if self._thread == threading.get_ident():
            raise RuntimeError(f"{type(self.actor).__name__} waits for its own answer")
        while self.run() and not future.done and not self.inbox.empty():
            pass
        if not future.done:
            self.line.help(future)

    def wait_for_turn(self) -> None:
        """Wait for the end of a turn that another thread is running; return at once from within a turn."""
        if self._thread != threading.get_ident():
            with self.lock:
                pass

    def run(self, entries: int = TURN_ENTRIES) -> bool:
        """Handle up to ``entries`` entries of the inbox; return ``False`` if another thread runs a turn.

        An exception of a signal handler is raised in the calling thread when the turn is over
        (:mod:`warren.actors.runtime.interrupts`).
        """
        return uninterrupted(self.attempt, entries)

    def attempt(self, entries: int, asked: Asked | None = None, is_quick: bool = False) -> bool:
        """:meth:`run`, for callers that hold interrupts back themselves. ``asked``: what to do last."""
        if not self.lock.acquire(blocking=False):
            return False
        self._thread = threading.get_ident()
        self.is_quick = is_quick
        try:
            self._work(entries, asked)
        finally:
            self.end()
        return True

    def end(self) -> None:
        """Allow the next turn; submit one if something waits."""
        self._thread = None
        self.lock.release()
        if self.has_work() or self.actor.wants_turn():
            self.submit()

    def has_work(self) -> bool:
        """Whether something waits in the inbox that a turn can handle now."""
        shortcuts = self.shortcuts
        return not self.inbox.empty() if shortcuts is None else shortcuts.has_work()

    def _work(self, entries: int, asked: Asked | None) -> None:
        inbox, stopped = self.inbox, self.actor.actor_stopped
        if self._started and self.shortcuts is not None and self.shortcuts.begin_turn(asked):
            return
        try:
            if not self._started and not stopped.is_set():
                self._started = True
                self.guard(None, self.actor.on_start, refusable=False)
            while entries and not stopped.is_set():
                entries -= 1
                entry = inbox.take()
                if entry is None:
                    break
                if isinstance(entry, PendingBatch):
                    self.guard(None, self.actor.on_batch, entry)
                else:
                    self.handle(entry)
            if asked is not None and entries and not stopped.is_set():
                asked.taken = True
                asked.helped_by(self)
                asked.answer_with(self.guard(asked, asked.work))
            if not stopped.is_set():
                self.guard(None, self.actor.on_turn_end, refusable=False)
        finally:
            if stopped.is_set():  # whatever ended the turn: callers may be waiting
                inbox.scheduled = False
                self._drain()

    def handle_waiting(self) -> None:
        """Handle everything that waits, within a turn. Raises why the actor has stopped if that stops it."""
        while (entry := self.inbox.take()) is not None:
            if isinstance(entry, PendingBatch):
                self.guard(None, self.actor.on_batch, entry)
            else:
                self.handle(entry)
            if self.actor.actor_stopped.is_set():
                raise self.actor.stopped_error()

    def handle_last(self) -> None:
        """The same, and take no more published messages: one that came later would be lost, and its publisher told
        nothing."""
        self.handle_waiting()
        self.inbox.close()
        self.handle_waiting()

    def handle(self, envelope: Envelope[Any]) -> None:
        """Handle one message, and answer it."""
        reply_to = envelope.reply_to
        future = reply_to if isinstance(reply_to, Future) else None
        answer = self.guard(future, self._handle_receive, envelope.message)
        if future is not None:
            future.answer_with(answer)

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, Call):
            return message.work()
        return self.actor._stop() if isinstance(message, _ActorStop) else self.actor.on_receive(message)

    def guard(self, future: Future | None, work: Any, *args: Any, refusable: bool = True) -> Any:
        """Call ``work``. An exception is either a refusal, which goes to the caller, or ends this actor."""
        try:
            return work(*args)
        except Exception as error:
            if not refusable or not self.actor.is_refusal(error):
                self.fail(error, future)
            elif future is not None:
                future.fail(error)
            else:
                self.actor.on_refused(error)
        except (
            BaseException
        ) as error:  # not from a signal (warren.actors.runtime.interrupts), but the state is half-changed
            self.fail(error, future)
            raise
        return None

    def fail(self, error: BaseException, future: Future | None) -> None:
        """End the actor with an error, which goes to the caller, too."""
        actor, part = self.actor, self.actor.describe()
        actor.error = error  # before callers can see that it has stopped, and ask why
        ActorRegistry.unregister(actor.actor_ref)
        actor.actor_stopped.set()
        # Our errors are complete; a bug needs its traceback.
        exc_info = None if isinstance(error, WarrenError) else error
        if not actor.is_known(error):
            _LOG.error(
                "%s stops: %s",
                part,
                error,
                exc_info=exc_info,
                extra=log_event("actor_stopped", error, of=_named(actor.subject), part=part),
            )
        try:
            actor.on_error(error)
        except Exception:
            _LOG.exception(
                "%s: the cleanup after its failure failed too",
                part,
                extra=log_event("actor_broken", of=_named(actor.subject), part=part),
            )
        if future is not None:
            future.fail(error)

    def _drain(self) -> None:
        """Answer everything that waits with the error."""
        while (entry := self.inbox.take()) is not None:
            if isinstance(entry, PendingBatch):
                self.actor.on_undelivered(entry, self.actor.stopped_error())
            elif isinstance(entry.reply_to, Future):
                if isinstance(entry.message, _ActorStop):
                    entry.reply_to.set(None)
                else:
                    entry.reply_to.fail(self.actor.stopped_error())
                    self.actor.on_undelivered(entry.message, self.actor.stopped_error())
            else:
                self.actor.on_undelivered(entry.message, self.actor.stopped_error())


def _named(subject: Named | str) -> Named | None:
    return None if isinstance(subject, str) else subject


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

    _create_actor_inbox = Inbox
    _create_future = Future

    def __init__(self, line: Line, subject: Named | str | None = None) -> None:
        """``subject``: what it is the actor of, as errors and the log name it."""
        super().__init__()
        self.subject = subject or type(self).__name__
        self.error: BaseException | None = None
        """The error that has ended it."""
        self.actor_stopped = _Flag()  # type: ignore[assignment]
        self._actor_ref = PooledRef(self)
        self.turns = Turns(self, line)
        self.actor_inbox.owner = self.turns

    def _start_actor_loop(self) -> None:
        self.actor_inbox.scheduled = True
        self.turns.line.submit(self.turns)

    # ── for subclasses ──────────────────────────────────────────────────────────────────────────────────────────

    def wants_turn(self) -> bool:
        """Whether another turn has something to do although the inbox is empty."""
        return False

    def describe(self) -> str:
        """Return the name of this actor in errors and the log."""
        return str(self.subject)

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
        part = self.describe()
        _LOG.warning(
            "%s: %s", part, error, extra=log_event("request_refused", error, of=_named(self.subject), part=part)
        )

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        """Fail what a message that came too late would have answered."""

    def on_error(self, error: BaseException) -> None:
        """Release what the actor owns as a crash would; called when an error ends it."""
