"""The bridge: coroutines that wait for what actors answer.

An actor's :class:`~actors.future.Future` is answered in one of the pool's threads. Every event loop has one bridge, by
which those threads wake its coroutines: however many are answered before the loop comes round, it is told once. A
coroutine that waits is an entry in a list, never a thread; and it never helps (:meth:`actors.future.Future.get` does),
because a queue's turn reads and writes files, which an event loop must not wait for.

A coroutine that is cancelled while it waits takes its callback back. What it had asked for is done all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from actors import messages as m
from actors import topic_messages as tm
from actors.engines.errors import NotFoundError
from actors.future import Future
from actors.node_actor import NodeActor, TopicsDownError
from actors.pool import PooledActor
from actors.running_topics import RunningTopics
from warren.node import Node

T = TypeVar("T")


class Bridge:
    """One event loop's end. :meth:`wake` is for any thread, the rest for the loop's own."""

    __slots__ = ("_answered", "_loop", "_told")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the loop is the key that this bridge is found by
        self._answered: deque[asyncio.Future[None]] = deque()
        self._told = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Let the coroutine behind ``waiter`` go on, soon. A loop that is closed has none."""
        self._answered.append(waiter)
        if not self._told:
            self._told = True
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        self._told = False  # first: what is appended from now on tells the loop again
        while self._answered:
            waiter = self._answered.popleft()
            if not waiter.done():
                waiter.set_result(None)


_BRIDGES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


async def settled(future: Future, timeout: float | None = None) -> bool:
    """Wait for an answer or an error; whether there is one after ``timeout`` seconds (``None``: wait on)."""
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
    """What the future is answered with; raises the error."""
    await settled(future)
    return future.get()


def ask(actor: PooledActor, message: object) -> Future:
    """Ask an actor without waiting."""
    future = actor.actor_ref.ask(message, block=False)
    if not isinstance(future, Future):
        raise RuntimeError(f"{actor.describe()} answers with a strange future")  # noqa: TRY004
    return future


async def change(node: Node, work: Callable[[NodeActor], T]) -> T:
    """:meth:`warren.Node.change`: do something in the node's actor, with nobody else at it."""
    node.check_process()
    done: T = await answer(ask(node.actor, m.Change(functools.partial(work, node.actor))))
    return done


def running_now(node: Node) -> RunningTopics:
    """The topics' actors of the moment, without waiting for topics that are just opened anew."""
    node.check_process()
    running = node.actor.topics
    if running is None:
        raise NotFoundError("no topic was ever declared")
    return running


async def running_topics(node: Node) -> RunningTopics:
    """:meth:`warren.Node.running_topics`."""
    try:
        return running_now(node)
    except TopicsDownError:
        await change(node, lambda _: None)  # they may just be opened anew
        return running_now(node)


async def caught_up(node: Node, *, with_index: bool = False) -> RunningTopics:
    """The topics that run, once everything that was appended until now has its entries (``with_index``: its keys)."""
    running = await running_topics(node)
    store, end = running.store, running.store.commit_log.end
    if store.dispatched < end or (with_index and store.indexed < end):
        await answer(ask(running.dispatcher, tm.CatchUp(end, with_index)))
    return running


async def in_thread(work: Callable[[], T]) -> T:
    """Do something that blocks, in the loop's default executor. It is done to its end; then a cancellation is raised.

    What ``work`` raised goes before the cancellation.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    found = future.result()
    if cancelled is not None:
        raise cancelled
    return found
