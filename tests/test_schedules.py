"""A node's threads in every order that a seeded scheduler comes upon (docs/how-it-is-tested.md).

Production's pool, inboxes, futures and queues, with users that publish, get, consume, fail and close as they like. A
seed is one program and one order of its threads' steps; a failure is reported with the shortest order that still fails.
"""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections.abc import Callable

import pytest

from tests.schedules.broken import BUGS, bug
from tests.schedules.doubles import stepped
from tests.schedules.node_schedule import TRACED, Draw, again, complaint, drawn_schedule, kind_of, outcome
from tests.schedules.programs import draw, draw_to_one_consumer
from tests.schedules.scheduler import Scheduler, StuckError
from tests.schedules.shrinking import shrunk
from tests.schedules.strategies import Choices, Chosen, Priorities, Uniform
from tests.support.effort import EFFORT, new_seed, times
from tests.support.runtime_tools import hand_node
from tests.support.tried import Count, Tried
from warren.actors.runtime.future import Future


@pytest.mark.slow
def test_no_order_of_a_nodes_threads_breaks_a_promise(tried: Count) -> None:
    first, count = new_seed() if EFFORT == "nightly" else 0, times(600, quick=20, nightly=10_000)
    for seed in range(first, first + count):
        schedule = drawn_schedule(seed)
        said = outcome(schedule)
        assert not said, complaint(seed, schedule, said, again)
    tried(Tried.SCHEDULES, count)


@pytest.mark.slow
def test_an_order_can_be_repeated() -> None:
    for seed in range(6):
        first = drawn_schedule(seed)
        first.run()
        second = drawn_schedule(seed)
        second.run()
        third = again(seed, first.choices)
        third.run()
        assert first.choices == second.choices == third.choices
        assert first.steps == second.steps == third.steps > 1000


# ── the search finds what it is for ─────────────────────────────────────────────────────────────────────────────────


DRAWN_FOR: dict[str, Draw] = {"a consumer sleeps beside what it was given": draw_to_one_consumer}
"""The programs in which a bug shows, where few others show it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUGS))
def test_a_bug_is_found(name: str) -> None:
    draw_program = DRAWN_FOR.get(name, draw)
    with bug(name):
        for seed in range(1000):
            schedule = drawn_schedule(seed, draw_program)
            if said := outcome(schedule):
                repeated = again(seed, schedule.choices, draw_program)
                assert kind_of(said) == kind_of(outcome(repeated)), "it cannot be repeated"
                return
    pytest.fail("not found")


@pytest.mark.slow
def test_a_failure_is_told_with_its_seed_and_an_order_of_few_choices() -> None:
    with bug("an actor that ends leaves questions unanswered"):
        seed = next(seed for seed in range(300) if outcome(drawn_schedule(seed)))
        schedule = drawn_schedule(seed)
        said = outcome(schedule)
        told = complaint(seed, schedule, said, again)
        few = ast.literal_eval(told.partition("and in this order, too: ")[2])
        assert kind_of(outcome(again(seed, few))) == kind_of(said)
    assert told.startswith(f"seed {seed}, Program(")
    assert "nobody can go on" in told
    assert re.search(r"^\d+ user \d:$", told, re.MULTILINE)
    assert len(few) <= len(schedule.choices) // 2
    assert not outcome(again(seed, schedule.choices)), "without the bug the same order breaks nothing"


def test_a_confirm_that_nobody_gives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.actors.queue.queue_output import QueueOutput

    monkeypatch.setattr(QueueOutput, "confirmed", lambda output, token: None)
    assert any("nobody can go on" in outcome(drawn_schedule(seed)) for seed in range(10))


# ── the scheduler itself ────────────────────────────────────────────────────────────────────────────────────────────


def two_threads(scheduler: Scheduler, first: Callable[[], object], second: Callable[[], object]) -> None:
    scheduler.begin()
    scheduler.spawn("first", first, needed=True)
    scheduler.spawn("second", second, needed=True)
    try:
        scheduler.run()
    finally:
        scheduler.end()


def test_two_threads_that_take_two_locks_in_two_orders_are_found_stuck() -> None:
    told: list[str] = []
    for seed in range(40):
        scheduler = Scheduler(Uniform(random.Random(seed), 3.0))
        with stepped(scheduler) as threading:
            a, b = threading.Lock(), threading.Lock()

            def both(
                first: contextlib.AbstractContextManager[bool], second: contextlib.AbstractContextManager[bool]
            ) -> None:
                with first, second:
                    pass

            try:
                two_threads(scheduler, lambda: both(a, b), lambda: both(b, a))  # noqa: B023
            except StuckError as error:
                told.append(str(error))
    assert 0 < len(told) < 40
    assert all("1 first" in one and "2 second" in one for one in told)


@pytest.mark.parametrize("depth", [0, 4])
def test_a_priority_that_never_changes_lets_a_thread_go_on_to_its_end(depth: int) -> None:
    orders = set()
    for seed in range(30):
        scheduler, told = Scheduler(Priorities(random.Random(seed), depth, 20)), []
        with stepped(scheduler) as threading:

            def tell(name: str) -> None:
                for _ in range(3):
                    told.append(name)  # noqa: B023
                    threading.Lock().acquire()

            two_threads(scheduler, lambda: tell("a"), lambda: tell("b"))
        orders.add("".join(told))
    assert (orders == {"aaabbb", "bbbaaa"}) == (depth == 0)


def test_time_passes_only_where_nobody_can_go_on() -> None:
    scheduler = Scheduler(Chosen({}))
    with stepped(scheduler) as threading:
        condition = threading.Condition()
        moments: list[int] = []

        def wait(seconds: float) -> None:
            with condition:
                assert not condition.wait(seconds)
                moments.append(scheduler.now_ns)

        two_threads(scheduler, lambda: wait(0.3), lambda: wait(0.1))
    assert moments == [100_000_000, 300_000_000]


def test_a_wait_that_has_no_end_is_told_with_where_everybody_stands() -> None:
    scheduler = Scheduler(Chosen({}))
    with stepped(scheduler):
        future = Future()
        with pytest.raises(StuckError, match=r"(?s)nobody can go on.*2 second.*future\.py"):
            two_threads(scheduler, lambda: None, future.get)


def test_of_choices_those_are_left_that_matter() -> None:
    choices = dict.fromkeys(range(100), 1)
    assert sorted(shrunk(choices, lambda some: {3, 77} <= set(some))) == [3, 77]


# ── what was found ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_comes_while_its_helper_is_asked_is_no_error() -> None:
    """Switch from the waiting thread to the answering one at every possible place."""
    for at in range(1, 60):
        choices: Choices = {at: 2}
        scheduler = Scheduler(Chosen(choices), traced=TRACED)
        with stepped(scheduler):

            class Helper:
                def help(self, future: Future, deadline: float | None = None) -> None: ...

            future, got = Future(Helper()), list[object]()
            two_threads(scheduler, lambda: got.append(future.get()), lambda: future.set(7))  # noqa: B023
        assert got == [7]


def test_a_reading_of_the_memory_that_is_asked_for_as_the_node_closes_is_left() -> None:
    """A monitor that had ended tried again and again to have a turn, until the stack was full."""
    hand = hand_node(attach=False)
    hand.run()
    watcher = hand.node._running.gate.watcher
    hand.node.close()
    assert watcher is not None
    watcher.look(here=True)
    watcher.look(here=False)
    hand.run()
