"""Kombu on warren: what its users see of a connection to a directory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import amqp.exceptions
import kombu
import kombu.pidbox
import kombu.pools
import pytest
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub

import warren
import warren.kombu
from tests.support.forked import in_child
from tests.support.waiting import together, wait_until
from warren.client import shared_directory
from warren.handles.shared_node import _NODES
from warren.kombu.connection import address_of
from warren.kombu.message import outgoing
from warren.kombu.subscription import AHEAD
from warren.storage.errors import SettingsError

Connect = Callable[..., Any]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked directory is refused without the second of grace in which its holder may still start to share it."""
    monkeypatch.setattr(shared_directory, "GRACE_S", 0.05)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"warren://{tmp_path}/node"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Connections to one directory, all released at the end."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        connection = Connection(url, transport_options=options)
        made.append(connection)
        return connection

    yield make
    for connection in made:
        connection.release()


def drained(connection: Any, expected: int = 0) -> int:
    """Drain everything that is there now and return the number of messages; wait longer for the ``expected`` ones."""
    count = 0
    while True:
        try:
            connection.drain_events(timeout=0.05 if count >= expected else 10)
        except TimeoutError:
            return count
        count += 1


def filled(connection: Any, name: str, bodies: list[Any], **arguments: Any) -> Any:
    """A queue with messages in it."""
    queue = Queue(name, **arguments)(connection.default_channel)
    queue.declare()
    for body in bodies:
        connection.Producer().publish(body, routing_key=name)
    return queue


def payloads(queue: Any) -> list[Any]:
    """What can be got from a queue, acked."""
    found = []
    while (message := queue.get()) is not None:
        found.append(message.payload)
        message.ack()
    return found


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "virtual_host", "options", "path", "vhost"),
    [
        ("warren:///a/b", None, {}, "/a/b", "/"),
        ("warren:///a/b", "/", {}, "/a/b", "/"),
        ("warren:///a/b", "orders", {}, "/a/b", "orders"),
        ("warren:///a/b?vhost=orders", "/", {}, "/a/b", "orders"),
        ("warren:///a%20b", "/", {}, "/a b", "/"),
        ("warren://a/b", None, {}, "a/b", "/"),
        ("warren://", "/", {"path": "/a"}, "/a", "/"),
        ("warren://", "/", {"path": "/a", "vhost": "orders"}, "/a", "orders"),
        (None, "a/b", {}, "/a/b", "/"),  # as Kombu takes a second URL apart
    ],
)
def test_a_url_names_a_directory_and_a_vhost(
    url: str | None, virtual_host: str | None, options: dict[str, Any], path: str, vhost: str
) -> None:
    address = address_of(url, virtual_host, options)
    assert (address.path, address.vhost) == (path, vhost)


@pytest.mark.parametrize(
    ("url", "options"), [("warren://", {}), ("warren:///a?color=red", {}), ("warren:///a", {"node": "node"})]
)
def test_a_url_that_leads_nowhere_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        address_of(url, "/", options)


@pytest.mark.slow
def test_the_class_path_needs_no_import(tmp_path: Path) -> None:
    program = """
        import sys, kombu
        with kombu.Connection(sys.argv[1], transport="warren.kombu:Transport") as connection:
            queue = connection.SimpleQueue("jobs")
            queue.put("job")
            print(queue.get(timeout=5).payload)
            queue.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), f"warren://{tmp_path}/node"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "job\n"


def test_a_clone_leads_to_the_same_directory(connect: Connect, url: str) -> None:
    connection = connect()
    filled(connection, "jobs", [1])
    with connection.clone() as clone:
        assert clone.as_uri() == url
        assert payloads(Queue("jobs")(clone.default_channel)) == [1]


def test_a_second_url_is_tried_when_the_first_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with Connection(f"warren://{tmp_path}/file;warren://{tmp_path}/node") as connection:
        connection.maybe_switch_next()
        filled(connection, "jobs", [1])
    with warren.open(tmp_path / "node") as node:
        assert len(node.queue("jobs")) == 1


@pytest.mark.usefixtures("impatient")
def test_a_directory_that_cannot_be_opened_is_a_connection_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with warren.open(tmp_path / "locked"):
        for name in ("file", "locked"):
            for verb in ("connection", "default_channel", "connect", "channel"):
                connection = Connection(f"warren://{tmp_path}/{name}")
                with pytest.raises(connection.connection_errors) as caught:
                    getattr(connection, verb)()
                assert caught.type in connection.transport.connection_errors


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("begin", ["connect", "channel", "default_channel", "simple", "list"])
def test_the_first_of_several_directories_that_can_be_opened_is_used(tmp_path: Path, begin: str) -> None:
    (tmp_path / "file").write_text("no directory")
    urls = [f"warren://{tmp_path}/{name}" for name in ("file", "locked", "node")]
    with warren.open(tmp_path / "locked"), Connection(urls if begin == "list" else ";".join(urls)) as connection:
        match begin:
            case "connect" | "list":
                connection.ensure_connection(max_retries=3, interval_start=0)
            case "channel":
                connection.ensure_connection(max_retries=3, interval_start=0).channel()
            case "default_channel":
                assert connection.default_channel
            case _:
                connection.SimpleQueue("other").close()
        filled(connection, "jobs", [1])
        assert connection.connection.node.path.endswith("/node")
    with warren.open(tmp_path / "node") as node:
        assert len(node.queue("jobs")) == 1


# ── the node that is shared ──────────────────────────────────────────────────────────────────────────────────────────


def test_connections_to_one_directory_share_a_node_until_the_last_is_released(connect: Connect, tmp_path: Path) -> None:
    first, second = connect(), connect()
    assert first.connect().node is second.connect().node
    first.release()
    assert second.connected
    second.release()
    with warren.open(tmp_path / "node"):  # it is free
        pass


def test_a_node_can_be_handed_over_and_stays_open(tmp_path: Path) -> None:
    with warren.open(tmp_path / "own") as node:
        with Connection("warren://", transport_options={"node": node}) as connection:
            filled(connection, "jobs", [1])
        assert len(node.queue("jobs", passive=True)) == 1


def test_settings_are_those_of_the_first_connection(connect: Connect) -> None:
    first = connect(settings={"sync": "os"})
    assert first.connect().node.config.node.sync == "os"
    assert connect(settings={"sync": "os"}).connect().node is first.connection.node
    assert connect().connect().node is first.connection.node
    with pytest.raises(SettingsError, match="other settings"):
        connect(settings={"sync": "always"}).connect()


@pytest.mark.usefixtures("impatient")
def test_a_directory_of_another_process_is_an_error_at_once(url: str, tmp_path: Path) -> None:
    with (
        warren.open(tmp_path / "node"),
        pytest.raises(warren.errors.DirectoryLockedError),
        Connection(url) as connection,
    ):
        connection.connect()


def test_a_connection_whose_node_was_closed_is_lost_and_comes_back(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [1])
    lost = connection.connection
    lost.node.close()
    assert not connection.connected
    with pytest.raises(connection.recoverable_connection_errors):
        lost.drain_events(timeout=0)
    assert connection.ensure_connection(max_retries=1).connected
    assert payloads(Queue("jobs")(connection.default_channel)) == [1]


def test_a_forked_child_closes_nothing_of_its_parent(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2])
    held = queue.get()
    key = connection.connection.node.path
    assert in_child(lambda: (connection.collect(), _NODES.users(key))) == "(None, 0)"
    assert _NODES.users(key) == 1
    held.ack()
    assert payloads(queue) == [2]


# ── publishing and getting ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_comes_as_it_was_sent(connect: Connect) -> None:
    connection = connect()
    channel = connection.default_channel
    queue = Queue("jobs", Exchange("jobs", "direct"), routing_key="job")(channel)
    queue.declare()
    connection.Producer().publish(
        {"n": 1},
        exchange="jobs",
        routing_key="job",
        headers={"none": None, "list": [None, 1, "x"], "pair": (1, 2), "nested": {"a": [1.5, True]}},
        correlation_id="c",
        reply_to="r",
        message_id="m",
        priority=3,
        timestamp=datetime(2024, 1, 1, tzinfo=UTC),
        unknown="left out",
    ).wait()
    message = queue.get()
    assert message.payload == {"n": 1}
    assert message.content_type == "application/json"
    assert message.headers == {"none": None, "list": [None, 1, "x"], "pair": [1, 2], "nested": {"a": [1.5, True]}}
    assert message.properties == {
        "delivery_mode": 2,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "priority": 3,
        "timestamp": 1704067200,
    }
    assert message.delivery_info == {"exchange": "jobs", "routing_key": "job", "redelivered": False, "delivery_tag": 1}


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"\x00\xff", "text", "späť", b""])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_bodies_of_bytes_and_text_come_through(connect: Connect, body: bytes | str, compression: str | None) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [])
    connection.Producer().publish(body, routing_key="jobs", compression=compression, serializer="raw")
    message = queue.get()
    assert message.body == (body.encode() if isinstance(body, str) else body)


def test_a_body_that_is_no_text_is_refused() -> None:
    with pytest.raises(warren.errors.MessageError):
        outgoing(1.5, 0, "x", "y", None, None)


def test_transient_messages_are_transient_and_persistent_ones_are_not(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [])
    for mode in ("transient", "persistent"):
        connection.Producer().publish(mode, routing_key="jobs", delivery_mode=mode)
    queue = connection.connection.vhost.queue("jobs", passive=True)
    assert [(one.body, one.persistent) for one in queue.browse()] == [(b"transient", False), (b"persistent", True)]


def test_a_confirmed_publish_is_on_disk_when_it_comes_back(connect: Connect) -> None:
    connection = connect(confirm_publish=True)
    filled(connection, "jobs", [])
    assert connection.Producer().publish("x", routing_key="jobs").done


def test_a_full_queue_that_refuses_nacks_a_confirmed_publish(connect: Connect) -> None:
    connection = connect(confirm_publish=True)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = filled(connection, "jobs", ["fits"], queue_arguments=arguments)
    with pytest.raises(amqp.exceptions.MessageNacked):
        connection.Producer().publish("does not", routing_key="jobs")
    assert payloads(queue) == ["fits"]


def test_a_mandatory_message_that_leads_nowhere_is_returned(connect: Connect) -> None:
    connection = connect()
    returned: list[Any] = []
    producer = connection.Producer(on_return=lambda *arguments: returned.append(arguments))
    producer.publish("x", routing_key="nowhere", mandatory=True)
    [(error, exchange, routing_key, message)] = returned
    assert (error.reply_code, exchange, routing_key, message.body) == (312, "", "nowhere", b"x")


def test_a_message_to_an_exchange_that_is_not_there_is_an_error(connect: Connect) -> None:
    with pytest.raises(amqp.exceptions.NotFound):
        connect().Producer().publish("x", exchange="missing", routing_key="x")


def test_messages_survive_the_last_connection(connect: Connect) -> None:
    first = connect()
    filled(first, "jobs", [1, 2, 3]).get().ack()
    first.release()
    assert payloads(Queue("jobs")(connect().default_channel)) == [2, 3]


def test_simple_queues_and_buffers_work(connect: Connect) -> None:
    connection = connect()
    with connection.SimpleQueue("simple") as queue:
        queue.put({"a": 1})
        queue.put({"a": 2})
        assert queue.qsize() == 2
        message = queue.get(timeout=5)
        assert message.payload == {"a": 1}
        message.ack()
        assert queue.clear() == 0  # the second one is with its consumer
        with pytest.raises(queue.Empty):
            queue.get_nowait() and queue.get_nowait()
    with connection.SimpleBuffer("buffer") as buffer:
        buffer.put("x")
        assert buffer.get(timeout=5).payload == "x"


# ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────────


def routed(
    connection: Any, exchange: Any, bindings: dict[str, Any], sent: list[tuple[str, Any]]
) -> dict[str, list[Any]]:
    """What of the messages sent comes to which queue."""
    channel = connection.default_channel
    queues = {}
    for name, binding in bindings.items():
        key, arguments = binding if isinstance(binding, tuple) else (binding, None)
        queues[name] = Queue(name, exchange, routing_key=key, binding_arguments=arguments)(channel)
        queues[name].declare()
    for number, (key, headers) in enumerate(sent):
        connection.Producer().publish(number, exchange=exchange, routing_key=key, headers=headers)
    return {name: payloads(queue) for name, queue in queues.items()}


def test_a_direct_exchange_goes_by_the_key(connect: Connect) -> None:
    found = routed(connect(), Exchange("e", "direct"), {"a": "x", "b": "y"}, [("x", {}), ("y", {}), ("z", {})])
    assert found == {"a": [0], "b": [1]}


def test_a_topic_exchange_goes_by_patterns(connect: Connect) -> None:
    bindings = {"star": "a.*", "hash": "a.#", "all": "#"}
    found = routed(connect(), Exchange("e", "topic"), bindings, [("a.b", {}), ("a.b.c", {}), ("b", {})])
    assert found == {"star": [0], "hash": [0, 1], "all": [0, 1, 2]}


def test_a_fanout_exchange_goes_everywhere(connect: Connect) -> None:
    assert routed(connect(), Exchange("e", "fanout"), {"a": "", "b": "x"}, [("y", {})]) == {"a": [0], "b": [0]}


def test_a_headers_exchange_goes_by_headers(connect: Connect) -> None:
    bindings = {"all": ("", {"x-match": "all", "a": 1, "b": 2}), "any": ("", {"x-match": "any", "a": 1, "b": 2})}
    found = routed(connect(), Exchange("e", "headers"), bindings, [("", {"a": 1}), ("", {"a": 1, "b": 2})])
    assert found == {"all": [1], "any": [0, 1]}


def test_exchanges_are_bound_to_exchanges(connect: Connect) -> None:
    connection = connect()
    channel = connection.default_channel
    source, target = Exchange("source", "topic")(channel), Exchange("target", "fanout")(channel)
    source.declare(), target.declare()
    target.bind_to(source, routing_key="a.#")
    assert routed(connection, target, {"q": ""}, []) == {"q": []}
    queue = Queue("q")(channel)
    connection.Producer().publish("through", exchange="source", routing_key="a.b")
    target.unbind_from(source, routing_key="a.#")
    connection.Producer().publish("not any more", exchange="source", routing_key="a.b")
    assert payloads(queue) == ["through"]


def test_a_binding_goes_and_so_do_queues_and_exchanges(connect: Connect) -> None:
    connection = connect()
    exchange = Exchange("e", "direct")
    queue = Queue("q", exchange, routing_key="x")(connection.default_channel)
    queue.declare()
    assert {"source": "e", "destination": "q", "routing_key": "x", "arguments": {}} in list(
        connection.get_manager().get_bindings()
    )
    queue.unbind_from(exchange, "x")
    connection.Producer().publish(1, exchange="e", routing_key="x")
    assert queue.get() is None
    queue.delete()
    with pytest.raises(amqp.exceptions.NotFound):
        connection.default_channel.queue_declare("q", passive=True)
    queue.exchange.delete()
    with pytest.raises(amqp.exceptions.NotFound):
        connection.default_channel.exchange_declare("e", passive=True)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_declaring_says_what_is_in_the_queue(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [1, 2])
    channel = connection.default_channel
    assert tuple(channel.queue_declare("jobs", passive=True)) == ("jobs", 2, 0)
    named = channel.queue_declare("", auto_delete=True)
    assert named.queue.startswith("amq.gen-")


def test_a_queue_that_is_there_with_other_arguments_is_refused(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [])
    with pytest.raises(amqp.exceptions.PreconditionFailed):
        filled(connection, "jobs", [], max_priority=3)


def test_purging_and_deleting_say_how_many(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])
    queue.get()
    assert queue.purge() == 2
    connection.Producer().publish(4, routing_key="jobs")
    with pytest.raises(amqp.exceptions.PreconditionFailed):
        queue.delete(if_empty=True)
    assert queue.delete() == 1


def test_an_exclusive_queue_is_its_connections_and_goes_with_it(connect: Connect) -> None:
    first, second = connect(), connect()
    filled(first, "mine", [1], exclusive=True)
    with pytest.raises(amqp.exceptions.ResourceLocked):
        second.default_channel.queue_declare("mine", passive=True)
    first.release()
    with pytest.raises(amqp.exceptions.NotFound):
        second.default_channel.queue_declare("mine", passive=True)


def test_priorities_go_first(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [], max_priority=9)
    for priority in (0, 9, 5):
        connection.Producer().publish(priority, routing_key="jobs", priority=priority)
    assert payloads(queue) == [9, 5, 0]


def test_expired_messages_go_to_the_dead_letters(connect: Connect) -> None:
    connection = connect()
    dead = filled(connection, "dead", [])
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = filled(connection, "jobs", [], queue_arguments=arguments)
    connection.Producer().publish("expires", routing_key="jobs", expiration=0.001)
    with connection.Consumer(dead, callbacks=[lambda body, message: found.append((body, message))]):
        found: list[Any] = []
        connection.drain_events(timeout=5)
    [(body, message)] = found
    assert body == "expires"
    assert message.headers["x-death"][0]["reason"] == "expired"
    assert queue.get() is None


def test_kombus_queue_arguments_are_the_queues(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [], message_ttl=1.5, expires=60, max_length=7, max_length_bytes=70, max_priority=2)
    assert connection.connection.vhost.queue("jobs", passive=True).arguments == {
        "x-message-ttl": 1500,
        "x-expires": 60000,
        "x-max-length": 7,
        "x-max-length-bytes": 70,
        "x-max-priority": 2,
    }


# ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_consumer_acks_is_gone_and_what_it_does_not_comes_back(connect: Connect) -> None:
    first = connect()
    queue = filled(first, "jobs", [1, 2, 3])
    found: list[Any] = []
    consumer = first.Consumer(queue, callbacks=[lambda body, message: found.append((body, message))])
    consumer.consume()
    assert drained(first, 3) == 3
    found[1][1].ack()
    first.release()
    second = connect()
    messages = [Queue("jobs")(second.default_channel).get() for _ in range(3)]
    assert [message.payload for message in messages[:2]] == [1, 3]
    assert all(message.delivery_info["redelivered"] for message in messages[:2])
    assert messages[2] is None


def test_messages_that_are_rejected_go_and_those_that_are_requeued_come_again(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2])
    first, second = queue.get(), queue.get()
    first.reject()
    second.requeue()
    again = queue.get()
    assert (again.payload, again.delivery_info["redelivered"]) == (2, True)
    with pytest.raises(again.MessageStateError):
        first.ack()


def test_an_ack_for_many_takes_all_before_it(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])
    messages = [queue.get() for _ in range(3)]
    messages[1].ack(multiple=True)
    connection.default_channel.basic_recover(requeue=True)
    assert payloads(queue) == [3]


def test_an_unknown_delivery_tag_is_an_error(connect: Connect) -> None:
    with pytest.raises(amqp.exceptions.PreconditionFailed):
        connect().default_channel.basic_ack(17)


def test_a_message_of_a_closed_channel_cannot_be_acked(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [1])
    with connection.channel() as channel:
        message = Queue("jobs")(channel).get()
    with pytest.raises(connection.connection_errors):
        message.ack()
    assert payloads(Queue("jobs")(connection.default_channel)) == [1]


def test_no_more_than_the_prefetch_count_is_out(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", list(range(10)))
    found: list[Any] = []
    consumer = connection.Consumer(queue, callbacks=[lambda _, message: found.append(message)], prefetch_count=3)
    consumer.consume()
    assert drained(connection, 3) == 3
    stats = connection.connection.vhost.queue("jobs", passive=True).stats()
    assert (stats["messages_ready"], stats["messages_unacknowledged"]) == (7, 3)
    found.pop(0).ack()
    assert drained(connection, 1) == 1
    consumer.qos(prefetch_count=5)
    assert drained(connection, 2) == 2
    consumer.qos(prefetch_count=1)
    for message in found:
        message.ack()
    found.clear()
    assert drained(connection, 1) == 1


def test_a_prefetch_count_holds_for_all_queues_of_a_channel(connect: Connect) -> None:
    connection = connect()
    queues = [filled(connection, name, [1, 2, 3]) for name in ("a", "b")]
    consumer = connection.Consumer(queues, callbacks=[lambda _, message: None], prefetch_count=4)
    consumer.consume()
    assert drained(connection, 4) == 4


def test_without_a_prefetch_count_any_number_is_out_and_few_are_ahead(connect: Connect) -> None:
    connection = connect()
    many = 4 * AHEAD
    connection.connect()
    queue = connection.connection.vhost.queue("jobs")
    queue.publish_many([b"1"] * many).wait()
    messages: list[Any] = []
    consumer = connection.Consumer(Queue("jobs"), on_message=messages.append)
    consumer.consume()
    connection.drain_events(timeout=5)
    assert queue.stats()["messages_unacknowledged"] <= 2 * AHEAD
    assert drained(connection, many - 1) == many - 1
    for message in messages:
        message.ack()
    assert queue.stats()["messages"] == 0


def test_a_consumer_that_needs_no_acks_leaves_what_it_has_not_seen(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])
    found: list[Any] = []
    with connection.Consumer(queue, callbacks=[lambda body, message: (found.append(body), message.ack())], no_ack=True):
        connection.drain_events(timeout=5)
    assert found == [1]
    assert payloads(queue) == [2, 3]


def test_a_cancelled_consumer_sees_what_was_on_its_way_and_keeps_it(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])
    found: list[Any] = []
    consumer = connection.Consumer(queue, on_message=found.append)
    consumer.consume()
    connection.drain_events(timeout=5)
    consumer.cancel()
    assert [message.payload for message in found] == [1, 2, 3]
    assert payloads(queue) == []
    for message in found:
        message.requeue()
    assert payloads(queue) == [1, 2, 3]


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_cancelled_consumer_gives_back_what_it_has_no_room_or_no_acks_for(connect: Connect, no_ack: bool) -> None:
    connection = connect()
    queue, other = filled(connection, "jobs", [1, 2, 3]), filled(connection, "other", [4])
    found: list[Any] = []
    consumer = connection.Consumer([other, queue], on_message=found.append, no_ack=no_ack, prefetch_count=2)
    consumer.consume()
    connection.drain_events(timeout=5)
    consumer.cancel()
    assert [message.payload for message in found] == [4] if no_ack else [4, 1]
    assert payloads(queue) == [1, 2, 3] if no_ack else [2, 3]


def test_an_error_of_a_cancelled_consumers_callback_loses_nothing(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])

    def fail(message: Any) -> None:
        raise ValueError(message.payload)

    consumer = connection.Consumer(queue, on_message=fail)
    consumer.consume()
    with pytest.raises(ValueError, match="1"):
        consumer.cancel()
    assert payloads(queue) == [2, 3]
    connection.default_channel.basic_recover(requeue=True)
    assert payloads(queue) == [1]


def test_messages_come_by_priority_after_a_publish_and_after_a_requeue(connect: Connect) -> None:
    connection = connect()
    queue = Queue("jobs", max_priority=10)(connection.default_channel)
    queue.declare()
    found: list[Any] = []
    for body, priority in (("first", 3), ("second", 6), ("third", 3)):
        connection.Producer().publish(body, routing_key="jobs", priority=priority)
    assert connection.connection.vhost.queue("jobs", passive=True).arguments == {"x-max-priority": 10}
    consumer = connection.Consumer(queue, on_message=found.append)
    with consumer:
        connection.drain_events(timeout=5)
    assert [message.payload for message in found] == ["second", "first", "third"]
    for message in found:
        message.requeue()
    found.clear()
    connection.Producer().publish("fourth", routing_key="jobs", priority=9)
    with consumer:
        connection.drain_events(timeout=5)
    assert [message.payload for message in found] == ["fourth", "second", "first", "third"]


def test_unbinding_an_exchange_that_is_not_there_is_fine(connect: Connect) -> None:
    channel = connect().default_channel
    channel.exchange_unbind("missing", "amq.fanout", "key")
    with pytest.raises(amqp.exceptions.NotFound):
        channel.exchange_bind("missing", "amq.fanout", "key")


def test_a_message_that_comes_while_a_consumer_waits_wakes_it(connect: Connect) -> None:
    consuming, publishing = connect(), connect()
    queue = filled(consuming, "jobs", [])
    found: list[Any] = []
    with consuming.Consumer(queue, callbacks=[lambda body, message: found.append(body)]):
        with pytest.raises(TimeoutError):
            consuming.drain_events(timeout=0.01)
        publisher = threading.Timer(0.05, lambda: publishing.Producer().publish("late", routing_key="jobs"))
        publisher.start()
        consuming.drain_events(timeout=10)
        publisher.join()
    assert found == ["late"]


def test_two_connections_share_the_work(connect: Connect) -> None:
    first, second = connect(), connect()
    queue = filled(first, "jobs", [])
    found: dict[Any, list[Any]] = {first: [], second: []}
    for connection in (first, second):

        def note(body: Any, message: Any, to: list[Any] = found[connection]) -> None:
            to.append(body)
            message.ack()

        connection.Consumer(Queue("jobs"), callbacks=[note], prefetch_count=1).consume()
    for number in range(10):
        first.Producer().publish(number, routing_key="jobs")
    for _ in range(5):
        first.drain_events(timeout=5)
        second.drain_events(timeout=5)
    assert sorted(found[first] + found[second]) == list(range(10))
    assert len(found[first]) == len(found[second]) == 5
    assert queue.get() is None


def test_a_consumer_of_a_deleted_queue_is_cancelled(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [])
    told: list[str] = []
    queue.consume("told", callback=None, on_cancel=told.append)
    queue.delete()
    connection.drain_events(timeout=5)
    assert told == ["told"]
    queue = filled(connection, "jobs", [])
    queue.consume("not told", callback=None)
    queue.delete()
    with pytest.raises(connection.recoverable_connection_errors):
        connection.drain_events(timeout=5)


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [], auto_delete=True)
    with connection.Consumer(queue):
        pass
    vhost = connection.connection.vhost
    vhost.queue("other")  # after the deletion in the node's inbox, once the queue's turn is over
    for _ in range(1000):
        if not [one for one in vhost.queues() if one.name == "jobs"]:
            break
        vhost.queue("other").stats()
    else:
        pytest.fail("it is still there")


def test_consumers_of_a_higher_priority_get_the_messages(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [])
    found: list[str] = []
    for name, priority in (("low", 0), ("high", 9)):
        queue = Queue("jobs", consumer_arguments={"x-priority": priority})(connection.default_channel)
        queue.consume(name, callback=lambda _, name=name: found.append(name), no_ack=False)
    for number in range(3):
        connection.Producer().publish(number, routing_key="jobs")
    assert drained(connection, 3) == 3
    assert found == ["high"] * 3


def test_an_exclusive_consumer_is_the_only_one(connect: Connect) -> None:
    connection = connect()
    filled(connection, "jobs", [])
    channel = connection.default_channel
    channel.basic_consume("jobs", exclusive=True, callback=None)
    with pytest.raises(amqp.exceptions.AccessRefused):
        channel.basic_consume("jobs", callback=None)


def test_threads_publish_and_consume_at_once(connect: Connect) -> None:
    many, publishers, consumers = 200, 3, 3
    filled(connect(), "jobs", [])
    found: list[int] = []
    done = threading.Event()

    def publish(base: int) -> None:
        with connect().clone() as connection:
            for number in range(many):
                connection.Producer().publish(base + number, routing_key="jobs")

    def consume() -> None:
        def note(body: int, message: Any) -> None:
            found.append(body)
            message.ack()
            if len(found) == many * publishers:
                done.set()

        with (
            connect().clone() as connection,
            connection.Consumer(Queue("jobs"), callbacks=[note], prefetch_count=10),
        ):
            while not done.is_set():
                drained(connection)

    together(*[lambda number=number: publish(many * number) for number in range(publishers)], *[consume] * consumers)
    assert sorted(found) == list(range(many * publishers))


# ── an event loop, and what is built on top ──────────────────────────────────────────────────────────────────────────


def test_an_event_loop_drains_a_connection(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2, 3])
    hub = Hub()
    found: list[int] = []
    connection.register_with_event_loop(hub)
    with connection.Consumer(queue, callbacks=[lambda body, message: (found.append(body), message.ack())]):
        hub.call_later(0.05, lambda: connection.Producer().publish(4, routing_key="jobs"))
        hub.call_later(20, lambda: found.append(0))
        loop = hub.create_loop()
        while len(found) < 4:
            next(loop)
    connection.release()
    assert not hub.readers
    assert found == [1, 2, 3, 4]


def test_an_error_of_a_callback_does_not_stop_an_event_loop(connect: Connect) -> None:
    connection = connect()
    queue = filled(connection, "jobs", [1, 2])
    hub: Any = Hub()
    hub.propagate_errors = (ZeroDivisionError,)
    found: list[int] = []

    def note(body: int, message: Any) -> None:
        found.append(body)
        message.ack()
        if body == 1:
            raise ZeroDivisionError

    connection.register_with_event_loop(hub)
    with connection.Consumer(queue, callbacks=[note]):
        loop = hub.create_loop()
        with pytest.raises(ZeroDivisionError):
            list(loop)
        loop = hub.create_loop()
        while len(found) < 2:
            next(loop)
    assert found == [1, 2]


def test_a_mailbox_gets_replies(connect: Connect) -> None:
    serving, asking = connect(), connect()
    node = kombu.pidbox.Mailbox("box", type="fanout")(serving).Node(
        "a", state={}, handlers={"twice": lambda state, n: 2 * n}
    )
    node.channel = serving.channel()
    consumer = node.listen()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            drained(serving)

    thread = threading.Thread(target=serve)
    thread.start()
    replies = kombu.pidbox.Mailbox("box", type="fanout")(asking).multi_call("twice", {"n": 21}, timeout=5, limit=1)
    stop.set()
    thread.join()
    consumer.cancel()
    assert replies == [{"a": 42}]


def test_a_pool_of_producers_retries_over_a_lost_connection(url: str) -> None:
    connection = Connection(url)
    pool = kombu.pools.producers[connection]
    try:
        with pool.acquire(block=True) as producer:
            producer.publish("before", routing_key="jobs", declare=[Queue("jobs")])
            producer.connection.connection.node.close()
            producer.publish("after", routing_key="jobs", retry=True, retry_policy={"max_retries": 2})
            assert payloads(Queue("jobs")(producer.channel)) == ["before", "after"]
    finally:
        kombu.pools.reset()
        connection.release()


@pytest.mark.parametrize("of", ["connection", "consumer"])
def test_what_a_consumer_does_not_ack_in_time_comes_again(connect: Connect, of: str) -> None:
    connection = connect(**({"visibility_timeout": 0.05} if of == "connection" else {}))
    arguments = {"x-consumer-timeout": 50} if of == "consumer" else None
    seen: list[Any] = []
    with (
        connection.channel() as channel,
        connection.Consumer([Queue("q", consumer_arguments=arguments)], channel=channel, on_message=seen.append),
    ):
        connection.Producer(channel).publish("job", routing_key="q")
        for _ in range(2):
            connection.drain_events(timeout=30)
        assert [(one.body, one.headers) for one in seen] == [(b"job", {}), (b"job", {"x-delivery-count": 1})]
        seen[0].ack()  # too late: it means nothing

        def is_acked() -> bool:
            """On a busy machine it may come again before it is acked."""
            if seen[-1].acknowledged:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
            if not seen[-1].acknowledged:
                seen[-1].ack()
            return connection.connection.node.queue("q", passive=True).stats()["messages"] == 0

        wait_until(is_acked, "it was not acked in time")


def test_a_queue_may_have_a_limit_and_dead_letters(connect: Connect) -> None:
    connection = connect()
    retry = warren.Retry(limit=1, dead_letters="dead")
    with connection.channel() as channel:
        queue, dead = (Queue("q", queue_arguments=retry.arguments)(channel), Queue("dead")(channel))
        for one in (queue, dead):
            one.declare()
        connection.Producer(channel).publish("job", routing_key="q")
        for count in range(2):
            message = queue.get()
            assert message.headers == ({"x-delivery-count": count} if count else {})
            message.requeue()
        assert queue.get() is None
        assert dead.get(no_ack=True).headers["x-death"][0]["reason"] == "delivery_limit"
