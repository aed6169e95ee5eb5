"""Messages that go out before their queue has taken them in: nothing is done for those that are acked meanwhile."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

import warren
from tests.support.runtime_tools import BIG, HandNode, actor_of, bodies, hand_node, ran_quickly
from tests.support.striking import struck_at
from warren import Consumer, Delivery, Queue
from warren.actors.messages import SetDurationTarget
from warren.actors.queue.early_deliveries import MOST_EARLY
from warren.actors.queue.intake import SettleKey
from warren.actors.runtime.future import Confirm
from warren.errors import DirectoryLostError, DiskFullError, StorageError, UnknownTagError


def about_to_sync(name: str = "q", **declared: object) -> tuple[HandNode, Queue]:
    """A node, and an empty queue of it that has a turn within the sync interval by itself."""
    scene = hand_node()
    queue = scene.node.queue(name, **declared)  # type: ignore[arg-type]
    queue.publish(b"first")
    queue.get(auto_ack=True)
    scene.run()
    return scene, queue


def waits(consumer: Consumer) -> list[bool]:
    """Wait for the consumer's next message as a thread would; the list gets an entry when it is woken."""
    told: list[bool] = []
    consumer._verbs.deliveries.on_ready(lambda _: told.append(True))
    return told


def taken_now(consumer: Consumer) -> list[Delivery]:
    taken = []
    while (delivery := consumer.take_now()) is not None:
        taken.append(delivery)
    return taken


def test_a_message_comes_and_goes_without_a_turn() -> None:
    scene, queue = about_to_sync()
    turns, operations = actor_of(queue).turn_count, scene.files.operations
    for number in range(3):
        queue.publish(b"%d" % number)
        delivery = queue.get()
        assert delivery is not None
        assert (delivery.body, delivery.delivery_tag, delivery.redelivered) == (b"%d" % number, number + 2, False)
        assert delivery.routing_key == "q"
        delivery.ack()
    assert queue.get_many(1) == []
    assert actor_of(queue).turn_count - turns <= 1, "that of the get that found nothing"
    scene.advance(0.05)
    assert scene.files.operations - operations <= 2, "of the first message"
    assert (len(queue), queue.stats()["messages_unacknowledged"]) == (0, 0)
    scene.node.close()


def test_nothing_is_written_for_what_was_acked_meanwhile() -> None:
    scene, queue = about_to_sync()
    scene.advance(0.05)
    scene.advance(0.05)
    queue.publish(b"before")
    scene.run()
    assert queue.get_many(1)[0].body == b"before"
    written = scene.files.operations
    queue.publish(BIG)
    [big] = queue.get_many(1)
    big.ack()
    scene.run()
    assert scene.files.operations == written
    scene.node.close()


def test_messages_that_nobody_has_acked_are_taken_in_as_delivered() -> None:
    scene, queue = about_to_sync()
    held: list[Delivery] = []
    for number in range(5):
        queue.publish(b"%d" % number)
        held += queue.get_many(1)
    held[1].ack()
    held[2].ack()
    queue.publish(b"5")
    scene.run()
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (1, 3)
    held[0].nack()
    held[4].nack()
    scene.run()
    assert [(one.body, one.redelivered) for one in queue.get_many(9)] == [(b"0", True), (b"4", True), (b"5", False)]
    held[3].ack()
    scene.advance(0.05)
    assert actor_of(queue).process.consumers.unacked == 3
    scene.node.close()


def test_what_is_returned_comes_before_what_waits() -> None:
    scene, queue = about_to_sync()
    queue.publish(b"1")
    [one] = queue.get_many(1)
    queue.publish(b"2")
    one.nack()
    assert [(one.body, one.redelivered) for one in queue.get_many(1)] == [(b"1", True)]
    assert [(one.body, one.redelivered) for one in queue.get_many(1)] == [(b"2", False)]
    scene.node.close()


@pytest.mark.parametrize("power", [False, True])
def test_after_a_crash_what_was_taken_in_comes_again_and_what_was_acked_does_not(power: bool) -> None:
    scene, queue = about_to_sync()
    confirms: list[Confirm] = []
    held: list[Delivery] = []
    for number in range(4):
        confirms.append(queue.publish(b"%d" % number))
        held += queue.get_many(1)
    held[1].ack()
    scene.advance(0.05)
    assert all(confirm.done for confirm in confirms)
    queue.publish(b"lost")
    queue.get_many(1)  # no turn has taken it in: it was never confirmed
    files = scene.lose_power(random.Random(1)) if power else scene.kill()
    scene = hand_node(files)
    found = scene.node.queue("q").get_many(9)
    assert [(one.body, one.redelivered) for one in found] == [(b"0", True), (b"2", True), (b"3", True)]
    scene.node.close()


def test_who_waits_for_a_confirm_of_a_message_that_is_gone_is_answered_at_once() -> None:
    scene, queue = about_to_sync()
    confirm = queue.publish(b"1")
    queue.get_many(1)[0].ack()
    confirm.wait()
    kept = queue.publish(b"2")
    [two] = queue.get_many(1)
    kept.wait()
    two.ack()
    scene.run()
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (0, 0)
    scene.node.close()


def test_a_stop_keeps_what_was_fetched_and_not_acked() -> None:
    scene, queue = about_to_sync()
    for number in range(3):
        queue.publish(b"%d" % number)
        queue.get_many(1)
    scene.node.close()
    scene = hand_node(scene.files)
    found = scene.node.queue("q").get_many(9)
    assert [(one.body, one.redelivered) for one in found] == [(b"0", True), (b"1", True), (b"2", True)]
    scene.node.close()


def test_two_handles_have_tags_of_their_own() -> None:
    scene, queue = about_to_sync()
    other = scene.node.queue("q")
    queue.publish(b"1")
    [mine] = queue.get_many(1)
    queue.publish(b"2")
    [theirs] = other.get_many(1)
    queue.publish(b"3")
    [again] = queue.get_many(1)
    assert [mine.delivery_tag, theirs.delivery_tag, again.delivery_tag] == [2, 1, 3]
    queue.ack_up_to(2)
    assert other.release() == 1
    assert [(one.body, one.redelivered) for one in other.get_many(9)] == [(b"2", True)]
    assert queue.release() == 1
    assert bodies(queue) == [b"3", b"2"] or bodies(queue) == [b"2", b"3"]
    scene.node.close()


def test_an_ack_up_to_a_tag_that_was_never_given_is_refused() -> None:
    scene, queue = about_to_sync()
    queue.publish(b"1")
    [one] = queue.get_many(1)
    one.ack()
    queue.ack_up_to(one.delivery_tag)
    with pytest.raises(UnknownTagError):
        queue.ack_up_to(one.delivery_tag + 1)
    scene.node.close()


def test_who_asks_without_acks_gets_it_early_too() -> None:
    scene, queue = about_to_sync()
    turns = actor_of(queue).turn_count
    for number in range(3):
        queue.publish(b"%d" % number)
        delivery = queue.get(auto_ack=True)
        assert delivery is not None
        assert (delivery.body, delivery.delivery_tag) == (b"%d" % number, 0)
    assert actor_of(queue).turn_count == turns
    scene.node.close()


def test_others_see_it_as_delivered() -> None:
    scene, queue = about_to_sync()
    queue.publish(b"1")
    queue.get_many(1)
    queue.publish(b"2")
    assert bodies(queue) == [b"1", b"2"], "what is unacked is shown too"
    assert [(one.body, one.unacked) for one in queue.browse()] == [(b"1", True), (b"2", False)]
    stats = queue.stats()
    assert (stats["messages_ready"], stats["messages_unacknowledged"]) == (1, 1)
    assert queue.purge() == 1
    scene.node.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 0},
        {"x-max-length": 0},
        {"x-max-length": 1, "x-overflow": "reject-publish"},
        {"x-max-priority": 3},
        {"x-queue-mode": "lazy"},
    ],
    ids=" ".join,
)
def test_a_queue_that_has_to_look_at_each_message_first_has_its_turn(arguments: dict[str, object]) -> None:
    scene, queue = about_to_sync(arguments=arguments)
    turns = actor_of(queue).turn_count
    queue.publish(b"1")
    found = [one.body for one in queue.get_many(1)]
    assert found == ([] if 0 in arguments.values() else [b"1"])
    assert actor_of(queue).turn_count > turns
    scene.node.close()


def test_a_message_with_a_time_to_live_has_its_turn() -> None:
    scene, queue = about_to_sync()
    queue.publish(b"1", expiration=0.0)
    assert queue.get_many(1) == []
    scene.node.close()


def test_a_message_behind_others_waits_for_them() -> None:
    scene, queue = about_to_sync()
    queue.publish_many([b"1", b"2"])
    queue.publish(b"3")
    assert [one.body for _ in range(3) for one in queue.get_many(1)] == [b"1", b"2", b"3"]
    queue.publish(b"4")
    queue.publish(b"5", persistent=False)
    assert [one.body for _ in range(2) for one in queue.get_many(1)] == [b"4", b"5"]
    scene.node.close()


def test_so_many_go_out_early_at_most() -> None:
    scene, queue = about_to_sync()
    turns = actor_of(queue).turn_count
    for _ in range(MOST_EARLY + 1):
        queue.publish(b"m")
        queue.get_many(1)[0].ack()
    assert actor_of(queue).turn_count == turns + 1
    scene.node.close()


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_one_consumer_that_waits_gets_it_before_a_turn() -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=2)
    scene.run()
    turns = actor_of(queue).turn_count
    for number in range(3):
        told = waits(consumer)
        queue.publish(b"%d" % number)
        assert told == [True]
        [delivery] = taken_now(consumer)
        assert (delivery.body, delivery.delivery_tag) == (b"%d" % number, number + 1)
        delivery.ack()
    assert actor_of(queue).turn_count == turns
    scene.advance(0.05)
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (0, 0)
    consumer.close()
    scene.node.close()


def test_in_an_event_loop_it_goes_out_at_once_and_is_made_safe_by_another_thread() -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=2)
    scene.run()
    actor = actor_of(queue)
    turns, told = actor.turn_count, waits(consumer)
    confirm = actor.intake.publish(queue._verbs.host.keys.plain, b"1", here=False)
    assert told == [True]
    confirm.hurry()
    assert not ran_quickly(actor)
    assert actor.turn_count == turns
    scene.run()
    assert confirm.done
    assert (actor.turn_count, actor.process.consumers.unacked) == (turns + 1, 1)
    waits(consumer)
    [one] = taken_now(consumer)
    one.ack()
    actor.intake.publish(queue._verbs.host.keys.plain, b"2", here=False)
    actor.intake.publish(queue._verbs.host.keys.plain, b"3", here=False)
    assert ran_quickly(actor), "not only what went out waits"
    assert [one.body for one in taken_now(consumer)] == [b"2", b"3"]
    consumer.close()
    scene.node.close()


@pytest.mark.parametrize("waiting", [0, 1])
def test_an_ack_that_comes_during_a_turn_waits_where_no_message_waits_for_its_room(waiting: int) -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=2 - waiting)
    scene.run()
    actor = actor_of(queue)
    queue.publish_many([b"1", b"2"][: 1 + waiting])
    scene.run()
    waits(consumer)
    [one] = taken_now(consumer)
    turns, inbox = actor.turn_count, actor.actor_inbox
    inbox.scheduled = True
    actor.call_soon(one.ack)
    inbox.scheduled = False
    actor.turns.run(1)  # it ends before it comes to the ack
    assert actor.turn_count == turns
    scene.run()
    assert (actor.turn_count - turns, actor.process.consumers.unacked, [two.body for two in taken_now(consumer)]) == (
        (1, 1, [b"2"]) if waiting else (0, 1, [])
    )
    told = waits(consumer)
    actor.intake.publish(queue._verbs.host.keys.plain, b"3", here=False)
    assert told == ([] if waiting else [True]), "what stands before it is acks"
    assert ran_quickly(actor) is bool(waiting)
    consumer.close()
    scene.node.close()


def test_a_consumer_gets_no_more_than_its_prefetch_early() -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=2)
    scene.run()
    taken = []
    for number in range(3):
        told = waits(consumer)
        queue.publish(b"%d" % number)
        assert bool(told) == (number < 2)
        taken += taken_now(consumer)
    scene.run()
    assert taken_now(consumer) == []
    taken[0].ack()
    scene.run()
    taken += taken_now(consumer)
    assert [one.body for one in taken] == [b"0", b"1", b"2"]
    consumer.close()
    assert [(one.body, one.redelivered) for one in queue.get_many(9)] == [(b"1", True), (b"2", True)]
    scene.node.close()


def test_a_consumer_that_waits_is_told_though_it_has_no_room_for_all_that_came_together() -> None:
    """It was not, and slept beside what it had been given, for as long as nothing else came."""
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=2)
    scene.run()
    told, actor = waits(consumer), actor_of(queue)
    with actor.turns.lock:  # as another thread's turn that is about to end
        for number in range(3):
            queue.publish(b"%d" % number)
    assert not told
    assert not actor.intake.fast.give()
    assert told == [True]
    assert [one.body for one in taken_now(consumer)] == [b"0", b"1"]
    consumer.close()
    scene.node.close()


def test_an_ack_that_makes_room_lets_the_next_one_through() -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=1)
    scene.run()
    waits(consumer)
    queue.publish(b"1")
    [first] = taken_now(consumer)
    waits(consumer)
    queue.publish(b"2")
    first.ack()
    scene.run()
    assert [one.body for one in taken_now(consumer)] == [b"2"]
    consumer.close()
    scene.node.close()


def test_a_consumer_that_goes_gives_back_what_it_got_early() -> None:
    scene, queue = about_to_sync()
    consumer = queue.consume(prefetch=5)
    scene.run()
    for number in range(2):
        waits(consumer)
        queue.publish(b"%d" % number)
        taken = taken_now(consumer)
    taken[0].nack()
    waits(consumer)
    queue.publish(b"2")
    consumer.close()
    found = [(one.body, one.redelivered) for one in queue.get_many(9)]
    assert found == [(b"0", True), (b"1", True), (b"2", True)]
    scene.node.close()


def test_two_consumers_take_turns() -> None:
    scene, queue = about_to_sync()
    consumers = [queue.consume(prefetch=5) for _ in range(2)]
    scene.run()
    for number in range(4):
        for consumer in consumers:
            waits(consumer)
        queue.publish(b"%d" % number)
    scene.run()
    taken = [[one.body for one in taken_now(consumer)] for consumer in consumers]
    assert taken == [[b"0", b"2"], [b"1", b"3"]]
    for consumer in consumers:
        consumer.close()
    scene.node.close()


def test_what_comes_and_goes_is_counted() -> None:
    scene, queue = about_to_sync()
    actor = actor_of(queue)
    actor.count()
    for number in range(4):
        queue.publish(b"%d" % number)
        [one] = queue.get_many(1)
        if number != 1:
            one.ack()
    scene.advance(0.05)
    counts = actor.process.context.counts
    assert counts is not None
    assert (counts.published, counts.delivered, counts.got, counts.acked) == (4, 4, 4, 3)
    scene.node.close()


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "module",
    [
        "actors/queue/fast_paths.py",
        "actors/queue/queue_intake.py",
        "actors/queue/early_deliveries.py",
        "actors/runtime/inbox.py",
    ],
)
def test_ctrl_c_while_a_message_goes_out_early_loses_none_and_brings_none_twice(module: str) -> None:
    scene, queue = about_to_sync()
    line, struck = 0, True
    while struck:
        line += 1
        queue.publish(b"armed")
        scene.run()
        queue.get(auto_ack=True)
        scene.run()
        turns, got = actor_of(queue).turn_count, list[bytes]()

        def work(got: list[bytes] = got) -> None:
            queue.publish(b"1")
            [one] = queue.get_many(1)
            one.ack()
            got.append(one.body)

        struck = struck_at(line, module, work)
        assert actor_of(queue).turn_count == turns
        queue.release()
        left = [one.body for one in queue.get_many(9, auto_ack=True)]
        assert len(got + left) <= 1, line
        if not struck:
            assert (got, left) == ([b"1"], [])
        scene.advance(0.05)
        assert (len(queue), actor_of(queue).process.consumers.unacked) == (0, 0), line
    assert line > 8
    scene.node.close()


@pytest.mark.parametrize("acks", [True, False])
def test_a_consumer_who_waits_leaves_what_went_out_early_to_the_next_sync(acks: bool) -> None:
    scene, queue = about_to_sync()
    with queue.consume(prefetch=100) as consumer:
        scene.run()
        turns, taken = actor_of(queue).turn_count, list[Delivery]()
        for number in range(20):
            told = waits(consumer)
            queue.publish(b"%d" % number)
            assert told
            taken += taken_now(consumer)
            if acks:
                taken[-1].ack()
            assert consumer.receive(0) is None
        assert [one.body for one in taken] == [b"%d" % number for number in range(20)]
        assert actor_of(queue).turn_count == turns
        scene.advance(0.05)
        assert actor_of(queue).turn_count > turns
        assert queue.stats()["messages_unacknowledged"] == (0 if acks else 20)
    assert len(queue) == (0 if acks else 20)
    scene.node.close()


def test_a_consumer_who_waits_gets_what_lies_in_the_queue_once_there_is_room() -> None:
    scene, queue = about_to_sync()
    with queue.consume(prefetch=1) as consumer:
        queue.publish_many([b"1", b"2", b"3"])
        for body in (b"1", b"2", b"3"):
            delivery = consumer.receive(1)
            assert delivery is not None
            assert delivery.body == body
            delivery.ack()
    scene.node.close()


# ── messages that are written before they are taken in ───────────────────────────────────────────────────────────────


def safe(queue: Queue) -> None:
    """Make all earlier messages safe: the next publish is the first one with a waiting caller."""
    queue.publish(b"before").wait()
    queue.get(auto_ack=True)


def journal_of(scene: HandNode) -> int:
    """Bytes in the only queue's journal."""
    [size] = [len(data) for path, data in scene.files.contents().items() if path.endswith("journal.jif")]
    return size


def test_what_somebody_waits_for_is_written_and_waits_on() -> None:
    scene, queue = about_to_sync()
    safe(queue)
    turns, written = actor_of(queue).turn_count, journal_of(scene)
    for number in range(5):
        queue.publish(b"%d" % number).wait()
        assert journal_of(scene) > written
        written = journal_of(scene)
        delivery = queue.get()
        assert delivery is not None
        assert delivery.body == b"%d" % number
        if number != 3:
            delivery.ack()
    queue.publish(b"5").wait()
    assert actor_of(queue).turn_count == turns
    scene.advance(0.05)
    assert actor_of(queue).turn_count > turns
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (1, 1)
    stats = queue.stats()
    assert (stats["message_bytes_ready"], stats["message_bytes_unacknowledged"]) == (1, 1)
    scene.node.close()
    scene = hand_node(scene.files)
    found = scene.node.queue("q").get_many(9)
    assert [(one.body, one.redelivered) for one in found] == [(b"3", True), (b"5", False)]
    scene.node.close()


@pytest.mark.parametrize("sync", ["os", "group", "always"])
@pytest.mark.parametrize("entered", [False, True])
def test_what_was_written_ahead_survives_whatever_comes(sync: str, entered: bool) -> None:
    scene = hand_node(sync=sync)
    queue = scene.node.queue("q")
    safe(queue)
    scene.advance(0.05)
    held: list[Delivery] = []
    for number in range(4):
        queue.publish(b"%d" % number).wait()
        held += queue.get_many(1)
    held[1].ack()
    queue.publish(b"4").wait()
    if entered:
        scene.advance(0.05)
    files = scene.kill() if sync == "os" else scene.lose_power(random.Random(1))
    scene = hand_node(files)
    found = [one.body for one in scene.node.queue("q").get_many(9)]
    assert found == ([b"0", b"2", b"3", b"4"] if entered else [b"0", b"1", b"2", b"3", b"4"])
    scene.node.close()


@pytest.mark.parametrize("use", ["len", "publish_many", "browse", "purge", "nack", "consume", "delete", "close"])
def test_whatever_the_queue_is_asked_then_it_has_what_was_written(use: str) -> None:
    scene, queue = about_to_sync()
    safe(queue)
    queue.publish(b"1").wait()
    [one] = queue.get_many(1)
    queue.publish(b"2").wait()
    if use == "len":
        assert len(queue) == 1
    elif use == "publish_many":
        queue.publish_many([b"3", b"4"]).wait()
        assert bodies(queue) == [b"1", b"2", b"3", b"4"]
    elif use == "browse":
        assert [(each.body, each.unacked) for each in queue.browse()] == [(b"1", True), (b"2", False)]
    elif use == "purge":
        assert queue.purge() == 1
    elif use == "nack":
        one.nack()
        assert [(each.body, each.redelivered) for each in queue.get_many(9)] == [(b"1", True), (b"2", False)]
    elif use == "consume":
        consumer = queue.consume(prefetch=9)
        scene.run()
        assert [each.body for each in taken_now(consumer)] == [b"2"]
        consumer.close()
    elif use == "delete":
        assert queue.delete() == 1
    scene.node.close()


def test_memory_that_runs_short_finds_what_was_written_in_its_place() -> None:
    scene, queue = about_to_sync()
    safe(queue)
    queue.publish(b"1").wait()
    queue.publish(b"2").wait()
    actor_of(queue).actor_ref.tell(SetDurationTarget(0.0))
    scene.run()
    single = actor_of(queue).process.backing.single
    assert single is not None
    assert single.state.target_ram_count == 0
    assert bodies(queue) == [b"1", b"2"]
    scene.node.close()


def test_what_came_and_went_before_is_taken_in_with_what_somebody_waits_for() -> None:
    scene, queue = about_to_sync()
    safe(queue)
    turns = actor_of(queue).turn_count
    queue.publish(b"1")
    queue.get_many(1)[0].ack()
    queue.publish(b"2").wait()
    assert actor_of(queue).turn_count == turns + 1
    assert bodies(queue) == [b"2"]
    scene.node.close()


def test_a_message_that_is_not_small_or_not_persistent_is_taken_in() -> None:
    scene, queue = about_to_sync()
    safe(queue)
    for body, properties in ((BIG, {}), (b"small", {"persistent": False}), (b"ttl", {"expiration": 9.0})):
        turns = actor_of(queue).turn_count
        queue.publish(body, **properties).wait()
        assert actor_of(queue).turn_count > turns
    scene.node.close()


def test_a_segment_ends_where_it_ends() -> None:
    scene = hand_node(segment_entry_count=8)
    queue = scene.node.queue("q")
    for number in range(20):
        queue.publish(b"%d" % number).wait()
    assert bodies(queue) == [b"%d" % number for number in range(20)]
    scene = hand_node(scene.kill(), segment_entry_count=8)
    assert bodies(scene.node.queue("q")) == [b"%d" % number for number in range(20)]
    scene.node.close()


def test_a_full_disk_is_met_as_ever_and_nothing_that_was_safe_is_lost() -> None:
    scene, queue = about_to_sync()
    safe(queue)
    queue.publish(b"1").wait()
    scene.files.capacity_bytes = scene.files.used_bytes
    refused = queue.publish(b"2" * 100)
    with pytest.raises(DiskFullError):
        refused.wait()
    scene.files.capacity_bytes = None
    queue.publish(b"3").wait()
    assert [body[:1] for body in bodies(queue)] == [b"1", b"2", b"3"]
    files = scene.kill()
    scene = hand_node(files)
    assert [body[:1] for body in bodies(scene.node.queue("q"))] == [b"1", b"2", b"3"]
    scene.node.close()


def test_who_joins_what_was_written_is_told_where_that_cannot_be_taken_in() -> None:
    scene = hand_node(queue_index_max_journal_entries=2)
    queue = scene.node.queue("q")
    safe(queue)
    for _ in range(3):
        queue.publish(b"written").wait()
    scene.files.fail("append", "*.idx")
    joined = queue.publish(BIG)
    with pytest.raises(StorageError, match="append failed on purpose"):
        joined.wait()
    scene.advance(1.0)
    assert bodies(queue)[-3:] == [b"written"] * 3
    scene.node.close()


def test_publishers_that_wait_for_room_do_not_wait_for_the_next_sync() -> None:
    scene = hand_node(credit_flow_default_credit=(3, 2))
    queue = scene.node.queue("q")
    safe(queue)
    actor = actor_of(queue)
    for number in range(9):
        confirm = actor.intake.publish(queue._verbs.host.keys.plain, b"%d" % number, here=False)
        confirm.hurry()
        scene.run()
        assert confirm.done
        assert not actor.intake.is_full(), "the last one that has room takes a turn that makes more"
    scene.node.close()


def test_a_directory_that_is_gone_confirms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    node = warren.open(path, sync="os")
    queue = node.queue("q")
    for _ in range(2):
        queue.publish(b"1").wait()
    shutil.rmtree(path)
    for confirm in (queue.publish(b"2"), queue.publish(b"3")):
        with pytest.raises(DirectoryLostError, match="removed or replaced"):
            confirm.wait()
    with pytest.raises(DirectoryLostError):
        node.close()


def test_many_threads_wait_each_for_its_own(tmp_path: Path) -> None:
    found: list[bytes] = []
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        total = 8 * 200

        def publish(who: int) -> None:
            for number in range(200):
                queue.publish(b"%d-%d" % (who, number)).wait(timeout=60)

        def take() -> None:
            own = node.queue("q")
            while len(found) < total:
                delivery = own.get()
                if delivery is not None:
                    found.append(delivery.body)
                    delivery.ack()

        threads = [threading.Thread(target=publish, args=(who,)) for who in range(8)]
        threads += [threading.Thread(target=take)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert not any(thread.is_alive() for thread in threads)
        assert len(queue) == 0
    assert sorted(found) == sorted(b"%d-%d" % (who, number) for who in range(8) for number in range(200))
    for who in range(8):
        own = [body for body in found if body.startswith(b"%d-" % who)]
        assert own == [b"%d-%d" % (who, number) for number in range(200)]
    with warren.open(tmp_path) as node:
        assert len(node.queue("q")) == 0


# ── small batches ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_small_batch_has_the_turn_of_who_waits_for_it_and_no_other_thread_is_told() -> None:
    scene, queue = about_to_sync()
    queue.publish_many([b"1", b"2"]).wait()
    scene.run()
    for _ in range(3):
        turns = actor_of(queue).turn_count
        confirm = queue.publish_many([b"3"] * 100)
        assert not scene.pool.run_one(), "nobody stands in line"
        confirm.wait()
        assert actor_of(queue).turn_count == turns + 1
    assert len(queue) == 302
    scene.node.close()


def test_a_small_batch_that_nobody_waits_for_is_safe_within_the_sync_interval() -> None:
    scene, queue = about_to_sync()
    queue.publish_many([b"1", b"2"]).wait()
    confirm = queue.publish_many([b"3", b"4"])
    assert not confirm.done
    scene.advance(0.05)
    scene.advance(0.05)
    assert confirm.done
    assert len(queue) == 4
    scene.node.close()


@pytest.mark.parametrize("bodies", [[b"1"] * 400, [bytes(150_000)] * 2], ids=["many", "large"])
def test_a_batch_that_is_not_small_is_begun_at_once(bodies: list[bytes]) -> None:
    scene, queue = about_to_sync()
    queue.publish_many([b"0"]).wait()
    scene.run()
    queue.publish_many(bodies)
    assert scene.pool.run_one(), "it stands in line"
    assert actor_of(queue).actor_inbox.empty()
    scene.node.close()


def test_a_consumer_does_not_wait_for_the_sync_that_brings_a_small_batch() -> None:
    scene, queue = about_to_sync()
    queue.publish_many([b"0"]).wait()
    assert queue.get(auto_ack=True) is not None
    with queue.consume() as consumer:
        scene.run()
        queue.publish_many([b"1", b"2"])
        scene.run()
        assert [one.body for one in taken_now(consumer)] == [b"1", b"2"]
    scene.node.close()


# ── small batches, which join what waits ────────────────────────────────────────────────────────────────────────────


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"body %03d" % number for number in range(first, first + count)]


def test_a_batch_comes_and_goes_without_a_turn() -> None:
    scene, queue = about_to_sync()
    turns, operations = actor_of(queue).turn_count, scene.files.operations
    for number in range(3):
        queue.publish_many(numbered(100, number * 100))
        batch = queue.get_many(150)
        assert (batch.bodies, len(batch)) == (numbered(100, number * 100), 100)
        assert [(one.delivery_tag, one.redelivered) for one in (batch[0], batch[99])] == [
            (number * 100 + 2, False),
            (number * 100 + 101, False),
        ]
        queue.ack(batch)
    assert actor_of(queue).turn_count == turns
    scene.advance(0.05)
    assert scene.files.operations - operations <= 2, "of the first message"
    assert (len(queue), queue.stats()["messages_unacknowledged"]) == (0, 0)
    counted = actor_of(queue).process.context.counts
    assert counted is None or (counted.published, counted.acked) == (301, 301)
    scene.node.close()


def test_batches_and_single_messages_go_out_together_in_their_order() -> None:
    scene, queue = about_to_sync()
    queue.publish(b"a")
    queue.publish_many([b"b", b"c"], message_id=["1", "2"])
    queue.publish_many([b"d", b"e"])
    queue.publish(b"f")
    got = [one for _ in range(6) for one in queue.get_many(2)]
    assert [one.body for one in got] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [one.properties.message_id for one in got] == [None, "1", "2", None, None, None]
    queue.ack(got)
    scene.advance(0.05)
    assert actor_of(queue).process.backing.depth == 0
    scene.node.close()


def test_of_a_batch_that_went_out_some_are_acked_some_come_back_and_some_stay_out() -> None:
    scene, queue = about_to_sync()
    confirm = queue.publish_many(numbered(10))
    got = queue.get_many(8)
    queue.ack(got[2:5])
    got[6].ack()
    got[0].nack()
    assert [(one.body, one.redelivered) for one in queue.get_many(9)] == [
        (numbered(10)[0], True),
        (numbered(10)[8], False),
        (numbered(10)[9], False),
    ]
    scene.advance(0.05)
    assert confirm.done
    assert (len(queue), actor_of(queue).process.consumers.unacked) == (0, 6)
    queue.ack([got[1], got[5], got[7]])
    scene = hand_node(scene.kill())
    found = scene.node.queue("q").get_many(20)
    assert sorted(found.bodies) == sorted([numbered(10)[n] for n in (0, 1, 5, 7, 8, 9)])
    scene.node.close()


def test_an_ack_of_a_range_of_which_some_were_acked_before_acks_the_others() -> None:
    scene, queue = about_to_sync()
    queue.publish_many(numbered(10))
    got = queue.get_many(10)
    got[3].ack()
    actor, channel = actor_of(queue), got[0]._channel
    actor.intake.settle_ranges(SettleKey(channel.name, "ack"), [range(got[0].delivery_tag, got[9].delivery_tag + 1)])
    scene.advance(0.05)
    assert actor.process.backing.depth == 0
    scene.node.close()
