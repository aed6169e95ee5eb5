"""What lies between a queue and a consumer: bounded, whatever the consumer asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pytest

import warren
from tests.support.runtime_tools import HandNode, hand_node, queue_path
from warren.actors.engines.queue.queue_receivers import BUFFER
from warren.handles.consumer import Delivery
from warren.storage.errors import MessageError


@pytest.mark.parametrize("auto_ack", [False, True])
def test_a_consumer_without_a_prefetch_gets_more_as_it_takes_and_never_the_whole_backlog(auto_ack: bool) -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("backlog")
        queue.publish_many([b"%d" % number for number in range(5 * BUFFER)])
        consumer = queue.consume(prefetch=0, auto_ack=auto_ack, timeout=0)
        hand.run()
        bodies = []
        for delivery in consumer:
            bodies.append(delivery.body)
            assert consumer.buffered <= BUFFER
        assert bodies == [b"%d" % number for number in range(5 * BUFFER)]


def test_a_prefetch_that_is_set_bounds_what_was_not_bounded() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("backlog")
        queue.publish_many([b"x"] * (2 * BUFFER))
        consumer = queue.consume(prefetch=0, timeout=0)
        taken = [next(consumer) for _ in range(10)]
        consumer.set_prefetch(3)
        hand.run()
        assert queue.stats()["messages_unacknowledged"] == BUFFER  # what had come stays
        assert len([*consumer]) == BUFFER - len(taken)


def test_a_loop_over_a_consumer_goes_on_where_others_have_taken_from_it() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("q")
        for first in (0, 4):  # two batches
            queue.publish_many([b"%d" % number for number in range(first, first + 4)])
            hand.run()
        consumer = queue.consume(prefetch=3, timeout=0)
        seen: list[bytes] = []
        for delivery in consumer:
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == 2:
                break
        for delivery in consumer:
            seen.append(delivery.body)
            delivery.ack()
            hand.run()
            if len(seen) == 3:
                other = next(consumer)
                seen.append(other.body)
                other.ack()
                hand.run()
        assert seen == [b"%d" % number for number in range(8)]
        assert consumer.ended


def test_a_loop_over_a_consumer_ends_where_it_is_closed() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("q")
        queue.publish_many([b"%d" % number for number in range(5)])
        hand.run()
        consumer, seen = queue.consume(prefetch=5, timeout=0), []
        for delivery in consumer:
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == 2:
                consumer.close()
        assert seen == [b"0", b"1"]
        hand.run()
        assert [one.body for one in queue.get_many(9)] == [b"2", b"3", b"4"]


def test_handles_and_what_they_hand_out_cannot_be_sent_to_another_process() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("here")
        queue.publish(b"x")
        for bound in (hand.node, queue, queue.get(), queue.consume(), hand.node.exchange("amq.topic")):
            with pytest.raises(warren.errors.WrongProcessError, match="belongs to the process"):
                pickle.dumps(bound)


def with_one_unreadable(arguments: dict[str, Any] | None = None) -> HandNode:
    """A queue of five messages; the third is invalid, as only damage can leave it."""
    hand = hand_node()
    with hand.node:
        hand.node.queue("q", arguments=arguments).publish_many([b"%d" % number for number in range(5)]).wait()
    journal = f"{queue_path('q')}/journal.jif"
    data = hand.files.read(journal)
    third = data.index(b"basic_message", data.index(b"basic_message", data.index(b"basic_message") + 1) + 1)
    hand.files.open_append(journal).pwrite(b"?", third)
    hand.files.sync_all()
    return hand_node(hand.files)


def read(deliveries: Iterable[Delivery]) -> list[bytes | None]:
    bodies: list[bytes | None] = []
    for delivery in deliveries:
        try:
            bodies.append(delivery.body)
        except MessageError:
            assert "cannot be read" in repr(delivery)
            bodies.append(None)
    return bodies


@pytest.mark.parametrize("how", ["get_many", "consume"])
def test_a_message_that_cannot_be_read_takes_none_of_its_batch_along_and_can_be_settled(how: str) -> None:
    hand = with_one_unreadable()
    with hand.node:
        queue = hand.node.queue("q")
        consumer = queue.consume(5, timeout=0) if how == "consume" else None
        deliveries = queue.get_many(5) if consumer is None else [next(consumer) for _ in range(5)]
        assert read(deliveries) == [b"0", b"1", None, b"3", b"4"]
        deliveries[2].nack(requeue=False)
        queue.ack(deliveries[:2] + deliveries[3:])
        hand.run()
        assert queue.stats()["messages"] == 0


def test_a_message_that_cannot_be_read_dies_and_the_others_are_dead_letters() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    hand = with_one_unreadable(arguments)
    with hand.node:
        queue, dead = hand.node.queue("q", arguments=arguments), hand.node.queue("dead")
        queue.nack(queue.get_many(5), requeue=False)
        hand.run()
        assert (queue.stats()["messages"], [one.body for one in dead.get_many(9)]) == (0, [b"0", b"1", b"3", b"4"])


def test_a_message_that_cannot_be_read_and_dies_alone_is_gone() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    hand = with_one_unreadable(arguments)
    with hand.node:
        queue = hand.node.queue("q", arguments=arguments)
        deliveries = queue.get_many(5)
        deliveries[2].reject()
        hand.run()
        assert queue.stats()["messages"] == 4


def test_a_message_goes_past_the_queue_only_to_who_waits_at_this_moment() -> None:
    """It used to go to a consumer that had not asked, and was lost when that one closed."""
    queue = hand_node().node.queue("q")
    waits = queue.consume(auto_ack=True)
    rests = queue.consume(auto_ack=True)
    for body in (b"0", b"1"):
        waits._deliveries.arrival()
        queue.publish(body).wait()
    rests.close()
    assert [waits.receive(0).body, waits.receive(0).body] == [b"0", b"1"]  # type: ignore[union-attr]
    assert not len(queue)


def test_what_went_past_the_queue_and_was_not_taken_goes_back_when_its_consumer_is_closed() -> None:
    """A coroutine that is cancelled as its message comes, or Ctrl-C in that moment."""
    queue = hand_node().node.queue("q")
    consumer = queue.consume(auto_ack=True)
    arrival = consumer._deliveries.arrival()
    queue.publish(b"1").wait()
    assert arrival.done
    consumer.close()
    assert [one.body for one in queue.browse()] == [b"1"]


def test_consumers_of_an_empty_queue_cost_its_turns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn gave each of them room: twelve thousand of one client took a hundred seconds to come."""
    from warren.actors.engines.queue.consumers import Consumers

    given: list[str] = []
    set_room = Consumers.set_room
    monkeypatch.setattr(
        Consumers, "set_room", lambda consumers, tag, room: (given.append(tag), set_room(consumers, tag, room))
    )
    queue = hand_node().node.queue("q")
    consumers = [queue.consume(prefetch=0) for _ in range(10)]
    assert given == []
    queue.publish_many([b"%d" % number for number in range(20)]).wait()
    assert sorted(one.body for consumer in consumers for one in [consumer.receive(0), consumer.receive(0)] if one) == (
        sorted(b"%d" % number for number in range(20))
    )
    assert given
