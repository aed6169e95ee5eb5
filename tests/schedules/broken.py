"""Bugs of the kind that an order of threads' steps brings to light, to be put in place of what is right.

Lines of this file are steps, as those that they stand for are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from warren.actors.queue.fast_paths import FastPaths
from warren.actors.runtime import future as futures
from warren.actors.runtime.future import Future
from warren.actors.runtime.pool import ThreadPool
from warren.actors.runtime.pooled_actor import Turns


def _end_turn(turns: Any) -> None:
    """What came during the turn is forgotten."""
    turns._thread = None
    turns.lock.release()


def _run_turn(pool: Any, turns: Turns) -> None:
    """A message that arrives during the turn sees that the actor is scheduled, although it no longer is."""
    turns.run()
    turns.inbox.scheduled = False


def _wait(future: Any, timeout: float | None) -> None:
    """The answer may come between the look and the wait."""
    helper = future._helper
    if helper is not None:
        helper.help(future, None)
    if future._state:
        return
    waiter = futures.threading.Lock()  # type: ignore[attr-defined]
    waiter.acquire()
    if future._waiters is None:
        future._waiters = []
    future._waiters.append(waiter)
    waiter.acquire(timeout=-1.0 if timeout is None else timeout)


def _drain(turns: Any) -> None:
    """Callers that wait for an ended actor get no answer."""
    while turns.inbox.take() is not None:
        pass


def _settle(future: Any, state: int, result: Any, *, only_first: bool = False) -> None:
    """Set an answer without checking whether there is one, and collect the waiters before that."""
    waiters, future._waiters = future._waiters, None
    callbacks, future._callbacks = future._callbacks, None
    future._result, future._state, future._helper = result, state, None
    for waiter in waiters or ():
        waiter.release()
    for callback in callbacks or ():
        callback(future)


def _give(paths: Any) -> bool:
    """If more waits than the consumer has room for, the consumer is not notified of what it got."""
    waiting: list[Future] = []
    with paths._inbox.lock:
        batch = paths._batch_to_deliver()
        if batch is None or paths._process is None or len(paths._deliveries) != 1:
            return False
        (deliveries,) = paths._deliveries.values()
        while batch.waits:
            consumer = paths._process.lone_consumer(batch.delivered - batch.acked_count)
            if consumer is None:
                return False
            delivered = batch.deliver(consumer.channel, consumer.tag, paths._process.tags(consumer.channel))
            if delivered is None:
                return False
            waiting += deliveries.add(delivered)
    for future in waiting:
        future.set()
    return True


BUGS: Final[dict[str, tuple[type, str, Callable[..., Any]]]] = {
    "what came during a turn is forgotten": (Turns, "end", _end_turn),
    "an actor stands in line twice or not at all": (ThreadPool, "_run_turn", _run_turn),
    "an answer is missed by who begins to wait": (Future, "_wait", _wait),
    "an actor that ends leaves questions unanswered": (Turns, "_drain", _drain),
    "an answer is given without a lock": (Future, "_settle", _settle),
    "a consumer sleeps beside what it was given": (FastPaths, "give", _give),
}


@contextlib.contextmanager
def bug(name: str) -> Iterator[None]:
    """As long as the block lasts production code has one of :data:`BUGS`."""
    owner, method, wrong = BUGS[name]
    right = owner.__dict__[method]
    setattr(owner, method, wrong)
    try:
        yield
    finally:
        setattr(owner, method, right)
