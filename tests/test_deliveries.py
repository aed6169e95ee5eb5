"""What lies between a queue and a consumer: bounded, whatever the consumer asked for."""

from __future__ import annotations

import pickle

import pytest

import warren
from actors.deliveries import BUFFER
from tests.runtime_tools import hand_node


def test_with_auto_ack_a_message_is_acked_as_it_is_handed_out() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    queue.publish_many([b"%d" % number for number in range(10)]).wait()
    consumer = queue.consume(10, auto_ack=True)
    seen = [next(consumer) for _ in range(3)]
    assert [(one.body, one.settled, one.delivery_tag) for one in seen] == [(b"%d" % n, True, 0) for n in range(3)]
    scene.run()
    assert (len(queue), queue.stats()["messages_unacknowledged"]) == (0, 7)
    consumer.close()
    assert [(one.body, one.redelivered) for one in queue.get_many(20)] == [(b"%d" % n, True) for n in range(3, 10)]
    scene.node.close()


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


def test_handles_and_what_they_hand_out_cannot_be_sent_to_another_process() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("here")
        queue.publish(b"x")
        for bound in (hand.node, queue, queue.get(), queue.consume(), hand.node.exchange("amq.topic")):
            with pytest.raises(warren.WrongProcessError, match="belongs to the process"):
                pickle.dumps(bound)


def test_a_get_waits_for_a_message_and_gives_up() -> None:
    hand = hand_node()
    with hand.node:
        queue = hand.node.queue("waited for")
        assert queue.get(timeout=0.01) is None
        assert queue.stats()["consumers"] == 0
        queue.publish(b"x")
        delivery = queue.get(timeout=60)
        assert delivery is not None
        assert queue.stats()["messages_unacknowledged"] == 1
        assert queue.stats()["consumers"] == 0
        delivery.ack()
        assert queue.stats()["messages"] == 0
