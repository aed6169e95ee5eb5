"""Reading along at the end of a queue: what is there and what comes, nothing of it taken."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import warren
import warren.aio
from tests.support.runtime_tools import BIG, HandNode, actor_of, hand_node
from tests.support.sharing_tools import Member, hang_up, host_of, next_host
from tests.support.waiting import wait_until
from warren.actors.queue.tails import AHEAD
from warren.errors import NotFoundError
from warren.handles.node import Node
from warren.handles.queue import Queue
from warren.verbs.selecting import BrowsedDelivery
from warren.verbs.steps import run
from warren.verbs.tail_verbs import LocalTail

ALL = 1_000_000


@pytest.fixture
def scene() -> Iterator[HandNode]:
    scene = hand_node()
    yield scene
    scene.node.close()


def numbers(found: Iterator[BrowsedDelivery]) -> list[int]:
    return [int(one.body) for one in found]


def publish(queue: Queue, *bodies: int, **properties: int) -> None:
    queue.publish_many([b"%d" % number for number in bodies], **properties)  # type: ignore[arg-type]


def test_the_last_messages_are_shown_and_stay_where_they_are(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    assert numbers(queue.tail(5)) == []
    publish(queue, *range(300))
    assert numbers(queue.tail()) == [*range(290, 300)]
    assert numbers(queue.tail(150)) == [*range(150, 300)]
    assert numbers(queue.tail(1000)) == [*range(300)]
    assert numbers(queue.tail(0)) == []
    assert queue.stats()["messages_ready"] == 300
    assert not actor_of(queue)._tails


def test_what_consumers_have_is_shown_and_what_they_give_back_not_again(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    publish(queue, 1, 2, 3)
    held = queue.get_many(2)
    tail = queue.tail(3)
    assert [(int(one.body), one.unacked) for one in itertools.islice(tail, 3)] == [(1, True), (2, True), (3, False)]
    queue.nack(held)
    publish(queue, 4)
    assert numbers(tail) == [4]


def test_what_a_consumer_is_through_with_at_once_is_seen_all_the_same(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    publish(queue, 1)
    tail = queue.tail(1)
    assert int(next(tail).body) == 1
    with queue.consume() as consumer:
        for number in range(1, 10):
            delivery = consumer.receive(0.0)
            assert delivery is not None
            assert int(delivery.body) == number
            delivery.ack()
            queue.publish(b"%d" % (number + 1))
    scene.advance(1.0)
    assert numbers(tail) == [*range(2, 11)]


def test_what_is_gone_within_the_turn_in_which_it_came_is_left_out(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    tail = queue.tail(1)
    tails = LocalTail(actor_of(queue))
    run(tails.begin(1))
    publish(queue, 1)
    queue.purge()
    publish(queue, 2)
    assert [one.browsed.message.body for one in run(tails.page(10))] == [b"2"]
    run(tails.close())
    tail.close()  # type: ignore[attr-defined]


def test_no_more_lies_ahead_than_a_few_messages(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    tails = LocalTail(actor_of(queue))
    run(tails.begin(1))
    publish(queue, *range(5000))
    scene.advance(1.0)
    held = actor_of(queue)._tails
    assert held is not None
    [tail] = held._tails.values()
    assert len(tail.ahead) == AHEAD
    found = []
    while page := run(tails.page(100)):
        found += [int(one.browsed.message.body) for one in page]
    assert found == [*range(5000)]
    queue.publish_many([bytes(300_000)] * 20)
    scene.advance(1.0)
    assert len(tail.ahead) == 16
    assert tail.ahead_bytes == sum(len(one.browsed.term) for one in tail.ahead)


def test_a_priority_queues_last_are_those_that_are_delivered_last(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments={"x-max-priority": 2})
    publish(queue, 1, 2)
    publish(queue, 21, 22, priority=2)
    assert numbers(queue.tail(1)) == [2]
    assert numbers(queue.tail(3)) == [22, 1, 2]
    tail = queue.tail(1)
    next(tail)
    publish(queue, 3)
    publish(queue, 11, priority=1)
    publish(queue, 23, priority=2)
    assert numbers(tail) == [23, 11, 3]


def test_who_waits_is_told_when_the_queue_takes_in_what_has_come(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    publish(queue, 1)
    tail = LocalTail(actor_of(queue))
    run(tail.begin(0))
    arrival = tail.arrival()
    scene.run()
    assert not arrival.done
    queue.get_many(1)
    scene.run()
    assert not arrival.done
    publish(queue, 2)
    scene.advance(0.5)  # no confirm is awaited: it may wait for others in the inbox
    assert arrival.done
    assert [one.browsed.message.body for one in run(tail.page(10))] == [b"2"]


def test_a_queue_that_was_emptied_and_has_rested_begins_anew_and_nothing_is_missed(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    publish(queue, 1, 2, 3)
    tail = queue.tail(1)
    assert int(next(tail).body) == 3
    queue.ack(queue.get_many(3))
    scene.advance(60.0)
    assert actor_of(queue).process.backing.asleep
    publish(queue, 4)
    assert numbers(tail) == [4]


def test_a_queue_that_rests_with_messages_wakes_to_be_looked_at_and_rests_again(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments={"x-queue-mode": "lazy"})
    publish(queue, 1, 2)
    scene.advance(60.0)
    assert actor_of(queue).process.backing.asleep
    tail = queue.tail(1)
    assert int(next(tail).body) == 2
    scene.advance(60.0)
    assert actor_of(queue).process.backing.asleep
    publish(queue, 3)
    assert numbers(tail) == [3]


def test_a_queue_that_nobody_reads_along_any_more_is_as_before(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    publish(queue, 1)
    tail = queue.tail(1, timeout=None)
    next(tail)
    assert not actor_of(queue).process.context.is_plain
    del tail
    scene.run()
    assert actor_of(queue).process.context.is_plain


def test_the_end_of_the_queue_is_the_end_of_its_tails(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    verbs = LocalTail(actor_of(queue))
    run(verbs.begin(0))
    arrival = verbs.arrival()
    scene.run()
    queue.delete()
    with pytest.raises(warren.WarrenError, match="was deleted"):
        arrival.get()
    run(verbs.close())


class Along(RuleBasedStateMachine):
    """A tail beside a list of what is in the queue, with its priorities, and a set of what the tail has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = hand_node(hibernate_after_ms=1000, segment_entry_count=8)
        self.queue = self.scene.node.queue("q", arguments={"x-max-priority": 1})
        self.there: list[tuple[int, int]] = []
        """Priority and number, as they were published."""
        self.priorities: dict[int, int] = {}
        self.to_see: set[int] = set()
        self.held: list[warren.Delivery] = []
        self.next = itertools.count(1)
        self.tail: LocalTail | None = None

    def order(self) -> list[int]:
        return [number for _, number in sorted(self.there, key=lambda one: -one[0])]

    @rule(count=st.integers(1, 20), priority=st.integers(0, 1), is_big=st.booleans())
    def publish(self, count: int, priority: int, is_big: bool) -> None:
        new = list(itertools.islice(self.next, count))
        bodies = [b"%d" % number + BIG * is_big for number in new]
        self.queue.publish_many(bodies, priority=priority)
        self.there += [(priority, number) for number in new]
        self.priorities.update(dict.fromkeys(new, priority))
        self.to_see.update(new)

    @rule(count=st.integers(1, 20))
    def get(self, count: int) -> None:
        self.held += self.queue.get_many(count)

    @rule(acks=st.booleans(), count=st.integers(1, 20))
    def settle(self, acks: bool, count: int) -> None:
        settled, self.held = self.held[:count], self.held[count:]
        if acks:
            gone = {number_of(one.body) for one in settled}
            self.there = [one for one in self.there if one[1] not in gone]
            self.queue.ack(settled)
        else:
            self.queue.nack(settled)

    @rule()
    def purge(self) -> None:
        held = {number_of(one.body) for one in self.held}
        self.queue.purge()
        self.there = [one for one in self.there if one[1] in held]

    @rule()
    def rest(self) -> None:
        self.scene.advance(60.0)

    @rule(last=st.integers(0, 30))
    def begin(self, last: int) -> None:
        if self.tail is not None:
            run(self.tail.close())
        self.tail = LocalTail(actor_of(self.queue))
        run(self.tail.begin(last))
        order = self.order()
        self.to_see = set(order[len(order) - min(last, len(order)) :])

    @rule(limit=st.integers(1, 40))
    def look(self, limit: int) -> None:
        if self.tail is None:
            return
        seen: list[int] = []
        while page := run(self.tail.page(limit)):
            assert len(page) <= limit
            seen += [number_of(one.browsed.message.body) for one in page]
        assert len(seen) == len(set(seen))
        assert set(seen) <= self.to_see, "each at most once"
        assert {number for _, number in self.there if number in self.to_see} <= set(seen)
        for level in (0, 1):
            of_level = [number for number in seen if self.priorities[number] == level]
            assert of_level == sorted(of_level)
        self.to_see = set()

    @invariant()
    def who_waits_is_told_exactly_when_there_is_more(self) -> None:
        if self.tail is not None:
            arrival = self.tail.arrival()
            self.scene.run()
            assert actor_of(self.queue).process.context.is_plain is False
            if any(number in self.to_see for _, number in self.there):
                assert arrival.done

    def teardown(self) -> None:
        self.scene.node.close()


def number_of(body: bytes) -> int:
    return int(body.removesuffix(BIG))


TestAlong = Along.TestCase
TestAlong.settings = settings(deadline=None)


# ── threads, coroutines and other processes ─────────────────────────────────────────────────────────────────────────


def followed(queue: Queue, count: int, publish: object) -> list[bytes]:
    """What a thread that follows sees; ``publish`` is called once it waits."""
    seen: list[bytes] = []
    begun = threading.Event()

    def follow() -> None:
        for one in queue.tail(1, timeout=None):
            seen.append(one.body)
            begun.set()
            if len(seen) == count:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(60)
    publish()  # type: ignore[operator]
    thread.join(60)
    assert not thread.is_alive()
    return seen


@pytest.mark.parametrize("side", ["host", "guest"])
def test_a_thread_follows_here_and_from_another_process(host: Node, guest: Node, side: str) -> None:
    queue = {"host": host, "guest": guest}[side].queue("q")
    queue.publish_many([b"0", b"1"]).wait()
    other = (guest if side == "host" else host).queue("q")
    assert followed(queue, 4, lambda: [other.publish(b"%d" % number).wait() for number in (2, 3, 4)]) == [
        b"1", b"2", b"3", b"4"
    ]  # fmt: skip
    assert len(other) == 5
    entry = host._running.vhost("/").queues["q"]
    wait_until(lambda: not entry.actor._tails, "the tail is left behind")


def test_a_guest_sees_of_a_message_what_the_host_sees(host: Node, guest: Node) -> None:
    host.queue("q").publish(b"x", expiration=3600.0, headers={"a": 1}).wait()

    def seen(node: Node) -> list[tuple[object, ...]]:
        found = node.queue("q").tail()
        return [(one.body, one.headers, one.seq_id, one.msg_id, one.expiry_us, one.unacked) for one in found]

    assert seen(guest) == seen(host) != []


def test_a_guests_tail_of_a_queue_that_is_deleted_says_so(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish(b"1").wait()
    tail = queue.tail(1, timeout=60.0)
    next(tail)
    threading.Timer(0.0, host.queue("q").delete).start()
    with pytest.raises(warren.WarrenError, match=r"deleted|no queue"):
        next(tail)
    with pytest.raises(NotFoundError):
        guest.queue("nowhere", passive=True)


def test_a_tail_goes_on_where_the_connection_is_lost(host: Node, guest: Node) -> None:
    queue = guest.queue("q")
    queue.publish(b"1").wait()
    tail = queue.tail(1, timeout=60.0)
    assert next(tail).body == b"1"
    hang_up(guest)
    wait_until(lambda: queue.publish(b"new").wait() is None, "there is no connection")
    threading.Timer(0.2, lambda: host.queue("q").publish(b"last").wait()).start()
    assert any(one.body == b"last" for one in tail)


@pytest.mark.slow
def test_a_tail_goes_on_with_the_next_host(tmp_path: Path) -> None:
    with Member(tmp_path / "data", "hold") as member:
        member.hear()
        with warren.open(tmp_path / "data", share=True) as node:
            first = host_of(tmp_path / "data")
            queue = node.queue("q")
            queue.publish(b"1").wait()
            tail = queue.tail(1, timeout=60.0)
            assert next(tail).body == b"1"
            stop = threading.Event()

            def publish() -> None:
                while not stop.wait(0.05):
                    queue.publish(b"after").wait()

            member.kill()
            publisher = threading.Thread(target=publish)
            publisher.start()
            next_host(tmp_path / "data", first)
            assert next(tail).body == b"after"
            stop.set()
            publisher.join()


def test_coroutines_follow(tmp_path: Path) -> None:
    async def follow() -> list[bytes]:
        seen: list[bytes] = []
        async with await warren.aio.open(tmp_path / "data") as node:
            queue = await node.queue("q")
            await queue.publish(b"0")
            await queue.publish(b"1")
            assert [one.body async for one in queue.tail(1)] == [b"1"]
            async for one in queue.tail(1, timeout=None):
                seen.append(one.body)
                if len(seen) == 3:
                    return seen
                await queue.publish(b"%d" % (len(seen) + 1))
        raise AssertionError("it has ended")

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == [b"1", b"2", b"3"]
