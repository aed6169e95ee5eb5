"""warren.aio: the verbs, awaited. Timeouts here are guards; what a test waits for is an event."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.both_ways import SLOW_SYNC, breathe, driven, in_a_loop
from tests.support.runtime_tools import SMALL, HandNode, hand_node
from warren.actors.engines.queue.backing import Backing
from warren.actors.runtime.pooled_actor import Turns
from warren.values.messages import publish_key
from warren.verbs.topics.topic_host import LocalTopic
from warren.verbs.topics.topic_verbs import TopicVerbs


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def hand() -> Iterator[HandNode]:
    """A node whose turns run on command, with room for two messages at a time in a queue or log."""
    made = hand_node(**SMALL, credit_flow_default_credit=(2, 1))
    yield made
    made.node.close()


def handle(node: warren.Node) -> warren.aio.Queue:
    """A new queue of a node that is open already."""
    node.queue("q")
    [queue] = warren.aio.Node(node).queues()
    return queue


async def bodies_of(queue: warren.aio.Queue) -> list[bytes]:
    return [message.body async for message in queue.browse()]


# ── the verbs ───────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_publish_waits_for_a_sync_and_not_for_the_timer(path: str) -> None:
    async with warren.aio.open(path, **SLOW_SYNC) as node:
        orders = await node.queue("orders")
        confirm = orders.publish_nowait(b"x")
        await orders.stats()  # it has been taken
        assert not confirm.done
        await confirm
        assert confirm.done
        assert confirm.error is None
        await confirm  # again
        await orders.publish(b"y" * 100_000)  # in the message store
        await node.publish_to(["orders", "orders"], b"z")  # once
        await asyncio.gather(*(orders.publish_nowait(b"%d" % n) for n in range(50)))
        assert await orders.length() == 53


@in_a_loop
async def test_an_exchange_takes_messages_without_waiting(path: str) -> None:
    async with warren.aio.open(path, **SLOW_SYNC) as node:
        logs, q = await node.exchange("logs", "topic"), await node.queue("q")
        await node.bind(q, logs, "app.*")
        confirms = [logs.publish_nowait(b"%d" % n, "app.x", priority=n) for n in range(3)]
        nowhere = logs.publish_nowait(b"lost", "elsewhere", mandatory=True)
        await asyncio.gather(*confirms)
        assert await bodies_of(q) == [b"0", b"1", b"2"]
        with pytest.raises(warren.errors.UnroutableError):
            await nowhere
        assert nowhere.done


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_errors_come_to_whoever_awaits(path: str) -> None:
    with pytest.raises(warren.errors.SettingsError):
        await warren.aio.open(path, no_such_setting=1)  # type: ignore[call-arg]
    async with warren.aio.open(path) as node:
        q = await node.queue("q")
        with pytest.raises(warren.errors.MessageError):
            q.publish_nowait(b"", priority=256)
        with pytest.raises(warren.errors.DirectoryLockedError):
            await warren.aio.open(path)
        confirm = q.publish_nowait(b"x")
    assert confirm.done
    for attempt in (q.publish(b"late"), q.get(), q.stats(), node.queue("q"), q.consume, node.memory()):
        with pytest.raises(warren.errors.ClosedError):
            await (attempt if isinstance(attempt, Awaitable) else attempt())  # type: ignore[misc]
    await node.close()  # once more is fine


@in_a_loop
async def test_closing_the_node_ends_consumers_and_wakes_blocked_publishers(hand: HandNode) -> None:
    async with driven(hand) as node:
        q = await node.queue("q")
        hand.machine.used_bytes = hand.machine.total_memory_bytes
        hand.advance(2)
        blocked = asyncio.create_task(q.publish(b"never"))
        consumer = q.consume()
        waiting = asyncio.create_task(consumer.receive())
        await breathe(hand)
        hand.node.close()
        assert await waiting is None
        with pytest.raises(warren.errors.ClosedError):
            await blocked


# ── back-pressure ───────────────────────────────────────────────────────────────────────────────────────────────────


Place = warren.aio.Queue | warren.aio.Topic
KINDS = pytest.mark.parametrize("kind", ["queue", "topic"])


def place_of(hand: HandNode, kind: str) -> Place:
    """A handle on a new queue or topic of a node whose turns nothing runs."""
    if kind == "queue":
        return handle(hand.node)
    hand.node.topic("t", queues=1)
    running = hand.node._running
    return warren.aio.Topic(TopicVerbs(LocalTopic(running, "t"), running.config.topics))


def senders(place: Place) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """What sends a message, many, and one without waiting."""
    if isinstance(place, warren.aio.Queue):
        return place.publish, place.publish_many, place.publish_nowait
    return place.append, place.append_many, place.append_nowait


def inbox_of(place: Place) -> Any:
    if isinstance(place, warren.aio.Queue):
        return place.blocking._verbs.actor.actor_inbox
    return place.blocking._verbs.node.topics_now().log.actor_inbox


def all_in(place: Place) -> list[bytes]:
    if isinstance(place, warren.aio.Queue):
        return [one.body for one in place.blocking.browse()]
    return [one.body for one in place.blocking.read("all")]


@KINDS
@in_a_loop
async def test_an_alarm_holds_publishers_and_lets_the_rest_go_on(hand: HandNode, kind: str) -> None:
    async with driven(hand) as node:
        place: Place = await (node.queue("q") if kind == "queue" else node.topic("t", queues=1))
        send, send_many, send_nowait = senders(place)
        await send(b"before")
        hand.machine.used_bytes = hand.machine.total_memory_bytes
        hand.advance(2)
        assert (await node.memory())["alarms"] == ["memory"]
        held = [asyncio.create_task(send(b"0")), asyncio.create_task(send_many([b"1"]))]
        given_up = asyncio.create_task(send(b"given up"))
        if isinstance(place, warren.aio.Queue):
            held += [asyncio.create_task(place.publish(b"2")), asyncio.create_task(node.publish_to(["q"], b"3"))]
        else:
            held += [asyncio.create_task(place.append(b"2")), asyncio.create_task(place.prepare(b"half"))]
        await breathe(hand)
        with pytest.raises(warren.errors.BlockedError, match="memory alarm"):
            send_nowait(b"refused")
        with pytest.raises(warren.errors.BlockedError, match=r"blocked for 0\.01 seconds"):
            await send(b"too long", timeout=0.01)
        with pytest.raises(warren.errors.BlockedError):
            await place.room(timeout=0)
        given_up.cancel()
        await breathe(hand)
        assert not any(task.done() for task in held)
        if isinstance(place, warren.aio.Queue):
            first = await place.get()
            assert first is not None
            assert first.body == b"before"
        else:
            assert [record.body async for record in place.read("g")] == [b"before"]
        hand.machine.used_bytes = 0
        hand.advance(2)
        await asyncio.gather(*held)
    hand.run()
    assert sorted(all_in(place)) == [b"0", b"1", b"2", *([b"3"] if kind == "queue" else []), b"before"]


@KINDS
@in_a_loop
async def test_a_queue_or_log_that_is_behind_holds_publishers(hand: HandNode, kind: str) -> None:
    place = place_of(hand, kind)
    send, _, send_nowait = senders(place)
    hand.run()
    tasks = [asyncio.create_task(send(b"%d" % n)) for n in range(9)]
    await breathe()
    assert inbox_of(place).weight == 2  # the credit
    with pytest.raises(warren.errors.BlockedError, match="too many waiting messages"):
        send_nowait(b"refused")
    room = asyncio.create_task(place.room())
    await breathe()
    assert not room.done()
    while not all(task.done() for task in tasks):
        await breathe(hand)
        assert inbox_of(place).weight <= 2
    await asyncio.gather(room, *tasks)
    assert all_in(place) == [b"%d" % n for n in range(9)]


# ── cancellation ────────────────────────────────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_a_cancelled_receive_leaves_the_message_for_the_next(hand: HandNode) -> None:
    async with driven(hand) as node:
        q = await node.queue("q")
        async with q.consume() as consumer:
            waiting = asyncio.create_task(consumer.receive())
            await breathe(hand)
            q.publish_nowait(b"1")
            hand.run()  # it has been delivered, and the coroutine not been woken
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            found = await consumer.receive()
            assert found is not None
            assert (found.body, found.redelivered) == (b"1", False)
            assert await consumer.receive(timeout=0) is None
            assert not q.blocking._verbs.local.intake.consumer_waits()


@pytest.mark.parametrize("auto_ack", [False, True])
@pytest.mark.parametrize("answered", [False, True])
@in_a_loop
async def test_what_a_cancelled_get_would_have_brought_goes_back(
    hand: HandNode, auto_ack: bool, answered: bool
) -> None:
    async with driven(hand) as node:
        q = await node.queue("q")
        await q.publish_many([b"1", b"2"])
        getting = asyncio.create_task(q.get_many(2, auto_ack=auto_ack))
        await asyncio.sleep(0)  # it has asked
        if answered:
            hand.run()
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        await breathe(hand)
        assert [one.body for one in await q.get_many(2)] == [b"1", b"2"]


@KINDS
@in_a_loop
async def test_a_cancelled_publish_that_was_handed_over_is_published(hand: HandNode, kind: str) -> None:
    place = place_of(hand, kind)
    send, send_many, _ = senders(place)
    sending = [asyncio.create_task(send(b"1")), asyncio.create_task(send_many([b"2"]))]
    await breathe()
    for task in sending:
        task.cancel()
    await breathe()
    assert all(task.cancelled() for task in sending)
    hand.run()
    assert sorted(all_in(place)) == [b"1", b"2"]


@in_a_loop
async def test_a_cancelled_worker_gives_its_messages_back(hand: HandNode) -> None:
    async with driven(hand) as node:
        q = await node.queue("q")
        await q.publish_many([b"%d" % n for n in range(5)])

        async def work(started: asyncio.Event) -> None:
            async for delivery in q.consume():
                async with delivery:
                    if delivery.body == b"1":
                        started.set()
                        await asyncio.Event().wait()

        started = asyncio.Event()
        worker = asyncio.create_task(work(started))
        await started.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        del worker
        gc.collect()
        await breathe(hand)
        stats = await q.stats()
        assert (stats["messages_ready"], stats["consumers"]) == (4, 0)


@in_a_loop
async def test_a_forgotten_consumer_keeps_what_somebody_still_holds(hand: HandNode) -> None:
    async with driven(hand) as node:
        q = await node.queue("q")
        await q.publish_many([b"1", b"2"])
        async for delivery in q.consume():
            assert delivery.body == b"1"
            break
        gc.collect()
        await breathe(hand)
        assert await q.length() == 0
        await delivery.ack()
        del delivery
        gc.collect()
        await breathe(hand)
        assert await bodies_of(q) == [b"2"]
        assert await q.length() == 1


@in_a_loop
async def test_a_consumer_that_is_forgotten_while_it_begins_goes(hand: HandNode) -> None:
    q = handle(hand.node)
    hand.run()
    beginning = asyncio.create_task(anext(q.consume()))
    await breathe()
    beginning.cancel()
    await breathe()
    del beginning
    gc.collect()
    hand.run()
    assert q.blocking.stats()["consumers"] == 0


@in_a_loop
async def test_a_closed_iterator_gives_its_messages_back(path: str) -> None:
    async with warren.aio.open(path) as node:
        q = await node.queue("q")
        await q.publish_many([b"1", b"2", b"3"])
        async with aclosing(q.consume()) as consumer:
            async for delivery in consumer:
                await delivery.ack()
                break
        assert await q.length() == 2
        assert await consumer.receive() is None


@in_a_loop
async def test_a_cancelled_opening_leaves_the_directory_free(path: str) -> None:
    opening = asyncio.create_task(warren.aio.open(path)._opened())
    await asyncio.sleep(0)
    opening.cancel()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    warren.open(path).close()


@in_a_loop
async def test_a_cancelled_closing_closes(path: str) -> None:
    node = await warren.aio.open(path)
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    warren.open(path).close()


# ── what the queue's actor does for it ──────────────────────────────────────────────────────────────────────────────


def test_a_hurry_that_comes_while_the_queue_syncs_is_for_what_came_with_it(
    hand: HandNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, key = handle(hand.node)._verbs.actor, publish_key("/", "", ("q",), {})
    confirms = [actor.intake.publish(key, b"1", here=False)]
    sync_index = Backing.sync_index

    def while_syncing(backing: Backing) -> None:
        if len(confirms) == 1:
            confirms.append(actor.intake.publish(key, b"2", here=False))
            confirms[1].hurry()
        sync_index(backing)

    monkeypatch.setattr(Backing, "sync_index", while_syncing)
    confirms[0].hurry()
    hand.run()
    assert [confirm.done for confirm in confirms] == [True, True]


def test_a_hurry_is_not_lost_on_a_turn_that_another_thread_is_at(hand: HandNode) -> None:
    actor, key = handle(hand.node)._verbs.actor, publish_key("/", "", ("q",), {})
    hand.run()
    confirm = actor.intake.publish(key, b"1", here=False)
    hand.run()
    assert not confirm.done  # it waits for the timer
    assert actor.turns.lock.acquire(blocking=False)
    confirm.hurry()
    hand.run()
    assert not confirm.done
    actor.turns.end()
    hand.run()
    assert confirm.done


def test_a_channel_that_is_let_go_while_another_thread_is_at_the_queue_is_closed(hand: HandNode) -> None:
    q = handle(hand.node)
    q.blocking.publish(b"1").wait()
    consumer = q.blocking.consume()
    assert len(q.blocking) == 0
    actor = q.blocking._verbs.actor
    assert actor.turns.lock.acquire(blocking=False)
    actor.intake.let_go(consumer.channel.name)
    hand.run()
    actor.turns.end()
    hand.run()
    assert len(q.blocking) == 1


@in_a_loop
async def test_whoever_stopped_waiting_is_forgotten(hand: HandNode) -> None:
    q = handle(hand.node)
    confirm = q.publish_nowait(b"1")
    waiting = [asyncio.ensure_future(confirm) for _ in range(3)]
    await breathe()
    assert len(confirm._future._callbacks or ()) == 3
    for one in waiting:
        one.cancel()
    await breathe()
    assert not confirm._future._callbacks
    hand.run()
    await confirm


# ── many ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@in_a_loop
async def test_two_hundred_producers_and_consumers_on_twenty_queues(path: str) -> None:
    each, queues = 20, 20
    async with warren.aio.open(path, **SLOW_SYNC) as node:
        handles = [await node.queue(f"q{n}") for n in range(queues)]
        found: dict[str, list[bytes]] = {queue.name: [] for queue in handles}
        left = 200 * each
        finished = asyncio.Event()

        async def produce(number: int) -> None:
            for n in range(each):
                await handles[number % queues].publish(b"%d %d" % (number, n))

        async def consume(queue: warren.aio.Queue) -> None:
            nonlocal left
            async for delivery in queue.consume(prefetch=10):
                found[queue.name].append(delivery.body)
                await delivery.ack()
                left -= 1
                if not left:
                    finished.set()

        consumers = [asyncio.create_task(consume(handles[n % queues])) for n in range(200)]
        await asyncio.gather(*(produce(n) for n in range(200)))
        await finished.wait()
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        for number, queue in enumerate(handles):
            expected = [b"%d %d" % (one, n) for one in range(number, 200, queues) for n in range(each)]
            assert sorted(found[queue.name]) == sorted(expected)
            assert (await queue.stats())["messages"] == 0


@in_a_loop
async def test_a_thousand_waiters_need_no_thread_and_no_turn_is_run_by_the_loop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: set[int] = set()
    turn = Turns.run

    def noted(actor_turns: Turns, *args: Any) -> bool:
        turns.add(threading.get_ident())
        return turn(actor_turns, *args)

    monkeypatch.setattr(Turns, "run", noted)
    async with warren.aio.open(path, **SLOW_SYNC) as node:
        queues = [await node.queue(f"q{n}") for n in range(10)]
        await queues[0].publish(b"warm")
        await queues[0].purge()
        before = threading.active_count()
        waiting = [asyncio.create_task(queues[n % 10].consume(auto_ack=True).receive()) for n in range(1000)]
        while sum([(await queue.stats())["consumers"] for queue in queues]) < 1000:
            pass
        assert threading.active_count() == before
        await asyncio.gather(*(queues[n % 10].publish(b"%d" % n) for n in range(1000)))
        assert all([await task for task in waiting])
        assert threading.active_count() == before
    assert turns
    assert threading.get_ident() not in turns


def test_a_consumer_with_a_backlog_lets_others_run(path: str) -> None:
    @in_a_loop
    async def run() -> None:
        async with warren.aio.open(path) as node:
            q = await node.queue("q")
            await q.publish_many([b""] * 1000)
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            async with q.consume(prefetch=0) as consumer:
                assert await consumer.receive() is not None
                ticker = asyncio.create_task(tick())
                for _ in range(999):
                    assert await consumer.receive() is not None
                ticker.cancel()
            assert ticks >= 10

    run()


def test_several_loops_in_several_threads_share_a_node(path: str) -> None:
    plain = warren.open(path, **SLOW_SYNC)
    queue = handle(plain)
    got: list[bytes] = []

    @in_a_loop
    async def produce(number: int) -> None:
        for n in range(50):
            await queue.publish(b"%d %d" % (number, n))

    @in_a_loop
    async def consume() -> None:
        async with queue.consume(prefetch=5) as consumer:
            while (delivery := await consumer.receive()) is not None and delivery.body != b"end":
                got.append(delivery.body)
                await delivery.ack()
            assert delivery is not None
            await delivery.ack()

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in (*consumers, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    for _ in consumers:
        queue.blocking.publish(b"end").wait()
    for thread in consumers:
        thread.join()
    assert sorted(got) == sorted(b"%d %d" % (number, n) for number in range(3) for n in range(50))
    plain.close()


def test_what_is_answered_after_the_loop_was_closed_does_no_harm(hand: HandNode) -> None:
    q = handle(hand.node)
    hand.run()
    loop = asyncio.new_event_loop()
    task = loop.create_task(q.publish(b"1"))
    loop.run_until_complete(breathe())
    assert not task.done()
    loop.close()
    hand.run()
    assert [one.body for one in q.blocking.browse()] == [b"1"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_get_that_is_destroyed_with_its_loop_asks_for_nothing_more(path: str) -> None:
    with warren.open(path) as node:
        queue = handle(node)
        loop = asyncio.new_event_loop()
        task = loop.create_task(queue.get(timeout=None))
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()
        task.get_coro().close()  # as when it is collected
        task._log_destroy_pending = False  # type: ignore[attr-defined]
