"""Programs with an event loop that end, and coroutines that are cancelled in each awaitable."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import warren
import warren.aio
from tests.support.ends import QUEUE, TOPIC, End, Program, add, body_of, end
from tests.support.ends_of_programs import ERROR


async def _open(p: Program) -> warren.aio.Node:
    return await warren.aio.open(p.path, sync_interval_ms=10_000, attach=False, share=p.shares)


async def _publish(p: Program, queue: warren.aio.Queue, number: int = 0, stream: str = "s") -> None:
    p.tell("b", QUEUE, stream, number, number)
    queue.publish_nowait(body_of(stream, number))
    p.tell("p", QUEUE, stream, number, number)


async def _published(p: Program) -> warren.aio.Node:
    node = await _open(p)
    await _publish(p, await node.queue("q"))
    return node


@end("`asyncio.run` comes to its end, the node is not closed", quick=True)
def asyncio_returns(p: Program) -> None:
    asyncio.run(_published(p))


@end("an error that leaves `asyncio.run`", code=1, says=ERROR.format("ZeroDivisionError"), quick=True)
def asyncio_error(p: Program) -> None:
    async def main() -> None:
        await _published(p)
        raise ZeroDivisionError

    asyncio.run(main())


@end("`asyncio.run` ends with tasks that wait for messages, room and confirms")
def asyncio_tasks(p: Program) -> None:
    async def main() -> None:
        node = await _published(p)
        queue, empty = await node.queue("q"), await node.queue("empty")
        kept = [asyncio.create_task(empty.get(timeout=None)), asyncio.create_task(_next(empty.consume()))]
        kept.append(asyncio.create_task(_next(aiter((await node.topic("t")).reader("g")))))
        kept.append(asyncio.create_task(_publish(p, queue, 1)))
        await asyncio.sleep(0.01)

    asyncio.run(main())


async def _next(messages: Any) -> Any:
    return await anext(messages)


@end("a `TaskGroup` fails, and cancels the others", code=1, says=r".*ZeroDivisionError.*")
def task_group(p: Program) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.005)
        raise ZeroDivisionError

    async def publish_on(queue: warren.aio.Queue) -> None:
        for number in range(1, 100_000):
            await _publish(p, queue, number)
            await queue.sync()

    async def main() -> None:
        node = await _published(p)
        queue, empty = await node.queue("q"), await node.queue("empty")
        async with asyncio.TaskGroup() as group:
            group.create_task(publish_on(queue))
            group.create_task(empty.get(timeout=None))
            group.create_task(fail())

    asyncio.run(main())


@end("the event loop is closed, tasks and node are not")
def a_closed_loop(p: Program) -> None:
    loop = asyncio.new_event_loop()
    node = loop.run_until_complete(_published(p))
    empty = loop.run_until_complete(node.queue("empty"))
    task = loop.create_task(empty.get(timeout=None))
    loop.run_until_complete(asyncio.sleep(0.005))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own words


@end("the loop is stopped, and never closed")
def a_stopped_loop(p: Program) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_published(p))


@end("Ctrl-C in `asyncio.run`", code=-signal.SIGINT, says=ERROR.format("KeyboardInterrupt"))
def ctrl_c_in_a_loop(p: Program) -> None:
    def strike() -> None:
        time.sleep(p.rng.uniform(0.01, 0.02))
        os.kill(os.getpid(), signal.SIGINT)

    async def main() -> None:
        node = await _published(p)
        queue = await node.queue("q")
        threading.Thread(target=strike, daemon=True).start()
        for number in range(1, 100_000):
            await _publish(p, queue, number)
            await queue.sync()

    asyncio.run(main())


# ── cancelled ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Scene:
    """A node in an event loop."""

    def __init__(self, p: Program, node: warren.aio.Node, queue: warren.aio.Queue, topic: warren.aio.Topic) -> None:
        self.p = p
        self.node, self.queue, self.topic = node, queue, topic
        self.reader = topic.reader("g")
        self.number = 0

    def next(self, place: str = QUEUE) -> bytes:
        """A message, which may be there from now on."""
        self.number += 1
        self.p.tell("b", place, "v", self.number, self.number)
        return body_of("v", self.number)

    def done(self, place: str = QUEUE) -> None:
        self.p.tell("p", place, "v", self.number, self.number)


async def _publish_safe(s: Scene) -> None:
    await s.queue.publish(s.next())
    s.done()


async def _publish_many(s: Scene) -> None:
    await s.queue.publish_many([s.next()])
    s.done()


async def _delayed(s: Scene) -> None:
    await s.queue.publish(s.next("d"), delay=3600)
    s.done("d")


async def _append(s: Scene) -> None:
    await s.topic.append(s.next(TOPIC), queue=0)
    s.done(TOPIC)


async def _transaction(s: Scene) -> None:
    prepared = await s.topic.prepare(s.next(TOPIC), group="p", queue=0)
    await prepared.commit()
    s.done(TOPIC)


async def _get(s: Scene) -> None:
    delivery = await s.queue.get(timeout=0.01)
    if delivery is not None:
        await delivery.nack()


async def _get_many(s: Scene) -> None:
    await s.queue.nack(await s.queue.get_many(5))


async def _retry(s: Scene) -> None:
    delivery = await s.queue.get()
    if delivery is not None:
        await delivery.retry(0.01)


async def _consume(s: Scene) -> None:
    async with s.queue.consume(prefetch=3, timeout=0.01) as consumer:
        async for delivery in consumer:
            await delivery.nack()
            break


async def _read(s: Scene) -> None:
    await s.reader.read(3, timeout=0.01)
    await s.reader.commit()


async def _declare(s: Scene) -> None:
    await s.node.queue("other")
    await s.node.delete_queue("other")


async def _reopen(s: Scene) -> None:
    await s.node.close()
    s.node = await _open(s.p)
    s.queue, s.topic = await s.node.queue("q"), await s.node.topic("t")
    s.reader = s.topic.reader("g")


async def _look(s: Scene) -> None:
    await s.node.stats()
    await s.queue.length()
    async for _ in s.queue.browse(3):
        pass


AWAITED: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "publish": _publish_safe,
    "publish_many": _publish_many,
    "publish later": _delayed,
    "get": _get,
    "get_many": _get_many,
    "retry": _retry,
    "consume": _consume,
    "sync": lambda s: s.queue.sync(),
    "append": _append,
    "a transaction": _transaction,
    "read, commit": _read,
    "declare, delete": _declare,
    "stats": _look,
    "close, open": _reopen,
}
CANCELS: Final = 25


def _cancelled(p: Program, name: str) -> None:
    """Cancel a coroutine after one step, after two …; in between the node does what it is asked."""

    async def main() -> None:
        node = await _open(p)
        s = Scene(p, node, await node.queue("q"), await node.topic("t"))
        await s.queue.publish_many([s.next() for _ in range(10)])
        for steps in range(CANCELS):
            task = asyncio.ensure_future(AWAITED[name](s))
            for _ in range(steps):
                await asyncio.sleep(0 if p.rng.random() < 0.9 else 0.001)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            if name == "close, open":
                await s.node.close()
                s.node = await _open(p)
                s.queue, s.topic = await s.node.queue("q"), await s.node.topic("t")
                s.reader = s.topic.reader("g")
            await _publish_safe(s)
        for use in AWAITED.values():
            await use(s)

    asyncio.run(main())


for _name in AWAITED:
    for _shares, _of in ((False, ""), (True, ", of a guest")):
        add(
            End(
                f"cancelled{_of}",
                f"coroutines are cancelled in every awaitable, and the program goes on{_of}",
                lambda p, name=_name: _cancelled(p, name),  # type: ignore[misc]
                _name,
                shares=_shares,
                draws=True,
            )
        )
