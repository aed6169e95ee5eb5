"""The guest listener: whom it lets in, that it disturbs neither the node nor other guests, and that it cleans up."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import in_child, is_dropped
from warren.actors.node import guest_listener
from warren.actors.node.guest_listener import GuestListener
from warren.actors.node.node_socket import MAX_SOCKET_PATH_BYTES, SOCKET_NAME, find_socket, short_path
from warren.storage.errors import StorageError


def greet(connection: socket.socket) -> None:
    """Serve a guest: say hello, and leave."""
    with connection:
        connection.sendall(b"hello")


def greeting(path: str) -> bytes:
    """What a guest hears at a socket."""
    with socket.socket(socket.AF_UNIX) as guest, short_path(path) as name:
        guest.settimeout(10)
        guest.connect(name)
        return guest.recv(100)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[GuestListener]:
    started = GuestListener(str(tmp_path), greet)
    yield started
    started.stop()


# ── who comes in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_guest_is_let_in(listener: GuestListener) -> None:
    assert [greeting(listener.path) for _ in range(3)] == [b"hello"] * 3


def test_a_guest_that_cannot_be_served_is_dropped_and_the_next_one_is_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [KeyError("oops")]

    def let_in(connection: socket.socket) -> None:
        if errors:
            raise errors.pop()
        greet(connection)

    listener = GuestListener(str(tmp_path), let_in)
    assert greeting(listener.path) == b""
    assert greeting(listener.path) == b"hello"
    listener.stop()
    assert [getattr(record, "event", "") for record in caplog.records] == ["status_failed"]


def test_a_guest_that_comes_while_no_descriptor_is_left_is_let_in_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = socket.socket.accept

    def accept_later(listening: socket.socket) -> object:
        if refusals:
            raise refusals.pop()
        return accept(listening)

    monkeypatch.setattr(guest_listener, "RETRY_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    listener = GuestListener(str(tmp_path), greet)
    assert greeting(listener.path) == b"hello"
    listener.stop()
    assert not refusals


def test_only_its_user_may_come_in(listener: GuestListener) -> None:
    assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_s_process_is_dropped_whatever_the_socket_s_mode(listener: GuestListener, tmp_path: Path) -> None:
    assert is_dropped(tmp_path / SOCKET_NAME, b"AMQP\0\0\x09\x01")
    assert greeting(listener.path) == b"hello"


def test_a_stop_waits_for_the_guest_that_is_being_let_in(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def let_in(connection: socket.socket) -> None:
        begun.set()
        assert go_on.wait(10)
        greet(connection)

    listener = GuestListener(str(tmp_path), let_in)
    heard: list[bytes] = []
    guest = threading.Thread(target=lambda: heard.append(greeting(listener.path)))
    guest.start()
    assert begun.wait(10)
    stopping = threading.Thread(target=listener.stop)
    stopping.start()
    go_on.set()
    stopping.join(10)
    guest.join(10)
    assert heard == [b"hello"]


def test_a_node_goes_on_where_no_socket_can_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "warren.status"):
        assert GuestListener.start(str(tmp_path / "missing"), greet) is None
    assert "cannot attach to this node" in caplog.text
    (tmp_path / SOCKET_NAME).write_bytes(b"a file of somebody's")
    with pytest.raises(StorageError, match="cannot create the socket"):
        GuestListener(str(tmp_path), greet)
    assert (tmp_path / SOCKET_NAME).read_bytes() == b"a file of somebody's"


def test_a_node_goes_on_where_no_thread_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert GuestListener.start(str(tmp_path), greet) is None
    assert not os.listdir(tmp_path)


# ── what it leaves ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_after_a_stop(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    listener = GuestListener(str(tmp_path), greet)
    assert find_socket(str(tmp_path)) == listener.path == str(tmp_path / SOCKET_NAME)
    listener.stop()
    assert not os.listdir(tmp_path)
    assert find_socket(str(tmp_path)) is None
    assert set(threading.enumerate()) <= others


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    listener = GuestListener(str(tmp_path), greet)
    assert greeting(listener.path) == b"hello"
    listener.stop()
    assert not os.listdir(tmp_path)


def test_a_forked_child_lets_go_and_removes_nothing(tmp_path: Path) -> None:
    """Otherwise a guest that comes after the parent's end would wait for a thread that is not there."""
    listener = GuestListener(str(tmp_path), greet)

    def let_go() -> tuple[bool, int]:
        listener.forget()
        return os.path.exists(listener.path), listener._listener.fileno()

    assert in_child(let_go) == "(True, -1)"
    assert greeting(listener.path) == b"hello"
    listener.stop()


@pytest.fixture
def long_place(tmp_path: Path) -> Path:
    """A directory in which a socket's path would be too long."""
    place = tmp_path / ("long" * 40)
    place.mkdir()
    assert len(os.fsencode(place / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES
    return place


def test_a_path_that_is_too_long_for_a_socket_is_reached_all_the_same(long_place: Path) -> None:
    listener = GuestListener(str(long_place), greet)
    assert os.listdir(long_place) == [SOCKET_NAME]
    assert stat.S_IMODE((long_place / SOCKET_NAME).stat().st_mode) == 0o600
    assert find_socket(str(long_place)) == listener.path
    assert greeting(listener.path) == b"hello"
    listener.stop()
    assert not os.listdir(long_place)


def test_the_socket_of_a_killed_process_is_replaced_where_its_path_is_long(long_place: Path) -> None:
    kept: list[GuestListener] = []
    assert in_child(lambda: kept.append(GuestListener(str(long_place), greet))) == "None"
    assert find_socket(str(long_place)) is not None
    listener = GuestListener(str(long_place), greet)
    assert greeting(listener.path) == b"hello"
    listener.stop()


def test_no_file_in_a_directory_says_which_socket_is_deleted_or_asked(long_place: Path, tmp_path: Path) -> None:
    """A planted file, or one of a copied directory, pointed to any socket of the user's once."""
    (tmp_path / "warren-sock-x").mkdir()
    victim = GuestListener(str(tmp_path / "warren-sock-x"), greet)
    (long_place / "warren.sock.path").write_text(victim.path + "\n")
    (long_place / SOCKET_NAME).symlink_to(victim.path)
    assert find_socket(str(long_place)) is None
    assert GuestListener.start(str(long_place), greet) is None
    (long_place / SOCKET_NAME).unlink()
    GuestListener(str(long_place), greet).stop()
    assert greeting(victim.path) == b"hello"
    victim.stop()


def test_who_lost_its_directory_leaves_the_next_ones_socket_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    old = GuestListener(str(tmp_path / "d"), greet)
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").mkdir()
    new = GuestListener(str(tmp_path / "d"), greet)
    old.stop()
    assert greeting(new.path) == b"hello"
    new.stop()
