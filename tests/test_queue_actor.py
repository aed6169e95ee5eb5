"""One queue in its actor: when confirms come, which publishers wait, what dies and where it goes, what rests."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

import warren
from tests.support.runtime_tools import DATA, HandNode, actor_of, bodies, hand_node, ran_quickly
from warren.actors.queue.intake import QueueGoneError, SettleKey
from warren.actors.queue.queue_output import IDLE_BYTES
from warren.actors.runtime.inbox import ControlCall
from warren.queue_index.queue.acking import tag_ranges
from warren.storage.errors import WarrenError
from warren.testing import Machine

LIMIT = Machine().total_memory_bytes * 2 // 5
BIG = b"B" * 5000
"""Goes to the shared store."""


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def scene() -> Iterator[HandNode]:
    one = hand_node()
    yield one
    one.node.close()


def syncs(scene: HandNode) -> int:
    return sum(kind == "sync" for kind, _ in scene.files.plan.log)


# ── confirms ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("body", [b"small", BIG])
def test_a_group_confirm_comes_25_ms_after_the_publish(scene: HandNode, body: bytes) -> None:
    queue = scene.node.queue("q")
    confirm = queue.publish(body)
    scene.advance(0.024)
    assert not confirm.done
    scene.advance(0.026)
    assert confirm.done
    confirm.wait()


def test_confirms_that_come_within_25_ms_share_a_sync(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"first").wait()
    before = syncs(scene)
    confirms = []
    for _ in range(5):
        confirms.append(queue.publish(b"x"))
        scene.advance(0.004)
    assert not any(confirm.done for confirm in confirms)
    scene.advance(0.005)
    assert all(confirm.done for confirm in confirms)
    assert syncs(scene) == before + 1


def test_who_waits_for_a_confirm_does_not_wait_for_the_clock(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    for body in (b"small", BIG):
        queue.publish(body).wait()
    assert scene.clock.now_ns() == 0
    before = syncs(scene)
    queue.publish(b"next")
    scene.advance(0.03)
    assert syncs(scene) == before + 1, "the next one is grouped again"


def test_always_is_safe_at_the_end_of_the_turn_and_os_soon_without_a_sync() -> None:
    for sync in ("always", "os"):
        scene = hand_node(sync=sync)
        queue = scene.node.queue("q")
        scene.run()
        before = syncs(scene)
        confirms = [queue.publish(b"small"), queue.publish(BIG)]
        scene.run()
        assert all(confirm.done for confirm in confirms) == (sync == "always")
        scene.advance(0.025)
        assert all(confirm.done for confirm in confirms)
        assert (syncs(scene) > before) == (sync == "always")
        again = hand_node(scene.kill(), seed=1)
        assert bodies(again.node.queue("q")) == [b"small", BIG]
        again.node.close()


def test_a_get_waits_for_no_sync_and_brings_none_about(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    before = syncs(scene)
    queue.publish(b"2")
    for delivery in (queue.get(), queue.get()):
        assert delivery is not None
        delivery.ack()
    assert syncs(scene) == before


def test_while_a_sync_is_due_nobody_is_woken_by_what_only_waits_for_it(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"1", b"2"])
    scene.run()  # the sync is due in 25 ms
    for delivery in queue.get_many(2):
        delivery.ack()
    confirm = queue.publish(b"3")
    assert not scene.pool.run_one()
    assert actor_of(queue).process.consumers.unacked == 2
    scene.advance(0.025)
    assert confirm.done
    assert (actor_of(queue).process.consumers.unacked, bodies(queue)) == (0, [b"3"])


def test_while_a_sync_is_due_a_small_batch_wakes_nobody(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"1", b"2"])
    scene.run()  # the sync is due in 25 ms
    confirm = queue.publish_many([b"3", b"4"])
    assert not scene.pool.run_one()
    queue.publish_many([b"5", b"6"], expiration=60.0)
    assert scene.pool.run_one()
    assert (len(actor_of(queue).process.backing), confirm.done) == (6, False)
    queue.publish_many([b"x"] * 400)  # the next publisher has to wait
    assert scene.pool.run_one()
    assert len(actor_of(queue).process.backing) == 406


@pytest.mark.parametrize("bodies", [[b"small"] * 400, [BIG] * 60], ids=["many", "many bytes"])
def test_a_large_batch_is_taken_in_by_who_brings_it_where_nothing_is_synced(bodies: list[bytes]) -> None:
    scene = hand_node(sync="os")
    queue = scene.node.queue("q")
    queue.publish(b"first").wait()
    scene.run()
    confirm = queue.publish_many(bodies)
    actor = actor_of(queue)
    assert actor.actor_inbox.empty()
    assert len(actor.process.backing) == 1 + len(bodies)
    assert [store.written_ticket - store.safe_ticket for store in actor._stores] == [0, 0]
    scene.advance(0.025)
    assert confirm.done


def test_a_large_batch_waits_for_a_turn_where_that_may_sync(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"first").wait()
    queue.publish_many([BIG] * 60)
    assert len(actor_of(queue).process.backing) == 1
    scene.run()
    assert len(actor_of(queue).process.backing) == 61


def test_what_comes_too_late_is_answered_though_a_sync_was_due(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"1")
    scene.run()  # the sync is due in 25 ms
    actor, key = actor_of(queue), queue._verbs.host.keys.plain
    queue.delete()
    confirm = actor.intake.publish(key, b"2")  # with a handle from before
    assert isinstance(confirm.error, QueueGoneError)
    actor.intake.settle(SettleKey("get-1", "ack"), 1)
    assert actor.actor_inbox.empty()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"x-message-ttl": 1000}, {}),
        ({"x-max-length": 9}, {}),
        ({"x-max-priority": 2}, {}),
        ({}, {"expiration": 1.0}),
    ],
)
def test_a_queue_or_message_with_times_limits_or_levels_is_looked_at_at_once(
    scene: HandNode, arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    queue = scene.node.queue("q", arguments=arguments)
    queue.publish(b"1")
    scene.run()
    queue.publish(b"2", **options)
    scene.run()
    assert len(actor_of(queue).process.backing) == 2


def test_a_consumer_that_does_not_wait_gets_what_comes_at_once(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    with queue.consume(1) as consumer:
        scene.run()
        first = consumer.take_now()
        assert first is not None
        queue.publish(b"2")
        first.ack()
        scene.run()
        second = consumer.take_now()
        assert second is not None
        assert second.body == b"2"


def test_a_quick_turn_delivers_and_leaves_the_sync_to_the_next(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    with queue.consume(10) as consumer:
        scene.run()
        before, actor = syncs(scene), actor_of(queue)
        with scene.pool.holding():
            confirm = queue.publish(b"2")
            confirm.hurry()
            assert ran_quickly(actor)
        assert [one.body for one in (consumer.take_now(), consumer.take_now()) if one is not None] == [b"1", b"2"]
        assert (confirm.done, syncs(scene)) == (False, before)
        scene.run()
        assert (confirm.done, syncs(scene)) == (True, before + 1)


def test_what_may_read_files_is_no_quick_turn(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    assert not ran_quickly(actor_of(queue)), "nothing is open yet"
    queue.publish_many([b"x"] * 10).wait()
    assert ran_quickly(actor_of(queue))
    queue.set_mode("lazy")
    assert not ran_quickly(actor_of(queue)), "its messages are on the disk"


def test_what_need_not_survive_is_confirmed_at_once(scene: HandNode) -> None:
    durable, other = scene.node.queue("durable"), scene.node.queue("other", durable=False)
    confirms = [durable.publish(BIG, persistent=False), other.publish(BIG), other.publish(b"x")]
    scene.run()
    assert all(confirm.done for confirm in confirms)


def test_a_queue_rests_no_sooner_than_its_last_confirm_is_given() -> None:
    scene = hand_node(hibernate_after_ms=1, sync_interval_ms=25)
    queue = scene.node.queue("q")
    for _ in range(3):
        confirm = queue.publish(b"x")
        scene.advance(0.01)
        queue.publish(b"y").wait()
        scene.advance(0.1)
        assert confirm.done
        late = queue.publish(b"z")
        scene.advance(0.1)
        assert late.done
    scene.node.close()


def test_a_sync_waits_for_all_that_was_published_before(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    confirms = [queue.publish(BIG), queue.publish(b"x")]
    queue.sync()
    assert all(confirm.done for confirm in confirms)


# ── credit ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_publisher_runs_the_queues_turn_when_too_much_waits(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    for number in range(3000):
        queue.publish(b"%d" % number)
        assert actor_of(queue).actor_inbox.weight <= 400
    assert bodies(queue) == [b"%d" % number for number in range(3000)]


def test_while_somebody_else_is_at_the_queue_a_publisher_is_held_and_then_let_in(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    actor = actor_of(queue)
    scene.run()
    assert actor.turns.lock.acquire(blocking=False)  # another thread is at it
    try:
        for _ in range(400):
            queue.publish(b"x", block=False)
        with pytest.raises(warren.errors.BlockedError, match="too many waiting"):
            queue.publish(b"x", block=False)
        with pytest.raises(warren.errors.BlockedError, match="0 seconds"):
            queue.publish(b"x", timeout=0)
        with pytest.raises(warren.errors.BlockedError):
            queue.publish_many([b"x"], block=False)
        room = actor.intake.backpressure_wait()
        assert not room.done
    finally:
        actor.turns.end()
    scene.run()
    assert room.done
    assert len(queue) == 400, "what was refused was not taken"
    queue.publish(b"x", block=False)


def test_a_store_that_is_behind_holds_publishers_until_it_has_caught_up() -> None:
    scene = hand_node(msg_store_credit_disc_bound=(4, 2))
    queue = scene.node.queue("q")
    actor = actor_of(queue)
    queue.publish_many([BIG] * 4)
    assert actor.turns.run()  # the queue's turn, and not yet the store's
    with pytest.raises(warren.errors.BlockedError):
        queue.publish_many([BIG], block=False)
    scene.run()
    queue.publish_many([BIG], block=False)
    for _ in range(20):
        queue.publish_many([BIG])
    assert len(queue) == 25
    scene.node.close()


def test_a_queue_that_is_deleted_lets_go_of_who_waits_for_room(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    actor = actor_of(queue)
    scene.run()
    assert actor.turns.lock.acquire(blocking=False)
    for _ in range(400):
        queue.publish(b"x")
    room = actor.intake.backpressure_wait()
    actor.turns.end()
    queue.delete()
    assert room.done
    with pytest.raises(WarrenError):
        queue.publish(b"x")


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────


def dlx(target: str, **more: Any) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **more}


def reject(queue: warren.Queue, count: int = 1) -> None:
    queue.nack(queue.get_many(count), requeue=False)


def test_a_dead_letter_leaves_only_when_it_is_safe_where_it_goes(scene: HandNode) -> None:
    queue, target = scene.node.queue("q", arguments=dlx("target")), scene.node.queue("target")
    queue.publish(BIG).wait()
    reject(queue)
    scene.run()
    assert bodies(target) == [BIG]
    assert actor_of(queue).process.backing.depth == 1, "not yet safe there, so still here"
    scene.advance(0.1)
    assert actor_of(queue).process.backing.depth == 0
    (letter,) = target.get_many(1)
    assert letter.headers["x-death"][0]["reason"] == "rejected"


def test_dead_letters_are_kept_while_their_target_is_down_and_come_back_with_the_next_start() -> None:
    scene = hand_node(restart_limit=(0, 10.0))
    queue, target = scene.node.queue("q", arguments=dlx("target")), scene.node.queue("target")
    queue.publish_many([b"1", BIG]).wait()
    scene.files.fail("append", f"{DATA}/*/queues/*")
    with pytest.raises(WarrenError):
        target.publish(b"x").wait()
    scene.run()
    assert list(scene.node.failed_queues) == ["target"]
    reject(queue, 2)
    scene.advance(1)
    assert len(queue) == 0
    assert actor_of(queue).process.backing.depth == 2
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    queue = again.node.queue("q", passive=True)
    assert bodies(queue) == [b"1", BIG]
    reject(queue, 2)
    again.advance(0.1)
    assert bodies(again.node.queue("target", passive=True)) == [b"1", BIG]
    assert actor_of(queue).process.backing.depth == 0
    again.node.close()


def test_a_kill_between_a_death_and_its_confirm_loses_nothing() -> None:
    scene = hand_node()
    queue = scene.node.queue("q", arguments=dlx("target"))
    scene.node.queue("target")
    queue.publish_many([b"1", BIG]).wait()
    reject(queue, 2)
    actor_of(queue).turns.run()
    again = hand_node(scene.kill(), seed=1)
    both = bodies(again.node.queue("q", passive=True)) + bodies(again.node.queue("target"))
    assert set(both) == {b"1", BIG}
    again.node.close()


def test_a_dead_letter_that_leads_nowhere_is_gone(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments=dlx("nobody"))
    queue.publish(b"1").wait()
    reject(queue)
    scene.run()
    assert actor_of(queue).process.backing.depth == 0


def test_a_target_that_is_full_and_refuses_loses_the_letter_as_the_broker_does(scene: HandNode) -> None:
    queue = scene.node.queue("q", arguments=dlx("target"))
    target = scene.node.queue("target", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    queue.publish(b"1").wait()
    reject(queue)
    scene.advance(0.1)
    assert actor_of(queue).process.backing.depth == len(target) == 0


def test_a_message_that_expires_goes_round_a_ring_of_two_queues_once(scene: HandNode) -> None:
    first = scene.node.queue("first", arguments=dlx("second", **{"x-message-ttl": 1000}))
    second = scene.node.queue("second", arguments=dlx("first", **{"x-message-ttl": 1000}))
    first.publish(b"1").wait()
    scene.advance(1.1)
    assert (len(first), len(second)) == (0, 1)
    scene.advance(10)
    assert (len(first), len(second)) == (0, 0)


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_expires_in_a_queue_at_rest_is_a_dead_letter_in_time(scene: HandNode) -> None:
    queue, target = scene.node.queue("q", arguments=dlx("target")), scene.node.queue("target")
    queue.publish(b"later", expiration=3600).wait()
    scene.machine.used_bytes = LIMIT
    scene.advance(10)
    assert actor_of(queue).process.backing.asleep
    scene.advance(3500)
    assert actor_of(queue).process.backing.asleep
    scene.advance(100)
    assert bodies(target) == [b"later"]


def test_what_expired_while_the_node_was_down_is_a_dead_letter_after_the_start() -> None:
    scene = hand_node()
    scene.node.queue("target")
    scene.node.queue("q", arguments=dlx("target")).publish(b"1", expiration=60).wait()
    scene.node.close()
    scene.clock.advance(100)
    again = hand_node(scene.files, clock=scene.clock, seed=1)
    again.advance(1)
    assert bodies(again.node.queue("target", passive=True)) == [b"1"]
    again.node.close()


def test_an_unused_queue_with_an_expiry_goes_and_one_that_is_used_stays(scene: HandNode) -> None:
    names = ["idle", "declared", "declared passively", "asked", "consumed"]
    queues = {name: scene.node.queue(name, arguments={"x-expires": 10_000}) for name in names}
    consumer = queues["consumed"].consume(timeout=0)
    scene.advance(9)
    scene.node.queue("declared", arguments={"x-expires": 10_000})
    scene.node.queue("declared passively", passive=True)
    assert queues["asked"].get() is None
    scene.advance(2)
    assert sorted(queue.name for queue in scene.node.queues()) == sorted(names[1:])
    scene.advance(30)
    assert [queue.name for queue in scene.node.queues()] == ["consumed"]
    consumer.close()
    scene.advance(9)
    assert [queue.name for queue in scene.node.queues()] == ["consumed"]
    scene.advance(2)
    assert scene.node.queues() == []


def test_an_expiry_begins_anew_with_a_start() -> None:
    scene = hand_node()
    scene.node.queue("q", arguments={"x-expires": 10_000}).publish(b"1").wait()
    scene.advance(9)
    scene.node.close()
    again = hand_node(scene.files, clock=scene.clock, seed=1)
    again.advance(9)
    assert len(again.node.queues()) == 1
    again.advance(2)
    assert again.node.queues() == []
    again.node.close()


def test_an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_the_first(scene: HandNode) -> None:
    queue = scene.node.queue("q", auto_delete=True)
    queue.publish(b"1").wait()
    scene.advance(100)
    first, second = queue.consume(timeout=0), queue.consume(timeout=0)
    first.close()
    scene.run()
    assert len(scene.node.queues()) == 1
    second.close()
    scene.run()
    assert scene.node.queues() == []
    with pytest.raises(WarrenError):
        queue.publish(b"2")


def test_an_auto_delete_queue_that_somebody_consumes_again_in_time_stays_and_goes_with_him(scene: HandNode) -> None:
    queue = scene.node.queue("q", auto_delete=True)
    scene.run()
    first = queue.consume(timeout=0)
    first.close()  # the queue has told the node, which has not heard it yet
    second = queue.consume(timeout=0)
    scene.run()
    assert len(scene.node.queues()) == 1
    second.close()
    scene.run()
    assert scene.node.queues() == []


# ── rest ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asleep(queue: warren.Queue) -> bool:
    return actor_of(queue).process.backing.asleep


def test_a_queue_rests_after_so_long_without_work_and_wakes_with_the_next(scene: HandNode) -> None:
    scene.machine.used_bytes = LIMIT * 9 // 10
    scene.advance(3)
    queue = scene.node.queue("q")
    queue.publish_many([b"1", BIG]).wait()
    scene.advance(0.9)
    queue.publish(b"2").wait()
    scene.advance(0.9)
    assert not asleep(queue)
    scene.advance(1)
    assert asleep(queue)
    assert queue.stats()["backing_queue_status"]["target_ram_count"] == "infinity"
    assert len(queue) == 3
    assert queue.stats()["messages_ready"] == 3
    assert asleep(queue), "looking wakes nobody"
    assert scene.node._running._context.allocated.by_owner[actor_of(queue).actor_urn] == IDLE_BYTES
    (delivery,) = queue.get_many(1)
    assert delivery.body == b"1"
    assert not asleep(queue)
    delivery.ack()
    scene.advance(5)
    assert asleep(queue)
    assert bodies(queue) == [BIG, b"2"]


def test_a_rest_leaves_messages_in_ram_while_nobody_wants_the_memory(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish_many([b"1", BIG, b"2"]).wait()
    before = queue.stats()
    scene.advance(60)
    after = queue.stats()
    assert (before["state"], after["state"]) == ("running", "hibernated")
    assert after["messages_ram"] == 3
    assert after["backing_queue_status"]["target_ram_count"] == "infinity"
    assert after["backing_queue_status"]["q4"] == 3
    assert scene.node._running._context.allocated.by_owner[actor_of(queue).actor_urn] > len(BIG)
    scene.files.plan.log.clear()
    assert [one.body for one in queue.get_many(3, auto_ack=True)] == [b"1", BIG, b"2"]
    assert [kind for kind, _ in scene.files.plan.log if kind in {"read", "pread"}] == []
    assert queue.stats()["disk_reads"] == 0


def test_what_a_resting_queue_has_in_ram_goes_when_memory_is_wanted_and_then_it_sleeps(scene: HandNode) -> None:
    queues = [scene.node.queue(f"q{number}", durable=number > 0) for number in range(3)]
    for queue in queues:
        queue.publish_many([b"1", BIG, b"2"]).wait()
    scene.advance(10)
    assert [queue.stats()["messages_ram"] for queue in queues] == [3, 3, 3]
    scene.machine.used_bytes = LIMIT // 2
    scene.advance(2.5)
    assert [asleep(queue) for queue in queues] == [False, True, True], "one is nowhere but here"
    assert not any(BIG in run.terms() for run in actor_of(queues[0]).process.backing.level(0).state.q4)
    assert scene.node.memory()["queues"] == 1
    assert [bodies(queue) for queue in queues] == [[b"1", BIG, b"2"]] * 3


def test_a_queue_that_is_asked_in_vain_again_and_again_rests_all_the_same(scene: HandNode) -> None:
    queue = scene.node.queue("polled")
    queue.publish(b"x").wait()
    queue.ack(queue.get_many(1))
    for _ in range(100):
        assert queue.get() is None
        scene.advance(0.05)
    assert queue.stats()["state"] == "hibernated"
    queue.publish(b"y")
    found = queue.get()
    assert found is not None
    assert found.body == b"y"


def test_dead_letters_for_a_queue_that_is_deleted_meanwhile_are_let_go(scene: HandNode) -> None:
    target = scene.node.queue("target")
    source = scene.node.queue(
        "source", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target", "x-message-ttl": 1000}
    )
    source.publish(b"x").wait()
    target._verbs.actor.call_soon(target._verbs.actor.delete)  # before the letter comes, in the same inbox
    scene.clock.advance(1.0)
    source._verbs.actor.actor_ref.ask(ControlCall(source._verbs.actor.queue_turn.deadline.due))
    scene.run()
    assert source.stats()["messages_dead_lettering"] == 0
    assert source.stats()["messages"] == 0


def test_a_node_at_rest_does_nothing_but_watch_the_memory(scene: HandNode) -> None:
    for number in range(20):
        scene.node.queue(f"q{number}").publish(b"1").wait()
    scene.advance(10)
    assert len(scene.node._running._context.timer) == 3, "memory, alarm, disk"
    before = scene.files.operations
    scene.advance(100)
    assert scene.files.operations == before


def test_a_queue_with_unacked_messages_stays_awake_and_accounts_for_what_it_has(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(BIG).wait()
    (delivery,) = queue.get_many(1)
    scene.advance(5)
    assert not asleep(queue)
    assert scene.node._running._context.allocated.by_owner[actor_of(queue).actor_urn] > len(BIG)
    delivery.ack()
    scene.advance(5)
    assert asleep(queue)


def test_a_consumer_wakes_a_resting_queue_and_is_served_at_once(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    scene.advance(5)
    with queue.consume(timeout=0) as consumer:
        scene.advance(5)
        queue.publish(b"1")
        delivery = consumer.receive(0)
        assert delivery is not None
        assert delivery.body == b"1"
        delivery.ack()


@pytest.mark.slow
def test_hundreds_of_resting_queues_take_10_kb_each_at_most() -> None:
    count = 400
    scene = hand_node(check_invariants=False)
    scene.machine.used_bytes = LIMIT * 9 // 10
    for number in range(3):
        scene.node.queue(f"warm-up {number}").publish(b"1")
    scene.advance(5)
    tracemalloc.start()
    try:
        for number in range(count):
            scene.node.queue(f"q{number}").publish(b"1")
        scene.advance(5)
        scene.files.plan.log.clear()
        gc.collect()
        # The disk is made up and takes memory that a real one would not; an import is made once.
        others = ("*storage/memory*.py", "<attrs generated methods warren.storage.memory*", "<frozen*", "*/numpy/*")
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, one) for one in others])
    finally:
        tracemalloc.stop()
    assert all(asleep(queue) for queue in scene.node.queues())
    assert sum(trace.size for trace in snapshot.traces) / count <= 10_000
    scene.kill()


# ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_tag_is_refused_and_the_queue_goes_on(scene: HandNode) -> None:
    queue = scene.node.queue("q")
    queue.publish(b"1").wait()
    (delivery,) = queue.get_many(1)
    with pytest.raises(warren.errors.PreconditionFailedError):
        queue.ack_up_to(77)
    delivery.channel.settle_many("ack", [99])
    scene.run()
    delivery.ack()
    scene.advance(0.025)
    assert actor_of(queue).process.backing.depth == 0


def test_tags_that_came_one_by_one_are_ranges() -> None:
    assert tag_ranges([1, 2, 3, 7, 9, 10]) == [range(1, 4), range(7, 8), range(9, 11)]
    assert tag_ranges([5]) == [range(5, 6)]
    assert tag_ranges([0, range(1, 4), range(4, 4), 4, range(9, 6, -1)]) == [
        range(5),
        *(range(n, n + 1) for n in (9, 8, 7)),
    ]
    assert tag_ranges([]) == []
    assert tag_ranges([1, 3, 2, 4]) == [range(1, 2), range(3, 4), range(2, 3), range(4, 5)]
    assert tag_ranges([1, range(5, 9), 3]) == [range(1, 2), range(5, 9), range(3, 4)]


def test_dead_letters_that_were_taken_in_leave_no_weight_behind(scene: HandNode) -> None:
    target = scene.node.queue("target")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target", "x-max-length": 1}
    source = scene.node.queue("source", arguments=dead)
    source.publish_many([b"m"] * 20)
    scene.advance(1)
    assert len(target) == 19
    assert actor_of(target).actor_inbox.weight == actor_of(source).actor_inbox.weight == 0


def test_who_sees_that_a_queue_has_stopped_sees_why() -> None:
    scene = hand_node(restart_limit=(0, 10.0))
    queue = scene.node.queue("q")
    actor, said = actor_of(queue), []

    class Stopped(threading.Event):
        def set(self) -> None:
            super().set()
            said.append(str(actor.stopped_error()))

    actor.actor_stopped = Stopped()
    scene.files.fail("append", f"{DATA}/*/queues/*")
    with pytest.raises(WarrenError):
        queue.publish(b"x").wait()
    scene.run()
    assert said
    assert all("is down" in one for one in said), said
    scene.node.close()
