"""What the server answers where a differential run has found it otherwise."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from pamqp import commands as c

from tests.support.amqp_driver import Driver, Transcript
from tests.support.amqp_link import Link
from tests.support.amqp_program import Step
from tests.support.server_tools import served
from warren.amqp.methods import encode_method
from warren.server.peer import packet_counts

OK = {"queue": "@q", "message_count": 0, "consumer_count": 0}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("node") / "node") as found:
        yield found.port


def test_a_socket_that_was_closed_counts_no_packets(port: int) -> None:
    async def ask() -> tuple[int, int]:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        assert packet_counts(transport) == (0, 0)
        transport.abort()
        await asyncio.sleep(0.1)
        return packet_counts(transport)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == (0, 0)


def told(port: int, *methods: tuple[str, dict[str, Any]]) -> Transcript:
    """The transcript of the given methods, on one channel unless they name another."""
    where = {"connection": 0, "channel": 1}
    return Driver(port).run(tuple(Step(at, verb, where | arguments) for at, (verb, arguments) in enumerate(methods)))


def published(**arguments: Any) -> tuple[str, dict[str, Any]]:
    message = {"exchange": "", "routing_key": "@q", "properties": {}, "body": "m", "count": 1}
    return "basic.publish", message | arguments


def test_consumers_of_a_deleted_queue_are_cancelled_in_the_order_of_their_tags(port: int) -> None:
    link = Link(port)
    channel = link.open_channel(1)
    consumes = [c.Basic.Consume(queue="q", consumer_tag=tag) for tag in ("b", "c", "a")]
    methods = [c.Queue.Declare(queue="q"), *consumes, c.Queue.Delete(queue="q")]
    link.write(b"".join(encode_method(1, method) for method in methods))
    while len(channel.came) < 8:
        link.read()
    link.close()
    answers = [name for name, _ in channel.came[:5]]
    assert answers == ["queue.declare_ok", "queue.delete_ok", *["basic.consume_ok"] * 3], "a queue's answers come last"
    assert [(name, arguments["consumer_tag"]) for name, arguments in channel.came[5:]] == [
        ("basic.cancel", tag) for tag in ("a", "b", "c")
    ]


def test_an_exclusive_queue_is_never_durable(port: int) -> None:
    declare = {"queue": "@q", "exclusive": True}
    again = told(port, ("queue.declare", declare | {"durable": True}), ("queue.declare", declare))[-1]
    assert again["0.1"] == [["queue.declare_ok", OK]]


def test_a_blind_copy_is_blind_in_a_message_that_comes_back_too(port: int) -> None:
    headers = {"BCC": ["@nowhere"], "h": True}
    [[name, returned]] = told(port, published(mandatory=True, properties={"headers": headers}))[-1]["0.1"]
    assert name == "basic.return"
    assert returned["properties"] == " \0" + "\0\0\0\4\1ht\1"


def test_a_connection_with_consumers_of_a_queue_that_goes_with_the_first_of_them_is_closed(port: int) -> None:
    consumes = [("basic.consume", {"queue": "@q", "channel": channel}) for channel in (1, 2, 3)]
    found = told(port, ("queue.declare", {"queue": "@q", "auto_delete": True}), *consumes, ("connection.close", {}))
    assert found[-1] == {"0": [["connection.close_ok", {}]], "queues": {}}


def test_bytes_that_are_no_text_may_stand_in_a_binding_s_arguments(port: int) -> None:
    binding = {"queue": "@q", "exchange": "amq.headers", "arguments": {"h": b"\xff"}}
    found = told(
        port,
        ("queue.declare", {"queue": "@q"}),
        ("queue.bind", binding),
        published(exchange="amq.headers", properties={"headers": {"h": 1}}),
    )
    assert found[1]["0.1"] == [["queue.bind_ok", {}]]
    assert found[-1]["queues"] == {"@q": [0, 0]}


def test_what_came_before_a_violation_in_the_same_read_breaks_nothing(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(port)
    with caplog.at_level(logging.ERROR):
        link.write(
            b"".join(
                (
                    encode_method(1, c.Channel.Open()),
                    encode_method(1, c.Queue.Declare(queue="before", auto_delete=True)),
                    encode_method(1, c.Basic.Get(queue="before")),
                    encode_method(1, c.Channel.Close(200, "", 0, 0)),
                    struct.pack(">BHI", 3, 1, 5) + b"hello\0",
                )
            )
        )
        while link.is_open:
            link.read()
    [(name, close), end] = link.came
    assert (name, close["reply_code"], end) == ("connection.close", 501, ("eof", {}))
    assert caplog.records == []


def test_what_is_given_back_goes_to_a_consumer_that_waits_before_somebody_gets_it(port: int) -> None:
    give_back = {"verb": "basic.nack", "delivery": 0, "requeue": True}
    steps = [give_back, {"verb": "basic.get", "queue": "@q"}, {"verb": "queue.purge", "queue": "@q"}]
    found = told(
        port,
        ("queue.declare", {"queue": "@q"}),
        published(),
        ("basic.get", {"queue": "@q"}),
        ("basic.consume", {"queue": "@q", "consumer_tag": "@c"}),
        ("pipeline", {"steps": steps}),
    )[-1]
    assert [name for name, _ in found["0.1"]] == ["basic.get_empty", "queue.purge_ok"]
    assert [arguments["redelivered"] for _, arguments in found["0.1 to @c"]] == [True]


def test_a_dead_letter_comes_behind_the_message_it_was(port: int) -> None:
    dies = {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "@q"}
    found = told(
        port,
        ("queue.declare", {"queue": "@full", "arguments": dies | {"x-overflow": "reject-publish-dlx"}}),
        ("queue.declare", {"queue": "@q"}),
        ("queue.bind", {"queue": "@full", "exchange": "amq.fanout"}),
        ("queue.bind", {"queue": "@q", "exchange": "amq.fanout"}),
        ("basic.consume", {"queue": "@q", "consumer_tag": "@c"}),
        published(exchange="amq.fanout", count=2),
    )[-1]
    dead = ["x-death" in arguments["properties"] for _, arguments in found["0.1 to @c"]]
    assert dead == [False, False, True, True]


def settled(verb: str = "basic.ack", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return verb, {"delivery": 0} | arguments


def test_a_prefetch_of_a_whole_channel_does_not_count_what_was_got(port: int) -> None:
    found = told(
        port,
        ("queue.declare", {"queue": "@q"}),
        published(count=4),
        ("basic.qos", {"prefetch_count": 1, "global_": True}),
        ("basic.get", {"queue": "@q"}),
        ("basic.consume", {"queue": "@q", "consumer_tag": "@c"}),
        settled(),
        settled(),
    )
    assert found[4]["queues"] == {"@q": [2, 1]}
    assert found[5]["queues"] == {"@q": [2, 1]}, "what was got makes no room"
    assert found[6]["queues"] == {"@q": [1, 1]}


def test_a_prefetch_of_a_whole_channel_holds_for_all_its_consumers_and_keeps_nothing_from_others(port: int) -> None:
    consumes = [("basic.consume", {"queue": f"@q{at}", "consumer_tag": f"@c{at}"}) for at in (0, 1)]
    without_ack = ("basic.consume", {"queue": "@q1", "consumer_tag": "@c2", "no_ack": True})
    other = ("basic.consume", {"queue": "@q1", "consumer_tag": "@c3", "channel": 2})
    found = told(
        port,
        *(("queue.declare", {"queue": f"@q{at}"}) for at in (0, 1)),
        ("basic.qos", {"prefetch_count": 2, "global_": True}),
        *consumes,
        published(routing_key="@q0", count=3),
        without_ack,
        published(routing_key="@q1", count=2),
        other,
        settled(multiple=True),
        published(routing_key="@q1", count=2, channel=2),
    )
    assert found[5]["queues"] == {"@q0": [1, 1], "@q1": [0, 1]}
    assert found[7]["queues"]["@q1"] == [2, 2], "nobody has room, whether it acks or not"
    assert len(found[8]["0.2 to @c3"]) == 2
    assert len(found[9]["0.1 to @c0"]) == 1
    assert "0.2 to @c3" in found[10]


def test_a_prefetch_of_each_consumer_ends_that_of_the_whole_channel(port: int) -> None:
    found = told(
        port,
        ("queue.declare", {"queue": "@q"}),
        ("basic.qos", {"prefetch_count": 1, "global_": True}),
        ("basic.consume", {"queue": "@q", "consumer_tag": "@c"}),
        published(count=5),
        ("basic.qos", {"prefetch_count": 2}),
    )
    assert found[3]["queues"] == {"@q": [4, 1]}
    assert found[4]["queues"] == {"@q": [0, 1]}, "the consumer was there before, and has none"


def test_a_consumer_that_waits_gets_what_comes_first_whatever_its_priority(port: int) -> None:
    def one(body: str, priority: int) -> dict[str, Any]:
        verb, arguments = published(body=body, properties={"priority": priority})
        return {"verb": verb, **arguments}

    found = told(
        port,
        ("queue.declare", {"queue": "@q", "arguments": {"x-max-priority": 9}}),
        ("basic.qos", {"prefetch_count": 2}),
        ("basic.consume", {"queue": "@q", "consumer_tag": "@c"}),
        ("pipeline", {"steps": [one("low", 0), one("high", 9), one("middle", 5), one("highest", 9)]}),
        ("basic.ack", {"delivery": 1, "multiple": True}),
    )
    bodies = [[arguments["body"] for _, arguments in step["0.1 to @c"]] for step in found[3:]]
    assert bodies == [["low", "high"], ["highest", "middle"]]


def test_direct_replies_have_the_tag_of_what_comes_next(port: int) -> None:
    asks = published(properties={"reply_to": "amq.rabbitmq.reply-to"})
    found = told(
        port,
        ("queue.declare", {"queue": "@q"}),
        ("basic.consume", {"queue": "amq.rabbitmq.reply-to", "consumer_tag": "@c", "no_ack": True}),
        asks,
        ("basic.get", {"queue": "@q", "no_ack": True}),
        published(routing_key="{reply}", count=2),
        asks,
        ("basic.get", {"queue": "@q", "no_ack": True}),
    )
    assert [found[at]["0.1 delivery tags"] for at in (3, 4, 6)] == [[1], [2, 2], [2]]
