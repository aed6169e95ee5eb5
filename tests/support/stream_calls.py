"""What clients do with streams, and the answers: calls made to a real RabbitMQ and to warren.

Each is a function of an AMQP URL that returns what it saw, as plain values; a refusal is what it closed, with its reply
code and text. They build on each other, in their order. ``tests/data/stream-calls.json`` has the answers of RabbitMQ
3.10.8; ``python -m tests.support.stream_calls URL`` rewrites it.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

STREAM: Final = {"x-queue-type": "stream"}
RECORDED: Final = Path(__file__).parent.parent / "data" / "stream-calls.json"
PATIENCE_S: Final = 10.0
QUIET_S: Final = 0.08
"""For this long nothing more may come."""

Call = Callable[[str], Any]
Work = Callable[[BlockingChannel], Any]
Read = tuple[int, int, bytes]
"""Delivery tag, stream offset, body."""

PROPERTIES: Final = pika.BasicProperties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"n": 1, "s": "x", "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "b": True, "big": 1 << 40},
    delivery_mode=1,
    priority=4,
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    message_id="m",
    timestamp=1_600_000_000,
    type="t",
    user_id="guest",
    app_id="app",
)


def call(work: Work) -> Call:
    """A call that has a channel; a refusal is what it answers."""

    def made(url: str) -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        try:
            return work(connection.channel())
        except ChannelClosedByBroker as error:
            return ["channel", error.reply_code, error.reply_text]
        except ConnectionClosedByBroker as error:
            return ["connection", error.reply_code, error.reply_text]
        finally:
            if connection.is_open:
                connection.close()

    return made


def declares(name: str, arguments: dict[str, Any] | None = None, *, durable: bool = True, **how: Any) -> Call:
    """Declare a stream."""
    wanted = STREAM | (arguments or {})
    return call(lambda channel: _declared(channel.queue_declare(name, durable=durable, arguments=wanted, **how)))


def _declared(answer: Any) -> list[Any]:
    return [answer.method.queue, answer.method.consumer_count]


def publishes(
    name: str, bodies: list[bytes], properties: pika.BasicProperties | None = None, exchange: str = ""
) -> Call:
    """Publish, each confirmed and mandatory."""

    def work(channel: BlockingChannel) -> str:
        publish(channel, name, bodies, properties, exchange)
        return "confirmed"

    return call(work)


def publish(
    channel: BlockingChannel,
    key: str,
    bodies: list[bytes],
    properties: pika.BasicProperties | None = None,
    exchange: str = "",
) -> None:
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish(exchange, key, body, properties, mandatory=True)


class Consumer:
    """A consumer of a stream on a channel of its own."""

    def __init__(self, channel: BlockingChannel, name: str, *, prefetch: int = 10, **how: Any) -> None:
        self.channel = channel
        self.got: list[tuple[Any, pika.BasicProperties, bytes]] = []
        channel.basic_qos(prefetch_count=prefetch)
        self.tag = channel.basic_consume(name, lambda _, *message: self.got.append(message), **how)

    def wait(self, count: int) -> list[Read]:
        """Wait for ``count`` messages, and that no more come. Return the delivery tag, offset and body of each."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.got) < count and time.monotonic() < deadline:
            self.channel.connection.process_data_events(0.02)
        self.channel.connection.process_data_events(QUIET_S)
        return [
            (method.delivery_tag, int(properties.headers["x-stream-offset"]), body)
            for method, properties, body in self.got
        ]


def reads(name: str, count: int, offset: Any = "first", *, prefetch: int = 10, then: Any = None, **how: Any) -> Call:
    """Consume; ``then``: is given the channel, and says how many have to be there after what it has done."""
    arguments = {} if offset is None else {"x-stream-offset": offset}

    def work(channel: BlockingChannel) -> list[Read]:
        consumer = Consumer(channel, name, prefetch=prefetch, arguments=arguments, **how)
        found = consumer.wait(count)
        return found if then is None else consumer.wait(then(channel))

    return call(work)


def _acks(tag: int, *, more: int, multiple: bool = False) -> Any:
    def then(channel: BlockingChannel) -> int:
        channel.basic_ack(tag, multiple=multiple)
        return more

    return then


def _publishes(name: str, *bodies: bytes, more: int) -> Any:
    def then(channel: BlockingChannel) -> int:
        publish(
            channel, name, list(bodies)
        )  # one by one: RabbitMQ sends what was written together, whatever the credit
        return more

    return then


def refused(settle: Callable[[BlockingChannel], None]) -> Any:
    def then(channel: BlockingChannel) -> int:
        settle(channel)
        return 99  # which never come

    return then


def _all_of_it(channel: BlockingChannel) -> Any:
    consumer = Consumer(channel, "whole", arguments={"x-stream-offset": "first"})
    consumer.wait(2)
    return [
        {name: value for name, value in vars(properties).items() if value is not None}
        | {"from": (method.exchange, method.routing_key, method.redelivered, body)}
        for method, properties, body in consumer.got
    ]


def _transaction(channel: BlockingChannel) -> list[Read]:
    channel.queue_declare("tx", durable=True, arguments=STREAM)
    channel.tx_select()
    channel.basic_publish("", "tx", b"taken back")
    channel.tx_rollback()
    channel.basic_publish("", "tx", b"one")
    channel.tx_commit()
    channel.basic_publish("", "tx", b"two")
    channel.tx_commit()
    consumer = Consumer(channel, "tx", prefetch=1, arguments={"x-stream-offset": "first"})
    consumer.wait(1)
    channel.basic_ack(1)
    held_back = len(consumer.wait(1))
    channel.tx_commit()
    return [(held_back, 0, b""), *consumer.wait(2)]


def _bound(channel: BlockingChannel) -> Any:
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_declare("bound", durable=True, arguments=STREAM)
    channel.queue_declare("beside", durable=True)
    channel.queue_bind("bound", "events", "a.*")
    channel.queue_bind("beside", "events", "a.b")
    publish(channel, "a.b", [b"both"], exchange="events")
    publish(channel, "a.c", [b"stream"], exchange="events")
    channel.queue_unbind("bound", "events", "a.*")
    channel.basic_publish("events", "a.b", b"beside")
    consumer = Consumer(channel, "bound", arguments={"x-stream-offset": "first"})
    consumer.wait(2)
    beside = [channel.basic_get("beside", auto_ack=True)[2] for _ in range(2)]
    return beside, [(method.exchange, method.routing_key, body) for method, _, body in consumer.got]


def _two_at_once(channel: BlockingChannel) -> list[list[Read]]:
    one = Consumer(channel, "five", arguments={"x-stream-offset": "first"}, exclusive=True)
    other = Consumer(channel.connection.channel(), "five", arguments={"x-stream-offset": 3}, exclusive=True)
    return [one.wait(5), other.wait(2)]


def _cancelled(channel: BlockingChannel) -> Any:
    consumer = Consumer(channel, "five", prefetch=2, arguments={"x-stream-offset": "first"})
    consumer.wait(2)
    channel.basic_cancel(consumer.tag)
    channel.basic_ack(2, multiple=True)
    return consumer.wait(2)


def _deleted(channel: BlockingChannel) -> Any:
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consumer(channel, "five", arguments={"x-stream-offset": "first"})
    consumer.wait(5)
    other = channel.connection.channel()
    deleted = other.queue_delete("five", if_unused=True, if_empty=True).method.message_count
    deadline = time.monotonic() + PATIENCE_S
    while not cancelled and time.monotonic() < deadline:
        channel.connection.process_data_events(0.02)
    return deleted, cancelled == [consumer.tag], other.queue_delete("five").method.message_count


def _with_global_qos(channel: BlockingChannel) -> Any:
    channel.basic_qos(prefetch_count=5)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    channel.basic_consume("one", lambda *_: None)


def _is_refused_an_argument(name: str) -> Call:
    return declares("none", {name: "x" if "dead" in name else 1})


CALLS: Final[dict[str, Call]] = {
    # ── declaring ──
    "a stream": declares("one"),
    "not durable": declares("none", durable=False),
    "exclusive": declares("none", exclusive=True),
    "auto-delete": declares("none", auto_delete=True),
    "all three": declares("none", durable=False, exclusive=True, auto_delete=True),
    "without a name": declares(""),
    "a reserved name": declares("amq.none"),
    **{
        f"with {name}": _is_refused_an_argument(name)
        for name in (
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-delivery-limit",
            "x-expires",
            "x-max-in-memory-length",
            "x-max-length",
            "x-max-priority",
            "x-message-ttl",
            "x-overflow",
            "x-queue-master-locator",
            "x-queue-mode",
            "x-queue-version",
            "x-quorum-initial-group-size",
            "x-single-active-consumer",
        )
    },
    **{
        f"{name} {value!r}": declares("none", {name: value})
        for name, value in (
            ("x-max-age", "1x"),
            ("x-max-age", "0s"),
            ("x-max-age", "1h30m"),
            ("x-max-age", 5),
            ("x-max-length-bytes", -1),
            ("x-max-length-bytes", "a"),
            ("x-stream-max-segment-size-bytes", 3_000_000_001),
            ("x-stream-max-segment-size-bytes", -1),
            ("x-stream-max-segment-size-bytes", True),
            ("x-queue-leader-locator", "here"),
            ("x-queue-leader-locator", 1),
            ("x-initial-cluster-size", 0),
            ("x-initial-cluster-size", "a"),
        )
    },
    "with all that it knows": declares(
        "all",
        {
            "x-max-age": "7D",
            "x-max-length-bytes": 0,
            "x-stream-max-segment-size-bytes": 3_000_000_000,
            "x-queue-leader-locator": "client-local",
            "x-initial-cluster-size": 1,
            "x-unknown": 1,
        },
    ),
    "again": declares("one"),
    "again, with what it does not know": declares("one", {"x-max-length": 5, "x-unknown": 1}),
    "again, not durable": declares("one", durable=False),
    "again, auto-delete": declares("one", auto_delete=True),
    "again, with an age": declares("one", {"x-max-age": "1h"}),
    "again, with bytes": declares("one", {"x-max-length-bytes": 100}),
    "again, with another age": declares("all", {"x-max-age": "1h", "x-max-length-bytes": 0}),
    "again, without its arguments": declares("all"),
    "again, without a type": call(lambda channel: _declared(channel.queue_declare("one", durable=True))),
    "again, as a classic queue": call(
        lambda channel: _declared(channel.queue_declare("one", durable=True, arguments={"x-queue-type": "classic"}))
    ),
    "a classic queue": call(lambda channel: _declared(channel.queue_declare("classic", durable=True))),
    "a classic queue as a stream": declares("classic"),
    "passive": call(lambda channel: _declared(channel.queue_declare("one", passive=True))),
    "passive, not there": call(lambda channel: channel.queue_declare("none", passive=True)),
    # ── what a stream does not do ──
    "purge": call(lambda channel: channel.queue_purge("one")),
    "get": call(lambda channel: channel.basic_get("one")),
    "get, unacked": call(lambda channel: channel.basic_get("one", auto_ack=True)),
    "consume without a prefetch": call(lambda channel: channel.basic_consume("one", lambda *_: None)),
    "consume without acks": reads("one", 0, auto_ack=True),
    "consume with a global prefetch": call(_with_global_qos),
    **{
        f"consume with {arguments}": call(
            lambda channel, arguments=arguments: Consumer(channel, "one", arguments=arguments)  # type: ignore[misc]
        )
        for arguments in (
            {"x-stream-offset": "1x"},
            {"x-stream-offset": "0s"},
            {"x-priority": 1},
            {"x-cancel-on-ha-failover": True},
        )
    },
    "consume a classic queue by offset": reads("classic", 0, "first"),
    "consume what is not there": reads("none", 0),
    # ── publishing and consuming ──
    "five messages": declares("five"),
    "published": publishes("five", [b"0", b"1", b"2", b"3", b"4"]),
    "first": reads("five", 5),
    "next": reads("five", 0, "next"),
    "as if nothing is said": reads("five", 0, None),
    "last": reads("five", 1, "last"),
    "an offset": reads("five", 2, 3),
    "an offset below all": reads("five", 5, -1),
    "an offset that will come": reads("five", 0, 9),
    "an hour ago": reads("five", 5, "1h"),
    "since 2020": reads("five", 5, datetime.datetime(2020, 1, 1)),  # pika's timestamps have no zone
    "since 2040": reads("five", 0, datetime.datetime(2040, 1, 1)),
    "one at a time": reads("five", 1, prefetch=1),
    "one at a time, acked": reads("five", 1, prefetch=1, then=_acks(1, more=2)),
    "two at a time, acked together": reads("five", 2, prefetch=2, then=_acks(2, multiple=True, more=4)),
    "two at a time, all acked": reads("five", 2, prefetch=2, then=_acks(0, multiple=True, more=4)),
    "two at a time, the second acked": reads("five", 2, prefetch=2, then=_acks(2, more=3)),
    "an unknown tag acked": reads("five", 5, then=_acks(9, more=5)),
    "nacked": reads("five", 5, then=refused(lambda channel: channel.basic_nack(1))),
    "nacked for good": reads("five", 5, then=refused(lambda channel: channel.basic_nack(1, requeue=False))),
    "rejected": reads("five", 5, then=refused(lambda channel: channel.basic_reject(1))),
    "two at once": call(_two_at_once),
    "cancelled": call(_cancelled),
    "what comes later": reads("one", 0, None, then=_publishes("one", b"a", b"b", b"c", more=3)),
    "what comes later, from an offset on": reads("one", 0, 4, then=_publishes("one", b"d", b"e", b"f", more=2)),
    "what comes later, one at a time": reads("one", 0, None, prefetch=1, then=_publishes("one", b"g", b"h", more=1)),
    "a transaction": call(_transaction),
    "bound": call(_bound),
    "a whole message": declares("whole"),
    "published whole": publishes("whole", [b"body"], PROPERTIES),
    "published with the header of its own": publishes(
        "whole", [b"body"], pika.BasicProperties(headers={"x-stream-offset": 7})
    ),
    "read whole": call(_all_of_it),
    "deleted": call(_deleted),
    "deleted, and read": reads("five", 0),
    "declared anew": declares("five"),
    "declared anew, and read": reads("five", 0),
}


def answers(url: str) -> dict[str, Any]:
    """What each call is answered, as JSON has it: bytes and times as Python writes them."""
    found = {name: made(url) for name, made in CALLS.items()}
    return json.loads(json.dumps(found, default=repr))


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(answers(sys.argv[1]), indent=1) + "\n", encoding="utf-8")
