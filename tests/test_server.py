"""The AMQP server as pika sees it: named situations."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

import warren
import warren.aio
from tests.support.server_tools import Served, events_until, served
from tests.support.waiting import wait_until
from warren.actors.engines.declared.users import Users
from warren.actors.node.node_errors import UnsavedError
from warren.actors.node.node_registry import NodeRegistry
from warren.server import ServerSettings
from warren.server.channels.confirms import Confirms, Settled
from warren.server.login import Credentials, SaslError, credentials
from warren.server.settings import ListenError
from warren.storage.errors import DirectoryLostError, SettingsError
from warren.verbs.steps import run

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_what_is_published_is_confirmed_got_and_gone(here: Served) -> None:
    with here.channel() as channel:
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"one", pika.BasicProperties(delivery_mode=2, headers={"n": 1}))
        method, properties, body = channel.basic_get("jobs")
        assert (method.delivery_tag, method.redelivered, method.message_count) == (1, False, 0)
        assert (properties.headers, properties.delivery_mode, body) == ({"n": 1}, 2, b"one")
        channel.basic_ack(1)
        assert channel.basic_get("jobs") == (None, None, None)


def test_the_node_s_own_handles_see_what_clients_do(here: Served) -> None:
    with here.channel() as channel:
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"from a client", PERSISTENT)
        got = here.node.queue("jobs").get()
        assert got is not None
        assert got.body == b"from a client"
        got.ack()
        here.node.queue("jobs").publish(b"from the program").wait()
        assert channel.basic_get("jobs", auto_ack=True)[2] == b"from the program"


def test_many_messages_in_order_with_their_bodies(here: Served) -> None:
    bodies = [b"%d" % number * (number % 7) for number in range(3000)]
    with here.channel() as channel:
        channel.queue_declare("many", durable=True)
        for body in bodies:
            channel.basic_publish("", "many", body, PERSISTENT)
        got, tags = [], []
        channel.basic_qos(prefetch_count=100)
        for method, _, body in channel.consume("many", inactivity_timeout=10):
            assert method is not None
            got.append(body)
            tags.append(method.delivery_tag)
            if len(got) % 50 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(got) == len(bodies):
                break
        channel.cancel()
        assert got == bodies
        assert tags == list(range(1, 3001))
        assert channel.queue_declare("many", passive=True).method.message_count == 0


def test_a_body_longer_than_a_frame(here: Served) -> None:
    body = os.urandom(1 << 20)
    with here.channel() as channel:
        channel.queue_declare("long", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "long", body, PERSISTENT)
        assert channel.basic_get("long", auto_ack=True)[2] == body


def test_what_was_not_acked_comes_again_when_the_channel_is_closed(here: Served) -> None:
    with here.connection() as connection:
        first = connection.channel()
        first.queue_declare("jobs", durable=True)
        first.confirm_delivery()
        for number in range(3):
            first.basic_publish("", "jobs", b"%d" % number, PERSISTENT)
        first.basic_get("jobs")
        first.basic_get("jobs")
        first.close()
        second = connection.channel()
        got = [second.basic_get("jobs", auto_ack=True) for _ in range(3)]
        assert [(method.redelivered, body) for method, _, body in got] == [(True, b"0"), (True, b"1"), (False, b"2")]


def test_a_message_that_cannot_be_read_keeps_those_behind_it_from_nobody(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node.queue("q").publish_many([b"%d" % number for number in range(5)]).wait()
    (journal,) = (tmp_path / "node").glob("msg_stores/vhosts/*/queues/*/journal.jif")
    data = bytearray(journal.read_bytes())
    second = data.index(b"basic_message", data.index(b"basic_message") + 1)
    data[second : second + 1] = b"?"
    journal.write_bytes(data)
    with served(tmp_path / "node") as here, here.channel() as channel:
        got: list[bytes] = []
        channel.basic_consume("q", lambda channel, method, properties, body: got.append(body), auto_ack=True)
        events_until(channel.connection, lambda: len(got) >= 4)
        assert got == [b"0", b"2", b"3", b"4"]


def test_what_a_queue_that_is_down_should_have_got_is_not_confirmed(tmp_path: Path) -> None:
    """It was confirmed, to clients and to guests' exchanges, and was nowhere."""
    with warren.open(tmp_path / "node") as node:
        good, bad = node.queue("good"), node.queue("bad")
        both = node.exchange("both", "fanout")
        node.bind(good, both)
        node.bind(bad, both)
        bad.publish(b"x").wait()
    (journal,) = (tmp_path / "node").glob("msg_stores/vhosts/*/queues/*/journal.jif")
    journal.write_bytes(b"\xff" * 500)
    with warren.open(tmp_path / "node", share=True) as host, warren.open(tmp_path / "node", share=True) as guest:
        for node in (host, guest):
            with pytest.raises(warren.errors.WarrenError, match=r"journal\.jif"):
                node.exchange("both").publish(b"1").wait()
            with pytest.raises(warren.errors.WarrenError, match=r"journal\.jif"):
                node.publish_to(["good", "bad"], b"2").wait()
        address, port = host.serve(port=0).addresses[0]
        parameters = pika.ConnectionParameters(address, port)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for exchange, mandatory in (("", False), ("", True), ("both", False), ("both", True)):
                with pytest.raises(NackError):
                    channel.basic_publish(exchange, "bad", b"3", PERSISTENT, mandatory=mandatory)
            transactional = connection.channel()
            transactional.tx_select()
            transactional.basic_publish("", "bad", b"4", PERSISTENT)
            with pytest.raises(ChannelClosedByBroker, match="partial tx completion"):
                transactional.tx_commit()
        assert [message.body for message in host.queue("good").browse()][-2:] == [b"3", b"3"]


def test_a_node_whose_directory_is_removed_disconnects_its_clients_and_lets_none_in(tmp_path: Path) -> None:
    with (
        contextlib.suppress(DirectoryLostError),  # at the end
        served(tmp_path / "node") as here,
        here.connection() as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        (tmp_path / "node").rename(tmp_path / "away")
        with pytest.raises(DirectoryLostError):
            here.node.queue("q")
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - vhost '/' is down"):
            channel.basic_publish("", "q", b"1", PERSISTENT)
        with pytest.raises(ProbableAccessDeniedError, match="vhost '/' is down"):
            here.connection().__enter__()


def test_a_client_that_closes_its_connection_gets_the_answer_even_if_its_exclusive_queues_stay(here: Served) -> None:
    with here.connection() as connection:
        connection.channel().queue_declare("mine", exclusive=True)
        with patch.object(NodeRegistry, "release", side_effect=UnsavedError("not saved")):
            connection.close()


def test_a_limit_of_the_whole_channel_is_of_all_its_consumers_together(here: Served) -> None:
    with here.channel() as channel:
        got: list[tuple[str, int]] = []
        channel.basic_qos(prefetch_count=3, global_qos=True)
        for queue in ("one", "two"):
            channel.queue_declare(queue)
            here.node.queue(queue, durable=False).publish_many([queue.encode()] * 5).wait()
            channel.basic_consume(
                queue, lambda channel, method, properties, body: got.append((body.decode(), method.delivery_tag))
            )
        for settled in range(1, 11):
            channel.connection.process_data_events(time_limit=0.05)
            assert len(got) <= settled + 2
            due = min(settled + 2, 10)
            events_until(channel.connection, lambda due=due: len(got) >= due)  # type: ignore[misc]
            channel.basic_ack(settled)
        assert sorted(queue for queue, _ in got) == ["one"] * 5 + ["two"] * 5
        assert [tag for _, tag in got] == list(range(1, 11))


def test_a_mandatory_message_without_a_queue_comes_back(here: Served) -> None:
    with here.channel() as channel:
        channel.confirm_delivery()
        with pytest.raises(UnroutableError) as caught:
            channel.basic_publish("", "nowhere", b"back", mandatory=True)
        returned = caught.value.messages[0]
        assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
        assert returned.body == b"back"


@pytest.mark.parametrize(
    ("code", "text", "call"),
    [
        (404, "NOT_FOUND - no queue 'x' in vhost '/'", lambda channel: channel.queue_declare("x", passive=True)),
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'", lambda channel: channel.exchange_declare("x", passive=True)),
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'", lambda channel: channel.queue_bind("q", "x")),
        (404, "NOT_FOUND - no queue 'x' in vhost '/'", lambda channel: channel.basic_get("x")),
        (
            406,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current "
            "is 'true'",
            lambda channel: channel.queue_declare("q"),
        ),
        (403, "ACCESS_REFUSED - operation not permitted on the default exchange", lambda ch: ch.exchange_delete("")),
        (406, "PRECONDITION_FAILED - channel is not transactional", lambda channel: channel.tx_commit()),
    ],
)  # fmt: skip
def test_a_refusal_closes_the_channel_and_not_the_connection(here: Served, code: int, text: str, call) -> None:
    with here.connection() as connection:
        connection.channel().queue_declare("q", durable=True)
        with pytest.raises(ChannelClosedByBroker) as caught:
            call(connection.channel())
        assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
        assert connection.channel().queue_declare("q", passive=True).method.message_count == 0


def test_an_unknown_delivery_tag_closes_the_channel(here: Served) -> None:
    with here.connection() as connection:
        channel = connection.channel()
        channel.basic_ack(7)
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.basic_qos(prefetch_count=1)
        assert caught.value.reply_text == "PRECONDITION_FAILED - unknown delivery tag 7"


@pytest.mark.parametrize("multiple", [False, True])
def test_a_client_that_settles_what_multiple_has_settled_gets_its_channel_closed(here: Served, multiple: bool) -> None:
    with here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(2):
            channel.basic_publish("", "q", b"")
            channel.basic_get("q")
        channel.basic_ack(2, multiple=True)
        channel.basic_ack(1, multiple=multiple)
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.basic_qos(prefetch_count=1)
        assert caught.value.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_immediate_closes_the_connection(here: Served) -> None:
    with here.connection() as connection:
        channel = connection.channel()
        publish = pika.spec.Basic.Publish(exchange="", routing_key="q", immediate=True)
        channel._impl._send_method(publish, (pika.BasicProperties(), b""))
        with pytest.raises(ConnectionClosedByBroker) as caught:
            channel.queue_declare("q")
        assert (caught.value.reply_code, caught.value.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


def test_an_exclusive_queue_goes_with_its_connection(here: Served) -> None:
    with here.connection() as other:
        with here.channel() as channel:
            name = channel.queue_declare("", exclusive=True).method.queue
            assert name.startswith("amq.gen-")
            with pytest.raises(ChannelClosedByBroker) as caught:
                other.channel().queue_declare(name, passive=True)
            assert caught.value.reply_code == 405
        with pytest.raises(ChannelClosedByBroker) as caught:
            other.channel().queue_declare(name, passive=True)
        assert caught.value.reply_code == 404


def test_a_consumer_is_told_that_its_queue_was_deleted(here: Served) -> None:
    cancelled: list[str] = []
    with here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("going")
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = channel.basic_consume("going", lambda *_: None)
        here.node.queue("going", durable=False).delete()
        events_until(connection, lambda: cancelled)
        assert cancelled == [tag]


def test_a_transaction_publishes_and_acks_at_its_commit(here: Served) -> None:
    with here.connection() as connection:
        channel, other = connection.channel(), connection.channel()
        channel.queue_declare("tx", durable=True)
        channel.tx_select()
        channel.basic_publish("", "tx", b"held", PERSISTENT)
        assert other.queue_declare("tx", passive=True).method.message_count == 0
        channel.tx_commit()
        assert other.queue_declare("tx", passive=True).method.message_count == 1
        assert channel.basic_get("tx")[2] == b"held"
        channel.basic_ack(1)
        channel.tx_rollback()
        channel.basic_nack(1, requeue=True)  # it is unacked again
        channel.tx_commit()
        method, _, body = other.basic_get("tx", auto_ack=True)
        assert (method.redelivered, body) == (True, b"held")


def test_a_reply_goes_straight_to_who_asked(here: Served) -> None:
    with here.connection() as asking, here.connection() as answering:
        asker, answerer = asking.channel(), answering.channel()
        answerer.queue_declare("requests")
        replies: list[tuple[str, bytes]] = []
        asker.basic_consume(
            "amq.rabbitmq.reply-to",
            lambda channel, method, properties, body: replies.append((properties.correlation_id, body)),
            auto_ack=True,
        )
        asker.basic_publish(
            "", "requests", b"2 + 2", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
        )
        asker.queue_declare("requests", passive=True)
        _, request, _ = answerer.basic_get("requests", auto_ack=True)
        assert request.reply_to.startswith("amq.rabbitmq.reply-to.")
        assert answerer.queue_declare(request.reply_to, passive=True).method.consumer_count == 1
        answerer.basic_publish("", request.reply_to, b"4", pika.BasicProperties(correlation_id=request.correlation_id))
        events_until(asking, lambda: replies)
        assert replies == [("7", b"4")]
        answerer.basic_publish("", "requests", b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        with pytest.raises(ChannelClosedByBroker, match="fast reply consumer does not exist"):
            answerer.queue_declare("requests", passive=True)


def test_a_server_in_a_program_on_asyncio(tmp_path: Path) -> None:
    async def program() -> bytes:
        async with warren.aio.open(tmp_path / "node") as node:
            server = await node.serve(port=0)
            here = Served(node.blocking, server)
            queue = await node.queue("jobs")

            def client() -> None:
                with here.channel() as channel:
                    channel.basic_publish("", "jobs", b"hello", PERSISTENT)

            await asyncio.to_thread(client)
            got = await queue.get(timeout=10)
            assert got is not None
            return got.body

    assert asyncio.run(program()) == b"hello"


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_password_is_refused(here: Served) -> None:
    with (
        pytest.raises(ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"),
        here.connection(credentials=pika.PlainCredentials("guest", "wrong")),
    ):
        pass  # fmt: skip


def test_a_vhost_that_is_not_there_is_refused(here: Served) -> None:
    with (
        pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - vhost nope not found"),
        here.connection(virtual_host="nope"),
    ):
        pass  # fmt: skip


def test_a_user_without_rights_may_do_nothing(here: Served) -> None:
    def define(change: Callable[[Users], object]) -> None:
        node = here.node._running
        run(node.change(lambda registry: registry.define(lambda definitions: change(definitions.users))))

    define(lambda users: users.add("bob", b"secret"))
    bob = pika.PlainCredentials("bob", "secret")
    with (
        pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user 'bob'"),
        here.connection(credentials=bob),
    ):
        pass  # fmt: skip
    define(lambda users: users.set_permissions("bob", "/", "^mine-", "^$", ".*"))
    with here.connection(credentials=bob) as connection:
        connection.channel().queue_declare("mine-1")
        with pytest.raises(ChannelClosedByBroker) as caught:
            connection.channel().queue_declare("yours")
        assert caught.value.reply_text == "ACCESS_REFUSED - access to queue 'yours' in vhost '/' refused for user 'bob'"


def test_what_a_client_says_by_a_mechanism() -> None:
    assert credentials("PLAIN", b"\0bob\0secret", None) == Credentials("bob", b"secret")
    table = b"\x05LOGINS\0\0\0\x03bob\x08PASSWORDS\0\0\0\x06secret"
    assert credentials("AMQPLAIN", table, None) == Credentials("bob", b"secret")
    assert credentials("EXTERNAL", b"", "CN=bob") == Credentials("CN=bob", None)
    for mechanism, response in (("PLAIN", b"bob"), ("AMQPLAIN", b"\xff"), ("EXTERNAL", b""), ("GSSAPI", b"")):
        with pytest.raises(SaslError):
            credentials(mechanism, response, None)


# ── the server itself ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_of_another_protocol_is_told_ours(here: Served) -> None:
    with socket.create_connection(("127.0.0.1", here.port)) as client:
        client.sendall(b"HTTP/1.1")
        assert client.recv(100) == b"AMQP\0\0\x09\x01"
        assert client.recv(100) == b""


def test_a_port_that_is_taken_is_an_error_of_ours(here: Served, tmp_path: Path) -> None:
    with warren.open(tmp_path / "other") as node, pytest.raises(ListenError, match=f"127.0.0.1:{here.port}"):
        node.serve(port=here.port)


def test_several_places_to_listen_at_and_options_of_sockets(tmp_path: Path) -> None:
    settings = ServerSettings(
        listeners_tcp=("127.0.0.1:0", "127.0.0.2:0", "0"), tcp_listen_options_backlog=7,
        tcp_listen_options_nodelay=False, tcp_listen_options_sndbuf=20_000, tcp_listen_options_recbuf=30_000,
    )  # fmt: skip
    with warren.open(tmp_path / "data") as node:
        server = node.serve(settings)
        assert [host for host, _ in server.addresses] == ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
        for host, port in server.addresses:
            with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
                connection.channel().queue_declare("q")
                [known] = server.connections.values()
                with socket.socket(fileno=os.dup(known.link.fileno())) as theirs:
                    assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
                    sizes = [theirs.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
                    assert sizes == [40_000, 60_000]  # Linux doubles them
            wait_until(lambda: not server.connections, "the connection is over")
        taken = server.addresses[0][1]
        with pytest.raises(ListenError, match=str(taken)):
            node.serve(ServerSettings(listeners_tcp=("127.0.0.1:0", f"127.0.0.1:{taken}")))
        server.stop()


def test_settings_that_cannot_work() -> None:
    for wrong in (
        {"frame_max": 100}, {"tls_port": 5671}, {"port": 70000}, {"heartbeat": -1}, {"listeners_tcp": ("here",)},
        {"listeners_tcp": ("127.0.0.1:70000",)}, {"listeners_ssl": ("127.0.0.1:1",)}, {"tcp_listen_options_sndbuf": 0},
    ):  # fmt: skip
        with pytest.raises(SettingsError):
            ServerSettings(**wrong)


@pytest.mark.slow
def test_clients_are_told_of_the_end_and_find_all_after_it(tmp_path: Path) -> None:
    with served(tmp_path / "node") as here, here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", b"kept", PERSISTENT)
        here.server.stop()
        with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError)) as caught:
            channel.queue_declare("jobs", passive=True)
        assert "CONNECTION_FORCED" in str(caught.value)
    with served(tmp_path / "node") as here, here.channel() as channel:
        assert channel.basic_get("jobs", auto_ack=True)[2] == b"kept"


SAYS_WHAT_IS_FROZEN = """
import atexit, gc
from warren.cli import main
atexit.register(lambda: print(gc.get_freeze_count()))
main()
"""


@pytest.mark.slow
def test_warren_serve_until_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAYS_WHAT_IS_FROZEN, "serve", str(tmp_path / "node"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.queue_declare("jobs", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "jobs", b"kept", PERSISTENT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert int(process.stdout.read()) > 10_000  # of what was imported alone
    with warren.open(tmp_path / "node") as node:
        assert len(node.queue("jobs")) == 1


# ── confirms ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_confirms_are_told_together_where_they_follow_one_another() -> None:
    confirms = Confirms()
    firsts = [confirms.publish(count) for count in (1, 10, 1, 5)]
    assert firsts == [1, 2, 12, 13]
    confirms.settle(2, ack=True)
    assert confirms.take() == [Settled(True, tag, False) for tag in range(2, 12)]
    confirms.settle(1, ack=True)
    confirms.settle(12, ack=False)
    assert confirms.take() == [Settled(True, 1, False), Settled(False, 12, False)]
    confirms.settle(13, ack=True)
    assert confirms.take() == [Settled(True, 17, True)]
    assert (confirms.take(), confirms.open) == ([], 0)
