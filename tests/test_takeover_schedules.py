"""Processes of a shared directory that come, work, go and die in every order that a seeded scheduler comes upon
(docs/how-it-is-tested.md, docs/sharing.md)."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands as c

import warren
from tests.schedules.node_schedule import complaint, kind_of, outcome
from tests.schedules.takeover_schedule import again, drawn_schedule
from tests.support.effort import EFFORT, new_seed, times
from tests.support.sharing_tools import link_of
from tests.support.tried import Count, Tried
from tests.support.waiting import wait_until
from warren.actors.node.node_socket import SOCKET_NAME
from warren.actors.runtime.future import Future
from warren.amqp.connection import Connection
from warren.amqp.own_methods import CREDIT, PROTOCOL, PROTOCOL_PROPERTY, Call, CallOk
from warren.amqp.states import Side
from warren.client.channels import ClientChannel
from warren.client.errors import LinkLostError
from warren.client.handshake import Hands, Login
from warren.client.shared_directory import SharedDirectory
from warren.server import Server


@pytest.mark.slow
def test_no_order_of_takeovers_breaks_a_promise(tried: Count) -> None:
    first, count = new_seed() if EFFORT == "nightly" else 0, times(200, quick=4, nightly=10_000)
    hosts = deaths = 0
    for seed in range(first, first + count):
        schedule = drawn_schedule(seed)
        said = outcome(schedule)
        assert not said, complaint(seed, schedule, said, again)
        hosts, deaths = hosts + schedule.hosts, deaths + schedule.deaths
        if seed % 20 == 0:
            gc.collect()  # sockets of the dead
    assert hosts > 2 * count > deaths > count // 3
    tried(Tried.TAKEOVER_SCHEDULES, count)


@pytest.mark.slow
def test_an_order_of_takeovers_can_be_repeated() -> None:
    for seed in range(5):
        first, second = drawn_schedule(seed), drawn_schedule(seed)
        first.run()
        second.run()
        assert (first.choices, first.hosts, first.deaths) == (second.choices, second.hosts, second.deaths)


@pytest.mark.slow
def test_two_hosts_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check of the lock."""
    from warren.storage import lock_file

    monkeypatch.setattr(lock_file, "_lock", _open_without_lock)
    monkeypatch.setattr("warren.client.shared_directory.lock_holder", lambda path: None)
    assert any("hosts, and so do" in said for said in _failures(60))


@pytest.mark.slow
def test_a_guest_that_does_not_look_for_the_next_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect_once(directory: SharedDirectory, stopped: object) -> socket.socket:
        if getattr(directory, "was_connected", False):
            raise LinkLostError("once was enough")
        directory.was_connected = True  # type: ignore[attr-defined]
        return original(directory, stopped)  # type: ignore[arg-type]

    original = SharedDirectory._connect
    monkeypatch.setattr(SharedDirectory, "_connect", connect_once)
    assert kind_of(_first_failure(60)).startswith("StuckError")


def _open_without_lock(path: str) -> tuple[int, tuple[int, int]]:
    import os

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    found = os.fstat(descriptor)
    return descriptor, (found.st_dev, found.st_ino)


def _failures(seeds: int) -> Iterator[str]:
    """How schedules of the first seeds end that do not end well."""
    return filter(None, (outcome(drawn_schedule(seed)) for seed in range(seeds)))


def _first_failure(seeds: int) -> str:
    return next(_failures(seeds), "")


# ── what was found ──────────────────────────────────────────────────────────────────────────────────────────────────


def _server_of(node: warren.Node) -> Server:
    [server] = node._running.hosted
    assert isinstance(server, Server)
    return server


def test_one_who_has_said_nothing_is_hung_up_on_when_the_host_closes(tmp_path: Path) -> None:
    """It waited for an answer until the host's garbage was collected."""
    node = warren.open(tmp_path / "data", share=True, sync="os")
    server = _server_of(node)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(20)
        stranger.connect(str(tmp_path / "data" / SOCKET_NAME))
        wait_until(lambda: server._socket is not None and server._socket._strangers, "nobody was let in")
        gc.disable()
        try:
            node.close()
            assert stranger.recv(1) == b""
        finally:
            gc.enable()


def test_who_is_let_in_while_the_host_closes_is_hung_up_on(tmp_path: Path) -> None:
    """asyncio lost it where the listening socket was closed before it was attached."""
    node = warren.open(tmp_path / "data", share=True, sync="os")
    server, strangers = _server_of(node), [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    held, go_on = threading.Event(), threading.Event()
    server.post(lambda: (held.set(), go_on.wait(20)))  # type: ignore[arg-type]
    assert held.wait(20)
    for stranger in strangers:
        stranger.settimeout(20)
        stranger.connect(str(tmp_path / "data" / SOCKET_NAME))
    gc.disable()
    try:
        closing = threading.Thread(target=node.close)
        closing.start()
        wait_until(lambda: node._opened.closed, "it does not close", interval_s=0.001)
        go_on.set()
        closing.join(30)
        assert [stranger.recv(1) for stranger in strangers] == [b""] * 3
    finally:
        gc.enable()
        for stranger in strangers:
            stranger.close()


def test_a_host_that_ends_in_the_middle_of_a_handshake_is_lost_and_no_error() -> None:
    """What it says last came with what it had asked before, to which the guest could not answer any more."""
    ours, theirs = socket.socketpair()
    server = Connection(Side.SERVER, has_own_methods=True)

    def serve() -> None:
        server.receive(theirs.recv(4096))
        server.send(0, c.Connection.Start(0, 9, {PROTOCOL_PROPERTY: PROTOCOL}, "EXTERNAL", "en_US"))
        theirs.sendall(server.data_to_send())
        server.receive(theirs.recv(4096))
        server.send(0, c.Connection.Tune(100, 4096, 0))
        server.send(0, c.Connection.Close(320, "CONNECTION_FORCED - shutdown", 0, 0))
        theirs.sendall(server.data_to_send())

    serving = threading.Thread(target=serve)
    serving.start()
    with pytest.raises(LinkLostError, match="shutdown"):
        Hands(ours, Login("/"), 100, 4096, 30.0)
    serving.join()
    theirs.close()


def test_a_guest_that_gets_waits_for_a_host_that_hands_over(host: warren.Node, guest: warren.Node) -> None:
    """It asked again and again, as fast as it could, until the host had gone."""
    queue = guest.queue("q")
    assert not queue.get_many(1)
    queue.publish(b"1").wait()
    link = link_of(guest)
    asked = 0
    original = link.ask

    def ask(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return original(*arguments)

    link.ask = ask  # type: ignore[method-assign, assignment]
    assert len(queue) == 1
    link.all_sent = lambda: None  # type: ignore[method-assign]
    with link.locked():
        link._host_leaves()
    got: list[bytes] = []
    getting = threading.Thread(target=lambda: got.extend(one.body for one in queue.get_many(1)))
    getting.start()
    wait_until(lambda: asked, "nobody asks")
    wait_until(lambda: link._put_off or asked > 100, "nobody waits")
    with link.locked():
        del link.all_sent
        link.all_sent()
    getting.join(60)
    assert got == [b"1"]
    assert asked < 20


def test_a_guest_that_asks_again_before_its_consumer_is_answered_gets_the_answers_in_order(guest: warren.Node) -> None:
    """The consumer's answer came last, and was taken for the other's (seed 2032666261)."""
    guest.queue("q")
    link = link_of(guest)
    channel = ClientChannel(link)
    channel.open().get()
    methods = c.Basic.Consume(queue="q", arguments={CREDIT: 1 << 20}), Call("channel.release", {})
    asked = [Future(link) for _ in methods]
    with link.locked():  # both are sent at once
        channel.asked += asked
        for method in methods:
            link.outbox.encoded().send(channel.number, method)
        link.flush()
    assert [type(future.get()) for future in asked] == [c.Basic.ConsumeOk, CallOk]


def test_a_guest_that_loses_its_host_as_it_opens_a_channel_opens_another(host: warren.Node, guest: warren.Node) -> None:
    """It used to retry forever on one that was never opened (seed 78186)."""
    link, tries = link_of(guest), list[object]()
    original = link._open

    def lost_meanwhile(receiver: Any, asked: Any) -> Any:
        engine = link.outbox.engine
        tries.append(receiver)
        if len(tries) == 1:
            link.outbox.engine = None
        try:
            return original(receiver, asked)
        finally:
            link.outbox.engine = engine

    link._open = lost_meanwhile  # type: ignore[method-assign]
    guest._opened.node._control = None  # type: ignore[union-attr]
    asking = threading.Thread(target=guest.queue, args=("q",), daemon=True)
    asking.start()
    asking.join(20)
    assert not asking.is_alive()
    assert len(tries) == 2
