"""Tests of handles that run on threads and in an event loop alike.

A handle's call is made by :func:`done`: what a coroutine would await has an answer already where a thread has called.

Coroutines run in a loop with a deadline (:func:`in_a_loop`), or with a node that a coroutine drives (:func:`driven`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.runtime_tools import HandNode, hand_node
from warren.actors.runtime.future import Future
from warren.verbs.topics.topic_append import AppendManyConfirm

GUARD_S = 30
SLOW_SYNC: dict[str, Any] = {"sync_interval_ms": 600_000}
"""A publisher that waited for the timer would run into the guard."""
Test = Callable[..., Coroutine[Any, Any, None]]


def in_a_loop(test: Test) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def guarded() -> None:
            async with asyncio.timeout(GUARD_S):
                await test(*args, **kwargs)

        asyncio.run(guarded())

    return run


async def breathe(hand: HandNode | None = None) -> None:
    """Let every coroutine go as far as it gets, and the node, in turns."""
    for _ in range(10):
        await asyncio.sleep(0)
        if hand is not None:
            hand.run()


@asynccontextmanager
async def driven(hand: HandNode) -> AsyncIterator[warren.aio.Node]:
    """The hand's node for coroutines, driven by one of them."""

    async def drive() -> None:
        while True:
            hand.run()
            await asyncio.sleep(0)

    driver = asyncio.create_task(drive())
    yield warren.aio.Node(hand.node)
    driver.cancel()


Check = Callable[..., Awaitable[None]]
KINDS = pytest.mark.parametrize("kind", ["threads", "asyncio"])
PLACES = pytest.mark.parametrize("place", ["host", "guest"])
"""Where a node's handles are: in its own process, or (``guest``) at the other end of its socket."""


async def done(result: Any) -> Any:
    """What a call brings about, once it has: the answer, or what the confirm says."""
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, Future):
        return result.get()
    return result.wait() if isinstance(result, warren.AppendConfirm | AppendManyConfirm) else result


def begun(verb: Any, *arguments: Any) -> asyncio.Task[Any]:
    """Call a handle's verb that waits: in a task, or in a thread."""
    awaitable = type(verb.__self__).__module__.startswith("warren.aio")
    return asyncio.create_task(done(verb(*arguments)) if awaitable else asyncio.to_thread(verb, *arguments))


async def listed(found: Any) -> list[Any]:
    return [one async for one in found] if hasattr(found, "__aiter__") else list(found)


async def some(found: Any, count: int) -> list[Any]:
    """The next ones of an iterator."""
    return [await anext(found) if hasattr(found, "__anext__") else next(found) for _ in range(count)]


async def up_to(found: Any, body: bytes) -> Any:
    """A loop that is left in the middle of this message."""
    if hasattr(found, "__aiter__"):
        async for one in found:
            if one.body == body:
                return one
    else:
        for one in found:
            if one.body == body:
                return one
    raise AssertionError(f"{body!r} did not come")


@asynccontextmanager
async def entered(handle: Any) -> AsyncIterator[Any]:
    """Its ``with`` block."""
    if hasattr(handle, "__aenter__"):
        async with handle as one:
            yield one
    else:
        with handle as one:
            yield one


@asynccontextmanager
async def again(node: Any) -> AsyncIterator[Any]:
    """The node, closed and opened again."""
    shared = node.is_guest
    await done(node.close())
    opening = warren.open if isinstance(node, warren.Node) else warren.aio.open
    async with entered(opening(node.path, share=shared)) as new:
        yield new


def both_ways(check: Check | None = None, /, **settings: Any) -> Any:
    """Run it on a node of either kind, and on a guest's of either kind."""
    if check is None:
        return lambda check: both_ways(check, **settings)

    @KINDS
    @PLACES
    def test(kind: str, place: str, tmp_path: Path) -> None:
        async def run() -> None:
            open_node = warren.open if kind == "threads" else warren.aio.open
            with ExitStack() as stack:
                if place == "guest":
                    stack.enter_context(warren.open(tmp_path, share=True, **settings))
                node: Any = await done(open_node(tmp_path, share=place == "guest", **settings))
                try:
                    async with asyncio.timeout(60):
                        await check(node)
                finally:
                    await done(node.close())

        asyncio.run(run())

    test.__doc__ = check.__doc__
    return test


def both_ways_by_hand(check: Check | None = None, /, **settings: Any) -> Any:
    """Run it on a handle of either kind on a node in the test's hands, which it is given, too."""
    if check is None:
        return lambda check: both_ways_by_hand(check, **settings)

    @KINDS
    def test(kind: str) -> None:
        hand: HandNode = hand_node(**settings)

        async def run() -> None:
            async with asyncio.timeout(GUARD_S), AsyncExitStack() as stack:
                await check(hand.node if kind == "threads" else await stack.enter_async_context(driven(hand)), hand)

        asyncio.run(run())
        hand.node.close()

    test.__doc__ = check.__doc__
    return test
