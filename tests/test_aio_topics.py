"""warren.aio: topics. Timeouts here are guards; what a test waits for is an event."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pykka._envelope import Envelope

import warren
import warren.aio
from tests.support.both_ways import SLOW_SYNC, breathe, driven, in_a_loop
from tests.support.runtime_tools import SMALL, HandNode, hand_node
from warren.actors.engines.topics.consumer_groups import ConsumerGroups
from warren.actors.engines.topics.errors import (
    MemberError,
)
from warren.actors.runtime.inbox import Call
from warren.actors.runtime.pooled_actor import Turns
from warren.actors.topics.dispatch_actor import Arrivals
from warren.hosting.running_node import RunningNode
from warren.storage.filesystem import RealFileSystem
from warren.storage.real_file import RealFile
from warren.verbs.topics.reader_host import LocalMembership
from warren.verbs.topics.topic_host import LocalTopic
from warren.verbs.topics.topic_verbs import TopicVerbs


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def hand() -> Iterator[HandNode]:
    """A node whose turns run on command."""
    made = hand_node(**SMALL, credit_flow_default_credit=(200, 100))
    yield made
    made.node.close()


def _topic_verbs(node: RunningNode, name: str) -> TopicVerbs:
    return TopicVerbs(LocalTopic(node, name), node.config.topics)


def opened(path: str, **settings: Any) -> warren.aio.Opening:
    return warren.aio.open(path, **SMALL, **settings)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read_all(topic: warren.aio.Topic, group: str, **arguments: Any) -> list[bytes]:
    return [record.body async for record in topic.read(group, **arguments)]


async def committed(topic: warren.aio.Topic, group: str) -> dict[int, int]:
    return dict((await topic.groups())[group]["committed"])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)


# ── the verbs ───────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_nobody_who_awaits_waits_for_the_timer_that_groups_syncs(path: str) -> None:
    async with opened(path, **SLOW_SYNC) as node:
        events = await node.topic("events")
        confirm = events.append_nowait(b"x")
        await events.lag("g")  # it has been taken
        assert not confirm.done
        assert repr(confirm) == "<AppendConfirm pending>"
        position = await confirm
        assert (confirm.done, confirm.error) == (True, None)
        assert await confirm == position
        await asyncio.gather(*(events.append(b"%d" % n) for n in range(50)))
        for _ in range(5):
            await (await events.prepare(b"t")).commit()
            await (await events.prepare(b"t")).rollback()
        async with events.reader("g") as reader:
            [record] = await reader.read(1)
            await record.retry()


@in_a_loop
async def test_a_cancelled_prepare_and_a_cancelled_commit_are_done(hand: HandNode) -> None:
    hand.node.topic("events")
    node = warren.aio.Node(hand.node)
    events = warren.aio.Topic(_topic_verbs(hand.node._running, "events"))
    preparing = asyncio.create_task(events.prepare(b"x"))
    await breathe()
    preparing.cancel()
    await breathe()
    assert preparing.cancelled()
    async with driven(hand):
        [pending] = await node.pending_transactions()
    committing = asyncio.create_task(pending.commit())
    await breathe()
    committing.cancel()
    await breathe()
    assert committing.cancelled()
    async with driven(hand):
        assert await node.pending_transactions() == []
        assert await read_all(events, "g") == [b"x"]


@in_a_loop
async def test_a_delayed_message_comes_when_it_is_due_and_wakes_a_reader(hand: HandNode) -> None:
    async with driven(hand) as node:
        events = await node.topic("events")
        await events.append(b"late", delay=5)
        async with events.reader("g") as reader:
            reading = asyncio.create_task(reader.read(timeout=None))
            await breathe(hand)
            hand.advance(4)
            await breathe(hand)
            assert not reading.done()
            hand.advance(2)
            assert [one.body for one in await reading] == [b"late"]


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_errors_come_to_whoever_awaits(path: str) -> None:
    async with opened(path) as node:
        with pytest.raises(warren.errors.NotFoundError):
            await warren.aio.Topic(_topic_verbs(node.blocking._running, "none yet")).append(b"")
        events = await node.topic("events")
        with pytest.raises(warren.errors.MessageError):
            events.append_nowait(b"", key="no spaces")
        reader = events.reader("g")
        await reader.close()
        with pytest.raises(MemberError):
            await reader.begin()
        assert [one async for one in reader] == []
        late = await events.reader("late").__aenter__()
    for call in (events.append(b"late"), events.find("k"), late.read(), events.lag("g"), node.topic("events")):
        with pytest.raises(warren.errors.ClosedError):
            await call
    with pytest.raises(warren.errors.ClosedError):
        events.append_nowait(b"")
    await late.close()


@in_a_loop
async def test_closing_the_node_wakes_readers_and_blocked_producers(hand: HandNode) -> None:
    async with driven(hand) as node:
        events = await node.topic("events")
        reading = asyncio.create_task(anext(events.read("g", timeout=None)))
        alone = asyncio.create_task(events.reader("", broadcast=True).read(timeout=None))
        await breathe(hand)
        hand.machine.used_bytes = hand.machine.total_memory_bytes
        hand.advance(2)
        blocked = asyncio.create_task(events.append(b"never"))
        await breathe(hand)
        hand.node.close()
        for task in (reading, alone, blocked):
            with pytest.raises(warren.errors.ClosedError):
                await task


@in_a_loop
async def test_a_reader_that_waits_goes_on_in_topics_that_were_opened_anew(hand: HandNode) -> None:
    async with driven(hand) as node:
        events = await node.topic("events", queues=1)
        await events.append_many(numbers(4))
        async with events.reader("g") as reader:
            assert [one.body for one in await reader.read()] == numbers(4)
            assert await reader.read() == []
            waiting = asyncio.create_task(reader.read(timeout=None))
            await breathe(hand)
            hand.node._running.topics_now().dispatcher.actor_ref.tell("no message that it knows")
            await breathe(hand)
            await events.seek("g", 3)
            assert [one.body for one in await waiting][-1:] == [b"3"]


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_closing_a_reader_ends_an_iteration_and_a_read_that_wait(path: str) -> None:
    async with opened(path) as node:
        events = await node.topic("events")
        reader = events.reader("g")

        async def iterate() -> list[bytes]:
            return [record.body async for record in reader]

        iterating = asyncio.create_task(iterate())
        await events.append(b"x")
        while not (await events.groups()).get("g", {}).get("members"):
            await asyncio.sleep(0)
        await reader.close()
        assert await iterating in ([], [b"x"])
        assert (await events.groups())["g"]["members"] == {}
        async with events.reader("", broadcast=True, consume_from="last") as alone:
            reading = asyncio.create_task(alone.read(timeout=None))
            await breathe()
            await alone.close()
            with pytest.raises(MemberError):
                await reading


# ── cancellation ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answered", [False, True])
@in_a_loop
async def test_what_a_cancelled_read_has_asked_for_is_the_next_ones(hand: HandNode, answered: bool) -> None:
    hand.node.topic("events", queues=1).append_many(numbers(5)).wait()
    events = warren.aio.Topic(_topic_verbs(hand.node._running, "events"))
    reader = events.reader("g")
    async with driven(hand):
        await reader.begin()
        await events.lag("g")
    reading = asyncio.create_task(reader.read())
    await breathe()
    assert reader._verbs._taking is not None  # it has asked
    if answered:
        hand.run()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with driven(hand):
        assert [one.body for one in await reader.read(2)] == numbers(2)
        assert [one.body for one in await reader.read()] == numbers(3, 2)
        await reader.close()
        assert await events.lag("g") == {0: 0}


@in_a_loop
async def test_what_a_cancelled_read_was_reading_comes_again(hand: HandNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    read_files = LocalMembership._read_files

    def slowly(*arguments: Any) -> Any:
        reached.set()
        go_on.wait()
        return read_files(*arguments)

    async with driven(hand) as node:
        events = await node.topic("events", queues=1)
        await events.append_many(numbers(5))
        async with events.reader("g") as reader, events.reader("", broadcast=True) as alone:
            for one in (reader, alone):
                reached.clear()
                go_on.clear()
                with monkeypatch.context() as patch:
                    patch.setattr(LocalMembership, "_read_files", slowly)
                    reading = asyncio.create_task(one.read())
                    await until(reached.is_set)
                    reading.cancel()
                    await breathe(hand)
                    go_on.set()
                    with pytest.raises(asyncio.CancelledError):
                        await reading
                assert [record.body for record in await one.read(2)] == numbers(2)
                assert [record.body async for record in one.records()] == numbers(3, 2)
        assert await events.lag("g") == {0: 0}


@in_a_loop
async def test_a_cancelled_wait_leaves_nobody_waiting(path: str) -> None:
    async with opened(path) as node:
        events = await node.topic("events", queues=1)
        arrivals: Arrivals = node.blocking._running.topics_now().dispatcher.arrivals
        async with events.reader("g") as reader:
            for read in (lambda: reader.read(timeout=None), lambda: anext(aiter(reader))):
                reading = asyncio.create_task(read())
                await until(lambda: "events" in arrivals._waiting)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                assert arrivals._waiting == {}
            await events.append(b"x")
            assert [one.body for one in await reader.read(timeout=None)] == [b"x"]
            assert await reader.read(timeout=0.01) == []


def _is_join(message: object) -> bool:
    return isinstance(message, Call) and isinstance(message.work, functools.partial)


@in_a_loop
async def test_a_cancelled_join_leaves_no_member(hand: HandNode, monkeypatch: pytest.MonkeyPatch) -> None:
    joins = []
    join = ConsumerGroups.join
    monkeypatch.setattr(ConsumerGroups, "join", lambda groups, *whom: (joins.append(whom), join(groups, *whom))[1])
    hand.node.topic("events")
    events = warren.aio.Topic(_topic_verbs(hand.node._running, "events"))
    reader = events.reader("g")
    joining = asyncio.create_task(reader.begin())
    inbox = hand.node._running.topics_now().groups.actor_inbox
    while not any(isinstance(one, Envelope) and _is_join(one.message) for one in inbox._data or ()):
        hand.pool.run_one()
        await asyncio.sleep(0)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    hand.run()
    assert len(joins) == 1
    async with driven(hand):
        assert (await events.groups())["g"]["members"] == {}
        await reader.begin()
        assert len((await events.groups())["g"]["members"]) == 1
        await reader.close()


@in_a_loop
async def test_a_cancelled_close_leaves_the_group(hand: HandNode) -> None:
    hand.node.topic("events", queues=1).append_many(numbers(3)).wait()
    events = warren.aio.Topic(_topic_verbs(hand.node._running, "events"))
    reader = events.reader("g")
    async with driven(hand):
        await reader.read(2)
    closing = asyncio.create_task(reader.close())
    await breathe()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with driven(hand):
        assert (await events.groups())["g"]["members"] == {}
        assert await events.lag("g") == {0: 1}


@in_a_loop
async def test_a_reader_that_is_forgotten_while_another_thread_is_at_the_groups_leaves(hand: HandNode) -> None:
    hand.node.topic("events")
    events = warren.aio.Topic(_topic_verbs(hand.node._running, "events"))
    reader: Any = events.reader("g")
    async with driven(hand):
        await reader.begin()
    groups = hand.node._running.topics_now().groups
    assert groups.turns.lock.acquire(blocking=False)
    del reader
    gc.collect()
    hand.run()
    groups.turns.end()
    hand.run()
    assert events.blocking.groups()["g"]["members"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_reads_that_are_cancelled_anywhere_lose_nothing_and_bring_nothing_twice(path: str, seed: int) -> None:
    rng = random.Random(seed)

    @in_a_loop
    async def run() -> None:
        async with opened(path) as node:
            events = await node.topic("events", queues=3)
            found: dict[int, list[bytes]] = {queue: [] for queue in range(3)}
            async with events.reader("g", auto_commit=rng.random() < 0.5) as reader:
                appended = 0
                while sum(map(len, found.values())) < 400:
                    if appended < 400 and rng.random() < 0.5:
                        await events.append_many(numbers(40, appended), queue=lambda body: int(body) % 3)
                        appended += 40
                    reading = asyncio.create_task(reader.read(rng.randint(1, 30), timeout=0.01))
                    for _ in range(rng.randint(0, 12)):
                        await asyncio.sleep(rng.choice((0, 0, 0.0002)))
                    reading.cancel()
                    brought: Any
                    [brought] = await asyncio.gather(reading, return_exceptions=True)
                    for record in () if isinstance(brought, asyncio.CancelledError) else brought:
                        found[record.queue_id].append(record.body)
                    if rng.random() < 0.5:
                        await reader.commit()
            for queue in range(3):
                assert found[queue] == [b"%d" % n for n in range(400) if n % 3 == queue], seed

    run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_iterations_that_are_cancelled_anywhere_go_on_with_the_next_message(path: str, seed: int) -> None:
    rng = random.Random(seed)

    @in_a_loop
    async def run() -> None:
        async with opened(path) as node:
            events = await node.topic("events", queues=3)
            found: dict[int, list[bytes]] = {queue: [] for queue in range(3)}
            async with events.reader("g", auto_commit=rng.random() < 0.5) as reader:
                records = reader.records(timeout=None)
                for first in range(0, 600, 300):
                    await events.append_many(numbers(300, first), queue=lambda body: int(body) % 3)
                    while sum(map(len, found.values())) < first + 300:
                        step = asyncio.ensure_future(anext(records))
                        for _ in range(rng.randint(0, 2) if rng.random() < 0.9 else 30):
                            await asyncio.sleep(rng.choice((0, 0, 0.0002)))
                        step.cancel()
                        [record] = await asyncio.gather(step, return_exceptions=True)
                        if isinstance(record, warren.aio.TopicRecord):
                            found[record.queue_id].append(record.body)
            for queue in range(3):
                assert found[queue] == [b"%d" % n for n in range(600) if n % 3 == queue], seed

    run()


# ── many ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@in_a_loop
async def test_a_hundred_producers_and_twenty_readers_of_a_group(path: str) -> None:
    async with opened(path, **SLOW_SYNC) as node:
        events = await node.topic("events", queues=20)
        found: list[bytes] = []
        finished = asyncio.Event()

        async def produce(number: int) -> None:
            for n in range(20):
                await events.append(b"%d %d" % (number, n), key=str(number))

        async def consume() -> None:
            async with events.reader("g") as reader:
                async for record in reader:
                    found.append(record.body)
                    if len(set(found)) == 2000:
                        finished.set()

        readers = [asyncio.create_task(consume()) for _ in range(20)]
        await asyncio.gather(*(produce(n) for n in range(100)))
        await finished.wait()
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert set(found) == {b"%d %d" % (number, n) for number in range(100) for n in range(20)}
        assert (await events.groups())["g"]["members"] == {}


@pytest.mark.slow
@in_a_loop
async def test_readers_that_wait_need_no_thread_and_the_loop_runs_no_turn_and_touches_no_file(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: set[int] = set()
    files: set[int] = set()
    turn = Turns.run

    def noted(actor_turns: Turns, *arguments: Any) -> bool:
        turns.add(threading.get_ident())
        return turn(actor_turns, *arguments)

    def noting(method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            files.add(threading.get_ident())
            return method(*arguments, **named)

        return call

    monkeypatch.setattr(Turns, "run", noted)
    for owner in (RealFileSystem, RealFile):
        for name, method in vars(owner).items():
            if callable(method) and not name.startswith("__"):
                monkeypatch.setattr(owner, name, noting(method))
    async with opened(path, **SLOW_SYNC) as node:
        events = await node.topic("events", queues=4)
        await events.append(b"warm", key="k")
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await read_all(events, "warm")
        before = threading.active_count()
        waiting = [
            asyncio.create_task(anext(events.read(f"g{n}", timeout=None, consume_from="last"))) for n in range(60)
        ]
        while sum(map(bool, [one["members"] for one in (await events.groups()).values()])) < 60:
            pass
        assert threading.active_count() <= before
        await events.append(b"x")
        assert {(await task).body for task in waiting} == {b"x"}
        await events.find("k")
        await events.get(0, 0)
        await events.offset_at(0.0)
        await events.seek("g0", 0.0)
        transaction = await events.prepare(b"t")
        await transaction.message()
        await transaction.commit()
        async for record in events.read("r"):
            await record.commit()
            await record.retry(-1)
        assert threading.active_count() <= before
    assert turns
    assert files
    assert threading.get_ident() not in turns | files


def test_an_iteration_with_a_backlog_lets_others_run(path: str) -> None:
    @in_a_loop
    async def run() -> None:
        async with opened(path) as node:
            events = await node.topic("events", queues=1)
            await events.append_many([b""] * 1000)
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            async with events.reader("g") as reader:
                records = reader.records()
                await anext(records)
                ticker = asyncio.create_task(tick())
                for _ in range(255):  # of the first batch
                    await anext(records)
                ticker.cancel()
            assert ticks >= 3

    run()


def test_several_loops_and_threads_share_a_topic(path: str) -> None:
    plain = warren.open(path, **SMALL, **SLOW_SYNC)
    topic = plain.topic("events", queues=4)
    events = warren.aio.Topic(_topic_verbs(plain._running, "events"))
    got: list[bytes] = []
    lock = threading.Lock()

    @in_a_loop
    async def produce(number: int) -> None:
        for n in range(50):
            await events.append(b"%d %d" % (number, n))

    @in_a_loop
    async def consume() -> None:
        async with events.reader("g") as reader:
            bodies: list[bytes] = []
            while b"end" not in bodies:
                bodies = [record.body for record in await reader.read(timeout=None)]
                with lock:
                    got.extend(bodies)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in (*consumers, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    while any(thread.is_alive() for thread in consumers):
        for queue in range(4):
            topic.append(b"end", queue=queue).wait()
        for thread in consumers:
            thread.join(0.05)
    with topic.reader("g") as reader:
        got += [record.body for record in reader.records()]
    assert {one for one in got if one != b"end"} == {b"%d %d" % (number, n) for number in range(3) for n in range(50)}
    plain.close()
