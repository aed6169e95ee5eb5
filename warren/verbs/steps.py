"""Steps: what a verb of a handle sends and how it handles the answer, separate from how it waits.

A verb is a generator. It yields the object to wait for (:data:`Wait`), gets the answer sent or the error thrown into
it, and returns what the caller gets. Two drivers run it: :func:`run` waits in the calling thread, and
:func:`warren.aio.bridge.run` awaits. An interrupt, or a cancellation, is thrown into the verb where it waits; its
``except`` or ``finally`` clauses then undo what is necessary.

A handle holds its verbs as ``_verbs``, and makes methods of them with :func:`blocking` or
:func:`warren.aio.bridge.awaited`, which keep their names, arguments and docstrings.

Handles on a node, and what they handed out, belong to one process (:class:`ProcessBound`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Concatenate, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar, overload

import attrs

from warren.actors.node.admission import Admission
from warren.actors.runtime.future import Future, Timeout
from warren.actors.runtime.inbox import Call
from warren.actors.runtime.pooled_actor import Asked, PooledActor, WrongProcessError
from warren.storage.call_arguments import signature
from warren.storage.errors import InvalidValueError, shown
from warren.verbs.instrumentation import HOOK


class ProcessBound:
    """Something that cannot be sent to another process: pickling it is an error."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise WrongProcessError(
            f"a {type(self).__name__} belongs to the process that opened its node: one process has a directory; send "
            "bodies, not handles"
        )


P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
V = TypeVar("V")
W = TypeVar("W")
V_co = TypeVar("V_co", covariant=True)


@attrs.frozen
class Within:
    """Wait for a future at most ``timeout`` seconds (``None``: for ever); the answer is whether it came."""

    future: Future
    timeout: float | None

    def get(self) -> bool:
        try:
            return self.future.settled(self.timeout)
        except Timeout:  # the answer cannot come any more
            if self.timeout is None:
                raise
            return False


@attrs.frozen
class Reading:
    """Do something that reads or writes files or may take long, which an event loop's thread must not."""

    work: Callable[[], Any]

    def get(self) -> Any:
        return self.work()


Wait = Future | Within | Reading | Admission
Steps = Generator[Wait, Any, T]


def bounded(steps: Steps[T], timeout: float | None, is_over: Callable[[float], Exception | None]) -> Steps[T]:
    """Run ``steps``; end their waits for answers when ``timeout`` seconds are over and ``is_over`` returns an error.

    ``is_over`` gets the seconds that have passed, and is called again later if it returns ``None``. Waits of ``steps``
    that have a timeout of their own are not affected.
    """
    if timeout is None:
        return (yield from steps)
    begin_s = time.monotonic()
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            wait = steps.send(answer) if error is None else steps.throw(error)
            answer = error = None
            try:
                future = wait.future if isinstance(wait, Within) and wait.timeout is None else wait
                if isinstance(future, Future):
                    yield from _awaited(future, begin_s, timeout, is_over)
                    answer = wait.get()
                else:
                    answer = yield wait
            except BaseException as raised:  # the steps handle interrupts, too
                error = raised
    except StopIteration as end:
        result: T = end.value
        return result


def _awaited(
    future: Future, begin_s: float, timeout: float, is_over: Callable[[float], Exception | None]
) -> Steps[None]:
    while not future.done:
        passed_s = time.monotonic() - begin_s
        if passed_s >= timeout and (error := is_over(passed_s)) is not None:
            raise error
        yield Within(future, timeout - passed_s if passed_s < timeout else _AGAIN_S)


_AGAIN_S: Final = 0.25


def answer_of(future: Future) -> Steps[Any]:
    """Wait for a future's answer."""
    return (yield future)


def answered(answer: T) -> Steps[T]:
    """Return an answer that is known already, without waiting."""
    return answer
    yield


def ask(actor: PooledActor, message: object) -> Future:
    """Send a message to an actor; return a future for the answer."""
    future = actor.actor_ref.ask(message, block=False)
    if not isinstance(future, Future):
        raise TypeError(f"{actor.describe()} answers with a strange future")
    return future


def call(actor: PooledActor, work: Callable[[], object]) -> Future:
    """Run ``work`` in an actor's turn; return a future for its result."""
    return ask(actor, Call(work))


def asked(actor: PooledActor, work: Callable[[], object]) -> Asked:
    """As :func:`call`, for work that the waiting thread may run itself. It is sent only when it is waited for."""
    return Asked(actor, work)


def run(steps: Steps[T]) -> T:
    """Run a verb in this thread."""
    try:
        wait = next(steps)
        while True:
            try:
                answer = wait.get()
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class Handle(ProcessBound, Generic[V]):
    """A user's handle: verbs, and a way to wait for them."""

    made_by: ClassVar[str]
    """The call that returns such a handle."""

    def __init__(self, verbs: V) -> None:
        """Not for programs: call :attr:`made_by` instead."""
        if type(verbs).__module__.partition(".")[0] != "warren":
            raise InvalidValueError(f"a {type(self).__name__} is not made from {shown(verbs)}: call {self.made_by}")
        self._verbs = verbs

    def __repr__(self) -> str:
        kind = type(self)
        package = kind.__module__.rpartition(".")[0].removesuffix(".handles")  # as it is imported from
        return f"<{package}.{kind.__name__} {self._verbs}>"


class NamedHandle(Handle[V]):
    """A handle on something that has a name: handles of one class on the same thing of one node are equal."""

    def _identity(self) -> tuple[object, str, str]:
        """The node, the vhost, and the name. For derived classes."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedHandle) or type(other) is not type(self):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity()[1:])  # in a forked child, the node becomes another object


class Has(Protocol[V_co]):
    """A handle with these verbs."""

    @property
    def _verbs(self) -> V_co: ...


@overload
def blocking(verb: Callable[Concatenate[V, P], Steps[T]]) -> Callable[Concatenate[Has[V], P], T]: ...


@overload
def blocking(
    verb: Callable[Concatenate[V, P], Steps[A]], becomes: Callable[[A], T]
) -> Callable[Concatenate[Has[V], P], T]: ...


@overload
def blocking(
    verb: Callable[Concatenate[W, P], Steps[T]], *, of: Callable[[V], W]
) -> Callable[Concatenate[Has[V], P], T]: ...


def blocking(
    verb: Callable[..., Steps[Any]],
    becomes: Callable[[Any], Any] | None = None,
    *,
    of: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """A method that runs a verb in the calling thread. ``becomes``: makes a handle of what the verb returns.
    ``of``: finds the object that has the verb, if it is a part of the handle's verbs.

    Arguments are checked by the verb's annotations. The verb is then looked up by its name: a derived class may have
    its own.
    """
    name = verb.__name__

    @functools.wraps(verb)
    def method(self: Has[Any], *args: Any, **kwargs: Any) -> Any:
        signature(verb, 1).check(args, kwargs)
        own = getattr(self._verbs if of is None else of(self._verbs), name)
        if HOOK.instrumentation is not None:
            return run(HOOK.instrumentation.call(own, args, kwargs, becomes))
        result = run(own(*args, **kwargs))
        return result if becomes is None else becomes(result)

    return method
