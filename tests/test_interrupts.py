"""What signals raise in the main thread: between turns, with any handler, and with nothing left half-done."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest

from tests.support.runtime_tools import Do, Say, Scribe, actor_behind, forget_actors, hand_node, next_of
from tests.support.striking import struck_at
from warren import TopicRecord
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.inbox import Inbox, PendingBatch
from warren.actors.runtime.interrupts import uninterrupted
from warren.actors.runtime.pool import HandPool
from warren.storage.memory import MemoryFileSystem, MemoryLock
from warren.verbs.steps import run


class TimeLimitError(Exception):
    """As a task queue's soft time limit: an ordinary exception that a signal's handler raises."""


def raise_time_limit(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeLimitError


@pytest.fixture
def pool() -> Iterator[HandPool]:
    hand = HandPool()
    yield hand
    forget_actors(hand)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Ctrl-C raises as ever, SIGUSR1 is a time limit; afterwards they are what they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, raise_time_limit)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def scribe(pool: HandPool) -> Scribe:
    actor = actor_behind(Scribe.start(pool))
    pool.run()
    return actor


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, TimeLimitError)], ids=["ctrl-c", "limit"]
)
@pytest.mark.usefixtures("handlers")
def test_an_interrupt_in_a_turn_strikes_when_the_turn_is_over(
    pool: HandPool, number: signal.Signals, error: type[BaseException]
) -> None:
    """The work goes on to its end, its answer is there, the actor lives; then the waiting thread is struck."""
    actor, done = scribe(pool), []

    def work() -> str:
        signal.raise_signal(number)
        done.append("all of it")
        return "answer"

    answer = actor.actor_ref.ask(Do(work), block=False)
    actor.actor_ref.tell(Say("behind it"))
    with pytest.raises(error):
        answer.get()
    assert done == ["all of it"]
    assert answer.get() == "answer"
    assert actor.heard == ["behind it"]
    assert actor.failed_with is None
    assert not actor.actor_stopped.is_set()
    assert signal.getsignal(signal.SIGUSR1) is raise_time_limit
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("handlers")
def test_all_signals_of_a_turn_reach_their_handlers_in_the_order_in_which_they_came(pool: HandPool) -> None:
    heard: list[int] = []

    def hear_and_raise(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if number == signal.SIGUSR1:
            raise TimeLimitError

    signal.signal(signal.SIGUSR1, hear_and_raise)
    signal.signal(signal.SIGINT, hear_and_raise)

    def work() -> None:
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1):
            signal.raise_signal(number)

    with pytest.raises(TimeLimitError):
        scribe(pool).actor_ref.ask(Do(work))
    assert heard == [signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1]
    assert signal.getsignal(signal.SIGINT) is hear_and_raise


@pytest.mark.usefixtures("handlers")
def test_a_turn_within_a_turn_ends_before_the_interrupt_too(pool: HandPool) -> None:
    """As the node's, which asks a queue, which asks a store, all in one user's thread."""
    outer, inner = scribe(pool), scribe(pool)
    seen: list[str] = []

    def work() -> None:
        inner.actor_ref.ask(Do(lambda: signal.raise_signal(signal.SIGINT)))
        seen.append("the outer turn went on")

    with pytest.raises(KeyboardInterrupt):
        outer.actor_ref.ask(Do(work))
    assert seen
    assert not outer.actor_stopped.is_set()
    assert not inner.actor_stopped.is_set()


@pytest.mark.usefixtures("handlers")
def test_under_asyncio_ctrl_c_cancels_the_main_task_as_ever(pool: HandPool) -> None:
    """It has a handler of its own while it runs, takes it away at the end, and finds it where it put it."""
    actor = scribe(pool)
    reached: list[str] = []

    async def main() -> None:
        actor.actor_ref.ask(Do(lambda: signal.raise_signal(signal.SIGINT)))
        reached.append("the turn")
        await asyncio.sleep(60)
        reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert reached == ["the turn"]
    assert not actor.actor_stopped.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("handlers")
def test_a_turn_in_another_thread_keeps_no_signal_from_the_main_one() -> None:
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        over.wait()

    worker = threading.Thread(target=lambda: uninterrupted(hold))
    worker.start()
    inside.wait()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    over.set()
    worker.join()


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_while_a_queue_is_declared_leaves_the_node_and_the_queue() -> None:
    scene = hand_node()

    def declare(actor: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        actor.declare_vhost("more")

    with pytest.raises(KeyboardInterrupt):
        run(scene.node._running.change(declare))
    queue = scene.node.vhost("more").queue("q")
    queue.publish(b"1").wait()
    assert next_of(queue).body == b"1"
    assert scene.node.vhosts() == ["/", "more"]
    scene.node.close()


@pytest.mark.parametrize("module", ["warren/verbs/topics/topic_lookup.py", "topics/reading.py"])
def test_ctrl_c_while_messages_are_read_keeps_none_from_the_next_read(module: str) -> None:
    scene = hand_node(mapped_file_size_commit_log=1 << 15, max_hash_slot_num=16, max_index_num=60)
    topic = scene.node.topic("t", queues=2)
    topic.append_many([b"0", b"1", b"2"], queue=0)
    topic.append_many([b"3", b"4", b"5"], queue=1).wait()
    for line in range(1, 1000):
        reader = topic.reader(f"g{line}")
        found: list[TopicRecord] = []
        struck = struck_at(line, module, lambda: found.extend(reader.read(5)))  # noqa: B023
        found += reader.read()
        found += reader.read()
        reader.close()
        assert sorted(one.body for one in found) == [b"0", b"1", b"2", b"3", b"4", b"5"], line
        assert topic.lag(f"g{line}") == {0: 0, 1: 0}
        if not struck:
            break
    assert line > 15
    scene.node.close()


def _publish(inbox: Inbox) -> None:
    inbox.gather("key", b"struck", _Batch, 1)


def _ask(inbox: Inbox) -> None:
    inbox.owner.actor.actor_ref.tell(Say(b"struck"))  # type: ignore[union-attr]


class _Batch(PendingBatch):
    def __init__(self, key: object) -> None:
        super().__init__(key)
        self.confirm = Confirm()


@pytest.mark.parametrize("put", [_publish, _ask])
def test_an_interrupt_while_something_is_handed_over_keeps_nothing_from_its_turn(
    pool: HandPool, put: Callable[[Inbox], None]
) -> None:
    """Wherever it strikes, what was there before and what comes later is handled, without outside help."""
    line = 0
    was_struck = True
    while was_struck:
        line += 1
        actor = scribe(pool)
        was_struck = struck_at(line, "actors/runtime/inbox.py", lambda actor=actor: put(actor.actor_inbox))  # type: ignore[misc]
        actor.actor_inbox.gather("key", b"next", _Batch, 1)
        pool.run()
        heard = [item for entry in actor.heard for item in (entry if isinstance(entry, list) else [entry])]
        assert heard in ([b"struck", b"next"], [b"next"]), line
        assert actor.actor_inbox.empty()
        assert not actor.actor_stopped.is_set()
    assert line > 8


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_while_a_node_is_opened_gives_its_directory_free() -> None:
    class StruckDisk(MemoryFileSystem):
        def lock(self, path: str, owner: str) -> MemoryLock:
            taken = super().lock(path, owner)
            if not self.plan.failures:
                signal.raise_signal(signal.SIGINT)
            return taken

    files = StruckDisk(random.Random(1))
    with pytest.raises(KeyboardInterrupt):
        hand_node(files)
    files.fail("pread", "never")  # from here on no signal comes
    scene = hand_node(files)
    scene.node.queue("q").publish(b"1").wait()
    scene.node.close()
