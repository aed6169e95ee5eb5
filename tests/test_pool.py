"""Turns: which actor gets one, in which order things are handled, and what happens to calls that come too late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pykka
import pytest
from pykka import ActorDeadError
from pykka._envelope import Envelope

from tests.support.runtime_tools import Do, Say, Scribe, actor_behind, forget_actors
from tests.support.waiting import PATIENCE_S, together, wait_until
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.actors.runtime.inbox import Control, PendingBatch
from warren.actors.runtime.pool import HandPool, Pool, ThreadPool
from warren.actors.runtime.pooled_actor import TURN_ENTRIES, ActorStoppedError, Asked, PooledActor
from warren.storage.errors import DataError, SettingsError, StorageError, WarrenError


@attrs.frozen
class Urgent(Control):
    word: object


class RefusalError(WarrenError):
    """Refused on purpose."""


@pytest.fixture
def pool() -> Iterator[HandPool]:
    hand = HandPool()
    yield hand
    forget_actors(hand)


pytestmark = pytest.mark.usefixtures("quiet")


def scribe(pool: Pool) -> Scribe:
    return actor_behind(Scribe.start(pool))


def raising(error: BaseException) -> Do:
    def work() -> None:
        raise error

    return Do(work)


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_done_before_somebody_runs_a_turn(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.tell(Say(1))
    assert actor.heard == []
    pool.run()
    assert actor.heard == [1]
    assert actor.turn_ends == 1


def test_a_turn_ends_after_so_many_entries_and_the_next_in_line_comes(pool: HandPool) -> None:
    busy, other = scribe(pool), scribe(pool)
    for number in range(3 * TURN_ENTRIES):
        busy.actor_ref.tell(Say(number))
    other.actor_ref.tell(Say("mine"))
    assert pool.run_one()
    assert len(busy.heard) == TURN_ENTRIES
    assert pool.run_one()
    assert other.heard == ["mine"]
    pool.run()
    assert busy.heard == list(range(3 * TURN_ENTRIES))
    assert busy.turn_ends == 3


def test_an_actor_stands_in_line_once_however_much_waits(pool: HandPool) -> None:
    actor = scribe(pool)
    for number in range(10):
        actor.actor_ref.tell(Say(number))
    assert pool.run_one()
    assert not pool.run_one()


def test_control_overtakes_data_and_each_lane_keeps_its_order(pool: HandPool) -> None:
    actor = scribe(pool)
    for number in range(3):
        actor.actor_ref.tell(Say(number))
        actor.actor_ref.tell(Urgent(f"!{number}"))
    pool.run()
    assert actor.heard == ["!0", "!1", "!2", 0, 1, 2]


def test_control_that_comes_during_a_turn_goes_before_the_rest_of_it(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.tell(Do(lambda: actor.actor_ref.tell(Urgent("now"))))
    actor.actor_ref.tell(Say("later"))
    pool.run()
    assert actor.heard == ["now", "later"]


# ── gathering ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_of_one_kind_gathers_until_something_comes_behind_it(pool: HandPool) -> None:
    actor, key, other = scribe(pool), object(), object()
    inbox = actor.actor_inbox
    entries = [inbox.gather(key, 1, PendingBatch, 1), inbox.gather(key, 2, PendingBatch, 1)]
    assert entries[0] is entries[1]
    inbox.gather(other, 3, PendingBatch, 0)
    inbox.gather(key, 4, PendingBatch, 1)
    actor.actor_ref.tell(Say("between"))
    inbox.gather(key, 5, PendingBatch, 1)
    assert inbox.weight == 4
    pool.run()
    assert actor.heard == [[1, 2], [3], [4], "between", [5]]


def test_an_urgent_message_does_not_seal_what_gathers(pool: HandPool) -> None:
    actor, key = scribe(pool), object()
    actor.actor_inbox.gather(key, 1, PendingBatch, 0)
    actor.actor_ref.tell(Urgent("!"))
    actor.actor_inbox.gather(key, 2, PendingBatch, 0)
    pool.run()
    assert actor.heard == ["!", [1, 2]]


def test_nothing_joins_an_entry_that_was_sealed_or_taken(pool: HandPool) -> None:
    actor, key = scribe(pool), object()
    inbox = actor.actor_inbox
    inbox.gather(key, 1, PendingBatch, 0)
    inbox.seal()
    inbox.gather(key, 2, PendingBatch, 0)
    pool.run()
    inbox.gather(key, 3, PendingBatch, 0)
    pool.run()
    assert actor.heard == [[1], [2], [3]]


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_asks_an_idle_actor_runs_its_turn_in_his_own_thread(pool: HandPool) -> None:
    actor = scribe(pool)
    threads: list[int] = []
    actor.actor_ref.ask(Do(lambda: threads.append(threading.get_ident())))
    assert threads == [threading.get_ident()]


def test_a_thread_that_asks_helps_even_where_the_pool_is_a_pool_of_threads() -> None:
    pool = ThreadPool(1)
    try:
        actor, blocker = scribe(pool), scribe(pool)
        hold, held = threading.Event(), threading.Event()
        blocker.actor_ref.tell(Do(lambda: (held.set(), hold.wait())))
        held.wait()  # the pool's only thread is busy now
        threads: list[int] = []
        actor.actor_ref.ask(Do(lambda: threads.append(threading.get_ident())), timeout=60)
        assert threads == [threading.get_ident()]
        hold.set()
    finally:
        pool.stop()
        forget_actors(pool)


def test_an_answer_may_be_a_future_that_is_answered_later(pool: HandPool) -> None:
    actor, later = scribe(pool), Future()
    answer: Any = actor.actor_ref.ask(Do(lambda: later), block=False)
    pool.run()
    assert not answer.done
    later.set("at last")
    assert answer.get() == "at last"


def test_who_waits_for_an_actor_that_cannot_answer_any_more_is_told_so(pool: HandPool) -> None:
    actor, never = scribe(pool), Future()
    with pytest.raises(pykka.Timeout):
        actor.actor_ref.ask(Do(lambda: never))


def test_an_actor_that_waits_for_its_own_answer_is_stopped_by_an_error_and_not_for_ever(pool: HandPool) -> None:
    actor = scribe(pool)
    with pytest.raises(RuntimeError, match="its own answer"):
        actor.actor_ref.ask(Do(lambda: actor.actor_ref.ask(Say("me"))))
    assert actor.actor_stopped.is_set()


# ── refusal and failure ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_goes_to_the_caller_and_the_actor_goes_on(pool: HandPool) -> None:
    actor = scribe(pool)
    with pytest.raises(RefusalError):
        actor.actor_ref.ask(raising(RefusalError("no")))
    assert actor.actor_ref.ask(Say("still here")) == "still here"
    assert actor.failed_with is None


def test_a_refusal_without_a_caller_is_noted_and_the_actor_goes_on(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.tell(raising(RefusalError("no")))
    actor.actor_ref.tell(Say("next"))
    pool.run()
    assert actor.heard == ["next"]
    assert [str(error) for error in actor.refused] == ["no"]


@pytest.mark.parametrize("error", [ValueError("a bug"), StorageError("disk"), DataError("file", 7, "damaged")])
@pytest.mark.parametrize("asked", [True, False])
def test_what_is_no_refusal_is_the_end_of_the_actor(pool: HandPool, error: Exception, asked: bool) -> None:
    actor = scribe(pool)
    actor.actor_inbox.gather("key", 1, PendingBatch, 0)
    actor.actor_ref.tell(Say("before"))
    first: Any = actor.actor_ref.ask(raising(error), block=False) if asked else None
    if not asked:
        actor.actor_ref.tell(raising(error))
    waiting: Any = actor.actor_ref.ask(Say("behind"), block=False)
    actor.actor_ref.tell(Say("told"))
    actor.actor_inbox.gather("key", "late", PendingBatch, 0)
    pool.run()
    assert actor.heard == [[1], "before"]
    assert actor.failed_with is error
    if asked:
        with pytest.raises(type(error)):
            first.get()
    with pytest.raises(ActorStoppedError):
        waiting.get()
    assert actor.undelivered == ["behind", "told", ["late"]]


def test_a_failure_in_on_start_answers_those_who_wait(pool: HandPool) -> None:
    class Stillborn(Scribe):
        def on_start(self) -> None:
            raise StorageError("no disk")

    ref = Stillborn.start(pool)
    with pytest.raises(ActorStoppedError):
        ref.ask(Say("hello"))


def test_an_interrupt_in_a_helping_thread_ends_the_actor_and_answers_the_others(pool: HandPool) -> None:
    actor = scribe(pool)
    answers: list[Any] = []

    def work() -> None:
        answers.append(actor.actor_ref.ask(Say("behind"), block=False))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        actor.actor_ref.ask(Do(work))
    assert isinstance(actor.failed_with, KeyboardInterrupt)
    assert answers[0].done
    with pytest.raises(ActorStoppedError):
        answers[0].get()


def test_an_interrupt_in_a_turn_does_not_keep_the_turn(pool: HandPool) -> None:
    actor = scribe(pool)
    with pytest.raises(KeyboardInterrupt):
        actor.actor_ref.ask(raising(KeyboardInterrupt()))
    assert actor.turns.run()


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_comes_behind_what_was_told_before_and_drains_what_comes_after(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.tell(Say("before"))
    stopped: Any = actor.actor_ref.stop(block=False)
    behind: Any = actor.actor_ref.ask(Say("behind"), block=False)
    second: Any = actor.actor_ref.stop(block=False)
    pool.run()
    assert actor.heard == ["before"]
    assert stopped.get()
    assert second.get()
    with pytest.raises(ActorStoppedError):
        behind.get()


def test_telling_a_stopped_actor_is_an_error_and_what_slips_in_is_answered(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.stop()
    for error in (ActorDeadError, ActorStoppedError):
        with pytest.raises(error, match="Scribe has stopped"):
            actor.actor_ref.tell(Say("late"))
        with pytest.raises(error, match="Scribe has stopped"):
            actor.actor_ref.ask(Say("late"))
    assert not actor.actor_ref.stop()
    answer = Future()
    actor.actor_inbox.put(Envelope(Say("slipped in"), reply_to=answer))  # between the check and the put
    assert answer.done, "though nobody runs the pool any more"
    with pytest.raises(ActorStoppedError):
        answer.get()
    actor.actor_inbox.gather("key", 1, PendingBatch, 0)
    assert actor.undelivered == ["slipped in", [1]]
    assert actor.heard == []


def test_an_actor_that_slips_in_after_its_pool_has_stopped_still_answers_who_waits() -> None:
    pool = ThreadPool(2)
    actor = scribe(pool)
    pool.stop()
    assert actor.actor_ref.ask(Say("hello"), timeout=60) == "hello"
    forget_actors(pool)


def test_a_pool_whose_threads_cannot_all_be_started_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_three(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    with pytest.raises(SettingsError, match=r"threads cannot be 5: after 3 .* can't start new thread"):
        ThreadPool(5)
    assert [thread.is_alive() for thread in started] == [False] * 3


def test_a_pool_of_threads_stops_from_within_one_of_its_turns() -> None:
    pool = ThreadPool(2)
    actor = scribe(pool)
    done = threading.Event()
    actor.actor_ref.tell(Do(lambda: (pool.stop(), done.set())))
    assert done.wait(60)
    forget_actors(pool)


# ── many threads ────────────────────────────────────────────────────────────────────────────────────────────────────


class SlowToLeave(Scribe):
    """Stays a while at the end of a turn, when nothing waited."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.leaves, self.may_leave = threading.Event(), threading.Event()

    def on_turn_end(self) -> None:
        if self.heard:
            self.leaves.set()
            assert self.may_leave.wait(20)


def test_the_last_thread_of_a_pool_does_not_wait_for_what_stands_in_line() -> None:
    """Another thread had the actor that it asked, and left the question for the next turn, which never ran."""
    pool = ThreadPool(1)
    asks = scribe(pool)
    asked = actor_behind(SlowToLeave.start(pool))
    other = threading.Thread(target=asked.actor_ref.ask, args=(Say("first"),))
    other.start()
    assert asked.leaves.wait(20)
    answer = asks.actor_ref.ask(Do(lambda: asked.actor_ref.ask(Say("second"))), block=False)
    assert isinstance(answer, Future)
    answer.helped_by(pool)  # this thread is no help
    wait_until(lambda: not asked.actor_inbox.empty(), "it asks")
    asked.may_leave.set()
    assert answer.get(timeout=20) == "second"
    other.join()
    assert scribe(pool).actor_ref.ask(Say("on")) == "on"
    pool.stop()
    assert not pool._threads


class Ledger(PooledActor):
    """Counts by sender; finds out whether two threads are ever in it at once."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.heard: dict[int, list[int]] = {}
        self.inside = 0
        self.together = 0

    def on_receive(self, message: Any) -> int:
        self.note([message.word])
        return len(self.heard[message.word[0]])

    def on_batch(self, entry: PendingBatch) -> None:
        self.note(entry.items)

    def note(self, items: list[tuple[int, int]]) -> None:
        self.inside += 1
        self.together = max(self.together, self.inside)
        for sender, number in items:
            self.heard.setdefault(sender, []).append(number)
        self.inside -= 1


@pytest.mark.parametrize("pool_threads", [1, 4])
def test_many_threads_lose_nothing_and_keep_each_senders_order_one_turn_at_a_time(pool_threads: int) -> None:
    pool = ThreadPool(pool_threads)
    refs = [Ledger.start(pool) for _ in range(5)]
    ledgers = [actor_behind(ref) for ref in refs]
    key, each = object(), 300

    def send(sender: int) -> None:
        for number in range(each):
            for index, ledger in enumerate(ledgers):
                way = (number + sender + index) % 3
                if way == 0:
                    refs[index].tell(Say((sender, number)))
                elif way == 1:
                    ledger.actor_inbox.gather(key, (sender, number), PendingBatch, 1)
                elif number % 20 == 0:
                    assert refs[index].ask(Say((sender, number)), timeout=60) == number + 1
                else:
                    refs[index].tell(Say((sender, number)))

    together(*[lambda sender=sender: send(sender) for sender in range(6)])
    for ref in refs:
        ref.stop()
    pool.stop()
    for ledger in ledgers:
        assert ledger.together == 1
        assert ledger.heard == {sender: list(range(each)) for sender in range(6)}


def test_actors_that_tell_each_other_across_threads_settle_every_confirm() -> None:
    pool = ThreadPool(3)
    actors = [scribe(pool) for _ in range(8)]
    confirms = [Confirm() for _ in range(200)]

    def pass_on(number: int, left: int) -> None:
        if not left:
            confirms[number].set()
            return
        actors[(number + left) % 8].actor_ref.tell(Do(lambda: pass_on(number, left - 1)))

    for number in range(200):
        pass_on(number, 10)
    CountDown(list(confirms)).wait(60)
    pool.stop()
    forget_actors(pool)


# ── asked in the calling thread ─────────────────────────────────────────────────────────────────────────────────────


def test_a_thread_that_was_to_end_stays_for_one_that_waits_again() -> None:
    """The pool's only thread waited twice; the one that stood in for it ended in between, and no turn came any more."""
    pool = ThreadPool(1)
    first, other, busy = scribe(pool), scribe(pool), scribe(pool)
    occupied, over, answered, again = (threading.Event() for _ in range(4))

    def ask_twice() -> list[object]:
        answers = [other.actor_ref.ask(Do(lambda: "one"))]
        answered.set()
        assert again.wait(PATIENCE_S)
        return [*answers, other.actor_ref.ask(Do(lambda: "two"))]

    def occupy() -> None:
        occupied.set()
        assert over.wait(PATIENCE_S)

    try:
        with other.turns.lock:  # as if a thread of the user's had its turn
            asked = first.actor_ref.ask(Do(ask_twice), block=False)
            wait_until(lambda: pool._waiting_threads == 1, "it waits")
            busy.actor_ref.tell(Do(occupy))
            assert occupied.wait(PATIENCE_S), "another thread stands in"
        assert other.turns.run()
        assert answered.wait(PATIENCE_S)
        with other.turns.lock:
            again.set()
            wait_until(lambda: pool._waiting_threads == 1, "it waits again")
            over.set()  # the thread that stood in finds that it may end
        other.turns.submit()
        assert asked.get(timeout=PATIENCE_S) == ["one", "two"]
    finally:
        over.set(), again.set()
        other.turns.run()  # or the pool would wait for its thread
        pool.stop()


class Quick(Scribe):
    """Everything that it does is quick."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.turns.shortcuts = self

    def has_work(self) -> bool:
        return not self.actor_inbox.empty()

    def begin_turn(self, asked: Asked | None) -> bool:
        return False

    def quick_turn(self, asked: Asked | None = None) -> bool:
        return self.turns.attempt(TURN_ENTRIES, asked, True)


def test_what_is_asked_is_done_by_who_waits_behind_what_came_before(pool: HandPool) -> None:
    actor = scribe(pool)
    actor.actor_ref.tell(Say("before"))
    asked = Asked(actor, lambda: list(actor.heard))
    assert not actor.heard, "nothing is asked before somebody waits"
    assert asked.get() == ["before"]
    assert actor.turn_ends == 1
    assert asked.get() == ["before"], "and once"


def test_what_is_asked_while_another_thread_is_at_the_actor_waits_in_the_inbox(pool: HandPool) -> None:
    actor = scribe(pool)
    answers: list[object] = []
    asked = Asked(actor, lambda: "done")
    with actor.turns.lock:  # as that thread has it
        asked.send()
        assert not asked.done
    asked.on_done(lambda one: answers.append(one.get()))
    pool.run()
    assert answers == ["done"]


def test_what_is_asked_behind_too_much_waits_in_the_inbox(pool: HandPool) -> None:
    actor = scribe(pool)
    for word in range(TURN_ENTRIES + 1):
        actor.actor_ref.tell(Say(word))
    assert Asked(actor, lambda: len(actor.heard)).get() == TURN_ENTRIES + 1


def test_an_answer_that_comes_later_is_asked_for_once(pool: HandPool) -> None:
    actor, later, asks = scribe(pool), Future(), []

    def work() -> Future:
        asks.append(1)
        return later

    asked = Asked(actor, work)
    with pytest.raises(pykka.Timeout):
        asked.get()
    pool.run()
    later.set("at last")
    assert (asked.get(), asks) == ("at last", [1])


def test_what_is_refused_is_refused_to_who_asked_and_the_actor_goes_on(pool: HandPool) -> None:
    actor = scribe(pool)
    with pytest.raises(RefusalError):
        Asked(actor, raising(RefusalError("no")).work).get()
    assert Asked(actor, lambda: "yes").get() == "yes"
    with pytest.raises(ZeroDivisionError):
        Asked(actor, raising(ZeroDivisionError()).work).get()
    with pytest.raises(ActorStoppedError):
        Asked(actor, lambda: "too late").get()


def test_an_event_loop_asks_at_once_where_that_is_quick_and_else_in_the_inbox(pool: HandPool) -> None:
    slow, quick = scribe(pool), actor_behind(Quick.start(pool))
    asked = [Asked(one, lambda: "done") for one in (slow, quick)]
    for one in asked:
        one.send()
    assert [one.done for one in asked] == [False, True]
    pool.run()
    assert [one.get() for one in asked] == ["done", "done"]


def test_an_actor_does_not_wait_for_what_it_asks_itself(pool: HandPool) -> None:
    actor = scribe(pool)
    with pytest.raises(RuntimeError, match="waits for its own answer"):
        Asked(actor, lambda: Asked(actor, lambda: None).get()).get()


def test_a_thread_that_holds_back_turns_runs_the_quick_ones_itself() -> None:
    pool, seen = ThreadPool(1), dict[object, int]()
    with pool.holding() as held:
        slow, quick = scribe(pool), actor_behind(Quick.start(pool))
        futures = [
            one.actor_ref.ask(Do(lambda one=one: seen.setdefault(one, threading.get_ident())), block=False)
            for one in (slow, quick)
        ]
        held.run_quick_ones()
        assert seen == {quick: threading.get_ident()}
    done = threading.Event()
    assert isinstance(futures[0], Future)
    futures[0].on_done(lambda _: done.set())  # a thread that waits for the future itself would help
    assert done.wait(10)
    assert seen[slow] != threading.get_ident()
    forget_actors(pool)


def test_a_thread_that_holds_back_turns_runs_those_that_it_names(pool: HandPool) -> None:
    first, second, third = scribe(pool), scribe(pool), scribe(pool)
    pool.run()
    with pool.holding() as held:
        first.actor_ref.tell(Do(lambda: second.actor_ref.tell(Say("from the first"))))
        third.actor_ref.tell(Say("for later"))
        held.run(first.turns, second.turns)
        assert (second.heard, third.heard) == ([], [])
        held.run(first.turns, second.turns)
        assert (second.heard, third.heard) == (["from the first"], [])
    assert third.heard == []
    pool.run()
    assert third.heard == ["for later"]
