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


def deaths(properties: Any) -> list[Any]:
    """What the headers tell of a message's deaths; not when."""
    headers = dict(properties.headers or {})
    told = [{key: value for key, value in one.items() if key != "time"} for one in headers.pop("x-death", [])]
    return [told, sorted(headers.items())]


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


def an_auto_delete_queue_goes_with_its_last_consumer(stage: Stage) -> Any:
    channel = stage.channel()
    channel.queue_declare("auto", auto_delete=True)
    for tag in ("a", "b"):
        channel.basic_consume("auto", lambda *_: None, consumer_tag=tag)
    channel.basic_cancel("a")
    between = there(stage, "queue", "auto")
    channel.basic_cancel("b")
    return between, there(stage, "queue", "auto")


def an_auto_delete_exchange_goes_with_its_last_binding(stage: Stage) -> Any:
    channel = stage.channel()
    channel.exchange_declare("auto x", "fanout", auto_delete=True)
    channel.exchange_declare("auto y", "fanout", auto_delete=True)
    channel.queue_declare("bound")
    channel.exchange_bind("auto y", "auto x")
    channel.queue_bind("bound", "auto y")
    seen = [there(stage, "exchange", name) for name in ("auto x", "auto y")]
    channel.queue_delete("bound")
    return seen, [there(stage, "exchange", name) for name in ("auto x", "auto y")]


def alternates_in_a_circle_and_returns(stage: Stage) -> Any:
    channel = stage.channel()
    returned: list[Any] = []
    channel.add_on_return_callback(lambda _, method, *__: returned.append((method.reply_code, method.reply_text)))
    for name, other in (("alt a", "alt b"), ("alt b", "alt a")):
        channel.exchange_declare(name, "direct", arguments={"alternate-exchange": other})
    channel.queue_declare("alternate")
    channel.queue_bind("alternate", "alt b", "k")
    channel.confirm_delivery()
    for key in ("k", "nowhere"):
        try:
            channel.basic_publish("alt a", key, key.encode(), mandatory=True)
        except pika.exceptions.UnroutableError as error:
            returned += [(one.method.reply_code, one.method.reply_text) for one in error.messages]
    return [one[2] for one in got(channel, "alternate", 1)], returned


def bindings_of_exchanges_in_a_circle(stage: Stage) -> Any:
    channel = stage.channel()
    for name, kind in (("e a", "topic"), ("e b", "fanout"), ("e c", "direct")):
        channel.exchange_declare(name, kind)
    channel.exchange_bind("e b", "e a", "a.#")
    channel.exchange_bind("e c", "e b", "ignored")
    channel.exchange_bind("e a", "e c", "a.b")
    for queue, exchange, key in (("e1", "e a", "#"), ("e1", "e b", ""), ("e2", "e c", "a.b")):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, key)
    channel.confirm_delivery()
    for key in ("a.b", "a", "b"):
        channel.basic_publish("e a", key, key.encode())
    return [[one[2] for one in got(channel, queue, number)] for queue, number in (("e1", 3), ("e2", 1))]


def copies_go_to_further_keys_and_blind_ones_are_not_seen(stage: Stage) -> Any:
    channel = stage.channel()
    for name in ("c1", "c2", "c3"):
        channel.queue_declare(name)
    headers = {"CC": ["c2", "c2"], "BCC": ["c3", "nowhere"], "x": 1}
    channel.confirm_delivery()
    channel.basic_publish("", "c1", b"m", pika.BasicProperties(headers=headers))
    return [
        [(one[0].routing_key, one[1].headers, one[2]) for one in got(channel, name, 1)] for name in ("c1", "c2", "c3")
    ]


def copies_of_what_died(stage: Stage) -> Any:
    channel = stage.channel()
    channel.queue_declare("d dead")
    channel.exchange_declare("d x", "fanout")
    channel.queue_bind("d dead", "d x")
    channel.queue_declare("d1", arguments={"x-dead-letter-exchange": "d x"})
    channel.queue_declare("d2", arguments={"x-dead-letter-exchange": "d x", "x-dead-letter-routing-key": "new"})
    channel.confirm_delivery()
    for key in ("d1", "d2"):
        headers = {"CC": ["cc"], "BCC": ["bcc"]}
        channel.basic_publish("", key, key.encode(), pika.BasicProperties(headers=headers, expiration="0"))
    found = got(channel, "d dead", 2)
    return sorted((one[2], one[0].routing_key, one[1].expiration, deaths(one[1])) for one in found)


def wait_for_one(channel: BlockingChannel, queue: str) -> Any:
    found: list[Any] = []

    def comes() -> bool:
        one = channel.basic_get(queue)
        if one[0] is not None:
            found.append(one)
        return bool(found)

    wait_until(comes, f"a message in {queue}", patience_s=PATIENCE_S)
    return found[0]


def no_time_to_live_is_for_a_consumer_that_waits(stage: Stage) -> Any:
    channel = stage.channel()
    channel.queue_declare("now", arguments={"x-message-ttl": 0})
    channel.confirm_delivery()
    channel.basic_publish("", "now", b"nobody")
    ready = count(channel, "now")
    seen: list[Any] = []
    channel.basic_consume("now", noting(seen), auto_ack=True, consumer_tag="t")
    channel.basic_publish("", "now", b"somebody")
    return ready, until(channel, seen, 1)


def until(channel: BlockingChannel, seen: list[Any], number: int) -> list[Any]:
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < number and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    channel.connection.process_data_events(0.05)
    return list(seen)


def consumers_of_higher_priority_come_first(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    other.queue_declare("first")
    seen: list[Any] = []
    channel.basic_qos(prefetch_count=2)
    for tag, arguments in (("low", {"x-priority": -1}), ("mid", None), ("high", {"x-priority": 5})):
        channel.basic_consume("first", noting(seen), consumer_tag=tag, arguments=arguments)
    for number in range(7):
        other.basic_publish("", "first", b"%d" % number)
    return until(channel, seen, 6)


def one_consumer_is_active_at_a_time(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    other.queue_declare("single", arguments={"x-single-active-consumer": True})
    seen: list[Any] = []
    for tag in ("1st", "2nd"):
        channel.basic_consume("single", noting(seen), consumer_tag=tag, auto_ack=True)
    other.basic_publish("", "single", b"a")
    first = until(channel, seen, 1)
    channel.basic_cancel("1st")
    other.basic_publish("", "single", b"b")
    return first, until(channel, seen, 2)


def what_a_channel_had_comes_again(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    other.queue_declare("back")
    other.confirm_delivery()
    for number in range(5):
        other.basic_publish("", "back", b"%d" % number)
    for _ in range(3):
        channel.basic_get("back")
    channel.basic_ack(2)
    channel.close()
    wait_until(lambda: count(other, "back") == 4, "they come back", patience_s=PATIENCE_S)
    return [(one[2], one[0].redelivered) for one in got(other, "back", 4)]


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


def a_deleted_queue_cancels_its_consumers(stage: Stage) -> Any:
    channel, other = stage.channel(), stage.channel()
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    other.queue_declare("cancelled")
    channel.basic_consume("cancelled", lambda *_: None, consumer_tag="t")
    channel.basic_consume("cancelled", lambda *_: None, consumer_tag="u")
    other.queue_delete("cancelled")
    return sorted(until(channel, cancelled, 2))


def priorities_and_requeues(stage: Stage) -> Any:
    channel = stage.channel()
    channel.queue_declare("prio", arguments={"x-max-priority": 3})
    channel.confirm_delivery()
    for number, priority in enumerate((0, 3, 1, None, 9, 3, 2)):
        channel.basic_publish("", "prio", b"%d" % number, pika.BasicProperties(priority=priority))
    first = [channel.basic_get("prio") for _ in range(4)]
    channel.basic_nack(first[2][0].delivery_tag, multiple=True, requeue=True)
    rest = [channel.basic_get("prio", auto_ack=True) for _ in range(7)]
    return [(one[2], one[0] and (one[0].redelivered, one[0].message_count)) for one in first + rest]


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


def recovered_messages_come_again(stage: Stage) -> Any:
    channel = stage.channel()
    channel.queue_declare("recover")
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", "recover", b"%d" % number)
    for _ in range(2):
        channel.basic_get("recover")
    channel.basic_recover(requeue=True)
    return [(one[2], one[0].redelivered, one[0].delivery_tag) for one in got(channel, "recover", 3)]


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


def a_queue_is_named_by_the_server_and_meant_by_an_empty_name(stage: Stage) -> Any:
    channel = stage.channel()
    name = channel.queue_declare("", auto_delete=True).method.queue
    channel.queue_bind("", "amq.direct", "k")
    channel.queue_bind("", "amq.direct", "")
    channel.confirm_delivery()
    channel.basic_publish("amq.direct", "k", b"1")
    channel.basic_publish("amq.direct", name, b"2")
    return [channel.basic_get("", auto_ack=True)[2] for _ in range(3)]


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
    priorities_and_requeues,
    prefetches,
    recovered_messages_come_again,
    transactions,
    a_queue_is_named_by_the_server_and_meant_by_an_empty_name,
    answers_come_to_a_name_that_is_no_queue,
    an_exclusive_queue_goes_with_its_connection,
    an_auto_delete_queue_goes_with_its_last_consumer,
    an_auto_delete_exchange_goes_with_its_last_binding,
    alternates_in_a_circle_and_returns,
    bindings_of_exchanges_in_a_circle,
    copies_go_to_further_keys_and_blind_ones_are_not_seen,
    copies_of_what_died,
    no_time_to_live_is_for_a_consumer_that_waits,
    consumers_of_higher_priority_come_first,
    one_consumer_is_active_at_a_time,
    what_a_channel_had_comes_again,
    queues_expire_unless_they_are_used,
    a_deleted_queue_cancels_its_consumers,
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
