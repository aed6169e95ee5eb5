"""What the machine of :mod:`test_runtime_machine` and others found once: a whole node, each situation by its name."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from pykka import ActorRef

from tests.support.runtime_tools import HandNode, actor_of, hand_node, next_of, queue_path
from warren import Queue
from warren.actors import messages as m
from warren.actors.queue import queue_actor
from warren.actors.runtime import timer
from warren.actors.runtime.future import Confirm
from warren.errors import InvalidValueError, PublishRefusedError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.verbs.steps import call

SMALL_SEGMENTS: dict[str, Any] = {"segment_entry_count": 16, "queue_index_max_journal_entries": 64}


def bodies(queue: Queue) -> list[bytes]:
    return [one.body for one in queue.browse()]


def opened(files: MemoryFileSystem, seed: int = 1) -> HandNode:
    """The next process: its ids are others."""
    hand = hand_node(files, seed=seed)
    hand.run()
    return hand


def test_an_ack_is_safe_after_a_sync_though_no_publish_waits_for_one() -> None:
    hand = hand_node()
    queue = hand.node.queue("q")
    queue.publish_many([b"1", b"2", b"3"]).wait()
    queue.ack(queue.get_many(2))
    queue.sync()
    after = opened(hand.lose_power(random.Random(0)))
    assert bodies(after.node.queue("q")) == [b"3"]


def test_a_sync_does_not_fail_because_a_publish_before_it_was_refused() -> None:
    hand = hand_node()
    queue = hand.node.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    confirms: list[Confirm] = [queue.publish(b"1"), queue.publish(b"2")]
    queue.sync()
    assert confirms[0].error is None
    assert isinstance(confirms[1].error, PublishRefusedError)


def test_a_queue_turns_lazy_though_more_must_go_to_the_store_than_its_credit_allows() -> None:
    hand = hand_node(msg_store_credit_disc_bound=(6, 2), queue_index_embed_msgs_below=100)
    queue = hand.node.queue("q", durable=False)
    sent = [b"%d" % number + b"." * 300 for number in range(50)]
    queue.publish_many(sent)
    queue.set_mode("lazy")
    hand.run()
    assert bodies(queue) == sent
    assert queue.stats()["backing_queue_status"]["mode"] == "lazy"


def counting_queue() -> tuple[HandNode, Queue]:
    """A queue of 5000 messages, less one that was taken, whose segments are still being counted after a kill."""
    hand = hand_node(**SMALL_SEGMENTS)
    queue = hand.node.queue("q")
    queue.publish_many([b"%d" % number for number in range(5000)]).wait()
    hand.run()
    hand = hand_node(hand.kill(), seed=1, **SMALL_SEGMENTS)
    queue = hand.node.queue("q")
    assert next_of(queue, auto_ack=True).body == b"0"
    assert queue.stats()["recovering"]
    assert queue.stats()["messages_ready"] < 4999
    return hand, queue


def test_len_after_a_kill_is_of_all_messages_though_some_are_still_to_be_counted() -> None:
    _, queue = counting_queue()
    assert len(queue) == 4999
    assert not queue.stats()["recovering"]
    assert queue.stats()["messages_ready"] == 4999


@pytest.mark.parametrize("end", ["delete", "close"])
def test_who_waits_for_a_length_has_an_answer_though_the_queue_ends(end: str) -> None:
    hand, queue = counting_queue()
    actor = hand.node._running.vhost("/").queues["q"].actor
    length = call(actor, actor.length)
    if end == "delete":
        assert queue.delete() == 4999
    hand.node.close()
    assert length.get() == (0 if end == "delete" else 4999)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_a_queue_that_is_not_durable_left_never_becomes_a_durable_one(seed: int) -> None:
    """A kill within the opening that clears such queues' files away, at each of its operations."""
    hand = hand_node()
    for name in ("b", "c"):
        queue = hand.node.queue(name, durable=False, arguments={"x-queue-mode": "lazy"})
        queue.publish(b"fleeting", persistent=seed > 0)
    hand.run()
    left, operation, cut_off = hand.kill(), 0, True
    while cut_off:
        operation += 1
        files = left.after_process_crash()
        files.crash_at(files.operations + operation)
        try:
            opened(files)
            cut_off = False
        except SimulatedCrash:
            pass
        after = opened(files.after_process_crash(), seed=2)
        assert after.node.queues() == []
        assert len(after.node.queue("c", durable=False)) == 0
    assert operation > 10


def test_the_dead_letters_of_a_queue_that_rests_leave_when_they_are_due() -> None:
    hand = hand_node()
    hand.node.queue("waits", arguments={
        "x-message-ttl": 5000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
    })  # fmt: skip
    dead = hand.node.queue("dead")
    hand.node.queue("waits", passive=True).publish(b"1").wait()
    hand.advance(20)
    assert bodies(dead) == [b"1"]


def test_what_is_due_behind_the_head_of_a_full_queue_expires_though_a_batch_would_push_it_out() -> None:
    hand = hand_node()
    full = hand.node.queue("full", arguments={
        "x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
    })  # fmt: skip
    dead = hand.node.queue("dead")
    full.publish_many([b"0", b"1"])
    full.publish_many([b"2", b"3"], expiration=0.0)
    hand.advance(0.001)
    full.publish_many([b"%d" % number for number in range(4, 10)])
    hand.advance(1)
    reasons = [(one.body, one.headers["x-death"][0]["reason"]) for one in dead.browse()]
    assert reasons == [(b"0", "maxlen"), (b"1", "maxlen"), (b"2", "expired"), (b"3", "expired"),
                       (b"4", "maxlen"), (b"5", "maxlen")]  # fmt: skip
    assert bodies(full) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("count", [-3, 2.5, "3", None])
def test_a_get_of_no_number_of_messages_is_refused_and_the_queue_serves(count: object) -> None:
    hand = hand_node()
    queue = hand.node.queue("q")
    queue.publish_many([b"1", b"2"])
    with pytest.raises(InvalidValueError, match="count must be a whole number from 0, not"):
        queue.get_many(count)  # type: ignore[arg-type]
    assert [one.body for one in queue.get_many(0)] == []
    assert [one.body for one in queue.get_many(2)] == [b"1", b"2"]


def test_a_queue_that_failed_just_now_is_deleted_with_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files stayed, and the next process opened them as a queue, although it was not declared."""
    scene = hand_node()
    queue = scene.node.queue("q", arguments={"x-max-length": 3})
    queue.publish(b"1").wait()
    actor = actor_of(queue)
    untold: list[object] = []

    def told(receiver: ActorRef[Any], message: object) -> None:
        (untold.append if isinstance(message, m.QueueFailed) else functools.partial(timer.tell, receiver))(message)

    monkeypatch.setattr(queue_actor, "tell", told)
    actor.actor_ref.tell(object())  # a bug, so its end; the node does not know yet
    scene.run()
    assert actor.actor_stopped.is_set()
    assert len(untold) == 1
    assert scene.node.delete_queue("q") == 1
    assert not [path for path in scene.files.contents() if path.startswith(queue_path("q"))]
    disk = scene.files.after_process_crash()
    scene.forget()
    again = hand_node(disk)
    assert again.node.queue("q", arguments={"x-max-length": 4}).arguments == {"x-max-length": 4}
    again.node.close()
