"""The bridge: lets coroutines wait for the answers of actors.

An actor's :class:`~warren.actors.runtime.future.Future` is answered in one of the pool's threads. Every event loop has
one bridge, with which those threads wake its coroutines: however many are answered before the loop's next round, it is
woken once. A coroutine that waits is an entry in a list, never a thread; and it does not run queues' turns
(:meth:`warren.actors.runtime.future.Future.get` does), because a queue's turn reads and writes files, which an event
loop must not wait for. Only quick work runs in the loop itself (:meth:`warren.actors.runtime.pooled_actor.Asked.send`).

A coroutine that is cancelled while it waits removes its callback. Its request is carried out all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from warren.actors.node.admission import Admission, BackpressureWait
from warren.actors.node.gate import Reservation
from warren.actors.runtime.future import Confirm, Future
from warren.actors.runtime.pooled_actor import Asked
from warren.storage.call_arguments import signature
from warren.verbs.instrumentation import HOOK
from warren.verbs.operation import Host
from warren.verbs.steps import Has, Reading, Steps, Wait, Within, answer_of

if TYPE_CHECKING:
    from warren.values.scheduling import Scheduled

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
V = TypeVar("V")
W = TypeVar("W")


class Bridge:
    """The bridge of one event loop. :meth:`wake` is thread-safe, the rest is for the loop's own thread."""

    __slots__ = ("_answered", "_is_woken", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the loop is the key that this bridge is found by
        self._answered: deque[asyncio.Future[None]] = deque()
        self._is_woken = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Wake the coroutine that awaits ``waiter``. A closed loop is ignored."""
        self._answered.append(waiter)
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        self._is_woken = False  # first: waiters appended from now on wake the loop again
        while self._answered:
            waiter = self._answered.popleft()
            if not waiter.done():
                waiter.set_result(None)


_BRIDGES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


async def settled(future: Future, timeout: float | None = None) -> bool:
    """Wait for an answer or an error up to ``timeout`` seconds (``None``: for ever); return whether there is one."""
    if future.done:
        return True
    loop = asyncio.get_running_loop()
    bridge = _BRIDGES.get(loop)
    if bridge is None:
        bridge = _BRIDGES[loop] = Bridge(loop)
    waiter = loop.create_future()
    wake = functools.partial(_wake, bridge, waiter)
    future.on_done(wake)
    try:
        if timeout is None:
            await waiter
        else:
            await asyncio.wait([waiter], timeout=timeout)
    finally:
        if not future.done:
            future.forget(wake)
    return future.done


def _wake(bridge: Bridge, waiter: asyncio.Future[None], _: Future) -> None:
    bridge.wake(waiter)


async def answer(future: Future) -> Any:
    """Return a future's answer; raise its error."""
    await settled(future)
    return future.get()


async def safe(confirm: Confirm, host: Host | None = None, timeout: float | None = None) -> None:
    """Wait until a message is safe, and request a sync at once.

    ``host``: what it was published to, with this ``timeout``: the wait ends then if another process hosts the node and
    is silent.
    """
    if not confirm.done:
        confirm.hurry()
    if host is None or timeout is None:
        await answer(confirm)
    else:
        await run(host.within(timeout, answer_of(confirm)))


async def run(steps: Steps[T]) -> T:
    """Run a verb in an event loop. A cancellation is thrown into it where it waits.

    If the coroutine is destroyed because its loop is closed, the verb ends and requests nothing more.
    """
    try:
        wait = next(steps)
        while True:
            try:
                value = await _waited(wait)
            except GeneratorExit as error:
                while True:
                    steps.throw(error)
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


async def _waited(wait: Wait) -> Any:
    match wait:
        case Future():
            if isinstance(wait, Asked):
                wait.send()
                if wait.done:
                    await asyncio.sleep(0)  # let other coroutines run, even if this one never has to wait
            if isinstance(wait, Confirm) and not wait.done:
                wait.hurry()
            return await answer(wait)
        case Within():
            wait.future.hurry()
            return await settled(wait.future, wait.timeout)
        case Reading():
            return await in_thread(wait.work)
        case Admission():
            return await admitted(wait)


async def admitted(admission: Admission) -> Any:
    """Wait until there is room, and give the messages. Raises :class:`BlockedError` after the admission's timeout.

    The target queues are looked up again after every wait.
    """
    loop = asyncio.get_running_loop()
    deadline = None if admission.timeout is None else loop.time() + admission.timeout
    while True:
        intakes = admission.find()
        outcome = admission.attempt(intakes, False)
        if not isinstance(outcome, BackpressureWait):
            return outcome
        wait = outcome.future
        try:
            if not await settled(wait, None if deadline is None else max(0.0, deadline - loop.time())):
                raise admission.blocked(intakes)
            if isinstance(wait, Reservation):
                return admission.take(intakes, wait, False)
        finally:
            intakes[0].gate.withdraw(wait)


def run_now(steps: Steps[T]) -> T:
    """Run a verb that waits only for room, and here not even for that (``block=False``)."""
    try:
        wait = next(steps)
        while isinstance(wait, Admission):
            wait = steps.send(wait.attempt(wait.find(), False))
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise RuntimeError(f"a verb that must not wait wants {wait!r}")


@overload
def awaited(
    verb: Callable[Concatenate[V, P], Steps[T]],
) -> Callable[Concatenate[Has[V], P], Coroutine[Any, Any, T]]: ...


@overload
def awaited(
    verb: Callable[Concatenate[V, P], Steps[A]], becomes: Callable[[A], T]
) -> Callable[Concatenate[Has[V], P], Coroutine[Any, Any, T]]: ...


@overload
def awaited(
    verb: Callable[Concatenate[W, P], Steps[T]], *, of: Callable[[V], W]
) -> Callable[Concatenate[Has[V], P], Coroutine[Any, Any, T]]: ...


def awaited(
    verb: Callable[..., Steps[Any]],
    becomes: Callable[[Any], Any] | None = None,
    *,
    of: Callable[[Any], Any] | None = None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method that awaits a verb; the arguments are those of :func:`warren.verbs.steps.blocking`."""

    name = verb.__name__

    @functools.wraps(verb)
    async def method(self: Has[Any], *args: Any, **kwargs: Any) -> Any:
        signature(verb, 1).check(args, kwargs)
        own = getattr(self._verbs if of is None else of(self._verbs), name)
        if HOOK.instrumentation is not None:
            return await run(HOOK.instrumentation.call(own, args, kwargs, becomes))
        result = await run(own(*args, **kwargs))
        return result if becomes is None else becomes(result)

    return method


def awaited_safe(
    verb: Callable[Concatenate[V, P], Steps[Confirm]],
) -> Callable[Concatenate[Has[V], P], Coroutine[Any, Any, Scheduled | None]]:
    """Return a method that awaits a verb, and then its confirm. For delayed messages, the confirm is what the
    method returns, as it has their ids."""

    name = verb.__name__

    async def method(self: Has[V], /, *args: P.args, **kwargs: P.kwargs) -> Scheduled | None:
        signature(verb, 1).check(args, kwargs)
        verbs: Any = self._verbs
        timeout: Any = kwargs.get("timeout")
        own, instrumentation = getattr(verbs, name), HOOK.instrumentation
        confirm = await run(
            own(*args, **kwargs) if instrumentation is None else instrumentation.call(own, args, kwargs)
        )
        await safe(confirm, None if timeout is None else verbs.host.host, timeout)
        return confirm if hasattr(confirm, "message_ids") else None

    functools.update_wrapper(method, verb)
    return method


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in the loop's default executor, to its end; then raise a cancellation.

    An error from ``work`` has precedence over the cancellation.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    result = future.result()
    if cancelled is not None:
        raise cancelled
    return result
