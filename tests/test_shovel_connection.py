"""The shovel's connection to a broker: TLS, parameters of its URL, heartbeats, and peers that are no brokers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from pamqp import commands as c

from tests.support.server_tools import served
from tests.support.shovel_tools import complaint, fill, numbers, shovel
from warren import engine
from warren.amqp.connection import Connection as Engine
from warren.amqp.received import HeaderReceived, Heartbeat, MethodReceived
from warren.amqp.states import Side
from warren.server import ServerSettings, TlsSettings
from warren.shovel import connection as shovel_connection
from warren.shovel.address import Address
from warren.shovel.connection import Connection, Loop
from warren.shovel.errors import ShovelError


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """The URL of a peer that handles one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            accepted, _ = listener.accept()
            with accepted:
                serve(accepted)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"amqp://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


@pytest.mark.slow
def test_messages_go_there_and_back_by_tls_with_a_certificate_of_the_clients_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.issue_cert(common_name="bob").private_key_and_cert_chain_pem.write_to_path(tmp_path / "bob.pem")
    server, ca, bob = (str(tmp_path / f"{name}.pem") for name in ("server", "ca", "bob"))
    tls = TlsSettings(certfile=server, keyfile=server, cacertfile=ca, verify=True)
    sizes = [0, 1, 16_384, 131_065, 3_000_000, 0] + [10] * 2000
    bodies = [b"%d" % (n % 10) * size for n, size in enumerate(sizes)]
    with engine.open_vhost(tmp_path / "source") as source:
        source.queue(b"q").publish_many(source.envelope(b"q"), source.msg_ids.many(len(bodies)), bodies)
    with served(tmp_path / "node", ServerSettings(tls_port=0, tls=tls)) as here:
        port = here.server.addresses[1][1]
        url = f"amqps://localhost:{port}/?cacertfile={ca}&certfile={bob}"
        shovel(tmp_path / "source", url, "--state", tmp_path / "state")
        shovel(url, tmp_path / "data", "--queue", "q")
        by_address = url.replace("localhost", "127.0.0.1")
        assert "not valid for '127.0.0.1'" in complaint(by_address, tmp_path / "data", "--queue", "q")
        shovel(f"{by_address}&server_name_indication=localhost", tmp_path / "data", "--queue", "q")
        assert "no connection" in complaint(url.partition("&")[0], tmp_path / "data", "--queue", "q")
        assert "CERTIFICATE_VERIFY_FAILED" in complaint(url.partition("?")[0], tmp_path / "data", "--queue", "q")
        assert "No such file" in complaint(f"{url}x", tmp_path / "data", "--queue", "q")
    with engine.open_vhost(tmp_path / "data") as data:
        assert [browsed.message.body for browsed in data.queue(b"q").browse()] == bodies


@pytest.mark.slow
def test_a_broker_to_another_with_heartbeats(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3000)
    with served(tmp_path / "one") as one, served(tmp_path / "two") as two:
        first, second = (f"{here.url}?heartbeat=1" for here in (one, two))
        shovel(tmp_path / "source", first, "--state", tmp_path / "state")
        assert shovel(first, second, "--queue", "q", "--prefetch", "100")["messages"] == 3000
        shovel(second, tmp_path / "data", "--queue", "q")
    assert numbers(tmp_path / "data") == list(range(3000))


@pytest.mark.slow
def test_heartbeats_go_on_while_another_broker_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shovel_connection, "ANSWER_S", 2.5)
    heartbeats: list[Heartbeat] = []

    def serve(accepted: socket.socket) -> None:
        """Open a connection, and then send nothing more."""
        peer = Engine(Side.SERVER)
        while data := accepted.recv(1 << 16):
            for event in peer.receive(data):
                match event:
                    case HeaderReceived():
                        peer.send(0, c.Connection.Start())
                    case MethodReceived(method=c.Connection.StartOk()):
                        peer.send(0, c.Connection.Tune(2047, 131_072, 60))
                    case MethodReceived(method=c.Connection.Open()):
                        peer.send(0, c.Connection.OpenOk())
                    case Heartbeat():
                        heartbeats.append(event)
            accepted.sendall(peer.data_to_send())

    def be_silent(accepted: socket.socket) -> None:
        while accepted.recv(1 << 16):
            continue

    loop = Loop()
    with (
        listening(serve) as url,
        listening(be_silent) as silent_url,
        Connection.open(Address.of(f"{url}?heartbeat=1"), loop, print) as connection,
    ):
        second = Connection.open(Address.of(silent_url), loop, print)
        with pytest.raises(ShovelError, match="no connection: the broker has not answered for 2 s"), second:
            pass
        assert heartbeats
        with pytest.raises(ShovelError, match=r"is lost: the broker has sent nothing for \d s, not even a heartbeat"):
            connection.check()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the broker hung up"),
        (b"AMQP\0\1\0\0", "the broker breaks the rules of AMQP 0-9-1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the broker breaks the rules of AMQP 0-9-1"),
    ],
)
def test_a_peer_that_is_no_broker(answer: bytes, reason: str, tmp_path: Path) -> None:
    def serve(accepted: socket.socket) -> None:
        accepted.recv(8)
        accepted.sendall(answer)

    with listening(serve) as url:
        assert f"no connection: {reason}" in complaint(url, tmp_path / "data", "--queue", "q")


def test_a_url_may_leave_out_all_but_the_host() -> None:
    address = Address.of("amqp://rabbit")
    assert (address.host, address.port, address.vhost, address.heartbeat_s) == ("rabbit", 5672, b"/", 0)
    assert (address.login.user, address.login.password, str(address)) == (
        "guest",
        "guest",
        "amqp://guest@rabbit:5672/%2F",
    )
    address = Address.of("AMQPS://m%40e:s%2F3@rabbit/v%2Fw?heartbeat=30")
    assert (address.port, address.vhost, address.heartbeat_s, address.has_tls) == (5671, b"v/w", 30, True)
    assert (address.login.user, address.login.password) == ("m@e", "s/3")
    assert "s/3" not in repr(address)


@pytest.mark.parametrize("query", ["ssl_options=None", "heartbeat=1&heartbeat=2", "s3cret", "heartbeat=s3cret"])
def test_parameters_that_a_url_cannot_have(query: str) -> None:
    with pytest.raises(ShovelError, match="not an amqp:// URL") as raised:
        Address.of(f"amqp://me@host/?{query}")
    assert "s3cret" not in str(raised.value)
