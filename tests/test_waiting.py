"""How threads wait for each other, and share what they have in common: WakeEvent, WaitingRoom, Shared."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.forked import in_child
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.actors.runtime.shared import Shared
from warren.actors.runtime.waiting_room import WaitingRoom
from warren.actors.runtime.wake_event import WakeEvent

PATIENCE_S = 10


@pytest.fixture
def event() -> Iterator[WakeEvent]:
    event = WakeEvent()
    yield event
    event.close()


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# ── WakeEvent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_stays_set_until_it_is_cleared(event: WakeEvent) -> None:
    assert not event.wait(0)
    event.set()
    assert event.wait(0)
    assert event.wait(None)
    event.clear()
    assert not event.wait(0)


def test_setting_an_event_wakes_who_waits(event: WakeEvent) -> None:
    heard: list[bool] = []
    thread = started(lambda: heard.append(event.wait(PATIENCE_S)))
    event.set()
    thread.join(PATIENCE_S)
    assert heard == [True]


@pytest.mark.parametrize("set_before", [True, False])
def test_an_events_file_is_readable_while_it_is_set(event: WakeEvent, set_before: bool) -> None:
    def readable() -> bool:
        poll = select.poll()  # which knows descriptors of any size
        poll.register(event, select.POLLIN)
        return bool(poll.poll(0))

    if set_before:
        event.set()
        assert readable()
    event.clear()
    assert not readable()
    for _ in range(100_000):  # far more than fit into its buffer
        event.set()
    assert readable()
    event.clear()
    assert not readable()


def test_a_closed_event_can_still_be_set(event: WakeEvent) -> None:
    event.fileno()
    event.set()
    event.close()
    event.clear()
    event.set()
    assert event.wait(0)


# ── WaitingRoom ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_is_asked_again_when_something_changes() -> None:
    room = WaitingRoom()
    facts: list[str] = []
    answers: list[str | None] = []
    asked = threading.Event()

    def question() -> str | None:
        asked.set()
        return facts[-1] if facts else None

    thread = started(lambda: answers.append(room.wait_for(question, PATIENCE_S)))
    assert asked.wait(PATIENCE_S)
    facts.append("so")
    room.changed()
    thread.join(PATIENCE_S)
    assert answers == ["so"]


def test_a_question_is_asked_once_where_there_is_no_time() -> None:
    asked: list[int] = []
    assert WaitingRoom().wait_for(lambda: asked.append(1), 0) is None
    assert asked == [1]


@pytest.mark.slow
def test_a_change_that_nobody_told_is_noticed() -> None:
    answers = iter([None, "so"])
    assert WaitingRoom().wait_for(lambda: next(answers)) == "so"


# ── Shared ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Thing:
    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        assert self.open
        self.open = False


@pytest.fixture
def shared() -> Shared[str, Thing]:
    return Shared(Thing.close, lambda thing: thing.open)


def test_the_first_makes_it_and_the_last_closes_it(shared: Shared[str, Thing]) -> None:
    first = shared.acquire("a", Thing)
    assert shared.acquire("a", Thing) is first
    assert shared.acquire("b", Thing) is not first
    shared.release("a", first)
    assert first.open
    assert shared.users("a") == 1
    shared.release("a", first)
    assert not first.open
    assert shared.acquire("a", Thing) is not first


def test_what_somebody_closed_is_made_anew_and_not_mixed_up(shared: Shared[str, Thing]) -> None:
    lost = shared.acquire("a", Thing)
    lost.close()
    new = shared.acquire("a", Thing)
    assert new is not lost
    shared.release("a", lost)
    assert new.open
    shared.release("a", new)
    assert not new.open


def test_what_could_not_be_made_leaves_nothing(shared: Shared[str, Thing]) -> None:
    def fail() -> Thing:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shared.acquire("a", fail)
    assert shared.acquire("a", Thing).open


def test_at_the_end_everything_is_closed_and_nothing_made(shared: Shared[str, Thing]) -> None:
    things = [shared.acquire(name, Thing) for name in "ab"]
    shared.close_all()
    assert not any(thing.open for thing in things)
    with pytest.raises(ActorStoppedError):
        shared.acquire("a", Thing)
    shared.release("a", things[0])


def test_a_forked_child_begins_with_nothing(shared: Shared[str, Thing]) -> None:
    thing = shared.acquire("a", Thing)
    assert in_child(lambda: (shared.users("a"), shared.acquire("a", Thing) is thing)) == "(0, False)"
    assert shared.users("a") == 1


# ── a consumer's prefetch ────────────────────────────────────────────────────────────────────────────────────────────


def counts(queue: Any) -> tuple[int, int]:
    queue.stats()  # messages are handed out at the end of a turn, which may be that of this question
    stats = queue.stats()
    return stats["messages_ready"], stats["messages_unacknowledged"]


def test_a_prefetch_can_be_raised_and_lowered(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        queue = node.queue("jobs")
        queue.publish_many([b"x"] * 10).wait()
        with queue.consume(prefetch=2) as consumer:
            assert counts(queue) == (8, 2)
            consumer.set_prefetch(5)
            assert counts(queue) == (5, 5)
            consumer.set_prefetch(1)
            deliveries = [delivery for _ in range(5) if (delivery := consumer.receive(PATIENCE_S)) is not None]
            queue.ack(deliveries[:4])
            assert counts(queue) == (5, 1)
            queue.ack(deliveries[4:])
            assert counts(queue) == (4, 1)
            consumer.set_prefetch(5)
            assert counts(queue) == (0, 5)


def test_a_single_active_consumer_keeps_its_place_whatever_its_prefetch(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        queue = node.queue("jobs", arguments={"x-single-active-consumer": True})
        with queue.consume(prefetch=3, tag="first") as first, queue.consume(prefetch=3, tag="second"):
            queue.publish_many([b"x"] * 3).wait()
            first.set_prefetch(1)
            queue.publish_many([b"x"] * 3).wait()
            assert queue.stats()["single_active_consumer_tag"] == "first"
            assert counts(queue) == (3, 3)
            first.set_prefetch(6)
            assert counts(queue) == (0, 6)
