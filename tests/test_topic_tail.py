"""The end of a topic, read along without a group."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.handles.node import Node
from warren.handles.topic import Topic


def append(topic: Topic, *numbers: int, queue: int | None = None) -> None:
    for number in numbers:
        topic.append(b"%d" % number, queue=queue).wait()


@pytest.mark.parametrize("side", ["host", "guest"])
def test_the_last_of_all_queues_come_as_they_were_stored_and_then_what_comes(
    host: Node, guest: Node, side: str
) -> None:
    topic = {"host": host, "guest": guest}[side].topic("events", queues=3)
    assert list(topic.tail()) == []
    append(topic, *range(20))
    append(topic, *range(20, 26), queue=1)
    assert [int(one.body) for one in topic.tail(8)] == [*range(18, 26)]
    assert [int(one.body) for one in topic.tail(100)] == [*range(26)]
    assert [int(one.body) for one in topic.tail(0)] == []
    following = topic.tail(1, timeout=60.0)
    assert int(next(following).body) == 25
    threading.Timer(0.0, lambda: append(topic, 26, 27, queue=0)).start()
    assert [int(one.body) for one in itertools.islice(following, 2)] == [26, 27]
    following.close()  # type: ignore[attr-defined]
    assert topic.groups() == {}
    assert topic.groups(broadcast=True) == {}


def test_coroutines_read_along(tmp_path: Path) -> None:
    async def follow() -> list[int]:
        seen: list[int] = []
        async with await warren.aio.open(tmp_path / "data") as node:
            topic = await node.topic("events", queues=2)
            for number in range(4):
                await topic.append(b"%d" % number)
            assert [int(one.body) async for one in topic.tail(3)] == [1, 2, 3]
            async for one in topic.tail(1, timeout=None):
                seen.append(int(one.body))
                if len(seen) == 3:
                    return seen
                await topic.append(b"%d" % (len(seen) + 3))
        raise AssertionError("it has ended")

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == [3, 4, 5]


@pytest.mark.parametrize("side", ["host", "guest"])
def test_messages_are_pulled_from_a_number_on(host: Node, guest: Node, side: str) -> None:
    topic = {"host": host, "guest": guest}[side].topic("events", queues=2)
    append(topic, *range(50), queue=1)

    def pulled(*arguments: int) -> list[int]:
        return [int(one.body) for one in topic.pull(*arguments)]

    assert pulled(1, 0) == [*range(32)]
    assert pulled(1, 40, 100) == [*range(40, 50)]
    assert pulled(1, -7, 2) == [0, 1]
    assert pulled(1, 50) == pulled(0, 0) == pulled(7, 0) == pulled(1, 0, 0) == []
    topic.append_many([b"x" * 400_000] * 5, queue=0).wait()
    assert [one.queue_offset for one in topic.pull(0, 1)] == [1, 2]
    assert topic.groups() == {}
