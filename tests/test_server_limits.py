"""What keeps clients of the AMQP server from taking more than their share, and from hanging on for ever."""

from __future__ import annotations

import os
import socket
import ssl
import time
from pathlib import Path

import pika
import pytest
import trustme
from pamqp import commands as c
from pika.exceptions import AMQPConnectionError, AMQPHeartbeatTimeout, ChannelClosedByBroker, StreamLostError

from benchmarks.amqp_client import Client
from tests.support.server_tools import GUEST, Served, events_until, served
from warren.amqp.methods import method_of
from warren.management import ManagementSettings
from warren.queue_index.properties import Properties, encode_properties
from warren.server import ServerSettings
from warren.server.settings import TlsSettings

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_consumers_that_do_not_read_are_given_a_bounded_number_of_messages(here: Served) -> None:
    queue = here.node.queue("large")
    queue.publish_many([bytes(16_384)] * 4000).wait()
    readers = [Client(here.port, receive_buffer=1 << 16) for _ in range(5)]
    for connection in here.server.connections.values():  # or the kernel takes megabytes for each
        with socket.socket(fileno=os.dup(connection.link.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    for reader in readers:
        reader.consume("large")
    for reader in readers:  # the server has come to every one of them
        assert reader.socket.recv(1) != b""
    stats = queue.stats()
    assert stats["messages_unacknowledged"] <= 5 * 256
    for reader in readers:
        reader.socket.close()
    other = here.node.queue("large")
    assert len(other.get_many(10)) == 10


def test_a_slow_reader_gets_everything_in_the_end(here: Served) -> None:
    bodies = [b"%d" % number * 1000 for number in range(2000)]
    here.node.queue("slow").publish_many(bodies).wait()
    with Client(here.port) as reader:
        reader.consume("slow", no_ack=True)
        got: list[bytes] = []
        for run in reader.deliveries():
            got += run.bodies
            if len(got) == len(bodies):
                break
        assert got == bodies


def test_a_client_that_says_nothing_is_dropped(tmp_path: Path) -> None:
    with (
        served(tmp_path / "node", ServerSettings(handshake_timeout=0.2)) as here,
        socket.create_connection(("127.0.0.1", here.port), timeout=20) as client,
    ):
        assert client.recv(1) == b""  # fmt: skip


@pytest.mark.slow
def test_a_client_that_stops_beating_is_dropped(here: Served) -> None:
    with here.connection(heartbeat=1) as connection:
        connection._impl._heartbeat_checker.stop()
        begun = time.monotonic()
        with pytest.raises((StreamLostError, AMQPHeartbeatTimeout, AMQPConnectionError)):
            connection.process_data_events(time_limit=20)
        assert time.monotonic() - begun < 15


@pytest.mark.slow
def test_a_client_is_beaten_to(here: Served) -> None:
    with here.connection(heartbeat=1) as connection:
        connection.process_data_events(time_limit=2.5)
        assert connection.is_open
        assert connection._impl._heartbeat_checker.bytes_received_on_connection > 0


def test_no_more_connections_than_are_allowed(tmp_path: Path) -> None:
    with (
        served(tmp_path / "node", ServerSettings(connection_max=1)) as here,
        here.connection(),
        pytest.raises(AMQPConnectionError),
        here.connection(),
    ):
        pass  # fmt: skip


def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with served(tmp_path / "node", ServerSettings(max_message_size=1000)) as here, here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", bytes(1001))
        with pytest.raises((ChannelClosedByBroker, AMQPConnectionError), match=r"larger than|exceeds"):
            channel.queue_declare("q")


def test_delayed_messages_of_a_client_wait_for_the_end_of_a_full_disk(here: Served) -> None:
    """It may not want confirms, and would not learn that they are refused."""
    gate = here.node._running.gate
    here.node.exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    told: list[str] = []
    with here.connection() as connection:
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        channel = connection.channel()
        gate.note_full_disk(is_full=True)
        gate.set(frozenset({"disk"}))
        channel.basic_publish("later", "q", b"held", pika.BasicProperties(headers={"x-delay": 3_600_000}))
        events_until(connection, lambda: told)
        assert here.node.delayed() == []
        gate.note_full_disk(is_full=False)
        gate.set(frozenset())
        channel.queue_declare("q")
        assert len(here.node.delayed()) == 1


def told_of_alarms(connection: pika.BlockingConnection) -> list[str]:
    """Return a list that gets the reason of each alarm from now on, and "unblocked" at its end."""
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, frame: told.append("unblocked"))
    return told


@pytest.mark.parametrize(("routing_key", "stored"), [("q", 1), ("no such queue", 0)])
def test_publishers_are_held_and_told_while_an_alarm_is_set(here: Served, routing_key: str, stored: int) -> None:
    gate = here.node._running.gate
    with here.connection() as connection:
        told = told_of_alarms(connection)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        gate.set(frozenset({"disk"}))
        channel.basic_publish("", routing_key, b"held", PERSISTENT)
        events_until(connection, lambda: told)
        assert told == ["low on disk"]
        assert len(here.node.queue("q")) == 0
        with here.channel() as other:  # who publishes nothing goes on
            assert other.queue_declare("q", passive=True).method.message_count == 0
        gate.set(frozenset())
        events_until(connection, lambda: len(told) >= 2)
        assert told[1] == "unblocked"
        assert channel.queue_declare("q", passive=True).method.message_count == stored


def test_a_publisher_that_waits_and_goes_leaves_nothing_behind(here: Served) -> None:
    gate = here.node._running.gate
    here.node.queue("q")
    gate.set(frozenset({"memory"}))
    client = Client(here.port)
    client.send(Client.publish_of("", "q", encode_properties(Properties(delivery_mode=2)), [b"x"] * 10))
    client.socket.close()
    gate.set(frozenset())
    with here.channel() as channel:
        assert channel.queue_declare("q", passive=True).method.message_count in (0, 10)


def test_two_thousand_channels_and_no_more(here: Served) -> None:
    with Client(here.port) as client:
        for number in range(2, 2048):
            client._engine.send(number, c.Channel.Open())
        client._flush()
        opened = 0
        while opened < 2046:
            opened += len(client.events())
        client.call(method_of(c.Queue.Declare, queue="q"), c.Queue.DeclareOk)


def test_tls_and_a_name_by_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.issue_cert(common_name="bob").private_key_and_cert_chain_pem.write_to_path(tmp_path / "bob.pem")
    server, ca = str(tmp_path / "server.pem"), str(tmp_path / "ca.pem")
    tls = TlsSettings(certfile=server, keyfile=server, cacertfile=ca, verify=True, login_from="common_name")
    with served(tmp_path / "node", ServerSettings(tls_port=0, tls=tls)) as here:
        here.node.add_user("bob", "")
        here.node.set_permissions("bob", ".*", ".*", ".*")
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(tmp_path / "bob.pem")
        port = here.server.addresses[1][1]
        for credentials in (GUEST, pika.credentials.ExternalCredentials()):
            parameters = pika.ConnectionParameters(
                "localhost", port, credentials=credentials, ssl_options=pika.SSLOptions(context, "localhost")
            )
            with pika.BlockingConnection(parameters) as connection:
                connection.channel().queue_declare("q")
        bare = pika.SSLOptions(ssl.create_default_context(cafile=ca), "localhost")
        with pytest.raises((AMQPConnectionError, ssl.SSLError, OSError)):
            pika.BlockingConnection(pika.ConnectionParameters("localhost", port, ssl_options=bare))


@pytest.mark.slow
def test_a_tls_handshake_that_fails_ends_in_time_with_an_alert_and_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem = str(tmp_path / "server.pem")
    management = ManagementSettings(
        management_tcp_port=0,
        management_ssl_certfile=pem,
        management_ssl_keyfile=pem,
        management_tcp_request_timeout=100,
    )
    settings = ServerSettings(
        tls_port=0, tls=TlsSettings(certfile=pem, keyfile=pem), handshake_timeout=0.1, management=management
    )
    with served(tmp_path / "node", settings) as here:
        assert here.server.management is not None
        for host, port in (here.server.addresses[1], here.server.management.addresses[0]):
            for hello, reason in ((b"", "taking longer than 0.1 seconds"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP_REQUEST")):
                caplog.clear()
                with socket.create_connection((host, port)) as client:
                    name = ":".join(map(str, client.getsockname()))
                    client.sendall(hello)
                    alert = client.makefile("rb").read()
                assert alert[:1] == b"\x15"
                assert alert[5:6] == b"\x02"
                (line,) = [one for one in caplog.records if getattr(one, "event", "") == "tls_refused"]
                assert reason in line.message
                assert name in line.message
            context = ssl._create_unverified_context()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers("NULL-SHA256:@SECLEVEL=0")
            with (
                socket.create_connection((host, port)) as plain,
                pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"),
            ):
                context.wrap_socket(plain)
