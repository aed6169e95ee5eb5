"""The memory monitor in its actor: rounds by the clock, the reports to queues, and alarms that shut the gate."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warren
from tests.support.effort import times
from tests.support.runtime_tools import HandNode, actor_behind, actor_of, forget_actors, hand_node
from warren.actors import messages as m
from warren.actors.clock import NS, HandClock
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.node.memory_monitor_actor import MemoryMonitorActor
from warren.actors.node.node_context import NodeContext
from warren.actors.runtime.pool import HandPool, Pool
from warren.actors.runtime.pooled_actor import PooledActor
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings
from warren.testing import GIB, Machine

LIMIT = 4 * GIB
"""40 % of the machine's memory."""


pytestmark = pytest.mark.usefixtures("quiet")


# ── the actor among listeners ───────────────────────────────────────────────────────────────────────────────────────


class Listener(PooledActor):
    """Stands for a queue: records the reports that it gets, and when."""

    def __init__(self, pool: Pool, clock: HandClock) -> None:
        super().__init__(pool)
        self.clock = clock
        self.told: list[tuple[float, float | None]] = []

    def on_receive(self, message: object) -> None:
        assert isinstance(message, m.SetDurationTarget)
        self.told.append((self.clock.now_ns() / NS, message.duration_s))


class Scene:
    def __init__(self, **settings: object) -> None:
        self.pool, self.clock, self.machine = HandPool(), HandClock(), Machine()
        self.context = NodeContext(
            files=MemoryFileSystem(random.Random(0)),
            pool=self.pool,
            clock=self.clock,
            random=random.Random(0).randbytes,
            settings=NodeSettings(**settings),  # type: ignore[arg-type]
            engine=Settings(),
            check_invariants=True,
        )
        self.context.monitor = MemoryMonitorActor.start(
            self.context,
            reading=self.machine,
            total_memory_bytes=self.machine.total_memory_bytes,
            free_disk_bytes=self.machine.read_disk,
            give_back=self.machine.give_back,
        )
        self.pool.run()

    def queue(self) -> Listener:
        return actor_behind(Listener.start(self.pool, self.clock))

    def report(self, queue: Listener, duration_s: float | None, *, pageable: bool = True) -> float | None:
        """Report, and return the answer."""
        self.context.monitor.tell(m.ReportDuration(queue.actor_ref, duration_s, pageable))
        self.pool.run()
        return queue.told[-1][1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds, self.pool.run)

    @property
    def numbers(self) -> dict[str, object]:
        found = self.context.monitor.ask(m.GetMemory())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def scene() -> Iterator[Scene]:
    one = Scene()
    yield one
    forget_actors(one.pool)


def test_a_round_comes_every_2500_ms_and_tells_whom_the_value_undercuts(scene: Scene) -> None:
    short, long = scene.queue(), scene.queue()
    scene.report(short, 2.0)
    scene.report(long, 100.0)
    scene.machine.used_bytes = LIMIT * 98 // 100
    scene.advance(2.4)
    assert len(long.told) == 1
    scene.advance(0.2)
    expected = (102.0 / 2) / (scene.machine.used_bytes / LIMIT)
    assert long.told[1:] == [(2.5, pytest.approx(expected))]
    assert len(short.told) == 1
    assert scene.numbers["desired_duration_s"] == pytest.approx(expected)


def test_a_queue_that_has_stopped_does_not_end_the_monitor(scene: Scene) -> None:
    queue = scene.queue()
    scene.report(queue, 100.0)
    queue.actor_ref.stop()
    scene.machine.used_bytes = 2 * LIMIT
    scene.advance(5)
    assert scene.numbers["alarms"] == ["memory"]


durations = st.one_of(st.none(), st.integers(0, 100_000).map(lambda hundredths: hundredths / 100))


@settings(max_examples=times(40))
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("report"),
                st.integers(0, 3),
                durations,
            ),
            st.tuples(st.just("use"), st.floats(0, 1.5), st.none()),
            st.tuples(st.just("leave"), st.integers(0, 3), st.none()),
        ),
        max_size=25,
    )
)
def test_what_is_told_follows_the_rules(steps: list[tuple[str, float, float | None]]) -> None:
    scene = Scene()
    queues = [scene.queue() for _ in range(4)]
    reported: dict[int, float] = {}
    told: dict[int, float] = {}
    ratio, desired = 0.0, math.inf

    def rule() -> float:
        finite = [one for one in reported.values() if one != math.inf]
        if ratio < 0.5 or not finite:
            return math.inf
        return (math.fsum(finite) + (1.0 if ratio < 0.95 else 0.0)) / len(finite) / ratio

    try:
        for kind, value, duration_s in steps:
            if kind == "report":
                number = int(value)
                answer = scene.report(queues[number], duration_s)
                assert (math.inf if answer is None else answer) == pytest.approx(desired)
                reported[number] = math.inf if duration_s is None else duration_s
                told[number] = desired
            elif kind == "leave":
                scene.context.monitor.tell(m.LeaveMonitor(queues[int(value)].actor_ref))
                scene.pool.run()
                reported.pop(int(value), None)
                told.pop(int(value), None)
            else:
                scene.machine.used_bytes = round(value * LIMIT)
                ratio = scene.machine.used_bytes / LIMIT
                heard = [len(queue.told) for queue in queues]
                before, desired = desired, rule()
                scene.advance(2.5)
                for number, queue in enumerate(queues):
                    news = queue.told[heard[number] :]
                    bounds = [before, told.get(number, -1.0), reported.get(number, -1.0)]
                    if any(math.isclose(desired, one) for one in bounds):
                        assert len(news) <= 1  # the last digit decides
                    elif all(desired < one for one in bounds):
                        assert len(news) == 1
                    else:
                        assert news == []
                    for _, told_s in news:
                        assert told_s == pytest.approx(desired)
                        told[number] = desired
    finally:
        forget_actors(scene.pool)


# ── alarms ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_memory_is_looked_at_every_second_for_the_alarm(scene: Scene) -> None:
    scene.machine.used_bytes = LIMIT + 1
    scene.advance(0.9)
    assert not scene.context.gate.reasons
    scene.advance(0.2)
    assert scene.context.gate.reasons == {"memory"}
    scene.machine.used_bytes = LIMIT
    scene.advance(1)
    assert not scene.context.gate.reasons


def test_a_disk_that_is_nearly_full_is_looked_at_more_often(scene: Scene) -> None:
    scene.machine.free_disk_bytes = 60_000_000
    scene.advance(10)
    reads = scene.machine.disk_reads
    scene.advance(1)
    assert scene.machine.disk_reads == reads + 10
    scene.machine.free_disk_bytes = 49_999_999
    scene.advance(0.1)
    assert scene.context.gate.reasons == {"disk"}
    reads = scene.machine.disk_reads
    scene.advance(9.8)
    assert scene.machine.disk_reads == reads
    scene.machine.free_disk_bytes = 100 * GIB
    scene.advance(0.3)
    assert not scene.context.gate.reasons


def test_a_full_disk_ends_paging_at_once(scene: Scene) -> None:
    queue = scene.queue()
    scene.report(queue, 10.0)
    scene.machine.used_bytes = LIMIT * 98 // 100
    scene.advance(2.5)
    low = scene.report(queue, 5.0)
    assert low is not None
    scene.machine.free_disk_bytes = 0
    scene.advance(10)
    assert queue.told[-1][1] is None
    assert scene.report(queue, 5.0) is None


def test_a_disk_that_cannot_be_asked_leaves_things_as_they_are_and_is_asked_again(scene: Scene) -> None:
    scene.machine.free_disk_bytes = 0
    scene.advance(10)
    actor = actor_behind(scene.context.monitor)
    read, actor._free_disk_bytes = actor._free_disk_bytes, failing
    scene.advance(30)
    assert scene.numbers["alarms"] == ["disk"]
    actor._free_disk_bytes = read
    scene.machine.free_disk_bytes = 100 * GIB
    scene.advance(10)
    assert scene.numbers["alarms"] == []


def failing() -> int:
    raise OSError("no such device")


def test_two_alarms_are_cleared_one_by_one(scene: Scene) -> None:
    scene.machine.free_disk_bytes, scene.machine.used_bytes = 0, 2 * LIMIT
    scene.advance(10)
    assert scene.context.gate.reasons == {"disk", "memory"}
    scene.machine.used_bytes = 0
    scene.advance(1)
    assert scene.context.gate.reasons == {"disk"}


# ── in a node ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def node_scene() -> Iterator[HandNode]:
    one = hand_node()
    yield one
    one.node.close()


def test_an_alarm_blocks_publishers_and_consumers_go_on(node_scene: HandNode) -> None:
    queue = node_scene.node.queue("q")
    queue.publish_many([b"1", b"2", b"3"]).wait()
    node_scene.machine.used_bytes = LIMIT + 1
    node_scene.advance(1)
    assert node_scene.node.memory()["alarms"] == ["memory"]
    with pytest.raises(warren.errors.BlockedError, match="memory"):
        queue.publish(b"4", block=False)
    with pytest.raises(warren.errors.BlockedError):
        queue.publish_many([b"4"], timeout=0)
    with pytest.raises(warren.errors.BlockedError):
        node_scene.node.exchange("").publish(b"4", "q", block=False)
    with queue.consume(timeout=0) as consumer:
        found = list(consumer)
        assert [one.body for one in found] == [b"1", b"2", b"3"]
        queue.ack(found)
    opening = node_scene.node._running.gate.alarms_cleared(node_scene.pool)
    assert not opening.done
    node_scene.machine.used_bytes = 0
    node_scene.advance(1)
    assert opening.done
    queue.publish(b"4", block=False).wait()
    assert queue.get() is not None


def test_a_queue_pages_when_it_is_told_to_and_its_messages_stay(node_scene: HandNode) -> None:
    queue = node_scene.node.queue("q")
    body = b"x" * 5000
    for _ in range(10):
        queue.publish_many([body] * 20)
        node_scene.advance(0.5)
    assert queue.stats()["messages_ram"] == 200
    node_scene.machine.used_bytes = LIMIT
    node_scene.advance(6)
    after = queue.stats()
    assert after["messages_ram"] < 200
    assert len(queue) == 200
    assert all(one.body == body for one in queue.browse())


def test_a_resting_queue_is_not_woken_by_a_round(node_scene: HandNode) -> None:
    queue, busy = node_scene.node.queue("q"), node_scene.node.queue("busy")
    queue.publish_many([b"1", b"x" * 5000]).wait()
    node_scene.machine.used_bytes = LIMIT // 2
    node_scene.advance(3)
    assert actor_of(queue).process.backing.asleep
    for step in range(40):
        node_scene.machine.used_bytes = LIMIT * (60 + step) // 100
        busy.publish(b"x" * 5000)
        node_scene.advance(0.5)
        assert actor_of(queue).process.backing.asleep
        assert actor_of(queue).actor_ref not in actor_behind(node_scene.node._running._context.monitor)._monitor
    assert node_scene.node.memory()["desired_duration_s"] is not None


def test_a_queue_that_comes_back_from_rest_hears_what_holds_now(node_scene: HandNode) -> None:
    queue, busy = node_scene.node.queue("q"), node_scene.node.queue("busy")
    queue.publish(b"1").wait()
    node_scene.advance(3)
    node_scene.machine.used_bytes = LIMIT * 98 // 100
    for _ in range(20):
        busy.publish_many([b"x" * 5000] * 3)
        node_scene.advance(0.5)
    desired = node_scene.node.memory()["desired_duration_s"]
    assert desired is not None
    queue.publish_many([b"x"] * 5).wait()
    node_scene.run()
    assert actor_of(queue).process.backing._duration_s == pytest.approx(desired)


def test_messages_in_ram_of_a_queue_with_nothing_to_do_can_still_be_paged(node_scene: HandNode) -> None:
    """It cannot go to rest while a consumer has messages, and transients are in RAM alone."""
    queue = node_scene.node.queue("q", durable=False)
    busy = node_scene.node.queue("busy")
    body = b"x" * 5000
    for _ in range(4):
        queue.publish_many([body] * 50)
        node_scene.advance(0.2)
    node_scene.advance(30)
    assert queue.stats()["messages_ram"] == 200
    node_scene.machine.used_bytes = LIMIT * 98 // 100
    for _ in range(40):
        busy.publish_many([body] * 3)
        node_scene.advance(0.5)
    assert queue.stats()["messages_ram"] < 200
    assert all(one.body == body for one in queue.browse())
    node_scene.machine.used_bytes = 0


def test_after_its_rest_a_queue_with_nothing_in_ram_does_not_count_for_the_monitor(node_scene: HandNode) -> None:
    queue = node_scene.node.queue("q")
    monitor = actor_behind(node_scene.node._running._context.monitor)._monitor
    queue.publish(b"1").wait()
    node_scene.advance(0.1)
    assert node_scene.node.memory()["queues"] == 1
    queue.get_many(1, auto_ack=True)
    node_scene.advance(5)
    assert queue.stats()["state"] == "hibernated"
    assert node_scene.node.memory()["queues"] == 0
    assert (monitor.queue_duration_count, monitor.queue_duration_sum) == (0, 0.0)
    queue.publish(b"2").wait()
    node_scene.advance(0.1)
    assert node_scene.node.memory()["queues"] == 1, "it is back from its rest"


def test_memory_as_the_queues_account_for_it_sets_the_alarm_and_clears_it() -> None:
    scene = hand_node(vm_memory_calculation_strategy="allocated", vm_memory_high_watermark=1_000_000)
    queue = scene.node.queue("q", durable=False)
    total = sum(scene.node._running._context.allocated.by_owner.values())
    queue.publish_many([b"x" * 1000] * 100)
    scene.run()
    grown = sum(scene.node._running._context.allocated.by_owner.values()) - total
    assert grown >= 100_000
    queue.purge()
    scene.advance(3)
    assert sum(scene.node._running._context.allocated.by_owner.values()) < 100_000
    queue.delete()
    assert scene.node._running._context.allocated.by_owner == {}
    scene.node.close()


def test_a_monitor_that_fails_is_replaced_and_leaves_no_alarm_behind(node_scene: HandNode) -> None:
    node, machine = node_scene.node, node_scene.machine
    queue = node.queue("q")
    machine.used_bytes = machine.total_memory_bytes
    node_scene.advance(3.0)
    with pytest.raises(warren.errors.BlockedError):
        queue.publish(b"x", block=False)
    machine.broken = RuntimeError("the meter is broken")
    node_scene.advance(1.0)
    queue.publish(b"x", block=False)  # nothing measures now
    machine.broken = None
    node_scene.advance(3.0)
    with pytest.raises(warren.errors.BlockedError):
        queue.publish(b"x", block=False)
    machine.used_bytes = 0
    node_scene.advance(3.0)
    assert node.memory()["alarms"] == []
