"""Future: an answer that comes later, for threads and for callbacks.

Pykka's own future carries a condition variable each; this one makes a lock only when a thread really waits, so that
one for every publish is affordable. A thread that waits first offers its help (:class:`Helper`): the actor that owes
the answer may be idle, and its turn is then run right here, without waking another thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import pykka

from warren.actors.log_events import log_event, logger
from warren.storage.call_arguments import check_timeout
from warren.storage.errors import InvalidValueError, shown

_LOG = logger("actors")
_LOCK = threading.Lock()  # held for a few instructions only; one for all futures
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]  # its holder is gone
_PENDING, _VALUE, _ERROR = 0, 1, 2

Timeout = pykka.Timeout
"""No answer came in time."""
ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class Helper(Protocol):
    """An object that can produce an answer in the thread that waits for it."""

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Do what can be done in this thread; return when the answer is there or has to be waited for.

        A helper that itself waits, such as one that reads a socket, waits until ``deadline`` (monotonic clock;
        ``None``: for ever).
        """


class Future(pykka.Future[Any]):
    """One answer or error, set once. Safe to share between threads."""

    __slots__ = ("_callbacks", "_helper", "_result", "_state", "_waiters")

    def __init__(self, helper: Helper | None = None) -> None:
        self._get_hook = None  # what Pykka's __init__ sets, without the object that it makes
        self._state = _PENDING
        self._result: Any = None
        self._helper = helper
        self._waiters: list[Any] | None = None
        self._callbacks: list[Callable[[Future], None]] | None = None

    @property
    def done(self) -> bool:
        """Whether there is an answer or an error."""
        return self._state != _PENDING

    @property
    def error(self) -> BaseException | None:
        """The error that it was answered with."""
        return self._result if self._state == _ERROR else None

    def helped_by(self, helper: Helper) -> None:
        """Set the helper that owes the answer."""
        self._helper = helper

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer. Raises the error of the future, or :class:`pykka.Timeout` after ``timeout`` seconds."""
        if self._state == _PENDING:
            if self._get_hook is not None:  # set by Pykka when it derives a future (stop, map): evaluated on demand
                self._settle(_VALUE, self._get_hook(timeout), only_first=True)
                return self._result
            self._wait(timeout)
        if self._state == _PENDING:
            raise Timeout(f"no answer within {timeout} seconds")
        if self._state == _ERROR:
            raise self._result
        return self._result

    def settled(self, timeout: float | None = None) -> bool:
        """Wait for an answer or an error, at most ``timeout`` seconds; return whether there is one."""
        if self._state == _PENDING:
            self._wait(timeout)
        return self._state != _PENDING

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        helper = self._helper  # cleared by the thread that answers
        if helper is not None:
            helper.help(self, deadline)
            if self._state != _PENDING:
                return
        waiter = threading.Lock()
        waiter.acquire()
        with _LOCK:
            if self._state != _PENDING:
                return
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
        remaining = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not waiter.acquire(timeout=remaining) and self._state == _PENDING:
            with _LOCK:
                if self._waiters is not None and waiter in self._waiters:
                    self._waiters.remove(waiter)

    def set(self, value: Any = None) -> None:
        """Answer. Raises ``RuntimeError`` if there is an answer already."""
        self._settle(_VALUE, value)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Answer with an error: the one given, or the one being handled."""
        error = (sys.exc_info() if exc_info is None else exc_info)[1]
        self._settle(_ERROR, RuntimeError("an error without a value") if error is None else error)

    def fail(self, error: BaseException) -> None:
        """Answer with ``error``, unless there is an answer already."""
        if self._state == _PENDING:
            self._settle(_ERROR, error, only_first=True)

    def answer_with(self, answer: Any) -> None:
        """Answer with a value, or with the outcome of another future, unless there is an answer already."""
        if isinstance(answer, Future):
            answer.on_done(self.follow)
        else:
            self.offer(answer)

    def offer(self, value: Any) -> None:
        """Answer, unless there is an answer already."""
        if self._state == _PENDING:
            self._settle(_VALUE, value, only_first=True)

    def follow(self, other: Future) -> None:
        """Copy the outcome of ``other``, which is settled."""
        if self._state == _PENDING:
            self._settle(other._state, other._result, only_first=True)

    def _settle(self, state: int, result: Any, *, only_first: bool = False) -> None:
        with _LOCK:
            if self._state != _PENDING:
                if only_first:
                    return
                raise RuntimeError("a future was answered twice")
            self._result = result
            self._state = state
            waiters, self._waiters = self._waiters, None
            callbacks, self._callbacks = self._callbacks, None
            self._helper = None
        for waiter in waiters or ():
            waiter.release()
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception as error:
                _log_failure(callback, error)

    def on_done(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` with this future in the thread that settles it, or at once if it is settled.

        The callback must not wait. An exception that it raises is logged.
        """
        if not callable(callback):
            raise InvalidValueError(f"callback must be a function, not {shown(callback)}")
        with _LOCK:
            if self._state == _PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        try:
            callback(self)
        except Exception as error:
            _log_failure(callback, error)

    def forget(self, callback: Callable[[Future], None]) -> None:
        """Remove ``callback`` if it has not been called yet."""
        with _LOCK:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def hurry(self) -> None:
        """Tell the helper that a waiter cannot help; return at once."""
        hurry_up = getattr(self._helper, "hurry_up", None)
        if hurry_up is not None:
            hurry_up()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {('pending', 'answered', 'failed')[self._state]}>"


def _log_failure(callback: object, error: Exception) -> None:
    """Log the exception of a callback. The thread that settles a future must not get it: it may be in a turn."""
    _LOG.error("%s failed: %s", shown(callback), error, exc_info=error, extra=log_event("callback_failed", error))


class Confirm(Future):
    """A publisher's future: answered once the published messages are as safe as the node's ``sync`` promises."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the messages are safe. Raises ``TimeoutError`` after ``timeout`` seconds, or the error."""
        if timeout is not None:
            check_timeout(timeout)
        if self._state == _PENDING:
            self._wait(timeout)
        if self._state == _PENDING:
            raise TimeoutError(f"not confirmed within {timeout} seconds")
        if self._state == _ERROR:
            self.get()

    @property
    def duplicates(self) -> tuple[int, ...]:
        """The positions, from 0, of messages that were not stored because their keys (``unique``) were taken. Waits and
        raises like :meth:`wait`."""
        return ()

    @property
    def duplicate(self) -> bool:
        """Whether a message was not stored because its key was taken."""
        return bool(self.duplicates)


class UniqueConfirm(Confirm):
    """The confirm of messages with keys: answered once these, and earlier messages with the same keys, are safe."""

    __slots__ = ()

    @property
    def duplicates(self) -> tuple[int, ...]:
        return tuple(self.get())


class CountDown(Confirm):
    """A future that is answered once all of ``parts`` are; fails with the first error among them."""

    __slots__ = ("_left",)

    def __init__(self, parts: list[Future]) -> None:
        super().__init__(_HelpAll(parts))
        self._left = len(parts)
        if not parts:
            self.set(None)
        for part in parts:
            part.on_done(self._one_done)

    def _one_done(self, part: Future) -> None:
        with _LOCK:
            self._left -= 1
            last = not self._left
        if part._state == _ERROR:
            self.fail(part._result)
        elif last and self._state == _PENDING:
            self._settle(_VALUE, None, only_first=True)


class _HelpAll:
    __slots__ = ("_parts",)

    def __init__(self, parts: list[Future]) -> None:
        self._parts = parts

    def help(self, future: Future, deadline: float | None = None) -> None:
        for part in self._parts:
            helper = part._helper
            if helper is not None and not part.done:
                helper.help(part, deadline)

    def hurry_up(self) -> None:
        for part in self._parts:
            part.hurry()
