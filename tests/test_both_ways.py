"""What handles do, on threads and in an event loop alike: every test runs both ways."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.both_ways import again, begun, both_ways, done, entered, listed, some
from warren.actors.engines.topics.errors import MemberError, QueueRangeError, TopicError, TopicNameError

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
async def test_messages_are_got_and_settled(node: Any) -> None:
    dead = await done(node.queue("dead"))
    queue = await done(node.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}))
    assert await done(queue.get()) is None
    await done(queue.publish(b"0", priority=3))
    await done(queue.publish_many([b"%d" % number for number in range(1, 10)]))
    assert await done(queue.publish_many([])) is None
    one, two, three, four = await done(queue.get_many(4))
    assert two.delivery_tag == one.delivery_tag + 1
    assert (one.body, one.properties.priority, one.redelivered) == (b"0", 3, False)
    await done(one.ack())
    await done(one.ack())  # once is enough
    await done(two.reject())
    await done(queue.nack([three]))
    again = await done(queue.get())
    assert (again.body, again.redelivered) == (b"2", True)
    await done(queue.ack([again, four]))
    rejected = await done(dead.get(timeout=30))
    assert (rejected.body, rejected.headers["x-death"][0]["reason"]) == (b"1", "rejected")
    await done(dead.sync())  # then it is gone from here
    settled = await done(queue.get_many(2, auto_ack=True))
    assert [(one.body, one.settled) for one in settled] == [(b"4", True), (b"5", True)]
    held = await done(queue.get_many(2))
    await done(queue.ack_up_to(held[0].delivery_tag))
    assert await done(queue.release()) == 1
    assert [one.body for one in await listed(queue.browse())] == [b"7", b"8", b"9"]
    with pytest.raises(RuntimeError, match="on purpose"):
        async with entered((await done(queue.get_many(1)))[0]):
            raise RuntimeError("on purpose")
    async with entered((await done(queue.get_many(1)))[0]) as delivery:
        assert delivery.body == b"8"  # what failed waits
    assert await done(queue.purge()) == 2
    await done(queue.sync())
    assert (await done(queue.stats()))["messages"] == 0
    assert await done(queue.delete(if_empty=True)) == 0
    with pytest.raises(warren.errors.QueueDownError):
        await done(queue.publish(b"late"))


@both_ways
async def test_multiple_settles_all_before(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"%d" % number for number in range(6)]))
    found = await done(queue.get_many(6))
    await done(found[1].ack(multiple=True))
    await done(found[3].nack(multiple=True))
    assert [one.body for one in await listed(queue.browse())] == [b"%d" % number for number in range(2, 6)]
    assert (await done(queue.stats()))["messages_ready"] == 2


@both_ways
async def test_a_get_waits_as_long_as_it_is_told_to(node: Any) -> None:
    queue = await done(node.queue("q"))
    assert await done(queue.get(timeout=0.01)) is None
    assert (await done(queue.stats()))["consumers"] == 0
    await done(queue.publish(b"x"))
    delivery = await done(queue.get(timeout=30))
    assert delivery.body == b"x"
    stats = await done(queue.stats())
    assert (stats["messages_unacknowledged"], stats["consumers"]) == (1, 0)
    await done(delivery.ack())
    await done(queue.sync())
    assert (await done(queue.stats()))["messages"] == 0


@both_ways
async def test_with_auto_ack_only_what_was_handed_out_is_acked(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"%d" % number for number in range(6)]))
    consumer = queue.consume(10, auto_ack=True)
    seen = [await done(consumer.receive(30)) for _ in range(2)]
    assert [(one.body, one.settled, one.delivery_tag) for one in seen] == [(b"0", True, 0), (b"1", True, 0)]
    await done(queue.sync())
    stats = await done(queue.stats())
    assert (stats["messages_ready"], stats["messages_unacknowledged"]) == (0, 4)
    await done(consumer.close())
    await done(queue.sync())
    left = await done(queue.get_many(10))
    assert [(one.body, one.redelivered) for one in left] == [(b"%d" % number, True) for number in range(2, 6)]


@both_ways
async def test_a_consumer_gets_no_more_than_its_prefetch_and_more_when_it_may(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"%d" % number for number in range(20)]))
    async with entered(queue.consume(prefetch=3, timeout=30, tag="mine")) as consumer:
        assert consumer.tag == "mine"
        found = await some(consumer, 3)
        assert (await done(queue.stats()))["messages_unacknowledged"] == 3
        assert await done(consumer.receive(0.01)) is None
        waiting = begun(consumer.receive, 30)
        await done(consumer.set_prefetch(5))
        found += [await waiting, *await some(consumer, 1)]
        assert await done(consumer.receive(0.01)) is None
        await done(found[4].ack(multiple=True))
        assert [one.body for one in await some(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]
        await done(consumer.cancel())
        assert await done(consumer.receive(1)) is None
    await done(queue.sync())
    assert (await done(queue.stats()))["messages_ready"] == 15


@pytest.mark.slow
@both_ways
async def test_a_consumer_ends_when_nothing_comes_and_when_it_is_cancelled(node: Any) -> None:
    queue = await done(node.queue("q"))
    await done(queue.publish_many([b"1", b"2"]))
    assert [one.body for one in await listed(queue.consume(timeout=2))] == [b"1", b"2"]
    await done(queue.sync())
    stats = await done(queue.stats())
    assert (stats["messages_ready"], stats["consumers"]) == (2, 0)  # nothing was acked, and it closed itself
    consumer = queue.consume(auto_ack=True)
    assert [(await done(consumer.receive(30))).body for _ in range(2)] == [b"1", b"2"]
    waiting = begun(consumer.receive)
    await asyncio.sleep(0)
    await done(consumer.cancel())
    assert await waiting is None
    await done(consumer.close())
    await done(queue.sync())
    assert (await done(queue.stats()))["messages"] == 0


@both_ways
async def test_a_consumer_ends_with_its_queue(node: Any) -> None:
    queue = await done(node.queue("q"))
    async with entered(queue.consume()) as consumer:
        await done(queue.stats())
        waiting = begun(consumer.receive)
        await asyncio.sleep(0)
        await done(node.delete_queue("q"))
        with pytest.raises(warren.errors.QueueDownError, match="deleted"):
            await waiting


@both_ways
async def test_a_queue_without_arguments_is_the_existing_one(node: Any) -> None:
    retry = warren.Retry(limit=3, delay=0.1, dead_letters="dead")
    jobs = await done(node.queue("jobs", retry=retry))
    scratch = await done(node.queue("scratch", durable=False, auto_delete=True))
    own = await done(node.queue("own", exclusive=True))
    await done(jobs.publish(b"x"))
    again = await done(node.queue("jobs"))
    assert (again.arguments, (await done(again.get())).body) == (retry.arguments, b"x")
    assert (await done(node.queue("jobs", durable=True))).arguments == jobs.arguments
    assert not (await done(node.queue("scratch"))).durable
    assert not scratch.durable
    assert not (await done(node.queue("own"))).durable  # as RabbitMQ has exclusive ones
    assert (await done(node.queue("own", durable=True, exclusive=True))).name == own.name
    with pytest.raises(warren.errors.ResourceLockedError):
        await done((await done(node.vhost("/"))).queue("own"))
    with pytest.raises(warren.errors.ResourceLockedError):
        await done((await done(node.vhost("/"))).queue("own", auto_delete=True))
    new = await done(node.queue(""))
    assert (new.durable, new.arguments) == (True, {})


@both_ways
async def test_a_refused_declaration_says_all_that_differs(node: Any) -> None:
    await done(node.queue("jobs", retry=warren.Retry(limit=3)))
    for asked, differences in (
        ({"arguments": {}}, "x-delivery-limit is 3 (asked for: not set)"),
        ({"retry": warren.Retry(limit=4)}, "x-delivery-limit is 3 (asked for: 4)"),
        (
            {"durable": False, "auto_delete": True, "arguments": {"x-max-length": 9, "x-delivery-limit": 3}},
            "durable is True (asked for: False), auto_delete is False (asked for: True), "
            "x-max-length is not set (asked for: 9)",
        ),
    ):
        with pytest.raises(warren.errors.PreconditionFailedError) as refused:
            await done(node.queue("jobs", **asked))
        text = f"queue 'jobs' in vhost '/' exists and differs: {differences}; passive=True gets it as it is"
        assert str(refused.value) == text
        assert (await done(node.queue("jobs", **asked, passive=True))).arguments == {"x-delivery-limit": 3}
    with pytest.raises(warren.errors.ResourceLockedError):
        await done(node.queue("jobs", exclusive=True))


@both_ways
async def test_handles_on_the_same_thing_are_equal(node: Any) -> None:
    queue, other = await done(node.queue("a")), await done(node.queue("b"))
    elsewhere = await done((await done(node.vhost("v"))).queue("a"))
    exchange, topic = await done(node.exchange("a", "topic")), await done(node.topic("a"))
    handles = {queue, other, elsewhere, exchange, topic}
    assert len(handles) == 5
    assert queue in node.queues()
    assert elsewhere not in node.queues()
    assert elsewhere in (await done(node.vhost("v"))).queues()
    same = [await done(node.queue("a")), await done(node.exchange("a")), await done(node.topic("a"))]
    assert same == [queue, exchange, topic]
    assert handles.issuperset(same)
    assert await done((await done(node.vhost("/"))).queue("a")) == queue
    assert queue != "a"
    with warren.open(":memory:") as first, warren.open(":memory:") as second:
        assert first.queue("a") != second.queue("a")
        assert first.queue("a") != queue


@both_ways
async def test_a_consumer_says_whose_it_is(node: Any) -> None:
    queue = await done(node.queue("q"))
    async with entered(queue.consume(tag="mine")) as consumer:
        assert repr(consumer) == f"{repr(node).partition('.Node')[0]}.Consumer 'mine' of 'q'>"
    assert repr(consumer).endswith("Consumer 'mine' of 'q' (closed)>")


@both_ways
async def test_a_reader_says_whose_it_is(node: Any) -> None:
    topic = await done(node.topic("t"))
    async with entered(topic.reader("g")) as reader:
        assert repr(reader) == f"{repr(node).partition('.Node')[0]}.Reader {reader.name!r} of 't'>"
    assert repr(reader).endswith(" of 't' (closed)>")


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
async def test_what_cannot_be_done_is_refused(node: Any) -> None:
    errors = warren.errors
    queue, topic = await done(node.queue("q")), await done(node.topic("t"))
    small = await done(node.queue("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    only = await done(node.queue("only", exclusive=True))
    await done(small.publish(b"1"))
    await done(queue.publish(b""))
    elsewhere = await done(node.vhost("/"))
    for error, call in (
        (errors.NotFoundError, lambda: node.queue("none", passive=True)),
        (errors.NotFoundError, lambda: node.exchange("none")),
        (errors.NotFoundError, lambda: node.publish_to(["q", "none"], b"")),
        (errors.PreconditionFailedError, lambda: node.queue("q", durable=False)),
        (errors.PreconditionFailedError, lambda: node.queue("r", arguments={"x-max-length": "many"})),
        (errors.PreconditionFailedError, lambda: queue.delete(if_empty=True)),
        (errors.PreconditionFailedError, lambda: queue.ack_up_to(7)),
        (errors.ResourceLockedError, lambda: elsewhere.queue("only", passive=True)),
        (errors.PublishRefusedError, lambda: small.publish(b"2")),
        (errors.MessageError, lambda: queue.publish("text")),
        (errors.MessageError, lambda: queue.publish(b"", priority=256)),
        (errors.MessageError, lambda: queue.publish(b"", expiration=-1)),
        (warren.WarrenError, lambda: queue.publish(b"", colour="red")),
        (warren.WarrenError, lambda: queue.publish_many(b"bodies")),
        (warren.WarrenError, lambda: queue.set_mode("eager")),
        (warren.WarrenError, lambda: topic.append(b"", delay=1.0, delay_level=1)),
        (warren.WarrenError, lambda: topic.append_many([b""], tag="a", tags=["b"])),
    ):
        with pytest.raises(error):
            await done(call())
    with pytest.raises(TypeError, match="colour"):
        queue.consume(colour="red")
    async with entered(queue.consume(exclusive=True)):
        with pytest.raises(errors.AccessRefusedError):
            await listed(queue.consume(timeout=0))
    await done(only.publish(b""))
    assert await done(queue.delete()) == 1
    with pytest.raises(errors.QueueDownError):
        await done(queue.publish(b""))
    assert await done((await done(node.queue("q"))).publish(b"again")) is None


# ── exchanges ───────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
async def test_messages_go_where_bindings_lead(node: Any) -> None:
    queue, other = await done(node.queue("q")), await done(node.queue("other"))
    exchange, inner = await done(node.exchange("news", "topic")), await done(node.exchange("inner", "fanout"))
    await done(node.bind(queue, exchange, "a.*"))
    await done(node.bind("q", "news", "*.b.#"))
    await done(node.bind(inner, "news", "#"))
    await done(node.bind("other", inner))
    same = await done(node.exchange("news"))
    assert (same.type, same.name) == ("topic", "news")
    await done(exchange.publish(b"1", "a.b", mandatory=True))
    await done(exchange.publish_many([b"2", b"3"], "b"))
    await done(node.publish_to(["q", "other"], b"4"))
    assert [one.body for one in await listed(queue.browse())] == [b"1", b"4"]
    assert [one.body for one in await listed(other.browse())] == [b"1", b"2", b"3", b"4"]
    await done(node.unbind(inner, "news", "#"))
    await done(exchange.publish(b"dropped", "b"))
    with pytest.raises(warren.errors.UnroutableError, match="'b' of exchange 'news'"):
        await done(exchange.publish(b"returned", "b", mandatory=True))
    document = await done(node.definitions())
    await done(node.delete_exchange("news"))
    with pytest.raises(warren.errors.NotFoundError):
        await done(exchange.publish(b"late", "a.b"))
    await done(node.import_definitions(document))
    assert (await done(node.exchange("news"))).type == "topic"
    assert sorted(one.name for one in node.queues()) == ["other", "q"]


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


async def bodies_read(topic: Any, group: str, **arguments: Any) -> list[bytes]:
    return [one.body for one in await listed(topic.read(group, **arguments))]


@pytest.mark.slow
@both_ways(sync_interval_ms=600_000)
async def test_messages_are_appended_found_and_read_and_there_after_opening_again(node: Any) -> None:
    assert await done(node.topics()) == {}
    events = await done(node.topic("events", queues=2))
    assert (events.name, events.queues) == ("events", 2)
    append = {"properties": {"a": "b"}, "queue": 0, "flag": 7, "born_host": "10.1.2.3:5"}
    first = await done(events.append(b"one", key="k1", tag="created", **append))
    assert (type(first), first.topic, first.queue_id, first.queue_offset) == (warren.AppendResult, "events", 0, 0)
    second = await done(events.append(b"two", key=["k2", "k1"], queue=0))
    assert (second.queue_offset, second.physical_offset) == (1, first.size)
    many = await done(events.append_many([b"three", b"four"], keys=["k3", "k4"], tags=["x", None], queue=lambda _: 1))
    assert [(one.queue_id, one.queue_offset) for one in many] == [(1, 0), (1, 1)]
    assert list(await done(events.append_many([]))) == []
    with pytest.raises(TypeError, match="colour"):
        await done(events.append(b"", colour="red"))
    await done(events.sync())
    assert await bodies_read(events, "g") == [b"one", b"two", b"three", b"four"]
    assert await bodies_read(events, "g") == []
    async with again(node) as node:  # noqa: PLR1704
        events = await done(node.topic("events"))
        assert await done(node.topics()) == {"events": 2, "%RETRY%g": 1}
        for arguments, bodies in (
            ({}, [b"two", b"one"]),
            ({"limit": 1}, [b"two"]),
            ({"exact": False}, [b"two", b"one"]),
        ):
            assert [one.body for one in await done(events.find("k1", **arguments))] == bodies
        found = await done(events.get(0, 0))
        assert (found.body, found.tag, found.key, found.properties["a"]) == (b"one", "created", "k1", "b")
        assert (found.flag, found.born_host) == (7, "10.1.2.3:5")
        assert (await done(events.view_message(found.message_id))).body == b"one"
        with pytest.raises(LookupError):
            await done(events.get(0, 2))
        assert await done(events.offsets()) == {0: (0, 2), 1: (0, 2)}
        assert await done(events.offset_at(0.0)) == {0: 0, 1: 0}
        assert await done(events.offset_at(found.stored_at + 3600)) == {0: 2, 1: 2}
        assert await done(events.lag("g")) == {0: 0, 1: 0}
        assert await done(events.lag("new")) == {0: 2, 1: 2}
        assert await done(events.seek("g", {1: 1})) == {1: 1}
        assert await bodies_read(events, "g") == [b"four"]
        assert await done(events.seek("g", 0.0)) == {0: 0, 1: 0}
        assert await bodies_read(events, "g", max_records=3) == [b"one", b"two", b"three"]
        assert await bodies_read(events, "g", tags="x || created") == []
        assert await done(events.lag("g")) == {0: 0, 1: 0}  # what the tags leave out is done
        assert await bodies_read(events, "late", consume_from="last") == []
        assert await bodies_read(events, "h", consume_from=0.0, tags="x || created") == [b"one", b"three"]


@pytest.mark.slow
@both_ways
async def test_transactions_are_decided_once_and_those_that_are_not_survive(node: Any) -> None:
    events = await done(node.topic("events", queues=1))
    kept, dropped, left = [await done(events.prepare(body, key="k")) for body in (b"kept", b"dropped", b"left")]
    message = await done(kept.message() if inspect.ismethod(kept.message) else kept.message)
    assert (message.body, message.key) == (b"kept", "k")
    assert await bodies_read(events, "g") == []
    assert [(one.half_offset, one.topic) for one in await done(node.pending_transactions())] == [
        (0, "events"), (1, "events"), (2, "events"),
    ]  # fmt: skip
    await done(kept.commit())
    await done(dropped.rollback())
    assert await bodies_read(events, "g") == [b"kept"]
    for decide in (kept.commit, kept.rollback, dropped.commit):
        with pytest.raises(warren.errors.TransactionError):
            await done(decide())
    [found] = await done(events.find("k"))
    assert found.record.prepared_transaction_offset == message.physical_offset
    async with again(node) as node:  # noqa: PLR1704
        [left] = await done(node.pending_transactions())
        await done(left.commit())
        assert await bodies_read(await done(node.topic("events")), "g") == [b"left"]
        assert await done(node.pending_transactions()) == []


@both_ways
async def test_what_a_topic_cannot_do_is_refused(node: Any) -> None:
    for name in ("no topic", ""):
        with pytest.raises(TopicNameError):
            await done(node.topic(name))
    topic = await done(node.topic("t", queues=1))
    for error, call in (
        (QueueRangeError, lambda: topic.append(b"", queue=1)),
        (warren.errors.MessageError, lambda: topic.append(b"", key="two words")),
        (warren.errors.MessageError, lambda: topic.append("text")),
        (warren.errors.MessageError, lambda: topic.append(bytes(5 << 20))),
        (LookupError, lambda: topic.get(0, 0)),
        (TopicNameError, lambda: topic.lag("no group")),
        (TopicNameError, lambda: topic.lag("")),
        (TopicNameError, lambda: topic.seek("no group", "first")),
        (TopicNameError, lambda: topic.seek("", "first")),
        (TopicNameError, lambda: listed(topic.read("no group"))),
        (TopicNameError, lambda: listed(topic.read(""))),
    ):
        with pytest.raises(error):
            await done(call())
    await done(topic.append(b"x", key="k"))
    [found] = await done(topic.find("k"))
    with pytest.raises(TopicError):
        await done(found.commit())
    async with entered(topic.reader("g")) as reader:
        pass
    for verb in (reader.read, reader.commit, reader.queues):
        with pytest.raises(MemberError):
            await done(verb())
    assert (await done(node.topic("t", queues=3))).queues == topic.queues == 3
    assert (await done(topic.append(b"", queue=2))).queue_id == 2


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
