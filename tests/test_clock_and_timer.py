"""Time: the two clocks, the plain timers against a model, and the timer that actors share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runtime_tools import actor_behind, forget_actors
from warren.actors.clock import NS, HandClock, SystemClock
from warren.actors.runtime.pool import HandPool, Pool
from warren.actors.runtime.pooled_actor import PooledActor
from warren.actors.runtime.timer import Timer, Timers, tell

# ── the plain object ────────────────────────────────────────────────────────────────────────────────────────────────

start = st.tuples(st.just("start"), st.sampled_from("AB"), st.sampled_from("xyz"), st.integers(0, 20))
cancel = st.tuples(st.just("cancel"), st.sampled_from("AB"))
due = st.tuples(st.just("due"), st.integers(0, 20))


@given(st.lists(st.one_of(start, cancel, due), max_size=40))
def test_timers_do_what_a_sorted_list_does(steps: list[tuple[Any, ...]]) -> None:
    timers: Timers[str] = Timers()
    model: list[tuple[int, int, str, str]] = []  # moment, when it was set, target, key
    for number, (kind, *rest) in enumerate(steps):
        if kind == "start":
            target, key, at_ns = rest
            timers.start(target, key, at_ns, number)
            model = [one for one in model if one[2:] != (target, key)] + [(at_ns, number, target, key)]
        elif kind == "cancel":
            timers.cancel(rest[0])
            model = [one for one in model if one[2] != rest[0]]
        else:
            ripe = sorted(one for one in model if one[0] <= rest[0])
            model = [one for one in model if one[0] > rest[0]]
            assert timers.due(rest[0]) == [(target, set_by) for _, set_by, target, _ in ripe]
        timers.check_invariants()
        assert len(timers) == len(model)
        assert timers.next_ns == min((one[0] for one in model), default=None)


# ── the clock in a test's hands ─────────────────────────────────────────────────────────────────────────────────────


def test_a_hand_clock_stands_still_and_its_wall_goes_with_it() -> None:
    clock = HandClock(wall_us=1000)
    assert (clock.now_ns(), clock.wall_us()) == (0, 1000)
    clock.advance(0.5)
    assert (clock.now_ns(), clock.wall_us()) == (NS // 2, 501_000)


def test_each_alarm_on_the_way_goes_off_at_its_own_moment() -> None:
    clock, rang = HandClock(), []

    def ring() -> None:
        rang.append(clock.now_ns())
        clock.wake_at(clock.now_ns() + NS, ring)

    clock.wake_at(NS, ring)
    clock.advance(3.5)
    assert rang == [NS, 2 * NS, 3 * NS]
    assert clock.now_ns() == 3.5 * NS


def test_a_hand_clock_knows_one_alarm_and_none_after_the_end() -> None:
    clock, rang = HandClock(), []
    clock.wake_at(NS, lambda: rang.append("replaced"))
    clock.wake_at(2 * NS, lambda: rang.append("second"))
    clock.advance(2)
    clock.wake_at(3 * NS, lambda: rang.append("called off"))
    clock.wake_at(None, lambda: None)
    clock.advance(2)
    clock.wake_at(5 * NS, lambda: rang.append("closed"))
    clock.close()
    clock.advance(2)
    assert rang == ["second"]


def test_an_alarm_in_the_past_goes_off_at_once_and_time_does_not_go_back() -> None:
    clock, rang = HandClock(), []
    clock.advance(2)
    clock.wake_at(NS, lambda: rang.append(clock.now_ns()))
    clock.advance(0)
    assert rang == [2 * NS]


# ── the machine's clock ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def system() -> Iterator[SystemClock]:
    clock = SystemClock()
    yield clock
    clock.close()


def test_the_system_clock_rings_not_before_its_time(system: SystemClock) -> None:
    rang = threading.Event()
    at_ns = system.now_ns() + 5_000_000
    moments: list[int] = []
    system.wake_at(at_ns, lambda: (moments.append(time.monotonic_ns()), rang.set()))  # type: ignore[arg-type]
    assert rang.wait(60)
    assert moments[0] >= at_ns


def test_an_earlier_alarm_replaces_a_later_one_that_is_slept_for(system: SystemClock) -> None:
    rang = threading.Event()
    late: list[str] = []
    system.wake_at(system.now_ns() + 3600 * NS, lambda: late.append("late"))
    system.wake_at(system.now_ns(), rang.set)
    assert rang.wait(60)
    assert late == []


def test_an_alarm_may_set_the_next_one(system: SystemClock) -> None:
    done, count = threading.Event(), []

    def ring() -> None:
        count.append(1)
        if len(count) == 3:
            done.set()
        else:
            system.wake_at(system.now_ns(), ring)

    system.wake_at(system.now_ns(), ring)
    assert done.wait(60)


def test_a_clock_that_was_closed_wakes_nobody_and_can_be_closed_from_its_own_alarm() -> None:
    clock, closed, rang = SystemClock(), threading.Event(), []
    clock.wake_at(clock.now_ns(), lambda: (clock.close(), closed.set()))  # type: ignore[arg-type]
    assert closed.wait(60)
    clock.wake_at(clock.now_ns(), lambda: rang.append(1))
    clock.close()
    assert rang == []


def test_the_system_clock_tells_the_time(system: SystemClock) -> None:
    before = time.time_ns() // 1000
    assert before <= system.wall_us() <= time.time_ns() // 1000


# ── the timer of a node ─────────────────────────────────────────────────────────────────────────────────────────────


class Listener(PooledActor):
    def __init__(self, pool: Pool, clock: HandClock) -> None:
        super().__init__(pool)
        self.clock = clock
        self.heard: list[tuple[float, object]] = []

    def on_receive(self, message: object) -> None:
        self.heard.append((self.clock.now_ns() / NS, message))


class Scene:
    def __init__(self) -> None:
        self.pool, self.clock = HandPool(), HandClock()
        self.timer = Timer(self.clock)
        self.ref = Listener.start(self.pool, self.clock)
        self.listener = actor_behind(self.ref)

    def start(self, key: str, at_s: float, message: object) -> None:
        self.timer.start(self.ref, key, round(at_s * NS), message)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds, self.pool.run)


@pytest.fixture
def scene() -> Iterator[Scene]:
    one = Scene()
    yield one
    forget_actors(one.pool)


def test_messages_come_at_their_times_whatever_the_order_they_were_asked_in(scene: Scene) -> None:
    for at_s in (3, 1, 2):
        scene.start(str(at_s), at_s, at_s)
    scene.advance(10)
    assert scene.listener.heard == [(1, 1), (2, 2), (3, 3)]


def test_a_timer_of_the_same_key_is_moved_forward_and_back(scene: Scene) -> None:
    scene.start("key", 5, "first")
    scene.advance(1)
    scene.start("key", 2, "sooner")
    scene.start("other", 6, "other")
    scene.advance(2)
    assert scene.listener.heard == [(2, "sooner")]
    scene.start("other", 9, "later")
    scene.advance(10)
    assert scene.listener.heard == [(2, "sooner"), (9, "later")]


def test_a_timer_in_the_past_goes_off_at_once(scene: Scene) -> None:
    scene.advance(2)
    scene.start("key", 1, "late")
    scene.pool.run()
    assert scene.listener.heard == [(2, "late")]


def test_who_cancels_hears_nothing_more_and_others_do(scene: Scene) -> None:
    other_ref = Listener.start(scene.pool, scene.clock)
    scene.start("a", 1, "a")
    scene.start("b", 2, "b")
    scene.timer.start(other_ref, "a", NS, "mine")
    scene.timer.cancel(scene.ref)
    scene.advance(5)
    assert scene.listener.heard == []
    assert actor_behind(other_ref).heard == [(1, "mine")]


def test_a_target_that_has_stopped_is_passed_over(scene: Scene) -> None:
    scene.start("a", 1, "a")
    scene.ref.stop()
    scene.advance(2)
    assert scene.listener.heard == []
    assert not tell(scene.ref, "more")


def test_a_closed_timer_leaves_the_clock_to_others(scene: Scene) -> None:
    scene.start("a", 1, "a")
    scene.timer.close()
    other = Timer(scene.clock)
    other.start(scene.ref, "b", 2 * NS, "b")
    scene.start("a", 3, "late")
    scene.advance(5)
    assert scene.listener.heard == [(2, "b")]


def test_ten_thousand_targets_cancel_in_no_time(scene: Scene) -> None:
    """Each of the queues of a node cancels its timers when it goes to rest."""
    timers: Timers[int] = Timers()
    for target in range(10_000):
        timers.start(target, "idle", target, None)
        timers.start(target, "report", target, None)
    steps = 0

    class Counting(int):
        def __eq__(self, other: object) -> bool:
            nonlocal steps
            steps += 1
            return int(self) == other

        __hash__ = int.__hash__

    timers.cancel(Counting(77))
    assert len(timers) == 19_998
    assert steps < 100, "cancelling looks at the timers of others"
