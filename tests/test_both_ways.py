"""What handles do, on threads and in an event loop alike: every test runs both ways."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.both_ways import both_ways, done, listed

PAIRS = [
    (getattr(warren, name), getattr(warren.aio, name))
    for name in (
        "Node",
        "Vhost",
        "Queue",
        "Exchange",
        "Topic",
        "Reader",
        "TopicRecord",
        "Transaction",
        "Consumer",
        "Delivery",
    )
]
ALONE = {
    "Node": {"blocking"},
    "Queue": {"blocking", "length", "publish_nowait", "room"},
    "Exchange": {"blocking", "publish_nowait"},
    "Topic": {"blocking", "append_nowait", "room"},
    "Reader": {"begin", "aclose"},
    "Transaction": {"blocking"},
    "Consumer": {"begin", "aclose", "buffered", "ended", "on_ready", "take_now"},
}
"""What one way has alone: threads ask ``len(queue)``, and look at a consumer without waiting; an event loop may hand
over now and wait later."""
OWN_ARGUMENTS = {"Topic.append", "Topic.append_many"}
"""In an event loop without ``block``: ``append_nowait`` is that."""


# ── the two have the same verbs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("on_threads", "in_a_loop"), PAIRS, ids=[one.__name__ for one, _ in PAIRS])
def test_both_ways_have_the_same_verbs_with_the_same_arguments(on_threads: type, in_a_loop: type) -> None:
    name = on_threads.__name__
    first, second = ({one for one in dir(kind) if not one.startswith("_")} for kind in (on_threads, in_a_loop))
    assert first ^ second <= ALONE.get(name, set())
    for verb in first & second:
        one, other = getattr(on_threads, verb), getattr(in_a_loop, verb)
        if callable(one) and callable(other) and f"{name}.{verb}" not in OWN_ARGUMENTS:
            assert [*inspect.signature(one).parameters] == [*inspect.signature(other).parameters], verb


# ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_messages_are_published_got_and_acked(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish(b"1", priority=3))
    await done(queue.publish_many([b"2", b"3"]))
    assert await done(queue.publish_many([])) is None
    delivery = await done(queue.get())
    assert (delivery.body, delivery.properties.priority, delivery.redelivered) == (b"1", 3, False)
    await done(delivery.ack())
    two, three = await done(queue.get_many(5))
    await done(two.nack())
    await done(three.reject())
    again = await done(queue.get(auto_ack=True))
    assert (again.body, again.redelivered, again.settled) == (b"2", True, True)
    assert await done(queue.get()) is None
    await done(queue.sync())
    assert (await done(queue.stats()))["messages"] == 0


@both_ways
async def test_a_get_waits_as_long_as_it_is_told_to(node: Any) -> None:
    queue = await done(node.queue("q"))
    assert await done(queue.get(timeout=0.01)) is None
    assert (await done(queue.stats()))["consumers"] == 0
    await done(queue.publish(b"x"))
    delivery = await done(queue.get(timeout=30))
    assert delivery.body == b"x"
    await done(delivery.ack())


@both_ways
async def test_what_was_got_and_not_settled_is_released_to_its_place(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"1", b"2", b"3", b"4"]))
    deliveries = await done(queue.get_many(4))
    await done(queue.ack_up_to(deliveries[0].delivery_tag))
    await done(queue.ack(deliveries[1:2]))
    assert await done(queue.release()) == 2
    assert [one.body for one in await listed(queue.browse())] == [b"3", b"4"]
    assert await done(queue.purge()) == 2


@both_ways
async def test_with_auto_ack_only_what_was_handed_out_is_acked(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"%d" % number for number in range(6)]))
    consumer = queue.consume(10, auto_ack=True)
    seen = [await done(consumer.receive(30)) for _ in range(2)]
    assert [(one.body, one.settled) for one in seen] == [(b"0", True), (b"1", True)]
    await done(consumer.close())
    await done(queue.sync())
    left = await done(queue.get_many(10))
    assert [(one.body, one.redelivered) for one in left] == [(b"%d" % number, True) for number in range(2, 6)]


@both_ways
async def test_a_consumer_ends_when_nothing_comes(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"1", b"2"]))
    bodies = []
    for delivery in await listed(queue.consume(timeout=0.05)):
        bodies.append(delivery.body)
    assert bodies == [b"1", b"2"]


@both_ways
async def test_a_queue_is_deleted_under_conditions_or_by_force(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish(b"x"))
    with pytest.raises(warren.errors.PreconditionFailedError):
        await done(node.delete_queue("q", if_empty=True))
    assert await done(node.delete_queue("q", force=True)) == 1
    assert await done(node.delete_queue("q", vhost="/")) == 0
    with pytest.raises(warren.errors.NotFoundError):
        await done(node.queue("q", passive=True))
    assert node.failed_queues == {}


@both_ways
async def test_arguments_that_cannot_be_are_refused(node: Any) -> None:
    queue = await done(node.queue("q"))
    for wrong in (
        lambda: queue.publish("text"),
        lambda: queue.publish(b"", expiration=-1),
        lambda: queue.publish(b"", colour="red"),
        lambda: queue.publish_many(b"bodies"),
        lambda: queue.set_mode("eager"),
    ):
        with pytest.raises(warren.WarrenError):
            await done(wrong())
    with pytest.raises(TypeError, match="colour"):
        queue.consume(colour="red")


# ── exchanges ───────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_messages_go_where_bindings_lead(node: Any) -> None:
    queue, other = await done(node.queue("q")), await done(node.queue("other"))
    exchange, inner = await done(node.exchange("news", "topic")), await done(node.exchange("inner", "fanout"))
    await done(node.bind(queue, exchange, "a.*"))
    await done(node.bind(inner, "news", "#"))
    await done(node.bind("other", inner))
    await done(exchange.publish(b"1", "a.b"))
    await done(exchange.publish_many([b"2", b"3"], "b"))
    await done(node.publish_to(["q", "other"], b"4"))
    assert [one.body for one in await listed(queue.browse())] == [b"1", b"4"]
    assert [one.body for one in await listed(other.browse())] == [b"1", b"2", b"3", b"4"]
    await done(node.unbind(inner, "news", "#"))
    await done(exchange.publish(b"dropped", "b"))
    with pytest.raises(warren.errors.UnroutableError, match="'b' of exchange 'news'"):
        await done(exchange.publish(b"returned", "b", mandatory=True))
    await done(node.delete_exchange("news"))


@both_ways
async def test_vhosts_own_their_exclusive_queues(node: Any) -> None:
    vhost = await done(node.vhost("team"))
    mine = await done(vhost.queue("", exclusive=True))
    assert sorted(await done(node.vhosts())) == ["/", "team"]
    with pytest.raises(warren.errors.ResourceLockedError):
        await done((await done(node.vhost("team"))).queue(mine.name, passive=True))
    await done(vhost.release())
    assert vhost.queues() == []
    await done(node.delete_vhost("team"))


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_messages_are_appended_found_and_read(node: Any) -> None:
    topic = await done(node.topic("events", queues=2))
    result = await done(topic.append(b"1", key="k", tag="t", queue=1, flag=7, born_host="10.1.2.3:5"))
    assert (type(result), result.queue_id, result.queue_offset) == (warren.AppendResult, 1, 0)
    assert len(await done(topic.append_many([b"2", b"3"], keys=["a", "b"], queue=0))) == 2
    [found] = await done(topic.find("k"))
    assert (found.body, found.tag, found.flag, found.born_host) == (b"1", "t", 7, "10.1.2.3:5")
    assert (await done(topic.get(1, 0))).message_id == found.message_id
    assert (await done(topic.view_message(found.message_id))).body == b"1"
    assert await done(topic.offsets()) == {0: (0, 2), 1: (0, 1)}
    assert sorted(one.body for one in await listed(topic.read("g"))) == [b"1", b"2", b"3"]
    assert await done(topic.lag("g")) == {0: 0, 1: 0}
    assert await done(topic.seek("g", "first")) == {0: 0, 1: 0}
    with pytest.raises(TypeError, match="colour"):
        await done(topic.append(b"", colour="red"))


@both_ways
async def test_a_prepared_message_is_seen_when_it_is_committed(node: Any) -> None:
    topic = await done(node.topic("events", queues=1))
    kept, dropped = await done(topic.prepare(b"kept", key="k")), await done(topic.prepare(b"dropped"))
    message = await done(kept.message() if inspect.ismethod(kept.message) else kept.message)
    assert (message.body, message.key) == (b"kept", "k")
    assert [one.half_offset for one in await done(node.pending_transactions())] == [0, 1]
    await done(kept.commit())
    await done(dropped.rollback())
    with pytest.raises(warren.errors.TransactionError):
        await done(kept.rollback())
    assert [one.body for one in await listed(topic.read("g"))] == [b"kept"]


# ── the node ────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_a_node_tells_of_itself_and_a_closed_one_says_so(node: Any) -> None:
    queue = await done(node.queue("q"))
    assert (await done(node.memory()))["alarms"] == []
    assert [*(await done(node.stats()))["vhosts"]["/"]["queues"]] == ["q"]
    document = await done(node.definitions())
    assert not (await done(node.import_definitions(document))).queues
    await done(node.close())
    with pytest.raises(warren.errors.ClosedError):
        await done(queue.publish(b"x"))
    assert "(closed)" in repr(node)
