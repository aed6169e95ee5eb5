"""What the management API says of queues from sample to sample, in a node whose time is in the test's hand."""

from __future__ import annotations

import datetime
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.process_tools import envelope
from tests.support.runtime_tools import HandNode, actor_behind, actor_of, hand_node
from warren.actors.engines.queue.consumers import Consumer
from warren.actors.queue import inspecting
from warren.hosting import queue_rows
from warren.logs import log_files
from warren.management.rates import Rates
from warren.management.samples import CAPACITY_HALF_LIFE_S, Samples
from warren.top.snapshots import Snapshots

WALL_S = 1_700_000_000


@attrs.define
class Sampled:
    """A node, and samples of it; the clocks of both stand still unless the test advances them."""

    hand: HandNode
    samples: Samples = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.samples = Samples(self.hand.node._running, "node", self.now_s, lambda: WALL_S + self.now_s())
        self.samples.begin()

    def now_s(self) -> float:
        return self.hand.clock.now_ns() / 1e9

    def queue(self, name: str = "orders") -> dict[str, Any]:
        return self.samples.take().queues["/", name].document


@pytest.fixture
def sampled() -> Iterator[Sampled]:
    hand = hand_node(hibernate_after_ms=1000)
    with hand.node:
        yield Sampled(hand)


def test_a_queue_is_idle_since_it_was_last_used_and_only_while_it_rests(sampled: Sampled) -> None:
    orders = sampled.hand.node.queue("orders")
    sampled.hand.advance(5)
    orders.publish(b"x").wait()
    used_s = WALL_S + sampled.now_s()
    assert "idle_since" not in sampled.queue()
    for _ in range(3):  # a sample is no use
        sampled.hand.advance(2)
        since = datetime.datetime.fromisoformat(sampled.queue()["idle_since"])
        assert since.timestamp() == pytest.approx(used_s, abs=0.1)  # it syncs a moment later
    orders.publish(b"x").wait()
    assert "idle_since" not in sampled.queue()


def test_a_queue_can_deliver_while_a_consumer_has_room(sampled: Sampled) -> None:
    orders = sampled.hand.node.queue("orders")
    assert sampled.queue()["consumer_capacity"] == 0
    consumer = orders.consume(prefetch=1)
    assert sampled.queue()["consumer_capacity"] == 1.0
    orders.publish_many([b"1", b"2"]).wait()
    message = next(consumer)
    sampled.hand.advance(CAPACITY_HALF_LIFE_S)
    assert sampled.queue()["consumer_capacity"] == 0.5  # full, as far as samples know, for a half-life
    sampled.hand.advance(CAPACITY_HALF_LIFE_S)
    assert sampled.queue()["consumer_utilisation"] == 0.25
    message.ack()
    next(consumer).ack()
    sampled.hand.advance(CAPACITY_HALF_LIFE_S)
    assert sampled.queue()["consumer_capacity"] == 0.625
    consumer.close()
    assert sampled.queue()["consumer_capacity"] == 0


def test_queues_at_rest_are_asked_once(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    node, asked, ask = sampled.hand.node, Counter[str](), inspecting.ask_politely

    def noted(ref: Any, *args: Any) -> Any:
        asked[actor_behind(ref).declaration.name] += 1
        return ask(ref, *args)

    monkeypatch.setattr(queue_rows, "ask_politely", noted)
    unused = [node.queue(f"unused-{number}") for number in range(900)]
    used = [node.queue(f"used-{number}") for number in range(100)]
    for queue in used:
        queue.publish(b"x").wait()
    snapshots = Snapshots(node._running, sampled.now_s)
    for take in (sampled.samples.take, snapshots.take):
        take()
        assert asked == Counter([queue.name for queue in unused + used])
        asked.clear()
        for _ in range(3):
            sampled.hand.advance(10)
            take()
        assert set(asked) <= {queue.name for queue in used}, "they came to rest, and their rates to zero"
        asked.clear()
        sampled.hand.advance(10)
        take()
        assert not asked
        used[0].publish(b"x").wait()
        take()
        assert asked == {"used-0": 1}
        asked.clear()
    assert sampled.samples.take().lengths["/"]["messages"] == 102
    node.set_policy("short", "unused-2", {"max-length": 1})
    assert sampled.samples.take().queues["/", "unused-2"].document["policy"] == "short"


def test_the_rate_of_a_queue_that_was_at_rest_is_that_of_the_last_seconds(sampled: Sampled) -> None:
    orders = sampled.hand.node.queue("orders")
    orders.publish(b"x").wait()
    for _ in range(100):
        sampled.hand.advance(10)
        sampled.queue()
    sampled.hand.advance(10)
    orders.publish_many([b"x"] * 50).wait()
    assert sampled.queue()["message_stats"]["publish_details"]["rate"] == pytest.approx(5.0, rel=0.05)
    sampled.hand.advance(10)
    sampled.queue()
    sampled.hand.advance(10)
    assert sampled.queue()["message_stats"]["publish_details"]["rate"] == 0.0
    assert sampled.samples.take().counted["/"]["publish"] == 51


def test_messages_that_bypass_a_queue_at_rest_are_sampled(sampled: Sampled) -> None:
    orders = sampled.hand.node.queue("orders")
    sampled.queue()
    actor_of(orders).process.consumers.add(Consumer("c", "a", acks_unseen=True))
    for _ in range(5):
        sampled.hand.advance(10)
        assert "message_stats" not in sampled.queue()
    actor = actor_of(orders)
    turns, rest_number = actor.turn_count, actor.rest_number
    assert actor.process.deliveries.hand_off(envelope(), b"x", lambda _: True)
    assert (actor.turn_count, actor.rest_number) == (turns, rest_number)
    assert sampled.queue()["message_stats"]["publish"] == 1


def test_the_timestamp_is_that_of_the_next_message(sampled: Sampled) -> None:
    orders = sampled.hand.node.queue("orders")
    assert sampled.queue()["head_message_timestamp"] is None
    for timestamp in (None, 5, 1_700_000_000):
        orders.publish(b"x", timestamp=timestamp).wait()
    shown = []
    for _ in range(3):
        shown.append(sampled.queue()["head_message_timestamp"])
        orders.get(auto_ack=True)
    assert shown == [None, 5, 1_700_000_000]


def test_the_next_message_of_a_priority_queue_is_one_of_the_highest_priority(sampled: Sampled) -> None:
    urgent = sampled.hand.node.queue("orders", arguments={"x-max-priority": 5})
    assert sampled.queue()["head_message_timestamp"] is None
    for priority in (1, 5, 3):
        urgent.publish(b"x", priority=priority, timestamp=priority).wait()
    assert sampled.queue()["head_message_timestamp"] == 5


def test_queues_that_come_and_go_are_counted(sampled: Sampled) -> None:
    node = sampled.hand.node
    for name in ("a", "b", "a"):
        node.queue(name)
    node.delete_queue("b")
    churn = node._running.registry.churn
    assert dict(churn) == {"queue_declared": 3, "queue_created": 2, "queue_deleted": 1}


def test_log_files_are_those_that_warren_writes_to(tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("warren", None)]
    handlers: list[logging.Handler] = [logging.FileHandler(tmp_path / "warren.log"), logging.StreamHandler(sys.stderr)]
    before = Counter(log_files())
    for logger, handler in zip(loggers, handlers, strict=True):
        logger.addHandler(handler)
    try:
        assert Counter(log_files()) - before == Counter([str(tmp_path / "warren.log"), "<stderr>"])
    finally:
        for logger, handler in zip(loggers, handlers, strict=True):
            logger.removeHandler(handler)
            handler.close()


def test_a_counter_grows_evenly_between_samples_that_are_far_apart() -> None:
    rates = Rates()
    for now_s, published in ((0.0, 0), (5.0, 500), (55.0, 5500), (60.0, 6000)):
        rates.note("jobs", now_s, {"publish": published})
    moments_s = [60.0, 57.0, 55.0, 50.0, 30.0, 7.0, 5.0, 3.0, 0.0, -5.0]
    assert rates.samples("jobs", "publish", moments_s) == [6000, 5500, 5500, 5000, 3000, 700, 500, 0, 0, 0]
