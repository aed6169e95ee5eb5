"""Tests of coroutines: a loop with a deadline, and a node that is driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import warren
import warren.aio
from tests.support.runtime_tools import HandNode

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
