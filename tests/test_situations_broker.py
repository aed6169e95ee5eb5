"""Named situations, played by pika on a real broker and on warren's server: what can be seen is the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.support.broker import Broker
from tests.support.server_tools import served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker

PATIENCE_S = 10.0


class Stage:
    """A server, and connections to it, closed at the end."""

    def __init__(self, port: int) -> None:
        self._parameters = pika.ConnectionParameters(
            "127.0.0.1", port, credentials=pika.PlainCredentials("guest", "guest"), heartbeat=0
        )
        self._open: list[BlockingConnection] = []

    def connect(self) -> BlockingConnection:
        connection = BlockingConnection(self._parameters)
        self._open.append(connection)
        return connection

    def channel(self) -> BlockingChannel:
        return self.connect().channel()

    def close(self) -> None:
        for connection in self._open:
            if connection.is_open:
                connection.close()


def there(stage: Stage, kind: str, name: str) -> bool:
    """Whether a queue or an exchange is there."""
    channel = stage.channel()
    try:
        if kind == "queue":
            channel.queue_declare(name, passive=True)
        else:
            channel.exchange_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return False
    return True


def count(channel: BlockingChannel, queue: str) -> int:
    ready: int = channel.queue_declare(queue, passive=True).method.message_count
    return ready


def got(channel: BlockingChannel, queue: str, number: int) -> list[Any]:
    """Wait for ``number`` messages."""
    found: list[Any] = []

    def comes() -> bool:
        while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(one)
        return len(found) >= number

    wait_until(comes, f"{number} messages in {queue}", patience_s=PATIENCE_S)
    return found


def noting(seen: list[Any]) -> Callable[..., None]:
    """A consumer's callback."""

    def note(_: Any, method: Any, __: Any, body: bytes) -> None:
        seen.append((method.consumer_tag, body, method.redelivered))

    return note


# ── situations ────────────────────────────────────────────────────────────────────────────────────────────────────────


def an_exclusive_queue_goes_with_its_connection(stage: Stage) -> Any:
    owner, other = stage.connect(), stage.channel()
    channel = owner.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(name, "amq.fanout")
    channel.close()
    locked = False
    try:
        other.queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        locked = error.reply_code == 405
    owner.close()
    wait_until(lambda: not there(stage, "queue", name), "it goes")
    return name[:8], locked


def wait_for_one(channel: BlockingChannel, queue: str) -> Any:
    found: list[Any] = []

    def comes() -> bool:
        one = channel.basic_get(queue)
        if one[0] is not None:
            found.append(one)
        return bool(found)

    wait_until(comes, f"a message in {queue}", patience_s=PATIENCE_S)
    return found[0]


def until(channel: BlockingChannel, seen: list[Any], number: int) -> list[Any]:
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < number and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    channel.connection.process_data_events(0.05)
    return list(seen)


def queues_expire_unless_they_are_used(stage: Stage) -> Any:
    """Each is used in its own way for longer than it lives."""
    channel = stage.channel()
    ways: dict[str, Callable[[str], Any]] = {
        "got": lambda name: channel.basic_get(name, auto_ack=True),
        "declared": lambda name: channel.queue_declare(name, arguments={"x-expires": 1000}),
        "asked": lambda name: channel.queue_declare(name, passive=True),
        "published": lambda name: channel.basic_publish("", name, b""),
        "purged": lambda name: channel.queue_purge(queue=name),
        "bound": lambda name: channel.queue_bind(name, "amq.direct", name),
        "left": lambda name: None,
        "consumed": lambda name: None,
    }
    for name in ways:
        channel.queue_declare(f"x {name}", arguments={"x-expires": 1000})
    channel.basic_consume("x consumed", lambda *_: None)
    lost = set()
    for _ in range(6):
        time.sleep(0.25)
        for name, use in ways.items():
            if name in lost:
                continue
            try:
                use(f"x {name}")
            except pika.exceptions.ChannelClosedByBroker:
                lost.add(name)
                channel = stage.channel()
                channel.basic_consume("x consumed", lambda *_: None)
    return sorted(name for name in ways if there(stage, "queue", f"x {name}"))


def prefetches(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    other.queue_declare("pre")
    seen: list[Any] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("pre", noting(seen), consumer_tag="two")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("pre", noting(seen), consumer_tag="one")
    other.confirm_delivery()
    for number in range(5):
        other.basic_publish("", "pre", b"%d" % number)
    first = sorted(until(channel, seen, 3))
    channel.basic_ack(0, multiple=True)
    return len(first), sorted(tag for tag, *_ in first), len(until(channel, seen, 5))


def transactions(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    other.queue_declare("tx")
    channel.tx_select()
    channel.basic_publish("", "tx", b"1")
    before = count(other, "tx")
    channel.tx_rollback()
    channel.basic_publish("", "tx", b"2")
    channel.tx_commit()
    method, _, body = channel.basic_get("tx")
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.close()
    wait_until(lambda: count(other, "tx") == 1, "it comes back", patience_s=PATIENCE_S)
    return before, body, [(one[2], one[0].redelivered) for one in got(other, "tx", 1)]


def answers_come_to_a_name_that_is_no_queue(stage: Stage) -> Any:
    asking, answering = stage.channel(), stage.channel()
    seen: list[Any] = []
    asking.basic_consume("amq.rabbitmq.reply-to", noting(seen), auto_ack=True, consumer_tag="t")
    answering.queue_declare("service")
    asking.basic_publish("", "service", b"?", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    properties = wait_for_one(answering, "service")[1]
    answering.basic_publish("", properties.reply_to, b"!")
    return properties.reply_to.startswith("amq.rabbitmq.reply-to."), until(asking, seen, 1)


def a_channel_is_closed_by_both_at_once(stage: Stage) -> Any:
    """What was published cannot be, and the client closes the channel before it hears of that."""
    connection = stage.connect()
    channel = connection.channel()
    number = channel.channel_number
    channel.basic_publish("not there", "k", b"")
    refused: Any = None
    try:
        channel.close()
    except pika.exceptions.ChannelClosedByBroker as error:
        refused = error.args
    again = connection.channel(number)
    return refused, again.queue_declare("", exclusive=True).method.message_count


def the_first_wrong_argument_is_told(stage: Stage) -> Any:
    told = []
    for arguments in (
        {"x-message-ttl": -1, "x-expires": 0},
        {"x-max-in-memory-length": 1, "x-max-priority": 300},
        {"x-max-length": "1", "x-dead-letter-routing-key": "k"},
        {"x-dead-letter-exchange": 1, "x-queue-type": "none", "x-expires": 0},
        {"x-queue-type": "none", "x-expires": 0},
        {"x-max-age": "1h", "x-max-in-memory-length": 1},
    ):
        try:
            stage.channel().queue_declare("wrong", arguments=arguments)
        except pika.exceptions.ChannelClosedByBroker as error:
            told.append(error.args)
    return told


SITUATIONS = [
    a_channel_is_closed_by_both_at_once,
    the_first_wrong_argument_is_told,
    prefetches,
    transactions,
    answers_come_to_a_name_that_is_no_queue,
    an_exclusive_queue_goes_with_its_connection,
    queues_expire_unless_they_are_used,
]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    base: Path = tmp_path_factory.mktemp("servers")
    with Broker(base / "broker") as broker, served(base / "node") as here:
        broker.start()
        yield here.port, broker.amqp_port


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.__name__)
def test_both_servers_do_the_same(ports: tuple[int, int], situation: Callable[[Stage], Any]) -> None:
    seen = []
    for port in ports:
        stage = Stage(port)
        try:
            seen.append(situation(stage))
        finally:
            stage.close()
    ours, theirs = seen
    assert ours == theirs
