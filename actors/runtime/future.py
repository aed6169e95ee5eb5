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
from pykka import Timeout as Timeout  # noqa: PLC0414 - for those who wait

from warren.storage.call_arguments import check_timeout

_LOCK = threading.Lock()  # held for a few instructions only; one for all futures
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]  # whoever held it is not there
_PENDING, _VALUE, _ERROR = 0, 1, 2

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class Helper(Protocol):
    """What can work off an answer in the thread that waits for it."""

    def help(self, future: Future, deadline: float | None = None) -> None:
        """Do what can be done here and now; come back when it is done or has to be waited for.

        A helper that waits itself, as one that reads a socket, does so until ``deadline`` (of the monotonic clock;
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
        """Say who owes the answer."""
        self._helper = helper

    def get(self, *, timeout: float | None = None) -> Any:
        """The answer; raises the error, and :class:`pykka.Timeout` after ``timeout`` seconds without either."""
        if self._state == _PENDING:
            if self._get_hook is not None:  # what Pykka makes of another future (stop, map): worked out when asked for
                self._settle(_VALUE, self._get_hook(timeout), only_first=True)
                return self._result
            self._wait(timeout)
        if self._state == _PENDING:
            raise Timeout(f"no answer within {timeout} seconds")
        if self._state == _ERROR:
            raise self._result
        return self._result

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until there is an answer or an error; whether there is one after ``timeout`` seconds."""
        if self._state == _PENDING:
            self._wait(timeout)
        return self._state != _PENDING

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        helper = self._helper  # whoever answers meanwhile takes it away
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
        """Answer; a second answer is an error of the caller's."""
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
        """Answer with a value, or as another future is answered; unless there is an answer already."""
        if isinstance(answer, Future):
            answer.on_done(self.follow)
        else:
            self.offer(answer)

    def offer(self, value: Any) -> None:
        """Answer, unless there is an answer already."""
        if self._state == _PENDING:
            self._settle(_VALUE, value, only_first=True)

    def follow(self, other: Future) -> None:
        """Take over the answer or the error of ``other``, which is settled."""
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
            callback(self)

    def on_done(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` with this future once it is settled, in the thread that settles it; at once if it is.

        The callback must not raise and must not wait.
        """
        with _LOCK:
            if self._state == _PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def forget(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback`` no more, if it has not been called."""
        with _LOCK:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def hurry(self) -> None:
        """Let whoever owes the answer know that somebody waits who cannot help, and come back at once."""
        hurry_up = getattr(self._helper, "hurry_up", None)
        if hurry_up is not None:
            hurry_up()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {('pending', 'answered', 'failed')[self._state]}>"


class Confirm(Future):
    """A publisher's: answered once what was handed over is as safe as the node's ``sync`` promises."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> None:
        """Come back when it is safe. Raises ``TimeoutError`` after ``timeout`` seconds, and why it never will be."""
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
        """Which of the messages, counted from 0, were not stored, as their keys (``unique``) were taken. Waits as
        :meth:`wait` does, and raises what that raises."""
        return ()

    @property
    def duplicate(self) -> bool:
        """Whether there is such a message: of a single one, whether it was not stored."""
        return bool(self.duplicates)


class UniqueConfirm(Confirm):
    """Of messages with keys: answered once what was stored is safe, and what else has the keys."""

    __slots__ = ()

    @property
    def duplicates(self) -> tuple[int, ...]:
        return tuple(self.get())


class CountDown(Confirm):
    """A future that is answered once ``count`` others are; the first error of theirs is its own."""

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
