"""Futures: set once, by any thread; asked, waited for and followed by any others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pykka import Timeout

from tests.support.waiting import together
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.storage.errors import InvalidValueError, WarrenError


class Setter:
    """Helps by setting what is waited for."""

    def __init__(self, *, helps: bool = True) -> None:
        self.asked: list[Future] = []
        self._helps = helps

    def help(self, future: Future, deadline: float | None = None) -> None:
        self.asked.append(future)
        if self._helps:
            future.set("helped")


def test_an_answer_is_the_same_however_often_it_is_asked_for() -> None:
    future = Future()
    assert not future.done
    future.set([1])
    assert future.done
    assert future.get() is future.get()
    assert future.get(timeout=0) == [1]
    assert future.error is None


def test_an_error_is_raised_each_time() -> None:
    future, error = Future(), WarrenError("no")
    future.fail(error)
    for _ in range(2):
        with pytest.raises(WarrenError) as caught:
            future.get()
        assert caught.value is error
    assert future.error is error


def test_a_second_answer_is_an_error_and_the_first_one_stays() -> None:
    future = Future()
    future.set(1)
    with pytest.raises(RuntimeError, match="twice"):
        future.set(2)
    with pytest.raises(RuntimeError, match="twice"):
        future.set_exception((ValueError, ValueError("late"), None))
    future.fail(WarrenError("late"))
    other = Future()
    other.set(3)
    future.follow(other)
    assert future.get() == 1


def test_set_exception_takes_the_error_being_handled() -> None:
    future, nothing = Future(), Future()
    try:
        int("no number")
    except ValueError:
        future.set_exception()
    assert isinstance(future.error, ValueError)
    nothing.set_exception()
    assert isinstance(nothing.error, RuntimeError)


def test_nobody_answers_in_time() -> None:
    with pytest.raises(Timeout):
        Future().get(timeout=0)
    assert not Future().settled(0)
    with pytest.raises(TimeoutError, match="0 seconds"):
        Confirm().wait(0)


def test_who_waited_in_vain_is_forgotten() -> None:
    future = Future()
    assert not future.settled(0)
    assert not future._waiters
    future.set()


def test_who_waits_helps_first() -> None:
    helper = Setter()
    future = Future(helper)
    assert future.get() == "helped"
    assert helper.asked == [future]
    assert future.get() == "helped"
    assert helper.asked == [future], "nobody helps with what is done"


def test_help_that_was_none_is_followed_by_waiting() -> None:
    helper = Setter(helps=False)
    future = Future(helper)
    with pytest.raises(Timeout):
        future.get(timeout=0)
    assert helper.asked == [future]


def test_callbacks_come_once_each_at_once_where_it_is_settled() -> None:
    future = Future()
    called: list[tuple[str, Any]] = []
    future.on_done(lambda one: called.append(("early", one.get())))
    assert called == []
    future.set(1)
    future.on_done(lambda one: called.append(("late", one.get())))
    assert called == [("early", 1), ("late", 1)]


def test_a_future_that_follows_another_takes_over_its_error() -> None:
    source, follower = Future(), Future()
    source.on_done(follower.follow)
    source.fail(WarrenError("passed on"))
    with pytest.raises(WarrenError, match="passed on"):
        follower.get()


def test_what_pykka_makes_of_a_future_works() -> None:
    first, second = Future(), Future()
    doubled, joined = first.map(lambda value: value * 2), first.join(second)
    first.set(21)
    second.set(1)
    assert doubled.get() == 42
    assert doubled.get() == 42
    assert joined.get() == [21, 1]


def test_a_future_can_be_awaited() -> None:
    async def wait(future: Future) -> Any:
        return await future

    future = Future()
    future.set("here")
    assert asyncio.run(wait(future)) == "here"


# ── confirms and counting down ──────────────────────────────────────────────────────────────────────────────────────


def test_a_confirm_that_failed_says_why_each_time() -> None:
    confirm = Confirm()
    confirm.fail(WarrenError("full"))
    for _ in range(2):
        with pytest.raises(WarrenError, match="full"):
            confirm.wait()


def test_counting_down_is_over_with_the_last_part() -> None:
    parts: list[Future] = [Future() for _ in range(3)]
    all_done = CountDown(parts)
    for part in parts:
        assert not all_done.done
        part.set("ignored")
    assert all_done.done
    assert all_done.get() is None


def test_counting_down_nothing_is_over_at_once() -> None:
    assert CountDown([]).done


def test_counting_down_parts_that_are_done_already() -> None:
    done, failed = Future(), Future()
    done.set()
    failed.fail(WarrenError("gone"))
    assert CountDown([done, done]).done
    with pytest.raises(WarrenError, match="gone"):
        CountDown([done, failed, Future()]).get()


def test_the_first_error_of_a_part_is_the_error_of_all() -> None:
    parts: list[Future] = [Future() for _ in range(3)]
    all_done = CountDown(parts)
    parts[1].fail(WarrenError("first"))
    parts[0].fail(WarrenError("second"))
    parts[2].set()
    with pytest.raises(WarrenError, match="first"):
        all_done.wait()


def test_who_waits_for_all_helps_with_each_that_is_not_done() -> None:
    helpers = [Setter(), Setter(), Setter()]
    parts: list[Future] = [Future(helper) for helper in helpers]
    parts[1].set()
    CountDown(parts).wait()
    assert [len(helper.asked) for helper in helpers] == [1, 0, 1]


def test_a_callback_that_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    future = Future()
    called: list[Future] = []

    def broken(_: Future) -> None:
        raise ZeroDivisionError("broken")

    for callback in (broken, called.append, broken):
        future.on_done(callback)
    future.set("answer")
    future.on_done(broken)
    assert (future.get(), called) == ("answer", [future])
    told = [(record.__dict__["event"], record.__dict__["error"]) for record in caplog.records]
    assert told == [("callback_failed", "ZeroDivisionError")] * 3


def test_what_cannot_be_called_is_no_callback() -> None:
    future = Future()
    for _ in range(2):
        with pytest.raises(InvalidValueError, match="callback must be a function, not 5"):
            future.on_done(5)  # type: ignore[arg-type]
        future.offer("answer")


# ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_threads_wait_and_all_get_the_answer() -> None:
    future, answers = Future(), []
    threads = [threading.Thread(target=lambda: answers.append(future.get(timeout=60))) for _ in range(8)]
    for thread in threads:
        thread.start()
    future.set("for all")
    for thread in threads:
        thread.join()
    assert answers == ["for all"] * 8


def test_threads_that_settle_at_once_settle_once() -> None:
    for _ in range(50):
        future = Future()
        called: list[Future] = []
        future.on_done(called.append)
        start = threading.Barrier(4)

        def settle(number: int, future: Future = future, start: threading.Barrier = start) -> None:
            start.wait()
            future.fail(WarrenError(str(number)))

        together(*[lambda number=number: settle(number) for number in range(4)])
        assert called == [future]


def test_parts_that_are_done_at_once_in_many_threads_count_down_once() -> None:
    for _ in range(50):
        parts: list[Future] = [Future() for _ in range(4)]
        called: list[Future] = []
        all_done = CountDown(parts)
        all_done.on_done(called.append)
        together(*[part.set for part in parts])
        assert all_done.done
        assert called == [all_done]
