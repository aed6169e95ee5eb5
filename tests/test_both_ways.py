"""What handles do, on threads and in an event loop alike: every test runs both ways."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import warren
import warren.aio
from tests.support.both_ways import again, both_ways, done, entered, listed

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
    queue = await done(node.queue("q"))
    assert await done(queue.get()) is None
    await done(queue.publish(b"0", priority=3))
    await done(queue.publish_many([b"%d" % number for number in range(1, 10)]))
    assert await done(queue.publish_many([])) is None
    one, two, three, four = await done(queue.get_many(4))
    assert (one.body, one.properties.priority, one.redelivered) == (b"0", 3, False)
    await done(one.ack())
    await done(one.ack())  # once is enough
    await done(two.reject())
    await done(queue.nack([three]))
    again = await done(queue.get())
    assert (again.body, again.redelivered) == (b"2", True)
    await done(queue.ack([again, four]))
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
    await done(delivery.ack())


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
async def test_arguments_that_cannot_be_are_refused(node: Any) -> None:
    queue, topic = await done(node.queue("q")), await done(node.topic("t"))
    for wrong in (
        lambda: queue.publish("text"),
        lambda: queue.publish(b"", expiration=-1),
        lambda: queue.publish(b"", colour="red"),
        lambda: queue.publish_many(b"bodies"),
        lambda: queue.set_mode("eager"),
        lambda: topic.append(b"", delay=1.0, delay_level=1),
        lambda: topic.append_many([b""], tag="a", tags=["b"]),
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
    document = await done(node.definitions())
    await done(node.delete_exchange("news"))
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
