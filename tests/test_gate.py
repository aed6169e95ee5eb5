"""The gate in a running node: bytes on their way are bounded, memory is read in time, no publisher waits forever."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.runtime_tools import HandNode, forget_actors, hand_node
from warren.actors.node.admission import Admission
from warren.actors.node.gate import Reservation
from warren.actors.node.node_context import BlockedError

MIB = 1 << 20
KB_100 = bytes(100_000)
LIMIT = 32 * MIB
"""2 MiB of it may be on their way."""


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def hand() -> Iterator[HandNode]:
    one = hand_node(vm_memory_high_watermark=LIMIT)
    yield one
    forget_actors(one.pool)


def until_held(publish: Callable[[], object]) -> int:
    """Publish until that is refused; how often it was not."""
    for number in range(1000):
        try:
            publish()
        except BlockedError:
            return number
    raise AssertionError("nobody is held")


def fill(hand: HandNode) -> warren.Queue:
    """Publish until the node refuses; the queues have taken their messages, the store has not had its turn."""
    queues = [hand.node.queue(f"q{number}") for number in range(20)]
    hand.run()
    following = itertools.cycle(queues)
    until_held(lambda: next(following).publish(KB_100, block=False))
    return queues[0]


def test_bodies_on_their_way_are_bounded_for_the_whole_node_not_for_each_queue(hand: HandNode) -> None:
    fill(hand)
    assert MIB < hand.node._running.gate.on_the_way_bytes <= 2 * MIB
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0
    hand.node._running.gate.check_invariants()
    assert sum(map(len, hand.node.queues())) == 20, "of 100 kB each"


def test_a_publisher_is_let_in_as_soon_as_the_store_has_taken_what_was_before_it(hand: HandNode) -> None:
    queue = fill(hand)
    queue.publish(KB_100).wait()
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0


def test_a_batch_that_is_larger_than_all_that_may_be_on_its_way_gets_through(hand: HandNode) -> None:
    fill(hand)
    hand.node.queue("large").publish_many([KB_100] * 50).wait()
    assert len(hand.node.queue("large")) == 50
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0


def test_properties_count_with_the_bodies(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    headers = {"much": "x" * 50_000}
    taken = until_held(lambda: queue.publish(b"small", block=False, headers=headers))
    assert 10 < taken < 45


def test_one_message_to_several_queues_is_let_in_at_once_for_all_of_them(hand: HandNode) -> None:
    names = [f"q{number}" for number in range(10)]
    for name in names:
        hand.node.queue(name)
    hand.run()
    confirm = hand.node.publish_to(names, KB_100)
    assert until_held(lambda: hand.node.publish_to(names, KB_100, block=False)) == 1
    confirm.wait()
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0
    hand.node._running.gate.check_invariants()
    assert hand.node.publish_to([], b"to nobody").done


def test_small_messages_join_what_is_reserved_already_and_all_of_it_is_given_back(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    for number in range(300):
        confirm = queue.publish(b"%d" % number)
    other = queue.publish(b"of another kind", content_type="text/plain")
    assert hand.node._running.gate.on_the_way_bytes < 200_000
    confirm.wait()
    other.wait()
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0
    assert len(queue) == 301


# ── readings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_publisher_that_finds_the_last_reading_old_takes_one_itself_though_no_thread_has_time(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    hand.machine.used_bytes = LIMIT + 1
    hand.clock.advance(5.0)  # the timers ring, and no turn runs
    assert not hand.node._running.gate.reasons
    with pytest.raises(BlockedError, match="memory alarm"):
        queue.publish(b"not taken", block=False)
    assert hand.node._running.gate.reasons == {"memory"}
    hand.machine.used_bytes = 0
    hand.advance(1.0)
    assert len(queue) == 0


def test_the_memory_is_read_after_so_many_bytes_however_little_time_has_passed(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    reads = hand.machine.memory_reads
    hand.machine.used_bytes = LIMIT + 1

    def publish() -> None:
        queue.publish(KB_100, block=False)
        hand.run()

    assert until_held(publish) < 20
    assert hand.node._running.gate.reasons == {"memory"}
    assert hand.machine.memory_reads > reads


def test_an_event_loop_reads_nothing_itself_and_the_monitor_does_soon(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    hand.machine.used_bytes = LIMIT + 1
    hand.clock.advance(5.0)
    reads = hand.machine.memory_reads
    gate = hand.node._running.gate
    Admission(list, lambda _: 10, lambda _, size_bytes, __: gate.leave(size_bytes), block=False).attempt(
        [queue._verbs.local.intake], False
    )
    assert hand.machine.memory_reads == reads
    hand.run()
    assert hand.node._running.gate.reasons == {"memory"}


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_line(hand: HandNode, size_bytes: int = 100_000) -> Reservation:
    return hand.node._running.gate.get_in_line(size_bytes)


def test_dead_letters_are_counted_and_never_held(hand: HandNode) -> None:
    node = hand.node
    node.queue("dead")
    dying = node.queue("dying", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    dying.publish_many([KB_100] * 10).wait()
    hand.run()
    fill(hand)
    for delivery in dying.get_many(10):
        delivery.reject()
    place = in_line(hand)
    hand.run()
    assert place.done
    assert len(node.queue("dead")) == 10
    node._running.gate.withdraw(place)
    assert node._running.gate.on_the_way_bytes == 0


def test_a_deleted_queue_gives_back_what_was_on_its_way_to_it(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    confirm = queue.publish(KB_100, block=False)
    hand.node.delete_queue("q")
    hand.run()
    assert confirm.done
    assert hand.node._running.gate.on_the_way_bytes == 0


def test_a_store_that_fails_gives_back_what_was_on_its_way_to_it(hand: HandNode) -> None:
    fill(hand)
    hand.files.fail("append", "*.rdq", times=1)
    place = in_line(hand)
    hand.run()
    assert place.done
    hand.node._running.gate.withdraw(place)
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0


def test_closing_the_node_answers_who_waits_for_bytes(hand: HandNode) -> None:
    queue = hand.node.queue("q")
    hand.run()
    hand.node._running.gate.enter(100 * MIB)  # never taken
    place = in_line(hand)
    hand.run()
    assert not place.done
    with pytest.raises(BlockedError, match="no thread is left"):
        queue.publish(KB_100)
    assert hand.node._running.gate.on_the_way_bytes == 100 * MIB
    hand.node.close()
    assert place.done


def test_who_waits_in_vain_gives_his_place_to_the_next(hand: HandNode) -> None:
    fill(hand)
    first, second = in_line(hand, 2 * MIB), in_line(hand, 1)
    assert not second.done
    hand.node._running.gate.withdraw(first)
    assert second.done
    assert not first.done
    hand.node._running.gate.withdraw(second)
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0
    hand.node._running.gate.check_invariants()


def test_a_coroutine_that_is_cancelled_while_it_waits_for_bytes_leaves_the_line(hand: HandNode) -> None:
    hand.node.queue("q")
    hand.run()
    hand.node._running.gate.enter(100 * MIB)

    async def publish() -> None:
        node = warren.aio.Node(hand.node)
        for names in (["q"], ["q", "q"]):
            task = asyncio.create_task(node.publish_to(names, KB_100))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(BlockedError, match="blocked for 0 seconds"):
            await node.publish_to(["q"], KB_100, timeout=0)

    asyncio.run(publish())
    hand.node._running.gate.check_invariants()
    hand.node._running.gate.leave(100 * MIB)
    hand.node.queue("q").publish(KB_100).wait()
    hand.run()
    assert hand.node._running.gate.on_the_way_bytes == 0


def test_threads_with_batches_larger_than_the_budget_and_consumers_that_publish_all_get_through(tmp_path: Path) -> None:
    """4 MiB may be on their way; batches have 5 MB, and each consumer publishes 1 MB for each message it has."""
    settings: dict[str, Any] = {"vm_memory_calculation_strategy": "allocated", "vm_memory_high_watermark": 64 * MIB}
    with warren.open(tmp_path / "node", sync="os", threads=2, **settings) as node:
        source, target = node.queue("source"), node.queue("target")
        source.publish_many([b"%d" % number for number in range(10)]).wait()

        def publish(number: int) -> None:
            for _ in range(2):
                node.queue(f"q{number}").publish_many([KB_100] * 50).wait()

        def pass_on(_: int) -> None:
            for delivery in source.consume(prefetch=2, timeout=0.2):
                with delivery:
                    target.publish(bytes(1_000_000)).wait()

        with ThreadPoolExecutor(6) as threads:
            for done in [threads.submit(work, number) for work in (publish, pass_on) for number in range(3)]:
                done.result()
        assert [len(node.queue(f"q{number}")) for number in range(3)] == [100] * 3
        assert (len(source), len(target)) == (0, 10)
        node._running.gate.check_invariants()
        assert node._running.gate.on_the_way_bytes == 0
