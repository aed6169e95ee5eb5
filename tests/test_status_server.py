"""The status server: its answers, that it disturbs neither the node nor other visitors, and that it cleans up."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.strangers import is_dropped
from warren.actors.node import status_server
from warren.actors.node.node_socket import MAX_SOCKET_PATH_BYTES, SOCKET_NAME, find_socket, short_path
from warren.actors.node.status_server import MAX_REQUEST_BYTES, MAX_VISITORS, StatusServer, answer
from warren.storage.errors import StorageError, WarrenError


def counting() -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A session that says what it was asked, and how often it was."""
    asked = 0

    def session(request: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal asked
        asked += 1
        match request.get("want"):
            case "refusal":
                raise WarrenError("that is not to be had")
            case "bug":
                raise KeyError("oops")
            case "much":
                return {"much": "x" * 5_000_000}
        return {"asked": asked, "of": dict(request)}

    return session


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StatusServer]:
    started = StatusServer(str(tmp_path), counting)
    yield started
    started.stop()


class Visitor:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, **request: object) -> Any:
        self.send(json.dumps(request).encode() + b"\n")
        return json.loads(self.lines.readline())

    def is_dropped(self) -> bool:
        try:
            return not self.lines.readline()
        except ConnectionError:
            return True

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@pytest.fixture
def visit(server: StatusServer) -> Iterator[Callable[[], Visitor]]:
    visitors: list[Visitor] = []

    def come() -> Visitor:
        visitors.append(Visitor(server.path))
        return visitors[-1]

    yield come
    for visitor in visitors:
        visitor.close()


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_visitor_has_a_session_of_its_own(visit: Callable[[], Visitor]) -> None:
    one, other = visit(), visit()
    assert one.ask(want="a") == {"asked": 1, "of": {"want": "a"}}
    assert one.ask()["asked"] == 2
    assert other.ask()["asked"] == 1


def test_requests_in_pieces_and_several_at_once(visit: Callable[[], Visitor]) -> None:
    visitor = visit()
    visitor.send(b'{"want": "a"}\n{"wa')
    assert json.loads(visitor.lines.readline())["of"] == {"want": "a"}
    visitor.send(b'nt": "b"}\n')
    assert json.loads(visitor.lines.readline())["of"] == {"want": "b"}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (b'{"want": "refusal"}', "that is not to be had"),
        (b'{"want": "bug"}', "the request could not be answered: KeyError('oops')"),
        (b"[]", "a request is a JSON object"),
        (b"", "Expecting value"),
        (b'{"want": "\xff"}', "codec"),
        (b"[" * 20_000, "recursion"),
    ],
)
def test_what_cannot_be_answered_gets_an_error_and_the_next_one_its_answer(
    visit: Callable[[], Visitor], request_: bytes, said: str
) -> None:
    visitor = visit()
    visitor.send(request_ + b"\n")
    assert said in json.loads(visitor.lines.readline())["error"]
    assert "asked" in visitor.ask()


def test_names_that_are_no_utf_8_are_answered() -> None:
    line = answer(lambda _: {"name": b"\xff".decode("utf-8", "surrogateescape")}, b"{}")
    assert json.loads(line)["name"] == "\udcff"


# ── it disturbs no one ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_without_end_is_dropped(visit: Callable[[], Visitor]) -> None:
    visitor, other = visit(), visit()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        visitor.send(b"x" * MAX_REQUEST_BYTES * 1000)
    assert other.ask()["asked"] == 1


def test_who_does_not_read_his_answer_is_dropped(
    server: StatusServer, visit: Callable[[], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server, "PATIENCE_S", 0.05)
    deaf, other = visit(), visit()
    deaf.send(b'{"want": "much"}\n')
    assert other.ask()["asked"] == 1
    while len(server._visitors) > 1:
        other.ask()
    while deaf.socket.recv(1 << 20):  # what had been sent, and then the end
        pass


def test_a_stop_waits_for_no_visitor_who_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "PATIENCE_S", 3600.0)
    server = StatusServer(str(tmp_path), counting)
    visitors = [Visitor(server.path) for _ in range(MAX_VISITORS)]
    for deaf in visitors[1:]:
        deaf.send(b'{"want": "much"}\n' * 2)
    assert visitors[0].ask()["asked"] == 1  # nor does any other visitor
    server.stop()
    assert all(visitor.is_dropped() for visitor in visitors[:1])
    for visitor in visitors:
        visitor.close()


def test_answers_to_many_requests_at_once_come_in_order(visit: Callable[[], Visitor]) -> None:
    visitor = visit()
    requests = [{"number": number, "filler": "x" * 1000} for number in range(60)]
    visitor.send(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
    assert [json.loads(visitor.lines.readline())["of"] for _ in requests] == requests


def test_one_visitor_too_many_is_sent_away_until_another_leaves(visit: Callable[[], Visitor]) -> None:
    visitors = [visit() for _ in range(MAX_VISITORS)]
    assert [visitor.ask()["asked"] for visitor in visitors] == [1] * MAX_VISITORS
    assert visit().is_dropped()
    visitors[0].socket.shutdown(socket.SHUT_WR)
    assert visitors[0].is_dropped()
    assert visit().ask()["asked"] == 1


def test_only_its_user_may_come_in(server: StatusServer) -> None:
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600


def test_a_stop_waits_for_the_request_that_is_being_answered(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def session(_: Mapping[str, Any]) -> Mapping[str, Any]:
        begun.set()
        assert go_on.wait(10)
        return {"answered": True}

    server = StatusServer(str(tmp_path), lambda: session)
    visitor = Visitor(server.path)
    visitor.send(b"{}\n")
    assert begun.wait(10)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    go_on.set()
    stopping.join(10)
    assert json.loads(visitor.lines.readline()) == {"answered": True}
    assert visitor.is_dropped()
    visitor.close()


def test_a_node_goes_on_where_no_socket_can_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "warren.status"):
        assert StatusServer.start(str(tmp_path / "missing"), counting) is None
    assert "cannot attach to this node" in caplog.text
    (tmp_path / SOCKET_NAME).write_bytes(b"a file of somebody's")
    with pytest.raises(StorageError, match="cannot create the socket"):
        StatusServer(str(tmp_path), counting)
    assert (tmp_path / SOCKET_NAME).read_bytes() == b"a file of somebody's"


def test_a_node_goes_on_where_no_thread_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert StatusServer.start(str(tmp_path), counting) is None
    assert not os.listdir(tmp_path)


# ── what it leaves ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_after_a_stop(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    server = StatusServer(str(tmp_path), counting)
    assert find_socket(str(tmp_path)) == server.path == str(tmp_path / SOCKET_NAME)
    server.stop()
    assert not os.listdir(tmp_path)
    assert find_socket(str(tmp_path)) is None
    assert "warren-status" not in {thread.name for thread in set(threading.enumerate()) - others}


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    server = StatusServer(str(tmp_path), counting)
    visitor = Visitor(server.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    server.stop()
    assert not os.listdir(tmp_path)


def test_a_forked_child_lets_go_and_removes_nothing(tmp_path: Path) -> None:
    """Otherwise a visitor that attaches after the parent's end would wait for a thread that is not there."""
    server = StatusServer(str(tmp_path), counting)
    child = os.fork()
    if not child:
        server.forget()
        os._exit(0 if os.path.exists(server.path) and server._listener.fileno() == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    visitor = Visitor(server.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    server.stop()


@pytest.fixture
def long_place(tmp_path: Path) -> Path:
    """A directory in which a socket's path would be too long."""
    place = tmp_path / ("long" * 40)
    place.mkdir()
    assert len(os.fsencode(place / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES
    return place


class LongVisitor(Visitor):
    def __init__(self, path: str) -> None:
        with short_path(path) as name:
            super().__init__(name)


def test_a_path_that_is_too_long_for_a_socket_is_reached_all_the_same(long_place: Path) -> None:
    server = StatusServer(str(long_place), counting)
    assert os.listdir(long_place) == [SOCKET_NAME]
    assert stat.S_IMODE((long_place / SOCKET_NAME).stat().st_mode) == 0o600
    assert find_socket(str(long_place)) == server.path
    visitor = LongVisitor(server.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    server.stop()
    assert not os.listdir(long_place)


def test_the_socket_of_a_killed_process_is_replaced_where_its_path_is_long(long_place: Path) -> None:
    child = os.fork()
    if not child:
        StatusServer(str(long_place), counting)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert find_socket(str(long_place)) is not None
    server = StatusServer(str(long_place), counting)
    visitor = LongVisitor(server.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    server.stop()


def test_no_file_in_a_directory_says_which_socket_is_deleted_or_asked(long_place: Path, tmp_path: Path) -> None:
    """A planted file, or one of a copied directory, pointed to any socket of the user's once."""
    (tmp_path / "warren-sock-x").mkdir()
    victim = StatusServer(str(tmp_path / "warren-sock-x"), counting)
    (long_place / "warren.sock.path").write_text(victim.path + "\n")
    (long_place / SOCKET_NAME).symlink_to(victim.path)
    assert find_socket(str(long_place)) is None
    assert StatusServer.start(str(long_place), counting) is None
    (long_place / SOCKET_NAME).unlink()
    StatusServer(str(long_place), counting).stop()
    visitor = Visitor(victim.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    victim.stop()


def test_who_lost_its_directory_leaves_the_next_ones_socket_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    old = StatusServer(str(tmp_path / "d"), counting)
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").mkdir()
    new = StatusServer(str(tmp_path / "d"), counting)
    old.stop()
    visitor = Visitor(new.path)
    assert visitor.ask()["asked"] == 1
    visitor.close()
    new.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("said", [b"{}\n", b"AMQP\0\0\x09\x01"])
def test_another_user_s_process_is_dropped_whatever_the_socket_s_mode(
    server: StatusServer, tmp_path: Path, said: bytes
) -> None:
    assert is_dropped(tmp_path / SOCKET_NAME, said)
    assert Visitor(server.path).ask(want="x")["asked"] == 1
