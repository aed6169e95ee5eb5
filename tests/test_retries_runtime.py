"""What comes back to a running node's queues: on threads and in an event loop, here and from another process, for
clients of a server, and through restarts and kills."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import pika
import pytest

import warren
from tests.support.both_ways import both_ways, both_ways_by_hand, done, entered
from tests.support.runtime_tools import DATA, HandNode, hand_node, next_of
from tests.support.server_tools import served
from warren.queue_index.index import directory as names
from warren.storage.faults import SimulatedCrash

PATIENCE_S = 30.0


async def failing(delivery: Any) -> None:
    with pytest.raises(OSError, match="on purpose"):
        async with entered(delivery):
            raise OSError("on purpose")


@both_ways_by_hand
async def test_a_block_that_fails_has_its_message_again_after_a_second_then_after_two(node: Any, hand: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"fails", b"next"]))
    await failing(await done(queue.get()))
    assert (await done(queue.get(auto_ack=True))).body == b"next"
    assert await done(queue.get()) is None
    hand.advance(0.999)
    assert await done(queue.get()) is None
    hand.advance(0.001)
    again = await done(queue.get())
    assert (again.body, again.redelivered, again.delivery_count) == (b"fails", True, 1)
    assert again.headers == {"x-delivery-count": 1}
    await failing(again)
    assert (await done(queue.stats()))["messages_retrying"] == 1
    hand.advance(2)
    assert (await done(queue.get())).delivery_count == 2


@both_ways_by_hand
async def test_a_block_that_is_interrupted_has_its_message_at_once(node: Any, hand: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish(b"job"))
    with pytest.raises(KeyboardInterrupt):
        async with entered(await done(queue.get())):
            raise KeyboardInterrupt
    assert (await done(queue.get())).body == b"job"


@both_ways
async def test_a_delivery_says_how_often_it_came_back(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"a", b"b"]))
    for count in range(3):
        found = await done(queue.get_many(2))
        assert [(one.body, one.delivery_count) for one in found] == [(b"a", count), (b"b", count)]
        assert [one.headers for one in found] == [{"x-delivery-count": count} if count else {}] * 2
        await done(queue.nack(found))


@both_ways
async def test_a_retry_may_say_how_long(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"a", b"b"]))
    a, b = await done(queue.get_many(2))
    await done(a.retry(3600))
    await done(b.retry(delay=0))
    assert a.settled
    again = await done(queue.get(timeout=PATIENCE_S))
    assert (again.body, again.delivery_count) == (b"b", 1)
    assert (await done(queue.stats()))["messages_retrying"] == 1
    wrong: Any
    for wrong in (-1, "1", 1e12, True):
        with pytest.raises(warren.errors.InvalidValueError, match="delay must be a number of seconds"):
            await done(again.retry(wrong))
        assert not again.settled
    await done(again.ack())


@both_ways
async def test_a_queue_with_a_retry_sends_away_what_fails_too_often(node: Any) -> None:
    dead = await done(node.queue("dead"))
    retry = warren.Retry(limit=2, delay=0.001, multiplier=1, dead_letters="dead")
    queue = await done(node.queue("jobs", retry=retry))
    assert queue.arguments == retry.arguments
    await done(queue.publish(b"poison"))
    for count in range(3):
        delivery = await done(queue.get(timeout=PATIENCE_S))
        assert delivery.delivery_count == count
        await failing(delivery)
    letter = await done(dead.get(timeout=PATIENCE_S))
    assert letter.body == b"poison"
    death = letter.headers["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", "jobs", 1)
    with pytest.raises(warren.errors.PreconditionFailedError, match="x-delivery-limit"):
        await done(node.queue("jobs", retry=warren.Retry(limit=3, dead_letters="dead")))


@both_ways
async def test_a_policy_gives_a_queue_its_limit(node: Any) -> None:
    await done(node.set_policy("retries", "^jobs$", {"delivery-limit": 0}))
    queue = await done(node.queue("jobs"))
    await done(queue.publish(b"once"))
    await done((await done(queue.get())).nack())
    assert await done(queue.get()) is None


@both_ways
async def test_a_consumer_that_is_closed_counts_only_what_it_has_seen(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"seen", b"buffered", b"too"]))
    async with entered(queue.consume()) as consumer:
        assert (await done(consumer.receive(PATIENCE_S))).body == b"seen"
    found = await done(queue.get_many(3))
    assert [(one.body, one.delivery_count) for one in found] == [(b"seen", 1), (b"buffered", 0), (b"too", 0)]


@pytest.mark.slow
@both_ways
async def test_what_a_consumer_does_not_ack_in_time_another_one_gets(node: Any) -> None:
    queue = await done(node.queue("q"))
    async with entered(queue.consume(1, ack_timeout=1)) as slow, entered(queue.consume(1)) as other:
        await done(queue.publish(b"job"))
        stuck = await done(slow.receive(PATIENCE_S))
        assert stuck.body == b"job"
        again = await done(other.receive(PATIENCE_S))
        assert (again.body, again.delivery_count) == (b"job", 1)
        await done(stuck.ack())  # too late: it means nothing
        with pytest.raises(warren.errors.UnknownTagError):
            await done(stuck.extend(1))
        await done(queue.sync())
        assert (await done(queue.stats()))["messages_unacknowledged"] == 1
        await done(again.ack())


@both_ways_by_hand
async def test_a_holder_may_keep_its_message_for_longer(node: Any, hand: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish(b"job"))
    async with entered(queue.consume(1, ack_timeout=16)) as consumer:
        job = await done(consumer.receive(0))
        hand.advance(10)
        await done(job.extend(60))
        hand.advance(59)
        assert (await done(queue.stats()))["messages_unacknowledged"] == 1
        hand.advance(1)
        hand.run()
        again = await done(consumer.receive(0))
        assert (again.body, again.delivery_count) == (b"job", 1)
        await done(again.ack())


@both_ways_by_hand
async def test_what_lay_with_a_consumer_for_too_long_is_not_handed_out(node: Any, hand: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"a", b"b", b"c"]))
    async with entered(queue.consume(ack_timeout=16)) as consumer:
        first = await done(consumer.receive(0))
        hand.advance(17)
        again = [await done(consumer.receive(0)) for _ in range(4)]
        assert [(one.body, one.delivery_count) for one in again[:3]] == [(b"a", 1), (b"b", 1), (b"c", 1)]
        assert again[3] is None, "b and c are handed out once"
        await done(first.ack())
        await done(queue.sync())
        assert (await done(queue.stats()))["messages_unacknowledged"] == 3
        await done(queue.ack(again[:3]))


@both_ways
async def test_an_ack_timeout_that_cannot_be(node: Any) -> None:
    queue = await done(node.queue("q"))
    with pytest.raises(warren.errors.InvalidValueError, match="ack_timeout must be a number of seconds"):
        queue.consume(ack_timeout=-1)


def test_counts_and_waits_survive_restarts_and_kills() -> None:
    hand = hand_node()
    queue = hand.node.queue("q")
    queue.publish_many([b"a", b"b"]).wait()
    queue.nack(queue.get_many(2))
    queue.nack(queue.get_many(1))
    hand.node.close()
    hand = hand_node(hand.files)
    assert [one.delivery_count for one in hand.node.queue("q").get_many(2)] == [2, 1]
    hand.advance(1)
    queue = hand.node.queue("q")
    held = queue.get_many(2)
    assert [one.delivery_count for one in held] == [3, 1], (
        "what nobody can settle any more is back, and its oldest counts"
    )
    hand = hand_node(hand.kill())
    queue = hand.node.queue("q")
    assert [one.delivery_count for one in queue.get_many(2)] == [4, 1]
    hand.node.close()


def test_a_queue_that_is_deleted_leaves_nothing_of_its_counts() -> None:
    hand = hand_node()
    side = f"{DATA}/warren.queues/{names.vhost_directory_name(b'/')}"
    queue = hand.node.queue("q")
    queue.publish(b"a").wait()
    queue.nack(queue.get_many(1))
    hand.advance(1)
    assert hand.files.list(side) == [names.queue_directory_name(b"/", b"q")]
    queue.delete()
    assert hand.files.list(side) == []
    queue = hand.node.queue("q")
    queue.publish(b"b").wait()
    assert next_of(queue).delivery_count == 0
    hand.node.close()


def test_a_vhost_that_is_deleted_leaves_nothing_of_its_counts() -> None:
    hand = hand_node()
    queue = hand.node.vhost("other").queue("q")
    queue.publish(b"a").wait()
    queue.nack(queue.get_many(1))
    hand.advance(1)
    assert len(hand.files.list(f"{DATA}/warren.queues")) == 1
    hand.node.delete_vhost("other")
    assert hand.files.list(f"{DATA}/warren.queues") == []
    hand.node.close()


def coming_back(hand: HandNode, counts: dict[bytes, int]) -> None:
    """Messages come back; ``counts``: how often each has at least, as far as that is safe, and at most."""
    queue = hand.node.queue("q")
    queue.publish_many([b"a", b"b", b"c"]).wait()
    counts |= dict.fromkeys([b"a", b"b", b"c"], 0)
    for times in (1, 2):
        found = queue.get_many(2)
        queue.nack(found)
        queue.sync()
        counts |= {b"a": times, b"b": times}
    queue.get_many(1)[0].retry(1)
    queue.sync()
    counts[b"a"] = 3
    hand.advance(1)
    queue.release()
    hand.node.close()


@pytest.mark.slow
def test_a_crash_at_any_operation_loses_no_message_and_no_count_that_was_safe() -> None:
    whole = hand_node()
    coming_back(whole, {})
    at_open = hand_node()
    first = at_open.files.operations
    at_open.node.close()
    for operation in range(1, whole.files.operations - first + 1):
        hand, counts = hand_node(), dict[bytes, int]()
        hand.files.crash_at(operation, torn=True)
        with contextlib.suppress(SimulatedCrash, warren.WarrenError):
            coming_back(hand, counts)
        for power in (False, True):
            left = hand.files.after_power_loss(random.Random(operation)) if power else hand.files.after_process_crash()
            again = hand_node(left)
            queue = again.node.queue("q")
            held = [*queue.get_many(10)]
            again.advance(2)  # what waited at the crash waits on
            held += queue.get_many(10)
            found = {one.body: one.delivery_count for one in held}
            assert counts.keys() <= found.keys(), operation
            for body, count in counts.items():
                assert count <= found[body] <= count + 2, (operation, power, body, found, counts)
            again.node.close()
        hand.forget()


# ── clients of a server ───────────────────────────────────────────────────────────────────────────────────────────────


def got(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    """The next message, once it is there."""
    for _ in range(int(PATIENCE_S / 0.01)):
        found: tuple[Any, Any, bytes] = channel.basic_get(queue)
        if found[0] is not None:
            return found
        time.sleep(0.01)
    raise AssertionError(f"nothing came into {queue}")


def test_a_client_is_told_the_count_where_a_queue_has_a_limit(tmp_path: Path) -> None:
    with served(tmp_path) as broker, broker.channel() as channel:
        channel.queue_declare("limited", arguments={"x-delivery-limit": 1})
        channel.queue_declare("classic")
        for queue, expected in (("limited", {"x-delivery-count": 1, "a": "b"}), ("classic", {"a": "b"})):
            channel.basic_publish("", queue, b"m", pika.BasicProperties(headers={"a": "b"}, delivery_mode=2))
            method, properties, _ = got(channel, queue)
            assert properties.headers == {"a": "b"}
            channel.basic_nack(method.delivery_tag)
            method, properties, body = got(channel, queue)
            assert (properties.headers, properties.delivery_mode, body) == (expected, 2, b"m")
            channel.basic_nack(method.delivery_tag)
        assert channel.basic_get("limited") == (None, None, None)
        assert got(channel, "classic")[2] == b"m"


@pytest.mark.parametrize("said_by", ["argument", "policy"])
@pytest.mark.parametrize(("kind", "waits"), [("failed", "reject"), ("returned", "nack")])
def test_a_clients_reject_fails_and_its_nack_returns(tmp_path: Path, kind: str, waits: str, said_by: str) -> None:
    said = {"delayed-retry-min": 3_600_000, "delayed-retry-type": kind}
    arguments = {f"x-{name}": value for name, value in said.items()} if said_by == "argument" else None
    with served(tmp_path) as broker, broker.channel() as channel:
        if said_by == "policy":
            broker.node.set_policy("later", "^q", said)
        for way, settle in (("reject", channel.basic_reject), ("nack", channel.basic_nack)):
            channel.queue_declare(f"q {way}", arguments=arguments)
            channel.basic_publish("", f"q {way}", b"m")
            settle(got(channel, f"q {way}")[0].delivery_tag, requeue=True)
            assert (channel.basic_get(f"q {way}")[0] is None) == (way == waits)


@both_ways
async def test_a_delivery_that_is_rejected_failed_and_one_that_is_given_back_did_not(node: Any) -> None:
    arguments = {"x-delayed-retry-min": 3_600_000, "x-delayed-retry-type": "failed"}
    queue = await done(node.queue("q", arguments=arguments))
    for _ in range(2):
        await done(queue.publish(b"m"))
    await done((await done(queue.get())).nack())
    for _ in range(2):
        await done((await done(queue.get())).reject(requeue=True))
    assert (await done(queue.stats()))["messages_retrying"] == 2


def test_a_clients_nack_waits_as_the_queue_says(tmp_path: Path) -> None:
    with served(tmp_path) as broker, broker.channel() as channel:
        channel.queue_declare("q", arguments={"x-delayed-retry-min": 3_600_000})
        channel.basic_publish("", "q", b"m")
        channel.basic_nack(got(channel, "q")[0].delivery_tag)
        assert channel.basic_get("q") == (None, None, None)
        assert broker.node.queue("q", passive=True).stats()["messages_retrying"] == 1


@pytest.mark.parametrize("of", ["queue", "consumer"])
def test_what_a_client_does_not_ack_in_time_comes_again(tmp_path: Path, of: str) -> None:
    timeout = {"x-consumer-timeout": 50}
    with served(tmp_path) as broker, broker.channel() as channel:
        channel.queue_declare("q", arguments=timeout if of == "queue" else None)
        channel.basic_publish("", "q", b"m")
        tags = []
        for method, _, body in channel.consume("q", arguments=timeout if of == "consumer" else None):
            assert body == b"m"
            tags.append((method.delivery_tag, method.redelivered))
            if len(tags) == 2:
                break
        assert tags == [(1, False), (2, True)]
        channel.basic_ack(1)  # too late, and no error: the client cannot know
        channel.basic_ack(2)
        assert channel.is_open
        channel.cancel()


def test_a_consumers_timeout_that_cannot_be(tmp_path: Path) -> None:
    with served(tmp_path) as broker, broker.channel() as channel:
        channel.queue_declare("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="invalid arg 'x-consumer-timeout'"):
            channel.basic_consume("q", print, arguments={"x-consumer-timeout": 0})


def test_what_was_not_sent_to_a_client_that_goes_does_not_count(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        queue = broker.node.queue("q")
        queue.publish_many([b"%d" % n for n in range(5000)]).wait()
        with broker.channel() as channel:
            channel.basic_qos(prefetch_count=1)
            method, _, _ = next(channel.consume("q"))
            assert method.delivery_tag == 1
            with contextlib.suppress(pika.exceptions.ConnectionClosed):
                channel.connection.close()
        found = queue.get_many(2)
        assert [one.delivery_count for one in found] == [1, 0]
